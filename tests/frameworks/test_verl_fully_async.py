"""verl's fully asynchronous mode as a job: its trainer and its rollouter are two Ray actors, and one run."""

from __future__ import annotations

from pathlib import Path

from support.trainers.framework_runs import (
    NEEDS_REAL,
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)
from support.trainers.verl_fully_async import VERL_FULLY_ASYNC

pytestmark = NEEDS_REAL


def test_trainer_and_rollouter_are_one_run_each_on_its_own_steps_and_the_run_ends_finished(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_FULLY_ASYNC, real=True)

    found = recorded(tmp_path)
    assert {(one["role"], one["axis"]) for one in found if one["kind"] == "row"} == {
        ("trainer", "trainer/step"),
        ("rollouter", "rollouter/step"),
    }
    # Means of the updates 1, and 2 and 3: verl logs a version before its aggregator has the last update.
    assert rows_of(found, "trainer/actor/loss") == [(1, 1.0), (2, 2.5)]
    validations = rows_of(
        found, "trainer/val-core/sums/reward/mean@1", "trainer/rollouter/validate_time"
    )
    assert [(step, mean) for step, mean, _ in validations] == [
        (0, 0.25),
        (1, 0.25),
        (2, 0.25),
    ]
    versions = rows_of(found, "trainer/fully_async/rollouter/active_time")
    assert [step for step, _ in versions] == [0, 1, 2]

    evaluated = [one for one in rollouts_in(found) if one["role"] == "rollouter"]
    assert ({one["split"] for one in evaluated}, len(evaluated)) == ({"eval"}, 6)
    assert {one["messages"][0]["content"] for one in evaluated} == {"1+1=", "0+0="}
    trained = [one for one in rollouts_in(found) if one["role"] == "trainer"]
    assert [one["step"] for one in trained] == [1] * 8 + [2] * 8
    rewards: dict[str, list[float]] = {}
    for one in trained:
        rewards.setdefault(one["group"], []).append(one["reward"])
    assert rewards == {f"uid_sample_0_{number}": [0.0, 0.5] for number in range(1, 9)}
    assert all((one["advantage"] > 0) is (one["reward"] == 0.5) for one in trained)
    assert {one["policy_version"] for one in trained} <= {0, 1}
    assert config_in(found)["async_training"]["trigger_parameter_sync_step"] == 2
    assert ends_of(found) == ["finished"]


def test_an_exception_in_the_trainer_ends_the_run_as_failed(tmp_path: Path) -> None:
    run_program(tmp_path, VERL_FULLY_ASYNC, "fails", real=True, fails=True)

    found = recorded(tmp_path)
    assert (rows_of(found, "trainer/actor/loss"), ends_of(found)) == (
        [(1, 1.0)],
        ["failed"],
    )
