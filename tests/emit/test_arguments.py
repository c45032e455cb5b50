"""Calls with any arguments: nothing raises, and what a call does not know is counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import otel_bridge
from otel_bridge.emit.arguments import seconds_of, status_of
from otel_bridge.emit.bridge_process.flush import DeliveryWaiter, FlushOutcome
from otel_bridge.emit.run import Run
from support.trainers.emit_samples import run_in, seen_in

ANY: Any = otel_bridge


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log({"loss": 0.5}, 3, True),
        lambda log: log({"loss": 0.5}, step=3, commit=None, role=None),
        lambda log: log(values={"loss": 0.5}, step=3),
    ],
    ids=["positions", "commit", "names"],
)
@pytest.mark.parametrize("of", ["module", "run"])
def test_a_row_is_recorded_by_positions_and_by_names(
    tmp_path: Path, of: str, call: Callable[[Any], None]
) -> None:
    with run_in(tmp_path) as run:
        call(ANY.log if of == "module" else run.log)

    (seen,) = seen_in(tmp_path)
    assert [(row.step, dict(row.values)) for row in seen.rows] == [(3, {"loss": 0.5})]
    assert [event.name for event in seen.events] == ["rl.run.end"]


def test_the_functions_of_the_package_have_the_signatures_of_the_methods_of_a_run() -> (
    None
):
    for name in ("log", "log_config", "summary", "alert", "rollout", "log_rollouts", "log_generations", "log_reward",
                 "log_rewards", "env", "flush", "finish"):  # fmt: skip
        method = list(inspect.signature(getattr(Run, name)).parameters.values())[1:]
        assert (
            list(inspect.signature(getattr(otel_bridge, name)).parameters.values())
            == method
        ), name


def test_wandb_s_rows_that_do_not_commit_share_the_step_of_the_next_one(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        log: Any = run.log
        log({"a": 1.0})
        log({"b": 2.0}, commit=False)
        log({"c": 3.0})
        log({"d": 4.0})

    (seen,) = seen_in(tmp_path)
    assert [(row.step, dict(row.values)) for row in seen.rows] == [
        (0, {"a": 1.0}), (1, {"b": 2.0}), (1, {"c": 3.0}), (2, {"d": 4.0}),
    ]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_a_row_with_a_step_that_does_not_commit_gives_its_step_to_the_next_row(
    tmp_path: Path, rank: int
) -> None:
    with run_in(tmp_path, rank=rank) as run:
        log: Any = run.log
        log({"a": 0.0}, step=20)
        log({"b": 1.0}, step=30, commit=False)
        assert run.last_step() == 30
        log({}, commit=False)
        log({"c": 1.0})
        log({"d": 1.0})
        log({"e": 1.0}, step=30, commit=False)
        log({"f": 1.0}, step=30)
        log({"g": 1.0})
        log({"h": 1.0}, step=7, commit=False)
        log({}, commit=True)
        log({"i": 1.0})
        log({}, commit=False)
        log({"j": 1.0})

        assert run.last_step() == 9

    if rank == 0:
        (seen,) = seen_in(tmp_path)
        assert [(row.step, *row.values) for row in seen.rows] == [
            (20, "a"), (30, "b"), (30, "c"), (31, "d"), (30, "e"), (30, "f"), (31, "g"), (7, "h"), (8, "i"), (9, "j"),
        ]  # fmt: skip


def test_a_row_that_does_not_commit_inside_another_call_leaves_its_own_step_open(
    tmp_path: Path,
) -> None:
    class Logs:
        def __float__(self) -> float:
            log({"inner": 1.0}, commit=False)
            return 0.5

    with run_in(tmp_path) as run:
        log: Any = run.log
        log({"outer": Logs()})
        log({"a": 1.0})
        log({"b": 1.0})

    (seen,) = seen_in(tmp_path)
    assert [(row.step, *row.values) for row in seen.rows] == [
        (0, "outer"),
        (1, "inner"),
        (1, "a"),
        (2, "b"),
    ]


def test_no_call_raises_whatever_it_is_given_and_what_it_does_not_know_is_counted(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        both: tuple[Any, Any] = (ANY, run)
        for calls in both:
            calls.log()
            calls.log(
                {"loss": 1.0},
                1,
                None,
                "more",
                wall_time=3.5,
                values={"lost": 1.0},
                role=7,
            )
            calls.log_config()
            calls.log_config(lr=1e-6)
            calls.log_rollouts()
            calls.log_rollouts([{"messages": "hi"}], 1, "more", kind="x")
            calls.log_generations(["2+2?"], ["4"], [1.0], ["more"])
            calls.log_reward()
            calls.log_reward("r1", 1.0, reason="why")
            calls.log_rewards()
            calls.log_rewards({"r1": 1.0}, reason="why")
            with calls.rollout("train", step="no number") as rollout:
                rollout.messages = "hi"
                with rollout.tool(), rollout.chat("m", "more"):
                    pass
            calls.env(role=3)
            calls.flush("soon", wait=True)
        with ANY.tool(), ANY.chat("m", "more"):
            pass
        ANY.finish(exit_code=1, timeout_s=0.1, now="x")

    (seen,) = seen_in(tmp_path)
    dropped = seen.event("rl.dropped")
    assert dropped.body == {
        "not_a_mapping": 2, "unknown_argument": 21, "config_not_a_mapping": 2, "evaluation_id": 2,
        "evaluation_not_a_mapping": 2, "rollout_step": 2,
    }  # fmt: skip
    assert dropped.attributes["rl.dropped.keys"]["unknown_argument"] == (
        "wall_time of log()"
    )
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "failed"
    assert [(row.role, dict(row.values)) for row in seen.rows] == [
        ("7", {"loss": 1.0})
    ] * 2


def test_ranks_that_write_no_rows_take_any_arguments_too(tmp_path: Path) -> None:
    with run_in(tmp_path, rank=1) as run:
        log: Any = run.log
        log({"loss": 1.0}, step=4, wall_time=3.5)
        log({"loss": 1.0}, role=["not", "hashable"])

        assert run.last_step() == 4


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, "finished"), ("finished", "finished"), ("FINISHED", "finished"), ("success", "finished"),
        (0, "finished"), (1, "failed"), (True, "finished"), ("killed", "killed"), ("FAILED", "failed"), ([], "failed"),
    ],
)  # fmt: skip
def test_an_end_is_reported_in_the_words_of_any_tracker(
    given: object, status: str
) -> None:
    assert status_of(given) == status


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (5, 5.0),
        (-1, 0.0),
        ("soon", 30.0),
        (float("nan"), 30.0),
        (None, 30.0),
        ([], 30.0),
    ],
)
def test_a_time_that_is_not_a_number_is_the_default(
    given: object, seconds: float
) -> None:
    assert seconds_of(given, 30.0) == seconds


def test_the_first_key_of_each_reason_is_named_cut_and_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Run
    with run_in(tmp_path) as run:
        run.log(
            {
                "train_runtime": None,
                "train/model": "gpt",
                "other": None,
                "nested": {"deep": None},
            }
        )
        run.log(
            {"sk-proj-" + "a1B2" * 12: 1j, "\x1b]52;c;aGk=\x07" + "x" * 200: object()}
        )

    said, (seen,) = capsys.readouterr().err, seen_in(tmp_path)
    keys = seen.event("rl.dropped").attributes["rl.dropped.keys"]
    assert "3: values that are None [none], first 'train_runtime'" in said
    assert "[text], first 'train/model'" in said
    assert "\x1b" not in said
    assert "a1B2" not in said
    assert keys == {
        "none": "train_runtime", "text": "train/model", "complex": "[redacted]",
        "object": ("\\x1b]52;c;aGk=\\x07" + "x" * 200)[:99] + "…",
    }  # fmt: skip


class _NotABoolean:
    """As an array: asking whether it is true raises."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_a_role_and_a_time_that_are_neither_true_nor_false_raise_nothing(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        calls: Any = run
        calls.log({"loss": 1.0}, 3, role=_NotABoolean())
        calls.flush(_NotABoolean())
        calls.finish(timeout_s=_NotABoolean())

    (seen,) = seen_in(tmp_path)
    assert [(row.step, dict(row.values)) for row in seen.rows] == [(3, {"loss": 1.0})]


