"""Durable ingest: points a core-second of the process tree, against the stock Collector with its queue on disk.

Both acknowledge what is on the disk (``fsync``) or in the kernel, both deliver to somebody who is not there, both take
the same requests from the same client, in turn. The Collector is ``OTELCOL_BINARY``, or the newest in the cache of
``collector/otelcol/build.sh``; where there is none, our figures stand alone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil

from benchmarks.collector.ingest_load import POINTS
from benchmarks.collector.service import Service, service
from benchmarks.results import Result, median
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report

_REQUESTS = int(os.environ.get("INGEST_REQUESTS", "3000"))
_ROUNDS = int(os.environ.get("INGEST_ROUNDS", "3"))
_IN_FLIGHT = 4
_CASES = (
    ("grpc", True, 1.5),
    ("grpc", False, 1.5),
    ("http", True, 1.2),
    ("http", False, 1.2),
)
_CACHE = Path.home() / ".cache" / "otel-bridge" / "otelcol"
_PIPELINE = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}}}}}
exporters:
  otlp_grpc:
    endpoint: 127.0.0.1:9
    tls: {{insecure: true}}
    retry_on_failure: {{initial_interval: 1s, max_interval: 30s, max_elapsed_time: 0}}
    sending_queue: {{storage: file_storage/q, sizer: bytes, queue_size: 10737418240, num_consumers: 1}}
extensions: {{file_storage/q: {{directory: "{folder}/q", create_directory: true, fsync: {fsync}}}}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
  extensions: [file_storage/q]
  pipelines: {{metrics: {{receivers: [otlp], exporters: [otlp_grpc]}}}}
"""


def run() -> list[Result]:
    """Measure."""
    collector = _collector()
    results = []
    for kind, fsync, goal in _CASES:
        pairs = [
            (_ours(kind, fsync), _theirs(collector, kind, fsync))
            for _ in range(_ROUNDS)
        ]
        own = median([one for one, _ in pairs])
        level = "on disk" if fsync else "in kernel"
        if collector is None:
            results.append(
                Result(
                    f"{kind}, {level}",
                    own,
                    None,
                    "points/core-s",
                    "no Collector here",
                    None,
                )
            )
            continue
        ratio = median([one / other for one, other in pairs])
        peer = median([other for _, other in pairs])
        what = f"{kind}, {level} (ours / peer = {ratio:.2f})"
        results.append(
            Result(
                what,
                own,
                peer,
                "points/core-s",
                f">= {goal:g} times the Collector",
                ratio >= goal,
            )
        )
    return results


def _ours(kind: str, fsync: bool) -> float:
    with tempfile.TemporaryDirectory() as folder, _service(folder, fsync) as serving:
        address = serving.grpc if kind == "grpc" else serving.http
        return _rate(
            serving.process,
            kind,
            address,
            lambda: _wait_for_failing(Path(folder, "runs")),
        )


def _theirs(collector: str | None, kind: str, fsync: bool) -> float:
    if collector is None:
        return 1.0
    with (
        tempfile.TemporaryDirectory() as folder,
        _otelcol(collector, folder, fsync) as (process, ends),
    ):
        return _rate(process, kind, ends[kind], lambda: time.sleep(1))


def _rate(
    process: psutil.Process, kind: str, address: str, ready: Callable[[], None]
) -> float:
    """Return points a core-second; begins warm, and when *ready* returned: the exporter knows that nobody is there."""
    load = [sys.executable, "-m", "benchmarks.collector.ingest_load", kind, address]
    subprocess.run([*load, "200", str(_IN_FLIGHT)], check=True, capture_output=True)
    ready()
    before = cpu_s(process)
    subprocess.run(
        [*load, str(_REQUESTS), str(_IN_FLIGHT)], check=True, capture_output=True
    )
    return _REQUESTS * POINTS / (cpu_s(process) - before)


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU of the process and all its children, dead ones too."""
    times = [
        process.cpu_times(),
        *(child.cpu_times() for child in process.children(recursive=True)),
    ]
    own = times[0]
    return (
        sum(one.user + one.system for one in times)
        + own.children_user
        + own.children_system
    )


def _service(folder: str, fsync: bool) -> AbstractContextManager[Service]:
    env = {
        **os.environ, "OTEL_BRIDGE_FSYNC": str(int(fsync)), "OTEL_BRIDGE_DRAIN_TIMEOUT_S": "0.1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }  # fmt: skip
    return service(
        Path(folder), env, exporters=os.environ.get("INGEST_EXPORTERS", "mlflow")
    )


@contextmanager
def _otelcol(
    binary: str, folder: str, fsync: bool
) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    grpc, http = _free_port(), _free_port()
    config = Path(folder, "config.yaml")
    config.write_text(
        _PIPELINE.format(grpc=grpc, http=http, folder=folder, fsync=str(fsync).lower())
    )
    process = subprocess.Popen(
        [binary, "--config", str(config)], stderr=subprocess.DEVNULL
    )
    try:
        for port in (grpc, http):
            _wait_for(port)
        yield (
            psutil.Process(process.pid),
            {"grpc": f"127.0.0.1:{grpc}", "http": f"127.0.0.1:{http}"},
        )
    finally:
        process.kill()
        process.wait(10)


def _collector() -> str | None:
    named = os.environ.get("OTELCOL_BINARY")
    if named:
        return named
    found = sorted(_CACHE.glob("*/otelcol*"), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else None


def _wait_for_failing(base: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        reports = [read_report(folder) for folder in run_folders(base)]
        if any(
            one is not None
            and any(e.state in {"retrying", "blocked"} for e in one.exporters.values())
            for one in reports
        ):
            return
        time.sleep(0.1)
    raise RuntimeError("the exporter does not fail")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {port}")
