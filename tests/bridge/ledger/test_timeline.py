"""Tests of the timeline in the ledger: one transaction with the records, its limit, and what is deleted first."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.bridge.ledger.database import open_for_reading
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.ledger.timeline import TimelineStep, read_timeline
from otel_bridge.errors import JournalError
from otel_bridge.records import RolloutRecord, Row, Span
from otel_bridge.translation.phases.step_times import TimelineEvent, TimelinePhase

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
ALL = (-1, 1 << 62)


def phase(
    step: int, seconds: float = 1.0, rank: int = 0, **further_facts: object
) -> TimelinePhase:
    start_ns = T0 + step * 100 * S
    facts = {"rank": rank, "host": "node1", **further_facts}
    end_ns = start_ns + round(seconds * S)
    event = TimelineEvent("phase", "train", f"i{rank}", start_ns, end_ns, facts)
    return "trainer", step, event


def mark(step: int, **values: float) -> Row:
    return Row(
        f"m:i0:{step}",
        "trainer",
        step,
        "trainer/step",
        T0 + step * 100 * S,
        values or {"trainer/loss": 1.0},
    )


def rollout(trace: str, step: int) -> RolloutRecord:
    start_ns = T0 + step * 100 * S
    spans = [
        Span("a", None, "rollout", "span", start_ns, start_ns + S),
        Span("b", "a", "chat policy", "generation", start_ns, start_ns + S // 2),
        Span("c", "a", "execute_tool add", "tool", start_ns + S // 2, start_ns + S),
    ]
    return RolloutRecord(
        trace,
        "explorer",
        "explorer/rollouts",
        step,
        "explorer/step",
        start_ns,
        start_ns + S,
        spans=spans,
        reward=0.5,
    )


def read(path: Path, first: int = ALL[0], last: int = ALL[1]) -> list[TimelineStep]:
    with contextlib.closing(open_for_reading(path)) as reader:
        return read_timeline(reader, first, last)


def kinds(steps: list[TimelineStep]) -> list[tuple[str, int, list[str]]]:
    return [
        (step.role, step.step, [event.kind for event in step.events]) for step in steps
    ]


def test_phases_rollouts_and_rows_are_read_by_role_and_step(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=1 << 20)) as ledger:
        ledger.commit([], phases=[phase(1), phase(1, rank=1)])
        ledger.commit(
            [rollout("t1", 3), mark(1, **{"trainer/tokens_per_s": 9.5})],
            phases=[phase(2)],
        )

    assert kinds(read(path)) == [
        ("explorer", 3, ["rollout", "turn", "tool"]), ("trainer", 1, ["phase", "phase", "mark"]),
        ("trainer", 2, ["phase"]),
    ]  # fmt: skip
    assert kinds(read(path, 2, 2)) == [("trainer", 2, ["phase"])]
    first, second = read(path, 1, 1)[0].events[:2]
    assert (first.name, first.track, first.end_ns - first.start_ns, first.facts) == (
        "train", "i0", S, {"rank": 0, "host": "node1"},
    )  # fmt: skip
    assert second.facts["rank"] == 1
    assert read(path, 1, 1)[0].events[2].facts == {"trainer/tokens_per_s": 9.5}


def test_a_phase_names_its_attempt_and_a_forked_child(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=1 << 20)) as ledger:
        ledger.commit([], phases=[phase(1, attempt=2, forked=True)])

    assert read(path)[0].events[0].facts == {
        "rank": 0,
        "host": "node1",
        "attempt": 2,
        "forked": True,
    }


def test_rows_alone_make_no_timeline(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=1 << 20)) as ledger:
        ledger.commit([mark(1)])

    assert read(path) == []


def test_a_batch_that_is_not_committed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=1 << 20)) as ledger:
        ledger.commit([], phases=[phase(1)])
        with pytest.raises(JournalError):
            ledger.commit([], changes=[("key", object())], phases=[phase(2)])  # type: ignore[list-item]

    assert [step.step for step in read(path)] == [1]


def test_the_newest_and_the_slowest_steps_are_kept_longest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    slow = {7, 30, 55}
    with contextlib.closing(Ledger(path, timeline_bytes=4_000)) as ledger:
        for step in range(100):
            ledger.commit([], phases=[phase(step, 50.0 if step in slow else 1.0)])

    steps = [step.step for step in read(path)]
    assert slow <= {*steps}
    assert steps[-8:] == [*range(92, 100)]
    assert len(steps) < 30


def test_the_limit_holds_after_a_restart_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for begin in (0, 50):
        with contextlib.closing(Ledger(path, timeline_bytes=4_000)) as ledger:
            for step in range(begin, begin + 50):
                ledger.commit([], phases=[phase(step)])

    assert 10 < len(read(path)) < 30


def test_a_step_that_is_too_large_is_deleted_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=4_000)) as ledger:
        for step in range(10):
            ledger.commit([], phases=[phase(step)])
        ledger.commit([], phases=[phase(10, rank=rank) for rank in range(200)])

    assert [step.step for step in read(path)] == [*range(10)]


def test_of_rollouts_without_a_step_the_newest_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(Ledger(path, timeline_bytes=8_000)) as ledger:
        ledger.commit([], phases=[phase(0), phase(1, 500.0)])
        for number in range(100):
            ledger.commit([replace(rollout(f"t{number}", number), step=None)])

    without_step, *steps = read(path)
    names = [event.name for event in without_step.events if event.kind == "rollout"]
    assert names == [f"t{number}" for number in range(100 - len(names), 100)]
    assert 10 < len(names) < 40
    assert [step.step for step in steps] == [0, 1]