def test_two_long_roles_that_begin_alike_are_two_short_ones(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        for end in "ab":
            role = "r" * 5000 + end
            run.log({"loss": 1.0}, 3, role=role)
            run.log_reward("id", 1.0, role=role)

    (seen,) = seen_in(tmp_path)
    roles = [row.role for row in seen.rows]
    assert len(set(roles)) == 2
    assert [len(role or "") for role in roles] == [256, 256]
    assert [
        event.attributes["rl.role"]
        for event in seen.events
        if "rl.role" in event.attributes
    ] == roles


@pytest.mark.parametrize("call", ["flush", "finish"])
def test_a_timeout_of_zero_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    waited: list[float] = []
    wait = DeliveryWaiter.wait

    def noted(waiting: DeliveryWaiter, timeout_s: float) -> FlushOutcome:
        waited.append(timeout_s)
        return wait(waiting, 0.0)

    monkeypatch.setattr(DeliveryWaiter, "wait", noted)
    with run_in(tmp_path) as run:
        calls: Any = run
        getattr(calls, call)(timeout_s=0)

    assert waited[0] == 0.0


class _Unreadable:
    """Raises wherever it is read, also as a key."""

    def __str__(self) -> str:
        raise ValueError("odd")

    __repr__ = __hash__ = __iter__ = __len__ = __float__ = __bool__ = __eq__ = __str__  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


class _UnreadableText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("odd")

    __hash__ = __str__  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def test_what_cannot_be_read_costs_itself_alone_and_is_counted_with_its_own_reason(
    tmp_path: Path,
) -> None:
    longer_than_python_prints = 1 << 20_000
    with run_in(tmp_path) as run:
        calls: Any = run
        calls.log({"loss": 1.0}, 1, time_unix_ns=longer_than_python_prints)
        calls.log({"loss": 1.0}, 2, role=_UnreadableText("critic"))
        calls.log_config({"seed": longer_than_python_prints, "lr": 0.1})
        calls.log_reward(_Unreadable(), 1.0)
        calls.log_reward("r1", "good", explanation=_Unreadable())
        calls.log_reward("r2", _Unreadable())
        calls.log_rollouts(5)
        calls.log_rollouts("not rollouts")

    (seen,) = seen_in(tmp_path)
    config = seen.event("rl.run.config").body
    assert [row.step for row in seen.rows] == [1, 2]
    assert (config["lr"], config["seed"]) == (0.1, hex(longer_than_python_prints))
    assert (
        seen.event("gen_ai.evaluation.result").attributes[
            "gen_ai.evaluation.explanation"
        ]
        == "_Unreadable"
    )
    assert seen.event("rl.dropped").body == {
        "bad_time": 1, "evaluation_id": 1, "evaluation_value": 1, "rollout_no_mapping": 2,
    }  # fmt: skip
    assert seen.event("rl.dropped").attributes["rl.dropped.keys"] == {
        "bad_time": "int", "evaluation_value": "r2", "rollout_no_mapping": "int",
    }  # fmt: skip
