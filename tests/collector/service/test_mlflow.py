"""An MLflow server fails behind ``otel-bridge serve`` in many ways; the exporter ``file`` goes on."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.report import read_report
from otel_bridge.records import Status
from support.bridge.bridge_doubles import report_when, until
from support.collector.service_process import Service, exporter_is, folder_of, service
from support.otlp.otlp_samples import RUN, end, logs_request, resource, who
from support.otlp.trace_samples import rollout_spans, scope_spans, trace_id
from support.trackers import mlflow_reading
from support.trackers.mlflow_server import FaultProxy, mlflow_server
from support.trainers.command_runs import environment
from support.waiting import ANSWER_S, HANG_S

pytestmark = pytest.mark.slow

ROWS = 20
_WAIT_S = HANG_S
"""Far less than the four minutes that MLflow's own retries would take."""


def failing(status: int) -> Callable[[FaultProxy], object]:
    def fail(proxy: FaultProxy) -> None:
        proxy.status, proxy.headers = (
            status,
            {"Retry-After": "1"} if status == 429 else {},
        )

    return fail


FAULTS: Mapping[str, Callable[[FaultProxy], object]] = {
    "429": failing(429),
    "500": failing(500),
    "503": failing(503),
    "hangs": lambda proxy: setattr(proxy, "hang", True),
    "cut in the middle of its answers": lambda proxy: setattr(proxy, "cut", True),
    "its answers are lost": lambda proxy: setattr(proxy, "lose_answer", True),
    "refuses connections": FaultProxy.refuse,
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The server's database; what arrived is read there, by MLflow's own client, since a server is slow to read."""
    return mlflow_reading.database(tmp_path, "server.db")


@pytest.fixture
def proxy(tmp_path: Path, store: str) -> Iterator[FaultProxy]:
    with mlflow_server(tmp_path) as url:
        proxy = FaultProxy(url)
        yield proxy
        proxy.close()


def post(running: Service, path: str, body: bytes) -> None:
    asked = urllib.request.Request(
        f"{running.http}{path}", body, {"Content-Type": "application/x-protobuf"}
    )
    with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
        assert answer.status == 200


def names(part: int) -> list[str]:
    return [f"{part}-{number}" for number in range(2)]


def send(running: Service, tmp_path: Path, part: int) -> None:
    """Send one part of the rows and its rollouts; ``file`` has them soon, whatever MLflow does."""
    assert running.send(*range(part * ROWS + 1, (part + 1) * ROWS + 1)) == 200
    spans = [
        scope_spans(rollout_spans(name, step=part, reward=part / 8))
        for name in names(part)
    ]
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource(who()), scope_spans=spans)]
    )
    post(running, "/v1/traces", request.SerializeToString())
    until(lambda: has_all(tmp_path, "file", part + 1))


def has_all(tmp_path: Path, exporter: str, parts: int) -> bool:
    """Whether *exporter* has taken all that was sent in *parts*; a part's rollouts are sent behind its rows."""
    report = read_report(folder_of(tmp_path))
    found = None if report is None else report.exporters.get(exporter)
    return (
        report is not None
        and found is not None
        and (found.written, found.rollouts) == (report.position, parts * 2)
    )


@pytest.mark.long
def test_an_mlflow_server_that_fails_in_many_ways_gets_every_row_rollout_and_reward_once(
    tmp_path: Path, proxy: FaultProxy, store: str
) -> None:
    env = environment(
        tmp_path,
        MLFLOW_TRACKING_URI=proxy.url,
        OTEL_BRIDGE_MLFLOW_TIMEOUT_S="1",
        OTEL_BRIDGE_ROLLOUT_SELECTION="first",
    )
    parts = len(FAULTS) + 1

    with service(tmp_path, env, "--exporters", "mlflow,file") as running:
        send(running, tmp_path, 0)
        until(lambda: has_all(tmp_path, "mlflow", 1))
        for part, (fault, fail) in enumerate(FAULTS.items(), 1):
            fail(proxy)
            send(running, tmp_path, part)
            report = report_when(folder_of(tmp_path), exporter_is("retrying", "mlflow"))
            assert report.exporters["mlflow"].rollouts < (part + 1) * 2, fault

            proxy.heal()

            until(lambda part=part: has_all(tmp_path, "mlflow", part + 1))
        post(
            running,
            "/v1/logs",
            logs_request((who(), [end("finished", 1, last_row=parts * ROWS)])),
        )
        report = report_when(folder_of(tmp_path), lambda report: report.ended)

    held = mlflow_reading.contents(store, RunInfo(RUN, "gsm8k", "ppo", tmp_path))
    assert [scalar.step for scalar in held.scalars if scalar.key == "trainer/loss"] == [
        *range(1, parts * ROWS + 1)
    ]
    assert sorted((one.id, one.reward, one.spans) for one in held.rollouts) == sorted(
        (trace_id(name), part / 8, 4) for part in range(parts) for name in names(part)
    )
    assert held.status is Status.FINISHED
    assert report.exporters["mlflow"].dead_letters == 0
