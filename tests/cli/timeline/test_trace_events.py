"""Tests of the trace events and bars that are made of a timeline, and of the clocks of machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_bridge.bridge.ledger.timeline import TimelineStep
from otel_bridge.cli.timeline.bars import bars_of
from otel_bridge.cli.timeline.clocks import align
from otel_bridge.cli.timeline.trace_events import trace_of
from otel_bridge.translation.phases.step_times import TimelineEvent

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000


def phase(
    name: str, start_s: float, end_s: float, rank: int = 0, **facts: Any
) -> TimelineEvent:
    times = T0 + round(start_s * S), T0 + round(end_s * S)
    return TimelineEvent(
        "phase", name, f"i{rank}", *times, {"rank": rank, "host": "", **facts}
    )


def span(
    kind: str, name: str, start_s: float, end_s: float, track: str = "", **facts: Any
) -> TimelineEvent:
    return TimelineEvent(
        kind, name, track, T0 + round(start_s * S), T0 + round(end_s * S), facts
    )


def spans_of(trace: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """Thread, name, start and duration in seconds of every span."""
    threads = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return [
        (threads[event["tid"]], event["name"], seconds(event), event["dur"] / 1e6)
        for event in spans
    ]


def seconds(event: Mapping[str, Any]) -> float:
    return (event["ts"] * 1000 - T0) / S


def test_each_rank_is_a_thread_with_its_nested_phases() -> None:
    step = TimelineStep(
        "trainer",
        3,
        [phase("forward", 1, 2), phase("train", 0, 4), phase("train", 0, 5, 1)],
    )

    assert spans_of(trace_of([step])) == [
        ("rank 0", "train", 0.0, 4.0), ("rank 0", "forward", 1.0, 1.0), ("rank 1", "train", 0.0, 5.0),
    ]  # fmt: skip


def test_phases_that_do_not_nest_have_threads_of_their_own() -> None:
    step = TimelineStep(
        "trainer", 3, [phase("a", 0, 2), phase("b", 1, 3), phase("c", 3, 4)]
    )

    assert spans_of(trace_of([step])) == [
        ("rank 0", "a", 0.0, 2.0), ("rank 0, 2", "b", 1.0, 2.0), ("rank 0", "c", 3.0, 1.0),
    ]  # fmt: skip


def test_rollouts_have_lanes_with_their_turns_tools_and_reward() -> None:
    events = [
        span("rollout", "aaaaaaaaaa", 0, 4, reward=0.5), span("turn", "chat", 0, 2, "aaaaaaaaaa"),
        span("tool", "add", 2, 3, "aaaaaaaaaa"), span("rollout", "bbbbbbbbbb", 1, 3),
        span("turn", "chat", 1, 2, "bbbbbbbbbb"), span("rollout", "cccccccccc", 4, 5),
    ]  # fmt: skip

    trace = trace_of([TimelineStep("explorer", 1, events)])

    assert spans_of(trace) == [
        ("lane", "rollout aaaaaaaa", 0.0, 4.0), ("lane", "chat", 0.0, 2.0),
        ("lane, 2", "rollout bbbbbbbb", 1.0, 2.0), ("lane, 2", "chat", 1.0, 1.0),
        ("lane", "add", 2.0, 1.0), ("lane", "rollout cccccccc", 4.0, 1.0),
    ]  # fmt: skip
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"] == [
        "reward 0.5"
    ]


def test_rows_mark_steps_and_draw_rates_and_weight_syncs_are_marked() -> None:
    step = TimelineStep(
        "trainer", 3, [phase("sync_weights", 0, 1), span("mark", "", 2, 2, rate=7.0)]
    )

    events = [event for event in trace_of([step])["traceEvents"] if event["ph"] in "iC"]

    assert [(event["ph"], event["name"], seconds(event)) for event in events] == [
        ("i", "step 3", 2.0), ("C", "rate", 2.0), ("i", "sync_weights done", 1.0),
    ]  # fmt: skip


def test_only_phases_that_update_weights_are_marked() -> None:
    names = [
        "sync",
        "weight-sync",
        "update_weights",
        "async_generate",
        "weighted_loss",
        "actor/sync_1",
    ]
    step = TimelineStep(
        "trainer", 3, [phase(name, at, at + 1) for at, name in enumerate(names)]
    )

    marks = [
        event["name"] for event in trace_of([step])["traceEvents"] if event["ph"] == "i"
    ]

    assert marks == [
        "sync done",
        "weight-sync done",
        "update_weights done",
        "actor/sync_1 done",
    ]


def test_a_bar_is_of_the_last_attempt_of_its_step() -> None:
    again = phase("generate", 100, 102, 1, attempt=2)
    helper = phase("load", 100, 101, 2, attempt=2, forked=True)
    step = TimelineStep("trainer", 1, [phase("generate", 0, 9), again, helper])

    _, bar = [line.plain for line in bars_of([step], 20)]

    assert bar.split()[:2] == ["1", "2.000"]


def test_a_machine_whose_clock_is_ahead_is_moved_back_and_the_error_is_named() -> None:
    arrivals = [5.02, 6.05, 7.03]
    late = [
        phase("train", at + 4, at + 5, 1, host="far", received_ns=T0 + round(at * S))
        for at in arrivals
    ]
    ahead = TimelineStep("trainer", 0, [phase("train", 0, 5), *late])

    clocks = align([ahead])

    assert clocks["far"].shift_ns == -5 * S
    assert (
        clocks["far"].note()
        == "clock of far: 5.000 s ahead of the receiver's, aligned within 0 ms"
    )
    assert [event.end_ns - T0 for event in ahead.events] == [
        5 * S,
        *(round(at * S) for at in arrivals),
    ]


def test_a_delay_of_batches_moves_no_clock_and_is_its_error() -> None:
    step = TimelineStep(
        "trainer",
        0,
        [phase("train", 0, 5, host="far", received_ns=T0 + round(5.2 * S))],
    )

    clock = align([step])["far"]

    assert (clock.shift_ns, clock.note()) == (
        0,
        "clock of far: as the receiver's, within 200 ms",
    )


def test_a_bar_has_the_shares_of_its_phases_and_names_a_slow_rank() -> None:
    nested = phase("forward", 1, 2, outer="train")
    steps = [
        TimelineStep("trainer", 1, [phase("generate", 0, 1), phase("train", 1, 2), nested]),
        TimelineStep("trainer", 2, [phase("generate", 0, 1), phase("generate", 0, 3, 1), phase("train", 3, 4)]),
    ]  # fmt: skip

    legend, first, second = [line.plain for line in bars_of(steps, 20)]

    assert legend.split() == ["█", "generate", "▓", "train", "·", "idle"]
    assert first == "       1     2.000 s  " + "█" * 6 + "▓" * 5 + " " * 9
    assert second.endswith("rank 1: 3.0x in generate")
    assert (
        bars_of([TimelineStep("explorer", 1, [span("rollout", "a", 0, 1)])], 20) == []
    )


def test_a_name_with_a_line_break_stays_in_its_line() -> None:
    step = TimelineStep("trainer", 1, [phase("a\nb", 0, 1)])

    legend, _ = [line.plain for line in bars_of([step], 20)]

    assert legend.split() == ["█", r"a\nb", "·", "idle"]
