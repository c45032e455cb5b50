"""Traces -> an MLflow server: the rewards of a rollout in the one call that starts its trace, then all spans by OTLP.

``start_trace`` is MLflow's only call that takes several assessments; it takes one trace. From 3.13
on, a repeated call adds to what the trace has. Older servers fail on it, so that a redelivered
rollout would never arrive: there the rewards are left to calls of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.traces.spans import SESSION, TraceContent

_SPANS = "/v1/traces"
_TRACES = "/api/3.0/mlflow/traces"


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
            Refused: The server refuses a trace, whose rewards may be stored.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        starts = self._connection.abilities.starts_traces
        unwritten: list[Any] = []
        for trace in traces:
            if not starts:
                unwritten += trace.rewards
            elif trace.rewards:
                # Without rewards the spans alone create the trace, which saves a request.
                self._start(trace)
        # Behind the start, which is slower for a trace that exists.
        self._post(traces)
        return unwritten

    def _start(self, trace: TraceContent) -> None:
        """Create *trace* with its rewards, by the only call of a server that takes several assessments.

        MLflow takes its status, tags and texts from the spans, which follow. Raises as
        `Connection.request`.
        """
        entities = self._connection.entities
        begin_ms = min(span.start_time_unix_nano for span in trace.spans) // 1_000_000
        end_ms = max(span.end_time_unix_nano for span in trace.spans) // 1_000_000
        info = entities.TraceInfo(
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
        message = MessageToDict(info.to_proto(), preserving_proto_field_name=True)
        self._connection.request(
            "POST", _TRACES, json={"trace": {"trace_info": message}}
        )

    def _post(self, traces: Sequence[TraceContent]) -> None:
        """Send the spans of *traces* in one request by OTLP; raises as `Connection.request`."""
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
