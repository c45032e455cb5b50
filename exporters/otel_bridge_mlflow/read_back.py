"""Counts through MLflow's own client what MLflow shows of a run."""

from __future__ import annotations

from otel_bridge import semconv
from otel_bridge.errors import PermanentError
from otel_bridge.exporter import (
    ExporterSettings,
    RunInfo,
    TrackerCounts,
    settings_as,
)
from otel_bridge_mlflow.connection import Connection, connect
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.runs import experiment_name
from otel_bridge_mlflow.settings import MlflowSettings

_TRACES = 500
"""Most traces of one search: more are not needed to see that rollouts arrived."""


def tracker_counts(run: RunInfo, settings: ExporterSettings) -> TrackerCounts:
    """Count the points and traces of *run*; none when MLflow does not know it.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: A person must act.
        PermanentError: MLflow refuses the search.
    """
    connection = connect(settings_as(settings, MlflowSettings))
    try:
        with as_bridge_errors(f"reading run {run.name!r} back from {connection.shown}"):
            return _held(connection, run)
    except Refused as exc:
        raise PermanentError(str(exc)) from exc


def _held(connection: Connection, run: RunInfo) -> TrackerCounts:
    """Count what MLflow shows of *run*; 0 without its experiment. Raises MLflow's own errors.

    A run without otel-bridge's tag is not counted: it belongs to somebody else.
    """
    client = connection.client
    name = experiment_name(run, connection.rules.experiment_length)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return TrackerCounts(0, 0)
    place = [experiment.experiment_id]
    numbers = 0
    rollouts = 0
    for mlflow_run in client.search_runs(
        place, f"tags.`{semconv.RUN_ID}` = '{run.id}'"
    ):
        # The last value of each is enough to see that rows arrived.
        numbers += len(mlflow_run.data.metrics)
        rollouts += len(
            client.search_traces(
                locations=place, run_id=mlflow_run.info.run_id, max_results=_TRACES
            )
        )
    return TrackerCounts(numbers, rollouts)
