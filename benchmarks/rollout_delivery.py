"""Rollouts a second into an MLflow server and into Trackio's store, against what each takes at most.

MLflow: raw OTLP posts of the same spans (four a rollout, 6 KB), 50 rollouts a request, without our three tags; rewards,
which it takes one by one, come afterwards and are not counted. Trackio: its own bulk call with the same payloads, 64
a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import otel_bridge_mlflow
import otel_bridge_trackio
from benchmarks.results import Result, median
from otel_bridge.records import Rollout
from otel_bridge.testing import MemoryTable, open_writer, samples

_ROUNDS = 3
_ROLLOUTS = {"mlflow": 150, "trackio": 320}
_POST, _BULK = 50, 64


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        mlflow = _mlflow(Path(folder))
        trackio = _trackio(Path(folder))
    return [
        _result("rollouts/s into an MLflow server, rewards later", mlflow, 0.9, "raw OTLP posts"),
        _result("rollouts/s into Trackio", trackio, 0.85, "its bulk call"),
    ]


def _result(what: str, pairs: Sequence[tuple[float, float]], goal: float, peer: str) -> Result:
    ratio = median([ours / theirs for ours, theirs in pairs])
    ours, theirs = median([one for one, _ in pairs]), median([one for _, one in pairs])
    return Result(f"{what} (ours / {peer} = {ratio:.2f})", ours, theirs, "1/s", f">= {goal:g}", ratio >= goal)


def _rate(count: int, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return count / (time.perf_counter() - began)


def _rollouts(count: int, seed: str) -> list[Rollout]:
    return samples.placed([_long(samples.rollout(number, seed=seed)) for number in range(count)])


def _long(rollout: Rollout) -> Rollout:
    """Return *rollout* with 1.1 KB of text more in each span."""
    spans = []
    for span in rollout.spans:
        message = Span.FromString(span.otlp)
        message.attributes.add(key="text").value.string_value = f"{span.id} lorem ipsum dolor sit amet " * 26
        spans.append(dataclasses.replace(span, otlp=message.SerializeToString()))
    return dataclasses.replace(rollout, spans=spans)


def _mlflow(folder: Path) -> list[tuple[float, float]]:
    count = _ROLLOUTS["mlflow"]
    with _server(folder) as url:
        exporter = otel_bridge_mlflow.exporter
        settings = exporter.settings({"MLFLOW_TRACKING_URI": url}, folder)
        writer = open_writer(exporter, samples.run_info(folder, "bench"), settings, MemoryTable())
        place = (writer.url or "").split("/")
        headers = {
            "Content-Type": "application/x-protobuf",
            "x-mlflow-experiment-id": place[-3],
            "x-mlflow-run-id": place[-1],
        }
        writer.write_rollouts(_rollouts(_POST, "warm"))
        pairs = []
        for number in range(_ROUNDS):
            ours = _rollouts(count, f"ours-{number}")
            bodies = _bodies(_rollouts(count, f"theirs-{number}"))
            session = requests.Session()
            pairs.append((
                _rate(count, lambda given=ours: writer.write_rollouts(given)),  # type: ignore[misc]
                _rate(count, lambda given=bodies, by=session: [  # type: ignore[misc]
                    by.post(f"{url}/v1/traces", data=body, headers=headers).raise_for_status() for body in given
                ]),
            ))  # fmt: skip
        return pairs


def _bodies(rollouts: Sequence[Rollout]) -> list[bytes]:
    bodies = []
    for start in range(0, len(rollouts), _POST):
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        for rollout in rollouts[start : start + _POST]:
            scope.spans.extend(Span.FromString(span.otlp) for span in rollout.spans)
        bodies.append(request.SerializeToString())
    return bodies


def _trackio(folder: Path) -> list[tuple[float, float]]:
    count = _ROLLOUTS["trackio"]
    exporter = otel_bridge_trackio.exporter
    settings = exporter.settings({"TRACKIO_DIR": str(folder / "trackio")}, folder)
    run = samples.run_info(folder, "bench", project="ours")
    writer = open_writer(exporter, run, settings, MemoryTable())
    writer.write_rollouts(_rollouts(8, "warm"))
    from trackio.sqlite_storage import SQLiteStorage

    def theirs(payloads: Sequence[dict[str, object]], seed: str) -> None:
        for start in range(0, len(payloads), _BULK):
            part = payloads[start : start + _BULK]
            SQLiteStorage.bulk_log(
                project="theirs",
                run="bench",
                metrics_list=[{"rollouts": [payload]} for payload in part],
                steps=[1] * len(part),
                log_ids=[f"{seed}:{start + index}" for index in range(len(part))],
                run_id="bench",
            )

    from otel_bridge_trackio.payload import rollout_trace

    pairs = []
    for number in range(_ROUNDS):
        ours = _rollouts(count, f"t-ours-{number}")
        payloads = [dict(rollout_trace(rollout)) for rollout in _rollouts(count, f"t-theirs-{number}")]
        own = _rate(
            count,
            lambda given=ours: [writer.write_rollouts(given[n : n + _BULK]) for n in range(0, count, _BULK)],  # type: ignore[misc]
        )
        pairs.append((own, _rate(count, lambda given=payloads, of=number: theirs(given, f"s{of}"))))  # type: ignore[misc]
    return pairs


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{url}/health", timeout=2).ok:
                    break
            time.sleep(0.1)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)
