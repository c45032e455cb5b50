"""Delivery, step by step and without a thread: what a tracker is given, in which calls."""

from __future__ import annotations

from pathlib import Path

from otel_bridge.bridge.delivery.batch import calls_of
from otel_bridge.bridge.ledger.codec import encode_value
from otel_bridge.errors import RetryableError
from otel_bridge.records import PlainTrace, Record
from support.bridge.delivery_bench import Bench, Tracker, end, late, rollout, row


def test_an_ordered_tracker_gets_one_kind_a_call_in_the_order_of_the_ledger(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2), rollout(3), row(4), late(5), end()])

    bench.run()

    assert bench.tracker.calls == [
        ("open", (False,)), ("rows", (1, 2)), ("rollouts", (3,)), ("rows", (4,)), ("late", (5,)),
        ("end", ("finished",)), ("close", ()),
    ]  # fmt: skip
    assert (
        bench.delivery.exporter_state.state,
        bench.delivery.exporter_state.written,
    ) == (
        "ended",
        6,
    )
    assert (bench.destination.rows, bench.destination.rollouts) == (3, 1)


def test_a_tracker_without_order_gets_a_window_sorted_by_kind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(ordered=False))
    bench.ledger.commit([row(1), rollout(2), late(3), row(4), rollout(5)])

    bench.run()

    assert bench.tracker.calls == [
        ("open", (False,)),
        ("rows", (1, 4)),
        ("rollouts", (2, 5)),
        ("late", (3,)),
    ]


def test_rollouts_and_plain_traces_in_turn_are_one_call_each_without_an_order() -> None:
    records: list[Record] = []
    for position in (1, 3):
        records.append(rollout(position))
        records.append(PlainTrace(str(position), None, "serve", 1, 2))

    calls = calls_of(records, ordered=False)

    assert [call.records for call in calls] == [records[::2], records[1::2]]


def test_of_a_window_without_order_only_the_calls_that_failed_are_made_again(
    tmp_path: Path,
) -> None:
    errors = [RetryableError("busy")]
    tracker = Tracker(
        ordered=False,
        fails=lambda records: (
            errors.pop() if errors and records[0].position == 2 else None
        ),
    )
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), rollout(2), row(3)])

    bench.delivery.step()
    bench.delivery.step()
    written = bench.delivery.exporter_state.written
    bench.run()

    assert (written, bench.delivery.exporter_state.written) == (0, 3)
    assert [call for call in tracker.calls if call[0] != "open"] == [
        ("rows", (1, 3)),
        ("rollouts", (2,)),
        ("rollouts", (2,)),
    ]


def test_an_exporter_of_metrics_gets_no_rollouts_but_all_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(), ("metrics",))
    bench.ledger.commit([rollout(1), row(2), rollout(3), late(4), end()])

    bench.run()

    assert bench.tracker.calls == [
        ("open", (False,)), ("rows", (2,)), ("late", (4,)), ("end", ("finished",)), ("close", ())
    ]  # fmt: skip


def test_a_run_that_gets_its_name_right_before_its_end_ends_under_that_name(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit(
        [row(1)], [("run", encode_value({"id": "r1", "project": "p", "name": "r1"}))]
    )
    bench.run()

    bench.ledger.commit(
        [row(2), end()],
        [("run", encode_value({"id": "r1", "project": "p", "name": "nice"}))],
    )
    bench.run()

    assert [info.name for info in bench.tracker.infos] == ["r1", "nice"]
    assert bench.tracker.calls[2:] == [
        ("close", ()), ("open", (False,)), ("rows", (2,)), ("end", ("finished",)), ("close", ()),
    ]  # fmt: skip
