"""Writes one run to one MLflow store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from otel_bridge.errors import BlockedError, ExporterError, PermanentError
from otel_bridge.exporter import (
    ExporterSettings,
    RunInfo,
    WriterMemory,
    settings_as,
)
from otel_bridge.records import (
    Alert,
    Evaluation,
    Json,
    MediaRecord,
    PlainTrace,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge_mlflow import connection as connections
from otel_bridge_mlflow.connection import Connection, connect
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.keys import Names
from otel_bridge_mlflow.media import MediaWriter
from otel_bridge_mlflow.metrics import MetricWriter
from otel_bridge_mlflow.params import ParamWriter
from otel_bridge_mlflow.runs import OpenMlflowRun, open_run, require_active
from otel_bridge_mlflow.settings import MlflowSettings
from otel_bridge_mlflow.tags import Roles, SummaryWriter
from otel_bridge_mlflow.traces.assessments import AssessmentWriter
from otel_bridge_mlflow.traces.trace_writer import TraceWriter

_STATUS = {
    Status.FINISHED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.KILLED: "KILLED",
}
_UI = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` serves without options."""
_DELETED = "'active' state"


class MlflowRunWriter:
    """Writes one run to MLflow, from one delivery thread.

    When a call returns, its data is in the store. A call raises `PermanentError` for a record, or a
    config, that MLflow refuses for good; `RetryableError` when the store cannot be reached now; and
    `BlockedError` when a person must act. A memory that cannot be written raises `JournalError`,
    and the bridge makes the call again.

    After a `RetryableError` the bridge makes the call again later, after some in a row through a
    new writer. After a `BlockedError` it shows the help and opens a new writer every minute. After a
    `PermanentError` the record is a dead letter, and those behind it follow.

    Args:
        connection: The store.
        opened: MLflow's run.
        run: The run of the bridge.
        memory: This destination's memory.
    """

    def __init__(
        self,
        connection: Connection,
        opened: OpenMlflowRun,
        run: RunInfo,
        memory: WriterMemory,
    ) -> None:
        self._connection = connection
        self._run = opened
        self._metrics = MetricWriter(
            connection,
            opened.id,
            Names("metric", connection.rules, memory, run.keys),
            memory,
        )
        self._assessments = AssessmentWriter(connection)
        self._traces = TraceWriter(connection, opened, self._assessments, memory)
        self._params = ParamWriter(
            connection, opened, Names("param", connection.rules, memory)
        )
        self._roles = Roles(connection, opened.id)
        tags = Names("summary", connection.rules, memory)
        self._summary = SummaryWriter(
            connection, opened.id, self._metrics, tags, memory
        )
        self.degraded = connection.abilities.degraded
        self.left_out: Counter[str] = Counter()
        self._media = MediaWriter(connection, opened, self.left_out)

    @property
    def tracker_run_id(self) -> str:
        """Return MLflow's own id of the run."""
        return self._run.id

    @property
    def found(self) -> str:
        """Return one line on what MLflow held of the run at the first opening, empty without any."""
        return self._run.found

    @property
    def url(self) -> str:
        """Return the address of the run on a server.

        For a database, on the one that ``mlflow ui`` starts.
        """
        server = _UI
        if self._connection.settings.remote:
            server = self._connection.shown
        return f"{server}/{self._run.page}"

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Log *rows*, merged into batches.

        A bad value is refused after the good ones of its row are written.
        """
        with self._outcomes():
            self._roles.note(rows)
            self._metrics.write(rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Store *rollouts* as traces linked to the run, with their rewards as assessments.

        Left out and counted by an MLflow that cannot show them, as their evaluations and late spans
        are.
        """
        if self._leaves_out("rollouts", len(rollouts)):
            return
        with self._outcomes():
            self._roles.note(rollouts)
            self._traces.write(rollouts)

    def write_traces(self, traces: Sequence[PlainTrace]) -> None:
        """Add spans that arrived late to the traces of their rollouts; other traces are skipped."""
        late = [trace for trace in traces if trace.rollout_key]
        if not late or self._leaves_out("spans", len(late)):
            return
        with self._outcomes():
            self._traces.complete(late)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Store *media* as artifacts of the run."""
        with self._outcomes():
            self._roles.note(media)
            self._media.write(media)

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Set *values* as assessments of their traces.

        One without its trace is refused for good.
        """
        if self._leaves_out("evaluations", len(values)):
            return
        with self._outcomes():
            self._assessments.write_evaluations(values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Log the changes of the config of *role* as params.

        Refused entries are left out, with a warning.
        """
        with self._outcomes():
            self._params.write(role, config)

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Show *alerts* as tags ``alert/<title>`` and points of the metrics ``alerts/<level>``."""
        with self._outcomes():
            self._summary.write_alerts(alerts)

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Show numbers as metrics and the rest as tags, ``summary/<key>``."""
        del role
        with self._outcomes():
            self._summary.write(values)

    def durable(self) -> Position | None:
        """Return ``None``: when a call returns, its data is in MLflow."""
        return None

    def end(self, status: Status) -> None:
        """Set the run's status and its end time; may be repeated after an error."""
        with self._outcomes(), as_bridge_errors(f"ending MLflow run {self._run.id}"):
            self._roles.confirm()
            self._connection.client.set_terminated(self._run.id, status=_STATUS[status])

    def close(self) -> None:
        """Do nothing: MLflow keeps no connection of this run."""

    def _leaves_out(self, kind: str, count: int) -> bool:
        """Return whether this MLflow cannot show rollouts.

        If so, count *count* records as left out.
        """
        reason = self._connection.abilities.left_out
        if reason:
            self.left_out[f"{kind}: {reason}"] += count
        return bool(reason)

    @contextmanager
    def _outcomes(self) -> Generator[None]:
        """Raise only the three errors of the contract, with the command that restores a deleted run."""
        try:
            yield
        except Refused as exc:
            raise PermanentError(str(exc)) from exc
        except BlockedError as exc:
            if _DELETED in str(exc):
                self._look_what_was_deleted(exc)
            raise

    def _look_what_was_deleted(self, error: BlockedError) -> None:
        """Add to *error* the command that restores the run, or its experiment with all runs.

        Nothing is added when neither was deleted, or the store cannot be asked now.
        """
        try:
            require_active(self._connection, self._run)
        except BlockedError as found:
            error.help = found.help
        except (ExporterError, Refused):
            return  # the store cannot be reached now: MLflow's own message stays


def probe(settings: ExporterSettings) -> tuple[str, ...]:
    """Return what a writer's ``degraded`` would be, without opening a run.

    Raises:
        RetryableError: The server cannot be reached now.
        BlockedError: A person must act.
    """
    return connections.probe(settings_as(settings, MlflowSettings))


def open_writer(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> MlflowRunWriter:
    """Import MLflow, connect, and find or create the run.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: A person must act.
    """
    opened = connect(settings_as(settings, MlflowSettings))
    return MlflowRunWriter(opened, open_run(opened, run, memory), run, memory)
