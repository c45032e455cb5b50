"""Traces -> a database, through MLflow's own store: spans and rewards in one transaction.

MLflow's store has no call that writes both. It opens a session for its spans, and commits it. So
the rewards are added to that session as MLflow's own rows, before its commit. A store without such
a session, or without these rows, leaves the rewards to calls of their own.

OTLP adds a second layer of JSON to attributes. Below 3.18, MLflow's readers removed it; from 3.18
on, its server does before it stores them. A database is written without that server, so that the
layer is removed here.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
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
        self._store = StoreWithRewards(connection.store)
        self._span_of = _span_maker(connection)
        self._one_trace_a_call = False

    def write(self, traces: Sequence[TraceContent]) -> list[Any]:
        """Store *traces*; return the rewards that could not be written with them.

        Raises:
            Refused: A trace is refused; none is stored, below MLflow 3.13 none after it.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        with as_bridge_errors(f"storing {len(traces)} traces in {self._shown}"):
            if not self._one_trace_a_call:
                try:
                    return self._log(traces)
                except Exception as exc:
                    if len(traces) == 1 or _ONE_TRACE not in str(exc):
                        raise
                    # Asked by trying: no signature shows it, and nothing was stored.
                    self._one_trace_a_call = True  # MLflow below 3.13
            unwritten: list[Any] = []
            for trace in traces:
                unwritten += self._log([trace])
            return unwritten

    def _log(self, traces: Sequence[TraceContent]) -> list[Any]:
        """Store *traces* in one transaction.

        Return the rewards that are not stored. Raises MLflow's own errors.
        """
        spans: list[Any] = []
        rewards: list[Any] = []
        for trace in traces:
            spans += map(self._span_of, trace.spans)
            rewards += trace.rewards
        return self._store.log_spans(self._experiment_id, spans, rewards)


class StoreWithRewards:
    """Writes many assessments in one transaction: that of MLflow's store for their traces, or one of their own.

    For one thread.

    Args:
        store: MLflow's store of a database.
    """

    def __init__(self, store: Any) -> None:
        # A copy, because the sessions of the original are those of every other user of this store.
        self._store = copy.copy(store)
        self._open_session: Any = getattr(store, _SESSIONS, None)
        self._rewards: list[Any] = []
        self._depth = 0
        # MLflow 3.14 and newer declare which sessions write.
        self._declares_writes = accepts(store, _SESSIONS, "read_only")
        self._tables: _RewardTables | None = None
        if self._open_session is None:
            return
        # Without one of MLflow's names, the store's own sessions stay, and each reward is a call.
        with suppress(ImportError, AttributeError):
            self._tables = _RewardTables(importlib.import_module(_ROWS))
            self._store.ManagedSessionMaker = self._session

    def log_spans(
        self, experiment_id: str, spans: Sequence[Any], rewards: Sequence[Any]
    ) -> list[Any]:
        """Store *spans*, with *rewards* in the same transaction.

        Return the rewards that are not stored.

        Raises:
            Exception: MLflow's own. Nothing is stored then.
        """
        # Handed over by an attribute, because MLflow opens the session itself, inside of log_spans.
        self._rewards = list(rewards)
        try:
            self._store.log_spans(experiment_id, spans)
            return self._rewards
        finally:
            # Also after an error: rewards of a failed call must not get into the next transaction.
            self._rewards = []

    def write(self, assessments: Sequence[Any]) -> list[Any]:
        """Store new *assessments* of stored traces in one transaction.

        Return the others, in their order.

        Others are of traces that the database lacks, or have the id of one that it holds.

        Raises:
            Exception: MLflow's own, or that of the database. Nothing is stored then.
        """
        tables = self._tables
        # MLflow's own call updates those sums, so that each evaluation goes through it.
        if tables is None or _keeps_rollups(self._store):
            return list(assessments)
        declared = {}
        if self._declares_writes:
            declared = {"read_only": False}
        with self._open_session(**declared) as session:
            without_trace, stored = _add(session, tables, assessments)
        return without_trace + stored

    @contextmanager
    def _session(self, *args: Any, **options: Any) -> Generator[Any]:
        """Open a session of MLflow's store.

        Before its commit, add the rewards whose traces it holds.

        Only in the outermost session that writes: MLflow opens others inside it. Rewards that were
        not added stay in `_rewards`, for calls of their own.
        """
        self._depth += 1
        unwritten = self._rewards
        try:
            with self._open_session(*args, **options) as session:
                yield session
                # MLflow reads the experiment in a session within the one that writes.
                writes = not self._declares_writes or options.get("read_only") is False
                if (
                    self._depth == 1
                    and writes
                    and unwritten
                    and self._tables is not None
                ):
                    # What the database holds is redelivered.
                    unwritten, _ = _add(session, self._tables, self._rewards)
        finally:
            self._depth -= 1
        # Only now, behind the commit: MLflow repeats a transaction that met a deadlock.
        self._rewards = unwritten


def _add(
    session: Any, tables: _RewardTables, assessments: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Add *assessments* to *session*.

    Return those without a trace, and those whose ids its database holds.

    Raises:
        Exception: That of the database; nothing of the session is stored then.
    """
    trace_ids = {assessment.trace_id for assessment in assessments}
    traces = session.query(*tables.trace_columns).filter(tables.trace_id.in_(trace_ids))
    stored_traces = {row[0]: row for row in traces}
    ids = session.query(tables.assessment_id).filter(
        tables.trace_of_assessment.in_(trace_ids)
    )
    stored_ids = {row[0] for row in ids}
    without_trace: list[Any] = []
    stored: list[Any] = []
    for assessment in assessments:
        trace = stored_traces.get(assessment.trace_id)
        if trace is None:
            without_trace.append(assessment)
        elif assessment.assessment_id in stored_ids:
            stored.append(assessment)
        else:
            row = tables.assessment_row(assessment)
            # Copies of the trace's columns, which MLflow's charts read; below 3.16 there are none.
            row.experiment_id = trace[1]
            row.trace_timestamp_ms = trace[2]
            session.add(row)
            # Two assessments of one batch may have the same id (a value that came twice): the first
            # stays.
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
        self.trace_id = traces.request_id
        self.trace_columns = (
            traces.request_id,
            traces.experiment_id,
            traces.timestamp_ms,
        )
        self.assessment_id = assessments.assessment_id
        self.trace_of_assessment = assessments.trace_id
        self.assessment_row: Callable[[Any], Any] = assessments.from_mlflow_entity


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
