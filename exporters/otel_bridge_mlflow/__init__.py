"""The exporter ``mlflow``: writes a run to an MLflow database or server, and its rollouts as traces of that run."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_mlflow.read_back import tracker_counts
from otel_bridge_mlflow.settings import ALL_SERIES, TIMEOUT_S, WAL, MlflowSettings
from otel_bridge_mlflow.writer import open_writer, probe

__all__ = ["exporter"]

exporter = Exporter(
    read_settings=MlflowSettings.from_environment,
    ordered=False,
    window_records=300,  # a rollout with rewards takes a server about 15 ms, so that a batch takes at most 5 s
    open=open_writer,
    requires=("mlflow",),
    extra="mlflow",
    read_back=tracker_counts,
    takes_late_spans=True,
    settings=(WAL, ALL_SERIES, TIMEOUT_S),
    probe=probe,
    tested_with="3.7 to 3.17",
)
