"""A service that is killed over and over: receiver and bridge in a forked child, fast to begin again.

``python killed_service.py BASE TRACKER GRPC HTTP MODE`` forks one for each line of its standard input, ``POINT COUNT``:
it kills itself the COUNT-th time it gets to POINT, and after an empty line it is killed from outside (see `forks`). The
tracker is a folder with a file for each run (`bridge_file_tracker`); in MODE ``durable`` it says what it holds.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.translation.translator import Translator
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.ingest import Ingest
from otel_bridge_collector.run_segment import RunSegment
from support.bridge.bridge_doubles import options
from support.bridge.bridge_file_tracker import FileWriter, Nowhere
from support.trainers.forks import fork_for_each_line

BEFORE, AFTER = "before", "after"
POINTS = {
    "request came": (Ingest, "accept", BEFORE),
    "request appended": (RunSegment, "append", AFTER),
    "translated": (Translator, "frame", AFTER),
    "about to commit": (Ledger, "commit", BEFORE),
    "committed": (Ledger, "commit", AFTER),
    "about to write": (FileWriter, "_write", BEFORE),
    "written": (FileWriter, "_write", AFTER),
    "noted": (Ledger, "save", AFTER),
}


def main(base: Path, tracker: Path, grpc: int, http: int, mode: str) -> None:
    """Fork services, one after the other, until standard input ends."""

    def service(line: str) -> None:
        point, _, count = line.rpartition(" ")
        if point:
            die_at(point, int(count))
        serve(base, tracker, grpc, http, mode)

    fork_for_each_line(service)


def die_at(point: str, count: int) -> None:
    """Arrange that this process kills itself the *count*-th time it gets to *point*."""
    where, name, when = POINTS[point]
    function: Callable[..., Any] = getattr(where, name)
    left = count

    @functools.wraps(function)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0 and when == BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return function(*args, **kwargs)
        finally:
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, deadly)


def serve(base: Path, tracker: Path, grpc: int, http: int, mode: str) -> None:
    """Receive and deliver until SIGTERM; then drain as ``serve`` does."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def opened(
        run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> FileWriter:
        return FileWriter(tracker / run.id, reports_durable=mode == "durable")

    exporter = Exporter(
        read_settings=lambda env, cwd: Nowhere(), ordered=True, open=opened
    )
    how = options(
        exporters=dict.fromkeys(("metrics", "traces", "logs"), ("file",)),
        lazy=True,
        idle_s=60.0,
    )
    how = replace(
        how, exporter_env=replace(how.exporter_env, load=lambda name: exporter)
    )
    host = BridgeSupervisor(base, how)
    host.start()
    env = {"OTEL_BRIDGE_SEGMENT_BYTES": "20k"}
    receiver = Receiver(
        ReceiverSettings.from_environment(env, base, grpc_port=grpc, http_port=http)
    )
    stop.wait()
    receiver.refuse("ends")
    receiver.release_connections()
    host.drain()
    host.wait(30)
    host.stop()
    receiver.stop()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
