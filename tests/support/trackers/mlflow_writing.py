"""A writer of the MLflow exporter on a given store, as tests open it."""

from __future__ import annotations

import otel_bridge_mlflow
from otel_bridge.exporter import RunInfo
from otel_bridge.testing import MemoryTable, open_writer
from support.trackers import mlflow_reading

exporter = otel_bridge_mlflow.exporter


def opened(uri: str, run: RunInfo, memory: MemoryTable | None = None, **env: str):
    """A writer of *run* on the store at *uri*."""
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": uri, **env}, run.folder)
    return open_writer(exporter, run, settings, memory or MemoryTable())


def tagged(uri: str, run: RunInfo) -> str:
    """The id of the only run of MLflow that has the tag of *run*."""
    (held,) = mlflow_reading.runs_of(uri, run)
    return held.info.run_id
