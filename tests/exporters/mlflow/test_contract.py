from __future__ import annotations

from collections.abc import Mapping

import pytest

import otel_bridge_mlflow
from otel_bridge.exporter import Exporter
from otel_bridge.testing.contract import ReadBack, WriterContract
from support.trackers import mlflow_reading


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("mlflow"))


class TestDatabase(WriterContract):
    target = "otel_bridge_mlflow:exporter"

    @pytest.fixture
    def exporter(self) -> Exporter:
        return otel_bridge_mlflow.exporter

    @pytest.fixture
    def environment(self, database: str) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": database}

    @pytest.fixture
    def read_back(self, database: str) -> ReadBack:
        return lambda run: mlflow_reading.contents(database, run)
