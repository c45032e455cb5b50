"""A ledger that refuses one thing once, on a full or failing disk: nothing is lost, and nothing said that is not so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bridge_doubles import Process, options, run_folder, until, written
from delivery_bench import Bench, Tracker, end, late, rollout, row
from otlp_samples import RUN

from otel_bridge.bridge import report_writer
from otel_bridge.bridge.rest import Rest
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.sleeping import drained
from otel_bridge.bridge.worker import Worker
from otel_bridge.errors import JournalError, JournalFullError, PermanentError, RetryableError
from otel_bridge.journal.ask import ask
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import read_report
from otel_bridge.otlp_content import limit_of
from otel_bridge.records import Status
from otel_bridge.testing.memory import Recorder

Opened = Callable[..., RunBridge]


def refused(
    owner: object, name: str, when: Callable[..., bool] = lambda *_: True, *, times: float = 1
) -> Callable[[], int]:
    """Let method *name* of *owner* refuse the first *times* calls that are *when*; return how often it did."""
    real, hits = getattr(owner, name), [0]

    def refusing(*args: Any, **named: Any) -> Any:
        if hits[0] < times and when(*args):
            hits[0] += 1
            raise JournalFullError("database or disk is full")
        return real(*args, **named)

    setattr(owner, name, refusing)
    return lambda: hits[0]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Open the bridge of the one run; all are closed at the end."""
    bridges: list[RunBridge] = []

    def opening(**recorders: Recorder) -> RunBridge:
        for before in bridges:
            before.close(time.monotonic() + 5)
        bridges.clear()
        bridge = RunBridge(run_folder(tmp_path), options(*recorders.items()), wake=lambda: None, say=lambda _: None)
        bridge.open()
        bridges.append(bridge)
        return bridge

    yield opening
    for bridge in bridges:
        bridge.close(time.monotonic() + 5)


def turned(bridge: RunBridge, condition: Callable[[], object]) -> None:
    """Let *bridge* work as its host does, failures passed over, until *condition* holds."""

    def turn() -> bool:
        try:
            bridge.turn()
            bridge.write_report()
        except JournalError:
            pass
        return bool(condition())

    until(turn)


def _wrote(position: int) -> Callable[..., bool]:
    return lambda at: at.written == position


# --- one exporter -----------------------------------------------------------------------------------------------------


def test_a_full_ledger_that_cannot_take_a_dead_letter_loses_nothing_of_its_call(tmp_path: Path) -> None:
    def fails(records: object) -> Exception | None:
        return PermanentError("no", position=4) if any(one.position == 4 for one in records) else None  # type: ignore[attr-defined]

    bench = Bench(tmp_path, Tracker(fails=fails))
    wide = {f"t/k{number}": 0.5 for number in range(3000)}
    bench.ledger.commit([replace(row(number), values=wide) for number in range(1, 11)])
    with bench.ledger.database.transaction() as sql:
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count={pages}")
    for _ in range(20):
        bench.delivery.step()
    with bench.ledger.database.transaction() as sql:
        sql.execute("PRAGMA max_page_count=1000000")

    bench.run()

    assert set(bench.tracker.kept) == {1, 2, 3, 5, 6, 7, 8, 9, 10}
    assert bench.dead() == [(4, "no")]
    assert (bench.delivery.progress.written, bench.delivery.progress.rows) == (10, 9)


def test_a_call_that_failed_is_made_again_although_what_was_put_off_could_not_be_noted(tmp_path: Path) -> None:
    tracker, calls = Tracker(), [0]
    tracker.put_off = 0  # type: ignore[attr-defined]  # a writer that puts off

    def fails(_: object) -> Exception | None:
        calls[0] += 1
        if calls[0] != 2:
            return None
        tracker.put_off = 1  # type: ignore[attr-defined]
        return RetryableError("the tracker is down")

    tracker.fails = fails
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), row(2), rollout(3), rollout(4), row(5), row(6)])
    refusals = refused(bench.ledger, "save", lambda at: at.put_off == 1)

    bench.run()

    assert (refusals(), set(tracker.kept)) == (1, {1, 2, 3, 4, 5, 6})


