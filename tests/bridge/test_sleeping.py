"""Runs that have nothing to do, and runs whose exporters all fail, in a service of many folders."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bridge_doubles import Process, options, report_when, run_folder, serving, until
from otlp_samples import end, logs_request, metrics_request, row, who

from otel_bridge.bridge import sleeping
from otel_bridge.bridge.rest import Rest
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.errors import RetryableError
from otel_bridge.exporter import Exporter, ExporterSettings, Memory, RunInfo, RunWriter
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.locks import probe
from otel_bridge.testing.memory import Recorder

EVERY = dict.fromkeys(("metrics", "traces", "logs"), ("memory",))


def delivering() -> int:
    return sum(thread.name.startswith("deliver-") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "_EVERY_S", 0.02)


def test_an_idle_run_closes_its_writer_keeps_its_lock_and_wakes_with_the_next_frame(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), Recorder()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.2)) as host:
        process.log(3)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 3)
        until(lambda: delivering() == 0)
        asleep = (probe(folder.lock_path), host.progress()[folder.run_id].position)

        process.log(2)

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 5)
    assert asleep == (True, 3)
    assert list(recorder.run(folder.run_id).rows) == process.row_ids
    assert not probe(folder.lock_path)


def test_the_ledger_of_a_run_that_sleeps_keeps_no_room_for_records_to_come(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), Recorder()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=1.5)):
        process.log(20_000)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 20_000)
        until(lambda: not Path(f"{folder.ledger_path}-wal").exists())  # it has closed its connections

        assert folder.ledger_path.stat().st_size < 200_000


def test_a_run_that_has_ended_sleeps_although_a_receiver_keeps_its_segment_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeping, "_ENDED_S", 0.1)
    folder, recorder = run_folder(tmp_path), Recorder()
    process = Process.start(folder, kind="receiver")
    said = {**who("i1"), "rl.run.id": folder.run_id}
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=600.0)) as host:
        process.writer.append(
            Signal.METRICS, metrics_request((said, [row(1, {"loss": 0.5})])), time.time_ns(), whole=True
        )
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        process.writer.append(
            Signal.LOGS, logs_request((said, [end("finished", 1, last_row=1)])), time.time_ns(), whole=True
        )
        until(lambda: delivering() == 0)
        asleep = (probe(folder.lock_path), host.progress()[folder.run_id].rest)

        process.writer.append(
            Signal.METRICS, metrics_request((said, [row(2, {"loss": 1.0})])), time.time_ns(), whole=True
        )

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 2)
    assert asleep == (True, Rest.BUSY)


class Later:
    """Puts one thing off, before a writer of a recorder, and does it once it may."""

    def __init__(self, inner: RunWriter, may: threading.Event) -> None:
        self._inner, self._may = inner, may
        self.put_off = 1
        self.asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def catch_up(self) -> bool:
        self.asked += 1
        self.put_off = 0 if self._may.wait(0.02) else 1
        return not self.put_off


def test_a_run_whose_tracker_gets_something_later_does_not_sleep_before(tmp_path: Path) -> None:
    folder, recorder, may = run_folder(tmp_path), Recorder(), threading.Event()
    process, writers = Process.start(folder, "memory"), list[Later]()

    def opened(run: RunInfo, settings: ExporterSettings, memory: Memory) -> RunWriter:
        writers.append(Later(recorder.exporter.open(run, settings, memory), may))
        return writers[-1]  # type: ignore[return-value]

    chosen = options(("memory", recorder), exporters=EVERY, idle_s=0.1)
    later = Exporter(settings=recorder.exporter.settings, ordered=True, open=opened)
    with serving(tmp_path, replace(chosen, places=replace(chosen.places, load=lambda _: later))):
        process.log(1)
        until(lambda: bool(writers) and writers[0].asked > 40)  # it was idle for eight times as long as it may be
        may.set()
        until(lambda: delivering() == 0)

    assert len(writers) == 1


def test_a_run_that_sleeps_hears_what_it_is_asked_and_that_its_process_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeping, "LOOK_S", 0.1)
    folder, recorder = run_folder(tmp_path), Recorder()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.2)):
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 1)
        until(lambda: delivering() == 0)

        process.die()

        report = report_when(folder, lambda report: report.ended)
    assert report.status == "killed"


@pytest.mark.slow
def test_a_hundred_runs_of_which_one_is_stuck_are_all_delivered_but_that_one(tmp_path: Path) -> None:
    recorder = Recorder()
    folders = [run_folder(tmp_path, f"run-{number:03d}") for number in range(100)]
    processes = [Process.start(folder, "memory") for folder in folders]
    for process in processes:
        process.log(2)
    recorder.fail(RetryableError("stuck", retry_after_s=500), times=1, kind="open")

    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, idle_s=0.5)) as host:
        recorder.wait_for(lambda recorder: sum(len(recorder.run(one.run_id).rows) == 2 for one in folders) == 99)
        until(lambda: delivering() <= 1)
        stuck = [run for run in host.progress().values() if run.exporters["memory"].state == "retrying"]
        host.drain()
        host.poke()
        assert host.wait(20.0)

    assert len(stuck) == 1
    assert all(len(recorder.run(folder.run_id).rows) == 2 for folder in folders)


def test_while_every_exporter_fails_a_service_does_not_read_ahead_and_then_catches_up_in_order(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), Recorder()
    recorder.fail(RetryableError("away", retry_after_s=0.05), times=None)
    process = Process.start(folder, "memory", kind="receiver")
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY, lazy=True)) as host:
        process.log(1)
        report_when(folder, lambda report: report.exporters["memory"].state == "retrying")
        process.log(20_000)
        until(lambda: host.progress()[folder.run_id].position > 4_000)
        position = report_when(folder, lambda report: report.position > 4_000).position

        recorder.heal()

        recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 20_001)
    assert position < 20_001
    assert list(recorder.run(folder.run_id).rows) == process.row_ids


def test_of_a_run_that_has_ended_a_service_keeps_no_more_than_how_far_it_was_read(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), Recorder()
    process = Process.start(folder, "memory")
    process.log(3)
    with serving(tmp_path, options(("memory", recorder), exporters=EVERY)):
        process.end()
        report_when(folder, lambda report: report.ended)
        until(lambda: not probe(folder.lock_path))
        gc.collect()

        runs = [found for found in gc.get_objects() if isinstance(found, RunBridge)]
        kept = [run for run in runs if run.folder.path == folder.path]

    assert (kept, list(recorder.run(folder.run_id).rows)) == ([], process.row_ids)
