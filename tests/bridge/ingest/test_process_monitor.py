"""Ends and signs of life that a bridge writes for processes."""

from __future__ import annotations

import time
from pathlib import Path

from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    run_folder,
    served,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN


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
