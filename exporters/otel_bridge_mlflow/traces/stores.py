"""Traces -> MLflow: the rewards of a rollout in the one call that starts its trace, then all spans.

``start_trace`` is MLflow's only call that takes several assessments; it takes one trace. From 3.13
on, a repeated call adds to what the trace has. Older ones fail on it, so that a redelivered rollout
would never arrive: there the rewards are left to calls of their own.

A server takes spans by OTLP, which adds a second layer of JSON to attributes. Below 3.18, MLflow's
readers removed it; from 3.18 on, its server does before it stores them. A database is written
without that server, so that the layer is removed here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.traces.spans import SESSION, TraceContent

_SPANS = "/v1/traces"
_TRACES = "/api/3.0/mlflow/traces"
_UNWRAP = "strip_otlp_double_encoding"
_ONE_TRACE = "must belong to the same trace"


class ServerTraces:
    """Writes traces to a server.

    Args:
        connection: The server.
        experiment_id: MLflow's experiment.
    """

    def __init__(self, connection: Connection, experiment_id: str) -> None:
        self._connection = connection
        self._experiment_id = experiment_id

    def write(self, traces: Sequence[TraceContent]) -> list[Any]:
        """Store *traces*; return the rewards that could not be written with them.

        Raises:
            Refused: A trace is refused, whose rewards may be stored.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        starts = self._connection.abilities.starts_traces
        unwritten: list[Any] = []
        for trace in traces:
            # Without rewards the spans alone create the trace, which saves a request.
            if trace.rewards and not (starts and self._start(self._info(trace))):
                unwritten += trace.rewards
        # Behind the start, which is slower for a trace that exists.
        self._store_spans(traces)
        return unwritten

    def _info(self, trace: TraceContent) -> Any:
        """Return what starts *trace* with its rewards.

        MLflow takes its status, tags and texts from the spans.
        """
        entities = self._connection.entities
        begin_ms = min(span.start_time_unix_nano for span in trace.spans) // 1_000_000
        end_ms = max(span.end_time_unix_nano for span in trace.spans) // 1_000_000
        return entities.TraceInfo(
            trace_id=trace.id,
            trace_location=entities.TraceLocation.from_experiment_id(
                self._experiment_id
            ),
            request_time=begin_ms,
            execution_duration=end_ms - begin_ms,
            # The root span, which follows, sets the final state.
            state=entities.TraceState.IN_PROGRESS,
            # Up to 3.16, MLflow takes no session from the spans of a trace that was started.
            trace_metadata={SESSION: trace.session} if trace.session else {},
            assessments=list(trace.rewards),
        )

    def _start(self, info: Any) -> bool:
        """Create a trace with its rewards; return whether it has them."""
        message = MessageToDict(info.to_proto(), preserving_proto_field_name=True)
        self._connection.request(
            "POST", _TRACES, json={"trace": {"trace_info": message}}
        )
        return True

    def _store_spans(self, traces: Sequence[TraceContent]) -> None:
        request = trace_service_pb2.ExportTraceServiceRequest()
        # An empty resource, because MLflow would create a tag for each of its attributes in every
        # trace.
        scope = request.resource_spans.add().scope_spans.add()
        for trace in traces:
            scope.spans.extend(trace.spans)
        headers = {
            "Content-Type": "application/x-protobuf",
            "x-mlflow-experiment-id": self._experiment_id,
        }
        self._connection.request(
            "POST", _SPANS, data=request.SerializeToString(), headers=headers
        )


class DatabaseTraces(ServerTraces):
    """Writes traces to a database, through MLflow's own store.

    Args:
        connection: The store.
        experiment_id: MLflow's experiment.
    """

    def __init__(self, connection: Connection, experiment_id: str) -> None:
        super().__init__(connection, experiment_id)
        self._span_of = _span_maker(connection)
        self._one_trace_a_call = False

    def _start(self, info: Any) -> bool:
        store = self._connection.store
        doing = f"starting trace {info.trace_id} in {self._connection.shown}"
        try:
            with as_bridge_errors(doing, missing_is_refused=True):
                store.get_trace_info(info.trace_id)
        except Refused:
            with as_bridge_errors(doing):
                store.start_trace(info)
            return True
        # Redelivered: it would take back rewards that came later (MLflow 3.17).
        return False

    def _store_spans(self, traces: Sequence[TraceContent]) -> None:
        with as_bridge_errors(
            f"storing {len(traces)} traces in {self._connection.shown}"
        ):
            if not self._one_trace_a_call:
                try:
                    self._log(traces)
                except Exception as exc:
                    if len(traces) == 1 or _ONE_TRACE not in str(exc):
                        raise
                    # Asked by trying: no signature shows it, and nothing was stored.
                    self._one_trace_a_call = True  # MLflow below 3.13
            if self._one_trace_a_call:
                for trace in traces:
                    self._log([trace])

    def _log(self, traces: Sequence[TraceContent]) -> None:
        spans: list[Any] = []
        for trace in traces:
            spans += map(self._span_of, trace.spans)
        self._connection.store.log_spans(self._experiment_id, spans)


def _span_maker(connection: Connection) -> Callable[[trace_pb2.Span], Any]:
    """Return a function from an OTLP span to the span that the installed MLflow stores in a database."""
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