def test_a_writer_that_opened_where_that_could_not_be_noted_is_opened_again(tmp_path: Path) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 9)])
    write = tracker._write

    def keeping(kind: str, records: Any) -> None:
        write(kind, records)
        tracker.holds = records[-1].position

    tracker._write = keeping  # type: ignore[method-assign]
    bench.run()
    bench.delivery.close()
    tracker.kept, tracker.holds = tracker.kept[:3], 3  # its store lost what lay behind
    bench.begin()
    bench.ledger.commit([row(9)])
    refusals = refused(bench.ledger, "save", _wrote(3))

    bench.run()

    assert (refusals(), set(tracker.kept)) == (1, set(range(1, 10)))


def test_a_run_whose_opening_could_not_be_noted_is_ended_by_the_next_bridge(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1)])
    refusals = refused(bench.ledger, "save", lambda at: at.opened)
    bench.run()
    bench.delivery.close()
    bench.begin()
    bench.ledger.commit([late(7), end(1)])

    bench.run()

    assert (refusals(), bench.tracker.calls[-3:]) == (1, [("late", (2,)), ("end", ("finished",)), ("close", ())])


def test_rows_are_counted_although_it_could_not_be_noted_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(number) for number in range(1, 101)])
    refusals = refused(bench.ledger, "save", _wrote(100))

    bench.run()

    assert (refusals(), bench.delivery.progress.written, bench.delivery.progress.rows) == (1, 100, 100)


def test_a_dead_letter_that_was_written_is_written_once_although_that_could_not_be_noted(tmp_path: Path) -> None:
    bad = [True]

    def fails(records: Any) -> Exception | None:
        refuses = bad[0] and records[0].position == 2
        return PermanentError("no", position=2) if refuses else None

    bench = Bench(tmp_path, Tracker(fails=fails))
    for number in (1, 2, 3):
        bench.ledger.commit([row(number)])
        bench.run()
    bad[0] = False
    before, refusals = len(bench.tracker.calls), refused(bench.ledger, "exhume")
    bench.delivery.letters.ask([1])

    bench.run()
    bench.run()

    assert (refusals(), bench.dead(), bench.delivery.progress.rows) == (1, [], 3)
    assert [kind for kind, _ in bench.tracker.calls[before:]].count("rows") == 1


def test_the_thread_of_an_exporter_outlives_a_bound_that_could_not_be_noted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(holds=0))
    bench.ledger.commit([row(number) for number in range(1, 9)])
    worker = Worker(bench.delivery, progressed=lambda: None)
    worker.start()
    until(lambda: worker.progress.written == 8)
    refusals = refused(bench.ledger, "save", lambda at: at.safe > 0)
    worker.let_go(4)
    until(lambda: refusals() == 1)
    bench.ledger.commit([row(number) for number in range(9, 12)])

    until(lambda: worker.poke(retry=True) or worker.progress.written == 11)

    worker.stop()
    assert worker.join(5)


# --- one run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", ["encoded_state", "sources"])
def test_a_batch_is_read_again_although_the_ledger_could_not_be_read_either(opened: Opened, also: str) -> None:
    recorder = Recorder()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory", segment_bytes=4000)
    process.log(2)
    turned(bridge, lambda: len(written(recorder)) == 2)
    commits = refused(bridge.ledger, "commit", lambda records, *_: bool(records))
    reads = refused(bridge.reader._view, also, lambda: commits() == 1)
    process.log(200)

    turned(bridge, lambda: len(written(recorder)) == 202)

    assert (commits(), reads(), written(recorder)) == (1, 1, process.row_ids)
    process.die()


