"""The exporter ``mlflow``: a run in an MLflow database or on an MLflow server, rollouts as traces linked to it."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_mlflow.read_back import held
from otel_bridge_mlflow.settings import TIMEOUT_S, WAL, MlflowSettings
from otel_bridge_mlflow.writer import open_writer

__all__ = ["exporter"]

exporter = Exporter(
    settings=MlflowSettings.from_environment,
    ordered=False,
    open=open_writer,
    requires=("mlflow",),
    extra="mlflow",
    held=held,
    declares=(WAL, TIMEOUT_S),
)
