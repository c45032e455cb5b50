"""What the host keeps of runs that it does not serve now."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from otel_bridge.bridge.serving.active_runs import ActiveRuns
from otel_bridge.bridge.serving.discovery import ClosedRun
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.bridge.serving.stall_watch import StallWatch
from otel_bridge.errors import RetryableError
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import SegmentWriter
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    run_folder,
    served,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.journal_samples import header, no_files_left


def quiet(_: str) -> None:
    """Say nothing."""


def runs_of(folders: Callable[[], Iterable[RunFolder]]) -> ActiveRuns:
    return ActiveRuns(
        Path(),
        folders,
        options(),
        until_done=False,
        may_join=None,
        wake=lambda: None,
        log_line=quiet,
        stall_watch=StallWatch(30.0, quiet),
    )


def failed(runs: ActiveRuns, base: Path, run_id: str) -> RunFolder:
    """Make a folder of which everything is noted."""
    folder = RunFolder(base, run_id)
    folder.create()
    runs.failures.failed(folder.path, OSError("no"))
    runs._discovery.closed[folder.path] = ClosedRun(
        RunStatus(run_id, Outcome.DONE), None, float("inf")
    )
    runs._discovery._checked[folder.path] = 1
    return folder


def noted(runs: ActiveRuns) -> list[set[str]]:
    found = runs._discovery
    return [
        {path.name for path in paths}
        for paths in (found.closed, found._checked, runs.failures._failing)
    ]


def test_nothing_is_kept_of_runs_whose_folder_was_deleted(tmp_path: Path) -> None:
    runs = runs_of(lambda: run_folders(tmp_path))
    failed(runs, tmp_path, "kept")
    gone = failed(runs, tmp_path, "gone")

    shutil.rmtree(gone.path)
    runs._discovery.find()

    assert noted(runs) == [{"kept"}] * 3


def test_a_run_that_comes_while_no_file_is_free_is_found_later(tmp_path: Path) -> None:
    runs = runs_of(lambda: [folder])
    folder = RunFolder(tmp_path, "r1")
    folder.create()
    SegmentWriter(folder.segments_dir, header()).close()
    # Long enough ago that an unchanged folder is not listed again.
    os.utime(folder.segments_dir, (1, 1))

    with no_files_left():
        looks_empty = runs._discovery.find()

    assert (looks_empty, runs._discovery.find()) == ([], [folder])


def test_a_segment_that_comes_while_no_file_is_free_is_read_later(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    bridge = open_bridge(folder, options())
    SegmentWriter(folder.segments_dir, header()).close()
    os.utime(folder.segments_dir, (1, 1))

    with no_files_left():
        bridge.reader.discover_segments()
    bridge.reader.discover_segments()

    assert list(bridge.reader.tails) == [header().instance_id]
    bridge.close(time.monotonic())


def test_records_of_the_ledger_are_delivered_although_the_report_is_damaged(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    process = Process.start(folder, "memory")
    process.log(2)
    process.end()
    recorder = RecordingTracker()
    how = options(("memory", recorder), retry_after_exit_s=0.0)
    recorder.fail(RetryableError("down"), times=None)
    served(tmp_path, how)
    recorder.heal()
    # As after a loss of power; the bridge has deleted the segments that it had read.
    folder.report_path.write_bytes(b"")

    served(tmp_path, how)

    report = read_report(folder)
    assert written(recorder) == process.row_ids
    assert report is not None
    assert report.ended


def test_what_is_kept_of_a_run_stays_while_its_folder_is_there_though_it_is_not_listed(
    tmp_path: Path,
) -> None:
    runs = runs_of(list)
    failed(runs, tmp_path, "kept")

    runs._discovery.find()

    assert noted(runs) == [{"kept"}] * 3
