"""Tests of `Run.train_on` at emission: which shapes name rollouts, and what is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_bridge import Rollout
from otel_bridge.emit.lineage.train_on import train_on
from otel_bridge.records import trace_id_of
from support.trainers.emit_rollout_doubles import MemoryRun, attributes
from support.trainers.emit_samples import run_in


def linked(run: MemoryRun, number: int = 0) -> list[str]:
    """Trace ids of the rollouts that a span links."""
    return [link.trace_id.hex() for link in run.spans[number].links]


def ids(run: MemoryRun, *names: str) -> list[str]:
    return [trace_id_of(run.id, name) for name in names]


@pytest.mark.parametrize(
    "rollouts",
    [
        ["a", "b"],
        ("a", "b", "a"),
        iter(["a", "b"]),
        np.array(["a", "b"]),
        [Rollout(id="a"), {"id": "b", "messages": []}],
        {"ids": ["a", "b"], "rewards": [0.0, 1.0]},
    ],
    ids=["ids", "twice", "iterator", "array", "objects", "columns"],
)
def test_rollouts_are_named_by_ids_objects_or_columns(rollouts: object) -> None:
    run = MemoryRun()

    train_on(run, 7, rollouts)

    assert linked(run) == ids(run, "a", "b")
    assert attributes(run.spans[0]) == {"rl.step": 7}
    assert run.spans[0].name == "rl.train"
    assert not run.drops


def test_one_rollout_needs_no_list_and_a_trace_id_is_the_rollout_itself() -> None:
    run = MemoryRun()

    train_on(run, 1, "a")
    train_on(run, 1, {"id": 5})
    train_on(run, 1, "F" * 32)

    assert [linked(run, number) for number in range(3)] == [
        ids(run, "a"),
        ids(run, "5"),
        ["f" * 32],
    ]


def test_rollouts_that_are_left_out_have_the_reason() -> None:
    run = MemoryRun()

    train_on(run, 2, ["a"], unused={"stale": ["b"], "filtered": []}, role="judge")

    assert [attributes(span) for span in run.spans] == [
        {"rl.step": 2, "rl.role": "judge"},
        {"rl.step": 2, "rl.role": "judge", "rl.train.unused": "stale"},
    ]
    assert linked(run, 1) == ids(run, "b")


def test_rollouts_that_are_left_out_without_a_reason_are_recorded_too() -> None:
    run = MemoryRun()

    train_on(run, 2, ["a"], unused=np.array(["b"]))

    assert linked(run, 1) == ids(run, "b")
    assert attributes(run.spans[1])["rl.train.unused"] == "unknown"
    assert not run.drops


def test_what_names_no_rollout_is_counted() -> None:
    run = MemoryRun()

    train_on(run, 1, [Rollout(), {"reward": 1.0}, None, ""])
    train_on(run, 1, 3.5)
    train_on(run, "first", ["a"])
    train_on(run, 1, None)

    assert dict(run.drops) == {
        "train_rollout_id": 4,
        "train_no_rollouts": 1,
        "bad_step": 1,
    }


def test_a_large_batch_is_several_spans_of_bounded_size() -> None:
    run = MemoryRun()

    train_on(run, 1, map(str, range(25_000)))

    assert [len(span.links) for span in run.spans] == [10_000, 10_000, 5_000]


def test_nothing_raises_and_unknown_arguments_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

        def __iter__(self) -> object:
            raise KeyError

    with run_in(tmp_path) as run:
        run.train_on(1, Odd())
        run.train_on(1, [Odd()])
        run.train_on(1, ["a"], colour="red")
        run.finish(timeout_s=0)
        run.train_on(1, ["a"])

    printed = capsys.readouterr().err
    assert "1: records that otel-bridge failed on" in printed
    assert "1: rollouts in train_on() without an id" in printed
    assert "first 'colour of train_on()'" in printed
