"""A run whose ledger refuses one thing, on a full or failing disk: nothing is lost, and nothing said that is not so."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.bridge.ingest.retention import FolderRetention
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.report import writer
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.run_outcome import Outcome
from otel_bridge.bridge.serving.shutdown import ShutdownState
from otel_bridge.content.policy import limit_of
from otel_bridge.errors import JournalError, JournalFullError, RetryableError
from otel_bridge.journal.control import is_requested, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.report import read_report
from otel_bridge.records import Record, Status
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    refused,
    run_folder,
    serving,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN
from support.otlp.trace_samples import rollout_spans, scope_spans

Opened = Callable[..., RunBridge]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Open the bridge of the one run; all are closed at the end."""
    bridges: list[RunBridge] = []

    def opening(**recorders: RecordingTracker) -> RunBridge:
        for before in bridges:
            before.close(time.monotonic() + 5)
        bridges.clear()
        bridge = open_bridge(run_folder(tmp_path), options(*recorders.items()))
        bridges.append(bridge)
        return bridge

    yield opening
    for bridge in bridges:
        bridge.close(time.monotonic() + 5)


def turned(bridge: RunBridge, condition: Callable[[], object]) -> None:
    """Let *bridge* work as its host does, failures passed over, until *condition* holds."""

    def poll() -> bool:
        try:
            bridge.poll()
            bridge.write_report()
        except JournalError:
            pass
        return bool(condition())

    until(poll)


@pytest.mark.parametrize("also", ["encoded_state", "sources"])
def test_a_batch_is_read_again_although_the_ledger_could_not_be_read_either(
    opened: Opened, also: str
) -> None:
    recorder = RecordingTracker()
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
    first, second = RecordingTracker(), RecordingTracker()
    bridge = opened(memory=first, second=second)
    process = Process.start(bridge.folder, "memory", "second")
    process.log(5)
    # While the first one writes: what it has written is not what nobody needs.
    refusals = refused(
        bridge.ledger, "view", lambda: "memory" in bridge.workers.by_name, times=5
    )
    process.end()

    turned(bridge, lambda: bridge.outcome() is Outcome.DONE)

    assert (refusals(), written(first), written(second)) == (
        5,
        process.row_ids,
        process.row_ids,
    )


def test_exporters_that_could_not_be_noted_are_noted_later(opened: Opened) -> None:
    recorder = RecordingTracker()
    recorder.fail(RetryableError("down"), times=None)
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(5)
    refusals = refused(bridge.ledger, "set_meta", lambda key, _: key == "exporters")
    process.end()

    turned(bridge, lambda: bridge.outcome() is Outcome.PARKED)

    assert (refusals(), bridge.ledger.view().meta("exporters")) == (
        1,
        {"memory": ["metrics", "traces", "logs"]},
    )


def test_text_that_may_not_leave_is_kept_back_although_that_could_not_be_noted_at_once(
    opened: Opened,
) -> None:
    recorder = RecordingTracker()
    bridge = opened(memory=recorder)
    refusals = refused(
        bridge.ledger, "set_meta", lambda key, _: key == "message_content"
    )
    process = Process.start(bridge.folder, "memory", message_content={"memory": "off"})
    process.log(2)
    turned(bridge, lambda: len(written(recorder)) == 2)

    following = opened(memory=recorder)

    assert (refusals(), following.pipeline.content.of("memory")) == (1, limit_of("off"))
    process.die()


def test_a_bridge_that_could_begin_no_exporter_deletes_nothing_and_ends_nothing(
    opened: Opened,
) -> None:
    recorder = RecordingTracker()
    recorder.fail(RetryableError("down"), times=None)
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(5)
    process.end()
    turned(bridge, lambda: bridge.outcome() is Outcome.PARKED)
    following = opened(memory=recorder)
    refusals = refused(following.ledger, "view", times=float("inf"))
    turned(following, lambda: refusals() > 1)

    assert following.outcome() is Outcome.BUSY
    folder = RunFolder.at(following.folder.path)
    opened(memory=recorder)
    report = read_report(folder)
    assert report is not None
    assert not report.ended


def test_what_is_asked_is_answered_although_something_before_it_could_not_be(
    opened: Opened,
) -> None:
    recorder = RecordingTracker()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    turned(bridge, lambda: len(written(recorder)) == 3)
    refusals = refused(bridge.ledger, "discard_dead_letters")
    send_control(bridge.folder, "discard")
    send_control(bridge.folder, "finish", status="failed")

    turned(bridge, lambda: recorder.run(RUN).status is Status.FAILED)

    assert refusals() == 1
    process.die()