def test_an_exporter_whose_lane_could_not_begin_begins_later(opened: Opened) -> None:
    first, second = Recorder(), Recorder()
    bridge = opened(memory=first, second=second)
    process = Process.start(bridge.folder, "memory", "second")
    process.log(5)
    asked: list[None] = []
    refusals = refused(bridge.ledger, "view", lambda: asked.append(None) or len(asked) == 2)
    process.end()

    turned(bridge, lambda: bridge.rest() is Rest.DONE)

    assert (refusals(), written(first), written(second)) == (1, process.row_ids, process.row_ids)


def test_exporters_that_could_not_be_noted_are_noted_later(opened: Opened) -> None:
    recorder = Recorder()
    recorder.fail(RetryableError("down"), times=None)
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(5)
    refusals = refused(bridge.ledger, "set_meta", lambda key, _: key == "exporters")
    process.end()

    turned(bridge, lambda: bridge.rest() is Rest.PARKED)

    assert (refusals(), bridge.ledger.view().meta("exporters")) == (1, {"memory": ["metrics", "traces", "logs"]})


def test_text_that_may_not_leave_is_kept_back_although_that_could_not_be_noted_at_once(opened: Opened) -> None:
    recorder = Recorder()
    bridge = opened(memory=recorder)
    refusals = refused(bridge.ledger, "set_meta", lambda key, _: key == "message_content")
    process = Process.start(bridge.folder, "memory", message_content={"memory": "off"})
    process.log(2)
    turned(bridge, lambda: len(written(recorder)) == 2)

    following = opened(memory=recorder)

    assert (refusals(), following._content.of("memory")) == (1, limit_of("off"))
    process.die()


def test_a_bridge_that_could_begin_no_exporter_deletes_nothing_and_ends_nothing(opened: Opened) -> None:
    recorder = Recorder()
    recorder.fail(RetryableError("down"), times=None)
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(5)
    process.end()
    turned(bridge, lambda: bridge.rest() is Rest.PARKED)
    following = opened(memory=recorder)
    refusals = refused(following.ledger, "view", times=float("inf"))
    turned(following, lambda: refusals() > 1)

    assert following.rest() is Rest.BUSY
    folder = RunFolder.at(following.folder.path)
    opened(memory=recorder)
    report = read_report(folder)
    assert report is not None
    assert not report.ended


def test_what_is_asked_is_answered_although_something_before_it_could_not_be(opened: Opened) -> None:
    recorder = Recorder()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    turned(bridge, lambda: len(written(recorder)) == 3)
    refusals = refused(bridge.ledger, "discard_dead_letters")
    ask(bridge.folder, "discard")
    ask(bridge.folder, "finish", status="failed")

    turned(bridge, lambda: recorder.run(RUN).status is Status.FAILED)

    assert refusals() == 1
    process.die()


def test_what_came_and_could_not_be_taken_is_not_said_to_be_drained(opened: Opened) -> None:
    recorder = Recorder()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    bridge.drain()
    turned(bridge, lambda: drained(bridge))
    refusals = refused(bridge.ledger, "commit", lambda records, *_: bool(records), times=float("inf"))
    process.log(50)

    turned(bridge, lambda: refusals() > 1)

    assert (drained(bridge), bridge.remaining().unread) == (False, True)
    process.die()


def test_a_report_that_could_not_be_written_is_written_later(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    write, refusals = report_writer.write_report, [0]

    def writing(folder: RunFolder, report: Any) -> None:
        if report.exporters and report.exporters["memory"].written == 3 and not refusals[0]:
            refusals[0] += 1
            raise JournalFullError("the disk is full")
        write(folder, report)

    monkeypatch.setattr(report_writer, "write_report", writing)

    def shown() -> bool:
        report = read_report(bridge.folder)
        return report is not None and "memory" in report.exporters and report.exporters["memory"].written == 3

    turned(bridge, shown)

    assert refusals == [1]
    process.die()
