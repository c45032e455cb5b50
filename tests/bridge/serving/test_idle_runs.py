"""Runs that have nothing to do, and runs whose exporters all fail, in a service of many folders."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving import active_runs, rotation
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.emit.lineage.train_on import train_on
from otel_bridge.errors import JournalError, RetryableError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import read_report
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    WAIT_S,
    Process,
    options,
    report_when,
    run_folder,
    serving,
    until,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import end, logs_request, metrics_request, row, who
from support.trainers.emit_rollout_doubles import MemoryRun

EVERY = dict.fromkeys(("metrics", "traces", "logs"), ("memory",))


def delivering() -> int:
    return sum(thread.name.startswith("deliver-") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_CHECK_S", 0.02)


def test_an_idle_run_closes_its_writer_keeps_its_lock_and_wakes_with_the_next_frame(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.2)
    ) as host:
        process.log(3)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 3)
        until(lambda: delivering() == 0)
        asleep = (probe(folder.lock_path), host.progress()[folder.run_id].position)

        process.log(2)

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 5)
    assert asleep == (True, 3)
    assert list(recorder.run(folder.run_id).rows) == process.row_ids
    assert not probe(folder.lock_path)


def test_a_run_does_not_sleep_before_the_row_of_a_training_step_is_sent(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    run = MemoryRun()
    how = options(("memory", recorder), exporters=EVERY, idle_s=0.2)
    how = replace(
        how, translation=replace(how.translation, step_watermark_ns=2_000_000_000)
    )
    with serving(tmp_path, how):
        train_on(run, 7, ["a", "b"])
        ((signal, payload),) = run.records
        process.writer.append(Signal(signal), payload, time.time_ns())

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)

    (training,) = recorder.run(folder.run_id).rows.values()
    assert "lineage/consumed" in str(training.values)


def test_the_row_of_a_job_that_was_over_before_its_folder_was_opened_waits_no_longer(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    run = MemoryRun()
    train_on(run, 7, ["a", "b"])
    ((signal, payload),) = run.records
    process.writer.append(Signal(signal), payload, time.time_ns())
    how = options(("memory", recorder), exporters=EVERY)
    how = replace(
        how, translation=replace(how.translation, end_of_stream_wait_ns=10**13)
    )

    with serving(tmp_path, how):
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)


def test_the_ledger_of_a_run_that_sleeps_keeps_no_room_for_records_to_come(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=1.5)):
        process.log(20_000)
        recorder.wait_for(
            lambda recorder: len(recorder.run(folder.run_id).rows) == 20_000
        )
        until(
            lambda: not Path(f"{folder.ledger_path}-wal").exists()
        )  # it has closed its connections

        assert folder.ledger_path.stat().st_size < 200_000


def test_a_run_that_has_ended_sleeps_although_a_receiver_keeps_its_segment_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "ENDED_S", 0.1)
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, kind="receiver")
    said = {**who("i1"), "rl.run.id": folder.run_id}
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=600.0)
    ) as host:
        process.writer.append(
            Signal.METRICS,
            metrics_request((said, [row(1, {"loss": 0.5})])),
            time.time_ns(),
            whole=True,
        )
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        process.writer.append(
            Signal.LOGS,
            logs_request((said, [end("finished", 1, last_row=1)])),
            time.time_ns(),
            whole=True,
        )
        until(lambda: delivering() == 0)
        asleep = (probe(folder.lock_path), host.progress()[folder.run_id].outcome)

        process.writer.append(
            Signal.METRICS,
            metrics_request((said, [row(2, {"loss": 1.0})])),
            time.time_ns(),
            whole=True,
        )

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 2)
    assert asleep == (True, Outcome.BUSY)


def test_a_run_that_sleeps_notices_what_it_is_asked_and_that_its_process_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_runs, "CHECK_S", 0.1)
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.2)):
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        until(lambda: delivering() == 0)

        process.die()

        report = report_when(folder, lambda report: report.ended)
    assert report.status == "killed"


@pytest.mark.long
def test_a_hundred_runs_of_which_one_is_stuck_are_all_delivered_but_that_one(
    tmp_path: Path,
) -> None:
    recorder = RecordingTracker()
    folders = [run_folder(tmp_path, f"run-{number:03d}") for number in range(100)]
    processes = [Process.start(folder, "memory") for folder in folders]
    for process in processes:
        process.log(2)
    recorder.fail(RetryableError("stuck", retry_after_s=500), times=1, kind="open")

    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.5)
    ) as host:
        recorder.wait_for(
            lambda recorder: (
                sum(len(recorder.run(one.run_id).rows) == 2 for one in folders) == 99
            )
        )
        until(lambda: delivering() <= 1)
        stuck = [
            run
            for run in host.progress().values()
            if run.exporters["memory"].state == "retrying"
        ]
        host.drain()
        host.notify()
        assert host.wait(20.0)

    assert len(stuck) == 1
    assert all(len(recorder.run(folder.run_id).rows) == 2 for folder in folders)


def test_while_every_exporter_fails_a_service_does_not_read_ahead_and_then_catches_up_in_order(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    recorder.fail(RetryableError("away", retry_after_s=0.05), times=None)
    process = Process.start(folder, "memory", kind="receiver")
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, lazy=True)
    ) as host:
        process.log(1)
        report_when(
            folder, lambda report: report.exporters["memory"].state == "retrying"
        )
        process.log(20_000)
        until(lambda: host.progress()[folder.run_id].position > 4_000)
        position = report_when(folder, lambda report: report.position > 4_000).position

        recorder.heal()

        recorder.wait_for(
            lambda recorder: len(recorder.run(folder.run_id).rows) == 20_001
        )
    assert position < 20_001
    assert list(recorder.run(folder.run_id).rows) == process.row_ids


def test_of_a_run_that_has_ended_a_service_keeps_no_more_than_how_far_it_was_read(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY)):
        process.end()
        report_when(folder, lambda report: report.ended)
        until(lambda: not probe(folder.lock_path))
        until(lambda: not _bridges_of(folder))

    assert list(recorder.run(folder.run_id).rows) == process.row_ids


def _bridges_of(folder: RunFolder) -> list[RunBridge]:
    gc.collect()
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, RunBridge) and one.folder.path == folder.path
    ]


def open_files(named: str) -> int:
    """Return how many files are open here whose path ends so."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{number}").endswith(named)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")
