"""The recorded job in W&B, MLflow and Trackio, read through each one's own API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.conformance.suite import ConformanceSuite, ReadShown
from support.conformance.truth import KeptKinds
from support.trackers import conformance_reading, mlflow_reading
from support.trackers.mlflow_server import mlflow_server
from support.trackers.wandb_backend.server import WandbServer

pytestmark = pytest.mark.slow


@pytest.mark.long
class TestWandbOffline(ConformanceSuite):
    target = "otel_bridge_wandb:exporter"

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path / "store")}

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadShown:
        return lambda run: conformance_reading.wandb_offline(tmp_path / "store", run)


@pytest.mark.long
class TestWandbOnline(ConformanceSuite):
    target = "otel_bridge_wandb:exporter"
    wide_keys = 2_000  # wandb's upload of definitions takes minutes for more

    @pytest.fixture
    def server(self) -> Iterator[WandbServer]:
        with WandbServer() as server:
            yield server
            assert (server.errors, server.resolver.unknown) == ([], [])

    @pytest.fixture
    def environment(self, server: WandbServer) -> Mapping[str, str]:
        fast = {"OTEL_BRIDGE_WANDB_TRANSMIT_S": "1", "OTEL_BRIDGE_WANDB_POLL_S": "0.1"}
        return {**server.environment(), **fast}

    @pytest.fixture
    def read(self, server: WandbServer) -> ReadShown:
        return lambda run: conformance_reading.wandb_online(server, run)


@pytest.mark.long
class TestMlflow(ConformanceSuite):
    target = "otel_bridge_mlflow:exporter"

    @pytest.fixture
    def database(self, tmp_path: Path) -> str:
        return mlflow_reading.database(tmp_path)

    @pytest.fixture
    def environment(self, database: str) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": database, "OTEL_BRIDGE_MLFLOW_ALL_SERIES": "1"}

    @pytest.fixture
    def read(self, database: str) -> ReadShown:
        return lambda run: conformance_reading.mlflow(database, run)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of an MLflow server."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow_reading.database(folder, "server.db")
    with mlflow_server(folder) as url:
        yield url


@pytest.mark.long
class TestMlflowServer(ConformanceSuite):
    target = "otel_bridge_mlflow:exporter"

    @pytest.fixture
    def environment(self, server: str) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": server, "OTEL_BRIDGE_MLFLOW_ALL_SERIES": "1"}

    @pytest.fixture
    def read(self, server: str) -> ReadShown:
        return lambda run: conformance_reading.mlflow(server, run)


class TestTrackio(ConformanceSuite):
    target = "otel_bridge_trackio:exporter"
    keeps = KeptKinds(status=False)

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {
            "TRACKIO_DIR": str(tmp_path / "trackio"),
            "OTEL_BRIDGE_TRACKIO_ALL_SERIES": "1",
        }

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadShown:
        return lambda run: conformance_reading.trackio(tmp_path / "trackio", run)
