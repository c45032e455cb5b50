"""Rollouts -> traces of MLflow, linked to the run.

A server takes OTLP at ``/v1/traces``, which links the traces whose root it is given; a database takes the same spans
through its store. Both upsert by (trace, span), so that the same rollout again changes nothing. A request is all or
nothing: one that is refused is halved until the one bad rollout is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.records import Rollout
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.keys import Names
from otel_bridge_mlflow.runs import OpenRun
from otel_bridge_mlflow.spans import spans_of, trace_id_of

REQUEST_ROLLOUTS = 50
"""Above 100 roots in one request MLflow answers 200 and links none (sqlalchemy_store.py, link_traces_to_run)."""
REQUEST_BYTES = 8 << 20
_TRACES = "/v1/traces"


class TraceWriter:
    """Writes rollouts to one MLflow run.

    Args:
        connection: The store.
        run: The run.
        names: Names of trace tags.
    """

    def __init__(self, connection: Connection, run: OpenRun, names: Names) -> None:
        self._connection = connection
        self._run = run
        self._names = names
        self._send: Callable[[Sequence[list[trace_pb2.Span]]], None]
        self._send = self._post if connection.settings.remote else self._log

    def write(self, rollouts: Sequence[Rollout]) -> None:
        """Store *rollouts* and link them to the run.

        Raises:
            PermanentError: One of them is refused; those before it are stored.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        start = 0
        while start < len(rollouts):
            batch = self._batch(rollouts, start)
            self._write_batch(rollouts[start : start + len(batch)], batch)
            start += len(batch)

    def _batch(self, rollouts: Sequence[Rollout], start: int) -> list[list[trace_pb2.Span]]:
        batch: list[list[trace_pb2.Span]] = []
        size = 0
        for rollout in rollouts[start : start + REQUEST_ROLLOUTS]:
            spans = spans_of(rollout, self._names.name, self._connection.rules.trace_tag_length)
            size += sum(span.ByteSize() for span in spans)
            if batch and size > REQUEST_BYTES:
                break
            batch.append(spans)
        return batch

    def _write_batch(self, rollouts: Sequence[Rollout], batch: Sequence[list[trace_pb2.Span]]) -> None:
        position = rollouts[0].position
        try:
            self._send(batch)
        except Refused as exc:
            if len(batch) == 1:
                raise PermanentError(f"rollout {rollouts[0].id}: {exc}", position=position) from exc
            middle = len(batch) // 2
            self._write_batch(rollouts[:middle], batch[:middle])
            self._write_batch(rollouts[middle:], batch[middle:])
        except ExporterError as exc:
            exc.position = position if exc.position is None else exc.position
            raise

    def _post(self, batch: Sequence[list[trace_pb2.Span]]) -> None:
        request = trace_service_pb2.ExportTraceServiceRequest()
        # One empty resource: MLflow would make a tag of each of its attributes for every trace.
        scope = request.resource_spans.add().scope_spans.add()
        for spans in batch:
            scope.spans.extend(spans)
        headers = {
            "Content-Type": "application/x-protobuf",
            "x-mlflow-experiment-id": self._run.experiment_id,
            "x-mlflow-run-id": self._run.id,
        }
        self._connection.request("POST", _TRACES, data=request.SerializeToString(), headers=headers)

    def _log(self, batch: Sequence[list[trace_pb2.Span]]) -> None:
        doing = f"storing {len(batch)} traces in {self._connection.shown}"
        make, store = self._connection.entities.Span.from_otel_proto, self._connection.store
        with as_bridge_errors(doing):
            store.log_spans(self._run.experiment_id, [make(span) for spans in batch for span in spans])
        with as_bridge_errors(doing):
            store.link_traces_to_run([trace_id_of(spans[0].trace_id.hex()) for spans in batch], self._run.id)
