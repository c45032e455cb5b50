"""The writer: one run, one MLflow store."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from otel_bridge.errors import BlockedError, ExporterError, PermanentError
from otel_bridge.exporter import ExporterSettings, Memory, RunInfo
from otel_bridge.records import Json, LateValue, Position, Rollout, Row, Status
from otel_bridge_mlflow.assessments import AssessmentWriter
from otel_bridge_mlflow.connection import Connection, connect
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.keys import Names
from otel_bridge_mlflow.metrics import MetricWriter
from otel_bridge_mlflow.params import ParamWriter
from otel_bridge_mlflow.runs import OpenRun, open_run, require_active
from otel_bridge_mlflow.settings import mlflow_settings
from otel_bridge_mlflow.tags import Roles
from otel_bridge_mlflow.traces import TraceWriter

_STATUS = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.KILLED: "KILLED"}
_DELETED = "'active' state"


class MlflowRunWriter:
    """Writes one run to MLflow, from one delivery thread; a call that returned is in the store.

    Args:
        connection: The store.
        opened: MLflow's run.
        run: The run of the bridge.
        memory: This destination's memory.
    """

    def __init__(self, connection: Connection, opened: OpenRun, run: RunInfo, memory: Memory) -> None:
        self._connection = connection
        self._run = opened
        self._metrics = MetricWriter(connection, opened.id, Names("metric", connection.rules, memory, run.keys), memory)
        self._traces = TraceWriter(connection, opened, Names("trace tag", connection.rules, memory))
        self._assessments = AssessmentWriter(connection, memory)
        self._params = ParamWriter(connection, opened, Names("param", connection.rules, memory))
        self._roles = Roles(connection, opened.id)
        self.tracker_run_id = opened.id
        self.found = opened.found

    @property
    def url(self) -> str | None:
        """Address of the run on a server, ``None`` for a database."""
        if not self._connection.settings.remote:
            return None
        return f"{self._connection.shown}/#/experiments/{self._run.experiment_id}/runs/{self._run.id}"

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Log *rows*, merged into batches."""
        with self._outcomes():
            self._roles.note(rows)
            self._metrics.write(rows)

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Store *rollouts* as traces linked to the run; their rewards wait for `catch_up`."""
        with self._outcomes():
            self._roles.note(rollouts)
            try:
                self._traces.write(rollouts)
            except ExporterError as exc:
                self._assessments.put_off([each for each in rollouts if each.position < (exc.position or 0)])
                raise
            self._assessments.put_off(rollouts)

    def catch_up(self) -> bool:
        """Write a few rewards that wait as assessments; return whether none is left."""
        with self._outcomes():
            return self._assessments.catch_up()

    @property
    def put_off(self) -> int:
        """How many rewards wait for `catch_up`."""
        return self._assessments.waiting

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Set *values* as assessments of their traces."""
        with self._outcomes():
            self._assessments.write_late(values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Log what changed of the config of *role* as params."""
        with self._outcomes():
            self._params.write(role, config)

    def safe(self) -> Position | None:
        """Return ``None``: what a call that returned has not stored in MLflow lies in the destination's memory."""
        return None

    def end(self, status: Status) -> None:
        """Write what waits, then set the run's status and its end time."""
        while not self.catch_up():
            pass
        with self._outcomes(), as_bridge_errors(f"ending MLflow run {self._run.id}"):
            self._roles.confirm()
            self._connection.client.set_terminated(self._run.id, status=_STATUS[status])

    def close(self) -> None:
        """Do nothing: MLflow keeps no connection of this run."""

    @contextmanager
    def _outcomes(self) -> Generator[None]:
        """Name the run and the command that restores it when it was deleted; nothing but the three errors leaves."""
        try:
            yield
        except Refused as exc:
            raise PermanentError(str(exc)) from exc
        except BlockedError as exc:
            if _DELETED in str(exc):
                self._look_what_was_deleted(exc)
            raise

    def _look_what_was_deleted(self, error: BlockedError) -> None:
        """Put into *error* the command that restores the run, or its experiment with all runs."""
        try:
            require_active(self._connection, self._run)
        except BlockedError as found:
            error.help = found.help
        except (ExporterError, Refused):
            return  # the store is away now: what MLflow said stands


def open_writer(run: RunInfo, settings: ExporterSettings, memory: Memory) -> MlflowRunWriter:
    """Import MLflow, connect, and find or create the run.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: A person must act.
    """
    connection = connect(mlflow_settings(settings))
    return MlflowRunWriter(connection, open_run(connection, run, memory), run, memory)
