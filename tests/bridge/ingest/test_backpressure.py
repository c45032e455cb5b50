"""The reader waits while every writer at work has enough to do, and for no longer than it may."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_bridge.bridge import run_bridge
from otel_bridge.bridge.ingest.backpressure import ENOUGH_RECORDS
from otel_bridge.bridge.ingest.segment_reader import BATCH_FRAMES
from otel_bridge.bridge.run_bridge import RunBridge
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    run_folder,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN

ROWS = 3 * BATCH_FRAMES + 1_000
Opened = Callable[..., RunBridge]


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def opened(tmp_path: Path, release: threading.Event) -> Iterator[Opened]:
    bridges: list[RunBridge] = []

    def open_with(**recorders: RecordingTracker) -> RunBridge:
        folder = run_folder(tmp_path)
        Process.start(folder, *recorders).log(ROWS)
        bridge = open_bridge(folder, options(*recorders.items()))
        bridges.append(bridge)
        return bridge

    yield open_with
    release.set()
    for bridge in bridges:
        bridge.close(5.0)


def stuck(release: threading.Event) -> RecordingTracker:
    recorder = RecordingTracker()
    recorder.hang(release, kind="rows")
    return recorder


def test_the_reader_waits_for_a_writer_that_has_enough_and_goes_on_with_it(
    opened: Opened, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_bridge, "READ_AT_LEAST_S", float("inf"))
    slow = stuck(release)
    bridge = opened(slow=slow)
    bridge.poll()
    until(lambda: bool(slow.waiting))

    for _ in range(20):
        bridge.poll()

    assert (
        bridge.ledger.position
        == math.ceil(ENOUGH_RECORDS / BATCH_FRAMES) * BATCH_FRAMES
    )
    assert not bridge.reader.caught_up
    release.set()
    until(lambda: not bridge.poll() and len(written(slow)) == ROWS)
    assert bridge.ledger.position == ROWS


def test_a_fast_writer_is_not_delayed_by_a_stuck_one(
    opened: Opened, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_bridge, "READ_AT_LEAST_S", float("inf"))
    slow, fast = stuck(release), RecordingTracker()
    bridge = opened(slow=slow, fast=fast)

    until(lambda: not bridge.poll() and len(written(fast)) == ROWS)

    assert [
        len(slow.run(RUN).rows),
        bridge.ledger.position,
        bridge.reader.caught_up,
    ] == [
        0,
        ROWS,
        True,
    ]
    release.set()
    slow.wait_for(lambda recorder: len(recorder.run(RUN).rows) == ROWS)
    assert written(slow) == written(fast)


def test_a_writer_that_hangs_for_long_does_not_keep_the_reader_from_the_segments(
    opened: Opened, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_bridge, "READ_AT_LEAST_S", 0.0)
    slow = stuck(release)
    bridge = opened(slow=slow)

    until(lambda: not bridge.poll() and bridge.reader.caught_up)

    assert (bridge.ledger.position, written(slow)) == (ROWS, [])
