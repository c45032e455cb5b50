"""Traces -> a database, through MLflow's own store; their rewards, and later values, in a transaction of their own.

MLflow's store has no call that writes several assessments. So they are added to one session of the
store as MLflow's own rows. A store without such a session, or without these rows, leaves each to a
call of its own.

OTLP adds a second layer of JSON to attributes. Below 3.18, MLflow's readers removed it; from 3.18
on, its server does before it stores them. A database is written without that server, so that the
layer is removed here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge.capabilities import accepts
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import as_bridge_errors
from otel_bridge_mlflow.traces.spans import TraceContent

_UNWRAP = "strip_otlp_double_encoding"
_ONE_TRACE = "must belong to the same trace"
_SESSIONS = "ManagedSessionMaker"
_ROWS = "mlflow.store.tracking.dbmodels.models"


class DatabaseTraces:
    """Writes traces to a database.

    Args:
        connection: The store.
        experiment_id: MLflow's experiment.
    """

    def __init__(self, connection: Connection, experiment_id: str) -> None:
        self._shown = connection.shown
        self._experiment_id = experiment_id
        self._store = connection.store
        self._span_of = _span_maker(connection)
        self._one_trace_a_call = False

    def write(self, traces: Sequence[TraceContent]) -> list[Any]:
        """Store *traces*; return their rewards, which are written behind them.

        A kill in between leaves traces without rewards, which come again with their rollouts.

        Raises:
            Refused: A trace is refused; none is stored, below MLflow 3.13 none after it.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        with as_bridge_errors(f"storing {len(traces)} traces in {self._shown}"):
            if not self._log_together(traces):
                for trace in traces:
                    self._log([trace])
        rewards: list[Any] = []
        for trace in traces:
            rewards += trace.rewards
        return rewards

    def _log_together(self, traces: Sequence[TraceContent]) -> bool:
        """Store *traces* in one transaction; return ``False`` if this MLflow takes one trace a call.

        Raises MLflow's own errors.
        """
        if self._one_trace_a_call:
            return False
        try:
            self._log(traces)
        except Exception as exc:
            if len(traces) == 1 or _ONE_TRACE not in str(exc):
                raise
            # Asked by trying: no signature shows it, and nothing was stored.
            self._one_trace_a_call = True  # MLflow below 3.13
            return False
        return True

    def _log(self, traces: Sequence[TraceContent]) -> None:
        spans: list[Any] = []
        for trace in traces:
            spans += map(self._span_of, trace.spans)
        self._store.log_spans(self._experiment_id, spans)


class AssessmentRows:
    """Writes many assessments of stored traces in one transaction. For one thread.

    Args:
        store: MLflow's store of a database.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._open_session: Any = getattr(store, _SESSIONS, None)
        self._options: dict[str, bool] = {}
        # MLflow 3.14 and newer declare which sessions write.
        if accepts(store, _SESSIONS, "read_only"):
            self._options["read_only"] = False
        self._tables: _RewardTables | None = None
        # Without one of MLflow's names each assessment is a call.
        with suppress(ImportError, AttributeError):
            self._tables = _RewardTables(importlib.import_module(_ROWS))

    @property
    def usable(self) -> bool:
        """Return whether this MLflow has all that `write` needs, and sums up nothing beside the rows.

        If not, the caller writes each assessment by a call of its own.
        """
        return (
            self._open_session is not None
            and self._tables is not None
            # MLflow's own call updates those sums, so that each assessment goes through it.
            and not _keeps_rollups(self._store)
        )

    def write(self, assessments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Store new *assessments*, if this is `usable`.

        Return those of traces that the database lacks, and those whose ids it holds.

        Raises:
            Exception: MLflow's own, or that of the database. Nothing is stored then.
        """
        tables: Any = self._tables
        without_trace: list[Any] = []
        stored: list[Any] = []
        with self._open_session(**self._options) as session:
            traces, stored_ids = tables.stored_of(session, assessments)
            for assessment in assessments:
                trace = traces.get(assessment.trace_id)
                if trace is None:
                    without_trace.append(assessment)
                elif assessment.assessment_id in stored_ids:
                    stored.append(assessment)
                else:
                    session.add(tables.row(assessment, trace))
                    # Two assessments of one batch may have the same id (a value that came twice):
                    # the first stays.
                    stored_ids.add(assessment.assessment_id)
        return without_trace, stored


def _keeps_rollups(store: Any) -> bool:
    """Return whether MLflow sums up assessments beside them, which only its own calls do."""
    is_enabled = getattr(
        importlib.import_module(type(store).__module__), "rollups_enabled", None
    )
    return is_enabled is not None and bool(is_enabled())


class _RewardTables:
    """Holds all names inside MLflow that adding a reward needs.

    A missing one shows before anything is written.

    Args:
        models: MLflow's module of tables.

    Raises:
        AttributeError: MLflow has not all of them.
    """

    def __init__(self, models: Any) -> None:
        traces = models.SqlTraceInfo
        assessments = models.SqlAssessments
        self._trace_id = traces.request_id
        self._trace_columns = (
            traces.request_id,
            traces.experiment_id,
            traces.timestamp_ms,
        )
        self._assessment_id = assessments.assessment_id
        self._trace_of_assessment = assessments.trace_id
        self._assessment_row: Callable[[Any], Any] = assessments.from_mlflow_entity

    def stored_of(
        self, session: Any, assessments: Sequence[Any]
    ) -> tuple[dict[str, Any], set[str]]:
        """Return what the database holds of the traces of *assessments*: their rows by id, and ids of assessments.

        Raises what the database raises.
        """
        trace_ids = {assessment.trace_id for assessment in assessments}
        rows = session.query(*self._trace_columns)
        ids = session.query(self._assessment_id)
        stored_ids: set[str] = set()
        for (stored_id,) in ids.filter(self._trace_of_assessment.in_(trace_ids)):
            stored_ids.add(stored_id)
        traces: dict[str, Any] = {}
        for row in rows.filter(self._trace_id.in_(trace_ids)):
            traces[row[0]] = row
        return traces, stored_ids

    def row(self, assessment: Any, trace: Any) -> Any:
        """Return the row of *assessment*, whose *trace* is a row of `stored_of`."""
        row = self._assessment_row(assessment)
        # Copies of the trace's columns, which MLflow's charts read; below 3.16 there are none.
        row.experiment_id = trace[1]
        row.trace_timestamp_ms = trace[2]
        return row


def _span_maker(connection: Connection) -> Callable[[trace_pb2.Span], Any]:
    """Return a function from an OTLP span to the span that the installed MLflow stores in a database.

    It raises MLflow's own errors for a span that MLflow does not accept.
    """
    make: Callable[[trace_pb2.Span], Any] = connection.entities.Span.from_otel_proto
    unwrap: Any = None
    with suppress(ImportError):
        unwrap = getattr(
            importlib.import_module("mlflow.tracing.otel.translation"), _UNWRAP, None
        )
    # Below 3.18 MLflow's readers remove the layer.
    if unwrap is None:
        return make

    def unwrapped(message: trace_pb2.Span) -> Any:
        span = make(message)
        sdk_span = getattr(span, "_span", None)
        if sdk_span is not None:  # as MLflow's own server does (server/otel_api.py)
            sdk_span._attributes = unwrap(sdk_span._attributes)
        return span

    return unwrapped
