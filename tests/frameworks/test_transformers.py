"""TRL itself, a tiny GRPO job: losses stay the same, and each completion arrives once with its rewards."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.trainers.command_runs import call, program, report_of, runs
from support.trainers.framework_programs import (
    GRPO_CALLBACK,
    GRPO_PLAIN,
    GRPO_REPORT_TO,
    GRPO_RESUMED,
    GRPO_SAMPLED_BY_AN_ENGINE,
)
from support.trainers.framework_runs import (
    NEEDS_REAL,
    REAL,
    config_in,
    ends_of,
    framework_environment,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
    summary_in,
)

pytestmark = NEEDS_REAL
MISMATCH = ("tokens/mismatch/mean", "tokens/mismatch/max")
COMPUTED = (
    "train/sampling/sampling_logp_difference/mean",
    "train/sampling/sampling_logp_difference/max",
)


def losses(done: subprocess.CompletedProcess[str]) -> list[list[float | None]]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("losses ")]
    found: list[list[float | None]] = json.loads(line.removeprefix("losses "))
    return found


def groups_of(rollouts: list[dict[str, Any]]) -> list[int]:
    """The sizes of the groups, whose advantages cancel each other."""
    for name in {one["group"] for one in rollouts}:
        group = [one for one in rollouts if one["group"] == name]
        assert sum(one["advantage"] for one in group) == pytest.approx(0, abs=1e-3)
        assert {one["sample"] for one in group} == set(range(len(group)))
        assert len({one["messages"][0]["content"] for one in group}) == 1
    return sorted(Counter(one["group"] for one in rollouts).values())


def test_a_seeded_run_has_the_same_losses_and_each_completion_arrives_once(
    tmp_path: Path,
) -> None:
    plain = run_program(tmp_path / "plain", GRPO_PLAIN, real=True)
    watched = run_program(tmp_path / "watched", GRPO_CALLBACK, real=True)

    assert losses(watched) == losses(plain)
    found = recorded(tmp_path / "watched")
    logged = losses(watched)[:-1]
    assert rows_of(found, "train/loss", "train/reward", "train/grad_norm") == [
        (step, *values[:3]) for step, values in enumerate(logged, 1)
    ]
    assert (
        summary_in(found).keys() >= {"train_runtime", "total_flos"},
        rows_of(found, "train/train_runtime"),
    ) == (
        True,
        [],
    )
    rollouts = rollouts_in(found)
    assert (len(rollouts), groups_of(rollouts)) == (16, [2] * 8)
    for step, values in enumerate(logged, 1):
        lengths = [one["rewards"]["length"] for one in rollouts if one["step"] == step]
        assert sum(lengths) / 4 == pytest.approx(
            values[3]
        )  # not `reward`, which TRL 0.29 logs without weights
        assert all(
            one["reward"]
            == pytest.approx(
                one["rewards"]["length"] + 0.5 * one["rewards"].get("vowels", 0)
            )
            for one in rollouts
        )
    assert sum("vowels" not in one["rewards"] for one in rollouts) == 4
    columns = (
        {"letters"} if "log_extra offered" in watched.stdout else set()
    )  # TRL before 1 has no log_extra
    assert [one["metadata"].keys() for one in rollouts] == [
        columns | {"trained_step.label"}
    ] * 16
    assert all(one["rewards"]["trained_step"] == one["step"] for one in rollouts)
    assert rows_of(found, "lineage/consumed") == [(step, 4) for step in (1, 2, 3, 4)]
    assert {"max_steps": 4, "learning_rate": 0.01}.items() <= config_in(found).items()
    assert config_in(found)["model"]["hidden_size"] == 16
    assert (ends_of(found), report_of(runs(tmp_path / "watched")).name) == (
        ["finished"],
        "tiny",
    )


def test_report_to_with_several_batches_a_step_and_evaluation_records_each_completion_once(
    tmp_path: Path,
) -> None:
    done = run_program(
        tmp_path, GRPO_REPORT_TO, "twice", real=True, WANDB_PROJECT="mine"
    )

    found = recorded(tmp_path)
    assert (
        f"logs {len(rows_of(found, 'train/loss')) + 2}" in done.stdout
    )  # the evaluation, and the end
    assert [step for step, _ in rows_of(found, "train/loss")] == [2, 4]
    assert [step for step, _ in rows_of(found, "eval/reward")] == [5]
    train = [one for one in rollouts_in(found) if one["split"] == "train"]
    assert (Counter(one["step"] for one in train), groups_of(train)) == (
        dict.fromkeys(range(1, 6), 8),
        [2] * 20,
    )
    evaluated = [one for one in rollouts_in(found) if one["split"] == "eval"]
    assert ({one["step"] for one in evaluated}, groups_of(evaluated)) == ({5}, [2, 2])
    assert report_of(runs(tmp_path)).project == "mine"


def trained_by_two_ranks(
    tmp_path: Path, source: str
) -> subprocess.CompletedProcess[str]:
    """Run the program *source* in two ranks, four steps of eight completions."""
    script = program(tmp_path, "train.py", source)
    done = call(
        [REAL, "-m", "torch.distributed.run", "--nproc-per-node=2", script],
        cwd=tmp_path,
        env=framework_environment(tmp_path, real=True),
    )
    assert done.returncode == 0, done.stderr
    return done


def assert_completions_arrived_once(rollouts: list[dict[str, Any]]) -> None:
    """Compare with what two ranks sample: eight a step, in groups of two."""
    assert Counter(rollout["step"] for rollout in rollouts) == dict.fromkeys(
        range(1, 5), 8
    )
    assert groups_of(rollouts) == [2] * 16


def test_of_two_ranks_one_writes_and_the_completions_of_both_arrive_once(
    tmp_path: Path,
) -> None:
    done = trained_by_two_ranks(tmp_path, GRPO_CALLBACK)

    found = recorded(tmp_path)
    assert_completions_arrived_once(rollouts_in(found))
    assert len(rows_of(found, "train/loss")) == 4
    assert done.stderr.count("otel-bridge: huggingface/tiny (") == 1


def test_each_of_two_ranks_records_the_tokens_of_its_own_completions(
    tmp_path: Path,
) -> None:
    trained_by_two_ranks(tmp_path, GRPO_SAMPLED_BY_AN_ENGINE)

    found = recorded(tmp_path)
    rollouts = rollouts_in(found)
    assert_completions_arrived_once(rollouts)
    assert all(one["rewards"]["trained_step"] == one["step"] for one in rollouts)
    assert all("tokens/mismatch/mean" in one["rewards"] for one in rollouts)
    assert rows_of(found, "lineage/consumed", "lineage/uses/max") == [
        (step, 8, 1) for step in (1, 2, 3, 4)
    ]
    # TRL's mean is that of the ranks' means, whatever their numbers of tokens: only its maximum is that of all tokens.
    highest = rows_of(found, "tokens/mismatch/max")
    assert highest == pytest.approx(rows_of(found, COMPUTED[1]), rel=1e-5)
    lengths = rows_of(found, "train/completions/mean_length")
    assert rows_of(found, "tokens/rollouts", "tokens/count") == [
        (step, 8, 8 * length) for step, length in lengths
    ]
    # Rank 1 joins the run with its first tokens, at the end of the first step.
    assert rows_of(found, "time/ranks") == [(1, 1), (2, 2), (3, 2), (4, 2)]
    # The engine has no value for one token of each rank and step.
    assert report_of(runs(tmp_path)).drops == {"token_not_finite": 8}


def test_a_rank_of_another_machine_begins_no_second_run_for_its_tokens(
    tmp_path: Path,
) -> None:
    elsewhere = """
