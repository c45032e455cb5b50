"""Clients that nobody here wrote, over every protocol, into the receiver and on into MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from otel_bridge.testing import Contents
from support.collector import foreign_clients
from support.collector.foreign_clients import PROJECT
from support.collector.otelcol_programs import TOKEN, bridge, running
from support.free_ports import free_pair
from support.trackers import mlflow_reading

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Site:
    """A bridge that brings what comes to MLflow; gRPC on *port*, HTTP on the next one."""

    port: int
    tracking_uri: str

    def run(self, service: str) -> Contents:
        return mlflow_reading.contents(
            self.tracking_uri,
            RunInfo(run_id_of(PROJECT, service), PROJECT, service, Path()),
        )

    def run_when(self, service: str, whole: Callable[[Contents], bool]) -> Contents:
        from support.trainers.e2e_jobs import until

        until(lambda: whole(self.run(service)))
        return self.run(service)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, port = tmp_path_factory.mktemp("clients"), free_pair()
    uri = mlflow_reading.database(folder)
    quickly = {
        "OTEL_BRIDGE_TRACE_GRACE_S": "0.2",
        "OTEL_BRIDGE_STEP_WATERMARK_S": "0.2",
    }
    # Of a process without an id, which may be several, only time ends the phases of a step.
    quickly |= {"OTEL_BRIDGE_STEP_TIMEOUT_S": "1"}
    with running(
        bridge(folder / "bridge", port, "mlflow", MLFLOW_TRACKING_URI=uri, **quickly)
    ):
        yield Site(port, uri)


@pytest.mark.parametrize(
    ("protocol", "behind"),
    [
        ("grpc", 0),
        pytest.param("http/protobuf", 1, marks=pytest.mark.long),
        ("http/json", 1),
    ],
    ids=["grpc", "protobuf", "json"],
)
def test_the_javascript_sdk_lands_with_its_steps_and_rollouts(
    site: Site, protocol: str, behind: int
) -> None:
    service = f"js-{protocol.replace('/', '-')}"

    foreign_clients.javascript(
        protocol, f"http://127.0.0.1:{site.port + behind}", service, TOKEN
    )

    held = site.run_when(
        service,
        lambda now: (
            len(now.rollouts) == 3 and len(_points(now, f"{service}/tokens")) == 20
        ),
    )
    assert _points(held, f"{service}/loss") == [(step, step / 2) for step in range(20)]
    assert _points(held, f"{service}/tokens") == [(step, 10.0) for step in range(20)]
    assert sorted((one.reward, one.messages) for one in held.rollouts) == [
        (0.0, 2),
        (0.25, 2),
        (0.5, 2),
    ]
    expected = {
        "time/generate": 3.0,
        "time/train": 1.0,
        "lineage/consumed": 3.0,
        "lineage/staleness/mean": 1.0,
        "tokens/mismatch/k1": -0.125,
        "tokens/mismatch/mean": 0.375,
        "tokens/mismatch/max": 1.0,
        "tokens/count": 4.0,
    }
    site.run_when(
        service,
        lambda now: (
            {key: _points(now, f"{service}/{key}") for key in expected}
            == {key: [(8, value)] for key, value in expected.items()}
        ),
    )


@pytest.mark.parametrize(
    ("way", "behind"),
    [("grpc", 0), pytest.param("http", 1, marks=pytest.mark.long)],
)
def test_telemetrygen_lands_with_every_value_and_trace(
    site: Site, way: str, behind: int
) -> None:
    service = f"telemetrygen-{way}"
    where = {"http": way == "http", "port": site.port + behind, "token": TOKEN}
    chat = ["--telemetry-attributes", 'gen_ai.operation.name="chat"']

    foreign_clients.telemetrygen(
        "metrics",
        "--service",
        service,
        "--metrics",
        "30",
        "--rate",
        "0",
        "--otlp-metric-name",
        "queue",
        **where,
    )
    foreign_clients.telemetrygen(
        "traces", "--service", service, "--traces", "5", "--rate", "0", *chat, **where
    )

    held = site.run_when(
        service,
        lambda now: (
            len(now.rollouts) == 5 and len(_points(now, f"{service}/queue")) == 30
        ),
    )
    assert [value for _, value in _points(held, f"{service}/queue")] == [
        float(number) for number in range(30)
    ]
    assert len({one.id for one in held.rollouts}) == 5


def _points(held: Contents, key: str) -> list[tuple[int | None, object]]:
    return [(one.step, one.value) for one in held.scalars if one.key == key]
