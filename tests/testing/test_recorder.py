from __future__ import annotations

import threading
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from support.bridge.recording_tracker import RecordedCall, RecordingTracker


def opened(recorder: RecordingTracker) -> RunWriter:
    run = samples.run_info(Path("runs"))
    return open_writer(
        recorder.exporter,
        run,
        recorder.exporter.read_settings({}, Path()),
        MemoryTable(),
    )


def run_id() -> str:
    return samples.run_info(Path("runs")).id


def test_an_error_at_a_position_keeps_what_is_before_it_and_names_it() -> None:
    recorder = RecordingTracker()
    writer, rows = opened(recorder), samples.placed(samples.rows(5))
    recorder.fail(RetryableError("down", retry_after_s=0.0), position=3, times=2)

    refused = deliver(writer, rows)

    calls = [call for call in recorder.calls if call.kind == "rows"]
    assert refused == []
    assert [(call.positions, call.error is None) for call in calls] == [
        ((1, 2, 3, 4, 5), False),
        ((3, 4, 5), False),
        ((3, 4, 5), True),
    ]
    assert list(recorder.run(run_id()).rows.values()) == rows
    assert recorder.run(run_id()).repeated == 0


def test_a_permanent_error_costs_the_record_it_names() -> None:
    recorder = RecordingTracker()
    recorder.fail(PermanentError("never"), position=2, times=None)

    refused = deliver(opened(recorder), samples.placed(samples.rows(4)))

    assert refused == [2]
    assert [row.position for row in recorder.run(run_id()).rows.values()] == [1, 3, 4]


def test_faults_of_a_kind_hit_only_that_kind_until_they_are_healed() -> None:
    recorder = RecordingTracker()
    recorder.fail(BlockedError("no key", help="log in"), kind="end", times=None)
    writer = opened(recorder)
    writer.write_rows(samples.placed(samples.rows(1)))

    with pytest.raises(BlockedError) as raised:
        writer.end(Status.FINISHED)
    recorder.heal()
    writer.end(Status.FINISHED)

    assert raised.value.help == "log in"
    assert recorder.run(run_id()).status is Status.FINISHED


def test_opening_fails_too() -> None:
    recorder = RecordingTracker()
    recorder.fail(BlockedError("no key"), kind="open")

    with pytest.raises(BlockedError):
        opened(recorder)
    opened(recorder)

    assert [call.error is None for call in recorder.calls] == [False, True]


def test_a_hang_lasts_until_its_event_and_then_the_call_goes_on() -> None:
    recorder, until = RecordingTracker(), threading.Event()
    writer, rows = opened(recorder), samples.placed(samples.rows(2))
    recorder.hang(until, kind="rows")
    thread = threading.Thread(target=writer.write_rows, args=(rows,))
    thread.start()

    recorder.wait_for(
        lambda seen: seen.waiting == [RecordedCall(run_id(), "rows", (1, 2))]
    )
    held = list(recorder.run(run_id()).rows)
    until.set()
    recorder.wait_for(lambda seen: len(seen.run(run_id()).rows) == 2)
    thread.join()

    assert held == []
    assert recorder.calls[-1] == RecordedCall(run_id(), "rows", (1, 2))


def test_waiting_for_what_never_comes_fails_with_the_last_calls() -> None:
    recorder = RecordingTracker()
    opened(recorder)

    with pytest.raises(AssertionError, match="kind='open'"):
        recorder.wait_for(lambda seen: seen.calls == [], timeout_s=0.01)


def test_what_was_not_safe_is_lost_when_a_writer_is_opened_again() -> None:
    recorder = RecordingTracker(reports_durable=True, lag=2)
    first = opened(recorder)
    rows = samples.placed(samples.rows(5))
    deliver(first, rows, held=first.durable())
    before = first.durable()

    second = opened(recorder)
    held = second.durable()
    deliver(second, rows, held=held)

    assert (before, held) == (3, 1)
    assert list(recorder.run(run_id()).rows.values()) == rows


def test_what_comes_again_is_kept_once_and_counted() -> None:
    recorder = RecordingTracker()
    writer, rows = opened(recorder), samples.placed(samples.rows(3))

    writer.write_rows(rows)
    writer.write_rows(rows)

    assert list(recorder.run(run_id()).rows.values()) == rows
    assert recorder.run(run_id()).repeated == 3


def test_the_memory_in_a_file_is_found_by_the_next_writer(tmp_path: Path) -> None:
    memory = MemoryTable(tmp_path / "memory.db")
    memory.put("b", b"1")
    memory.put("a/x", b"2")
    memory.put("b", b"3")
    memory.put("c", b"4")
    memory.delete("c")

    found = MemoryTable(tmp_path / "memory.db")

    assert list(found.items()) == [("a/x", b"2"), ("b", b"3")]
    assert list(found.items("a/")) == [("a/x", b"2")]
    assert (found.get("b"), found.get("a")) == (b"3", None)


def test_equal_arguments_give_equal_samples() -> None:
    assert samples.job() == samples.job()
    assert samples.job(seed="a") != samples.job(seed="b")
    assert [record.position for record in samples.job()] == list(
        range(1, len(samples.job()) + 1)
    )
