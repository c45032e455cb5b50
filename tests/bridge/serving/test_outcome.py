"""When the bridge of a run that is over may end although a tracker lacks records."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_bridge.bridge import run_bridge
from otel_bridge.bridge.delivery import exporter_set
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.run_outcome import Outcome
from otel_bridge.errors import RetryableError
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    run_folder,
    until,
)
from support.bridge.recording_tracker import RecordingTracker

RETRY_AFTER_EXIT_S = 60.0
"""Longer than any test waits: only the clock of the test reaches it."""


def test_a_tracker_that_is_down_for_longer_than_the_job_is_still_retried_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + ahead_s[0], time_ns=time.time_ns
    )
    monkeypatch.setattr(run_bridge, "time", clock)
    monkeypatch.setattr(exporter_set, "time", clock)
    recorder = RecordingTracker()
    recorder.fail(RetryableError("down"), times=None)
    changes = options(("memory", recorder), retry_after_exit_s=RETRY_AFTER_EXIT_S)
    bridge = open_bridge(run_folder(tmp_path), changes)
    process = Process.start(bridge.folder, "memory")
    process.log(3)
    until(lambda: bridge.poll() or is_failing(bridge))

    ahead_s[0] = 10 * RETRY_AFTER_EXIT_S
    process.end()
    until(lambda: not bridge.poll() and is_over(bridge))
    outcome_at_the_end = bridge.outcome()
    ahead_s[0] += RETRY_AFTER_EXIT_S

    assert (outcome_at_the_end, bridge.outcome()) == (Outcome.BUSY, Outcome.PARKED)
    bridge.close(time.monotonic() + 5)


def is_failing(bridge: RunBridge) -> bool:
    return bridge.workers.states()["memory"].failing_since_s is not None


def is_over(bridge: RunBridge) -> bool:
    has_ended = bridge.reader.translator.status() != "running"
    return (
        has_ended
        and bridge.reader.caught_up
        and not bridge.shutdown.waits_for(bridge.processes)
    )