class Killed(BaseException):
    """Ends a bridge where it stands."""


@pytest.mark.parametrize("point", ["request", "end_processes", "done"])
def test_what_was_asked_of_a_bridge_that_is_killed_before_it_is_done_is_done_by_the_next_one(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    recorder = RecordingTracker()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    turned(bridge, lambda: len(written(recorder)) == 3)
    send_control(bridge.folder, "finish", status="failed")
    monkeypatch.setattr(ShutdownState, point, kill)
    with pytest.raises(Killed):
        turned(bridge, lambda: False)
    monkeypatch.undo()

    after = opened(memory=recorder)
    turned(
        after,
        lambda: (
            recorder.run(RUN).status is Status.FAILED and not is_requested(after.folder)
        ),
    )
    process.die()


def test_what_came_and_could_not_be_taken_is_not_said_to_be_drained(
    opened: Opened,
) -> None:
    recorder = RecordingTracker()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    bridge.drain()
    turned(bridge, bridge.drained)
    refusals = refused(
        bridge.ledger, "commit", lambda records, *_: bool(records), times=float("inf")
    )
    process.log(50)

    turned(bridge, lambda: refusals() > 1)

    assert (bridge.drained(), bridge.remaining().unread) == (False, True)
    process.die()


def test_a_report_that_could_not_be_written_is_written_later(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RecordingTracker()
    bridge = opened(memory=recorder)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    write, refusals = writer.write_report, [0]

    def writing(folder: RunFolder, report: Any) -> None:
        if (
            report.exporters
            and report.exporters["memory"].written == 3
            and not refusals[0]
        ):
            refusals[0] += 1
            raise JournalFullError("the disk is full")
        write(folder, report)

    monkeypatch.setattr(writer, "write_report", writing)

    def shown() -> bool:
        report = read_report(bridge.folder)
        return (
            report is not None
            and "memory" in report.exporters
            and report.exporters["memory"].written == 3
        )

    turned(bridge, shown)

    assert refusals == [1]
    process.die()


@pytest.mark.parametrize("how", ["drain", "finish"])
def test_what_waits_when_the_disk_is_full_is_released_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    bridge = open_bridge(folder, _patient(recorder))
    process = Process.start(folder, "memory")
    _append_rollouts(process, 12)
    until(
        lambda: not bridge.poll() and bridge.reader.translator.waiting().rollouts == 12
    )
    commit, prune = bridge.ledger.commit, bridge.ledger.prune
    refusals: list[int] = []
    pruned: list[int] = []

    def full(records: Sequence[Record], *rest: Any) -> None:
        if records and not pruned:
            refusals.append(len(records))
            raise JournalFullError("the disk is full")
        commit(records, *rest)

    def making_room(position: int) -> int:
        if refusals:
            pruned.append(position)
        return prune(position)

    monkeypatch.setattr(bridge.ledger, "commit", full)
    monkeypatch.setattr(bridge.ledger, "prune", making_room)
    if how == "drain":
        bridge.drain()
    else:
        send_control(folder, "finish", status="failed")
    with pytest.raises(JournalFullError):
        until(lambda: bridge.poll() and False)
    until(lambda: not bridge.poll() and bridge.shutdown.paused)
    recorder.wait_for(lambda recorder: len(recorder.run(RUN).rollouts) == 12)
    if how == "finish":
        recorder.wait_for(lambda recorder: recorder.run(RUN).status is Status.FAILED)
    bridge.close(time.monotonic() + 5)


def test_what_cannot_be_deleted_keeps_nothing_from_being_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    monkeypatch.setattr(FolderRetention, "_delete_segments", _refused)
    process = Process.start(folder, "memory")
    with serving(tmp_path, _patient(recorder)) as host:
        _append_rollouts(process, 3)
        host.drain()

        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rollouts) == 3)


def _patient(recorder: RecordingTracker) -> BridgeOptions:
    """Options by which a rollout waits for its step longer than any test."""
    made = options(("memory", recorder))
    return replace(
        made,
        translation=replace(
            made.translation, step_watermark_ns=10**12, trace_timeout_ns=10**13
        ),
    )


def _append_rollouts(process: Process, count: int) -> None:
    for number in range(count):
        process.append(
            Signal.TRACES,
            scope_spans(rollout_spans(f"r{number}", step=1)).SerializeToString(),
        )


def _refused(*_: object, **__: object) -> int:
    raise PermissionError(errno.EACCES, "a read-only file system")
