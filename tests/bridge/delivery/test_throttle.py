"""A writer rests after it wrote all there was: what comes meanwhile goes in one call, and nobody who waits is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_bridge.bridge.delivery import writer_session
from otel_bridge.bridge.delivery.writer_session import Throttle
from otel_bridge.bridge.ingest import segment_reader
from otel_bridge.errors import RetryableError
from otel_bridge.records import Record
from support.bridge.bridge_doubles import (
    Process,
    options,
    report_when,
    run_folder,
    serving,
)
from support.bridge.delivery_bench import Bench, Tracker, end, row
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN


class Clock:
    """Seconds that pass in the tracker's calls only."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.now_s = call_s, 0.0

    def monotonic(self) -> float:
        return self.now_s

    def passes(self, _records: Sequence[Record]) -> Exception | None:
        self.now_s += self.call_s
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.01)
    monkeypatch.setattr(writer_session, "time", clock)
    return clock


@pytest.fixture
def bench(tmp_path: Path, clock: Clock) -> Bench:
    return Bench(tmp_path, Tracker(fails=clock.passes))


def _steps(bench: Bench, count: int) -> list[tuple[float | None, bool]]:
    return [(bench.delivery.step(), bench.delivery.pausing) for _ in range(count)]


@pytest.mark.parametrize(
    ("wrote_s", "wanted", "pause_s"),
    [
        (0.01, True, 0.2),
        (0.01, False, 0.0),
        (0.002, True, 0.0),
        (0.0025, True, 0.05),
        (3.0, True, 0.5),
    ],
)
def test_a_rest_is_twenty_times_the_writing_and_half_a_second_at_most(
    wrote_s: float, wanted: bool, pause_s: float
) -> None:
    once = Throttle()
    once.wrote(wrote_s / 2)
    once.wrote(wrote_s / 2)

    assert once.pause_s(allowed=wanted) == pytest.approx(pause_s)
    assert once.pause_s(allowed=True) == 0.0


def test_what_comes_during_a_rest_goes_in_one_call(bench: Bench) -> None:
    bench.ledger.commit([row(1)])

    first = _steps(bench, 1)
    bench.ledger.commit([row(2)])
    bench.ledger.commit([row(3)])
    after = _steps(bench, 1)

    assert first == [(pytest.approx(0.2), True)]
    assert after == first
    assert [call for call in bench.tracker.calls if call[0] == "rows"] == [
        ("rows", (1,)),
        ("rows", (2, 3)),
    ]
    assert _steps(bench, 1) == [(None, False)]


def test_there_is_not_a_rest_while_more_waits_than_one_window_takes(
    bench: Bench,
) -> None:
    bench.tracker.window_records = 2
    bench.ledger.commit([row(number) for number in range(1, 6)])

    found = _steps(bench, 3)

    assert [pausing for _, pausing in found] == [False] * 2 + [True]
    assert [wait_s for wait_s, _ in found[:2]] == [0.0] * 2
    assert [call for call in bench.tracker.calls if call[0] == "rows"] == [
        ("rows", (1, 2)),
        ("rows", (3, 4)),
        ("rows", (5,)),
    ]


def test_there_is_not_a_rest_while_the_reader_has_more(bench: Bench) -> None:
    bench.more_comes = True
    bench.ledger.commit([row(1)])

    assert _steps(bench, 1) == [(None, False)]


def test_a_backlog_is_written_without_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_session, "LONGEST_PAUSE_S", 3600.0)
    monkeypatch.setattr(writer_session, "PAUSE_FACTOR", 1e12)
    monkeypatch.setattr(segment_reader, "BATCH_FRAMES", 10)
    recorder = RecordingTracker()
    process = Process.start(run_folder(tmp_path), "memory")
    process.log(500)
    with serving(tmp_path, options(("memory", recorder))):
        recorder.wait_for(lambda held: len(held.run(RUN).rows) == 500)


def test_there_is_not_a_rest_before_or_after_the_end(bench: Bench) -> None:
    bench.ledger.commit([row(1), end()])

    assert not any(pausing for _, pausing in _steps(bench, 3))
    assert bench.delivery.exporter_state.state == "ended"


def test_a_failure_is_not_waited_for_as_a_rest(tmp_path: Path, clock: Clock) -> None:
    bench = Bench(
        tmp_path,
        Tracker(fails=lambda records: clock.passes(records) or RetryableError("busy")),
    )
    bench.ledger.commit([row(1)])

    assert [pausing for _, pausing in _steps(bench, 3)] == [False] * 3


def test_what_is_new_does_not_cut_a_rest_short_and_a_flush_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_session, "LONGEST_PAUSE_S", 3600.0)
    monkeypatch.setattr(writer_session, "PAUSE_FACTOR", 1e12)
    recorder, folder = RecordingTracker(), run_folder(tmp_path)
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log()
        recorder.wait_for(lambda held: len(held.run(RUN).rows) == 1)
        for position in (2, 3):
            process.log()
            report_when(
                folder, lambda report, position=position: report.position == position
            )
        process.flush()
        recorder.wait_for(lambda held: len(held.run(RUN).rows) == 3)

    assert [call.positions for call in recorder.calls if call.kind == "rows"] == [
        (1,),
        (2, 3),
    ]
