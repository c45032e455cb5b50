"""The launcher's own segments in the runs of its command."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from otel_bridge.cli.run.launched_runs import LaunchedRuns
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.locks import probe
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.records import Status
from support.otlp.journal_samples import lives_in


def begun(base: Path, name: str) -> RunFolder:
    """A run folder with a segment of this launcher's receiver."""
    folder = RunFolder(base, name)
    folder.create()
    header = SegmentHeader.of_this_process(
        "receiver", f"receiver-{name}", run_id=name, project="maths", run_name=name
    )
    SegmentWriter(folder.segments_dir, header).close()
    return folder


def test_a_run_is_served_although_the_clock_was_set_back_since_the_launcher_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, "of an earlier receiver with the same process id")
    runs = LaunchedRuns(tmp_path)
    hour_ago_ns = time.time_ns() - 3_600 * 10**9

    monkeypatch.setattr(time, "time_ns", lambda: hour_ago_ns)
    folder = begun(tmp_path, "one")
    for segment in folder.segments():
        os.utime(segment.path, ns=(hour_ago_ns, hour_ago_ns))

    assert [served.path for served in runs.folders()] == [folder.path]


def test_a_disk_without_room_for_a_segment_leaves_no_lock_behind(
    tmp_path: Path,
) -> None:
    runs = LaunchedRuns(tmp_path)
    folder = begun(tmp_path, "one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ

    # Enough for a life file of 512 bytes, not for the header of a segment.
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        joined = runs.folders()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert joined == []
    (life,) = lives_in(folder)
    assert not probe(folder.life_path(life))
    assert len(runs.folders()) == 1


def test_a_full_disk_at_the_end_of_the_command_costs_no_run_its_delivery(
    tmp_path: Path,
) -> None:
    runs = LaunchedRuns(tmp_path)
    folders = [begun(tmp_path, "one"), begun(tmp_path, "two")]
    assert len(runs.folders()) == 2
    lives = [folder.life_path(lives_in(folder)[0]) for folder in folders]
    assert [probe(life) for life in lives] == [True, True]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        runs.end(Status.FAILED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    # By that a bridge sees that the launcher has ended, without its event.
    assert [probe(life) for life in lives] == [False, False]
