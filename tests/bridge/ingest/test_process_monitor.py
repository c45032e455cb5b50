"""Ends and signs of life that a bridge writes for processes."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from otel_bridge import semconv
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.bridge.ingest.process_monitor import HEARTBEAT_NS, ProcessMonitor
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import header_in, read_segment
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    measurements,
    open_bridge,
    options,
    run_folder,
    served,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN

NOW_NS = 1_800_000_000_000_000_000


def signs_of_life(folder: RunFolder) -> int:
    """Return how many signs of life bridges have appended."""
    payloads: list[bytes] = []
    for file in folder.segments():
        header = header_in(file.path)
        if header is not None and header.kind == "bridge":
            _, content = read_segment(file.path, 0, limit_bytes=1 << 20, final=False)
            payloads += [frame.payload for frame in content.frames]
    return sum(payload.count(semconv.EVENT_ALIVE.encode()) for payload in payloads)


def test_the_death_of_a_process_that_an_earlier_bridge_read_came_after_its_last_row(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    how = options(("memory", recorder))
    first = Process.start(folder, "memory", role="explorer")
    beside = Process.start(folder, "memory", role="explorer")
    first.log(2)
    bridge = open_bridge(folder, how)

    def has_rows() -> bool:
        bridge.poll()
        return len(written(recorder)) == 2

    until(has_rows)
    bridge.close(time.monotonic() + 5)
    first.die()
    beside.end()

    served(tmp_path, how)

    # Not finished: the other process is not a successor, as it began before the first one died.
    assert recorder.run(RUN).status is Status.KILLED


@pytest.mark.parametrize("set_back_s", [0, 3600])
def test_signs_of_life_go_on_once_a_minute_although_the_clock_is_set_back(
    tmp_path: Path, set_back_s: int
) -> None:
    folder = run_folder(tmp_path)
    process = Process.start(folder, "otlp")
    with (
        measurements(folder) as (_, reader),
        closing(BridgeSegment(folder)) as segment,
    ):
        reader.discover_segments()
        reader.collect()
        monitor = ProcessMonitor(folder, reader, segment, 60_000_000_000)
        after_ns = NOW_NS - set_back_s * 1_000_000_000

        monitor.heartbeat(NOW_NS)
        monitor.heartbeat(after_ns + 1)
        monitor.heartbeat(after_ns + HEARTBEAT_NS)

        assert signs_of_life(folder) == 2
    process.die()


def test_the_end_of_a_program_that_replaced_itself_is_not_left_to_its_launcher(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    bridge = open_bridge(folder, options(("memory", recorder)))
    # All doubles have the pid of this process, as a program has before and after `os.execv`.
    bridge.shutdown.spare(os.getpid())
    first = Process.start(folder, "memory")
    first.log(1)
    first.die()

    def is_noticed() -> bool:
        bridge.poll()
        return not bridge.processes.living()

    until(is_noticed)
    assert bridge.processes.has_unreported_ends()
    second = Process.start(folder, "memory")

    def is_reported() -> bool:
        bridge.poll()
        return not bridge.processes.has_unreported_ends()

    until(is_reported)

    assert bridge.processes.status_of(first.instance) is Status.KILLED
    assert [one.instance_id for one in bridge.processes.living()] == [second.instance]
    second.end()
    bridge.close(time.monotonic() + 5)