import os
if os.environ["RANK"] == "1":
    os.environ["OTEL_BRIDGE_NODE_RANK"] = "1"
    os.environ["OTEL_BRIDGE_DIR"] = os.path.abspath("elsewhere")
"""

    trained_by_two_ranks(tmp_path, elsewhere + GRPO_SAMPLED_BY_AN_ENGINE)

    tokens = rows_of(recorded(tmp_path), "tokens/rollouts")
    assert tokens == [(step, 4) for step in (1, 2, 3, 4)]
    assert not (tmp_path / "elsewhere").exists()


def test_a_resumed_training_after_a_kill_joins_the_run_of_its_checkpoint_as_a_second_attempt(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, GRPO_RESUMED, real=True, fails=True)
    run_program(tmp_path, GRPO_RESUMED, "resume", real=True)

    found = recorded(tmp_path)
    rows = [
        (one["step"], one["attempt"])
        for one in found
        if "train/loss" in one.get("values", {})
    ]
    assert rows == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2)]
    assert ends_of(found)[-1] == "finished"


def test_the_mismatch_of_engine_and_trainer_is_what_trl_computes(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, GRPO_SAMPLED_BY_AN_ENGINE, real=True)

    found = recorded(tmp_path)
    assert differences(rows_of(found, *MISMATCH)) == differences(
        rows_of(found, *COMPUTED)
    )
    lengths = rows_of(found, "train/completions/mean_length")
    assert rows_of(found, "tokens/count") == [
        (step, 4 * length) for step, length in lengths
    ]


def test_masked_completions_are_left_out_of_the_mismatch_as_trl_does(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, GRPO_SAMPLED_BY_AN_ENGINE, "masked", real=True)

    found = recorded(tmp_path)
    with_tokens = [row for row in rows_of(found, *COMPUTED) if row[1:] != (0.0, 0.0)]
    assert len(with_tokens) < 4
    assert differences(rows_of(found, *MISMATCH)) == differences(with_tokens)


def differences(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Step, mean and maximum of each row: TRL computes with 32-bit floats."""
    assert rows
    return [(step, round(mean, 4), round(highest, 5)) for step, mean, highest in rows]