@pytest.mark.parametrize("idle_s", [0.1, 600.0], ids=["asleep", "at work"])
def test_a_run_whose_folder_is_deleted_holds_no_file_and_one_of_its_name_is_served(
    tmp_path: Path, idle_s: float
) -> None:
    base, recorder, before = (
        tmp_path / "runs",
        RecordingTracker(),
        open_files("bridge.lock (deleted)"),
    )
    folder = run_folder(base)
    process = Process.start(folder, "memory")
    with serving(
        base, options(("memory", recorder), exporters=EVERY, idle_s=idle_s)
    ) as host:
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        until(lambda: host.state().runs_open == (0 if idle_s < 1 else 1))
        process.die()

        shutil.rmtree(folder.path.rename(tmp_path / "gone"))

        until(
            lambda: (
                host.state().runs_open == 0
                and open_files("bridge.lock (deleted)") == before
            )
        )
        new = Process.start(run_folder(base), "memory")
        new.log(2)
        host.notify()
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 3)
    new.die()


def test_a_run_that_cannot_be_woken_at_first_is_served_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_runs, "AGAIN_S", 0.1)
    folder, recorder, refused = run_folder(tmp_path), RecordingTracker(), list[int]()
    process, checked = Process.start(folder, "memory"), RunFolder.check_owner

    def check(one: RunFolder) -> None:
        if refused and refused.pop():
            raise JournalError("belongs to another user")
        checked(one)

    monkeypatch.setattr(RunFolder, "check_owner", check)
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.1)
    ) as host:
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        until(lambda: host.state().runs_open == 0)
        refused.append(1)

        process.log(1)

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 2)
    process.die()
    assert not refused


class SlowToClose:
    """Says that its writer is asked to close, before a writer of a recorder, and closes once it may."""

    def __init__(
        self, inner: RunWriter, asked: threading.Event, may: threading.Event
    ) -> None:
        self._inner, self._asked, self._may = inner, asked, may

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def close(self) -> None:
        self._asked.set()
        self._may.wait(WAIT_S)
        self._inner.close()


def test_a_run_on_its_way_to_sleep_when_the_service_drains_is_finished_too(
    tmp_path: Path,
) -> None:
    folder, recorder, asked, may = (
        run_folder(tmp_path),
        RecordingTracker(),
        threading.Event(),
        threading.Event(),
    )
    process = Process.start(folder, "memory")

    def opened(
        run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> RunWriter:
        return SlowToClose(recorder.exporter.open(run, settings, memory), asked, may)  # type: ignore[return-value]

    chosen = options(("memory", recorder), exporters=EVERY, idle_s=0.1)
    slow = Exporter(
        read_settings=recorder.exporter.read_settings, ordered=True, open=opened
    )
    with serving(
        tmp_path,
        replace(chosen, exporter_env=replace(chosen.exporter_env, load=lambda _: slow)),
    ) as host:
        process.log(1)
        assert asked.wait(WAIT_S)
        host.finish(Status.FINISHED)
        host.drain()
        assert not host.wait(0.1)
        may.set()

        assert host.wait(WAIT_S)

    report = read_report(folder)
    assert report is not None
    assert (report.status, report.ended) == ("finished", True)
    process.die()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")
def test_a_run_that_cannot_be_put_to_sleep_at_first_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder, refused = run_folder(tmp_path), RecordingTracker(), list[int]()
    process, remaining = Process.start(folder, "memory"), RunBridge.remaining

    def refuse(run: RunBridge) -> RunStatus:
        if not refused and run.stopped():
            refused.append(1)
            raise JournalError("disk I/O error")
        return remaining(run)

    monkeypatch.setattr(RunBridge, "remaining", refuse)
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.1)
    ) as host:
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        until(lambda: bool(refused))
        until(
            lambda: (
                host.state().runs_open == 0
                and open_files(os.fspath(folder.ledger_path)) == 0
            )
        )
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 2)
    process.die()
