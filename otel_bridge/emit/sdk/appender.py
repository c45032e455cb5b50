"""Exports of a stock SDK -> whole OTLP requests in the segment of this process's run.

The run's content policy is applied to spans and log records. Each resource gets the identity of the
run, so that a request reaches the run even when it is forwarded unchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from otel_bridge import semconv
from otel_bridge.content.otlp import Scope, apply_to_resource, apply_to_scope
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.encode.sdk_text import well_formed
from otel_bridge.emit.rollouts.open_trace import mark_instrumented
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.frames import Signal

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

Request: TypeAlias = (
    "ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest"
)
_log = logging.getLogger("otel_bridge")


class NothingWaits:
    """Answers the SDK for a processor or exporter that appends at once."""

    def shutdown(self) -> None:
        """Do nothing: no data waits here, and the run ends by itself."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Return True: no data waits here."""
        return True


class SdkAppender:
    """Appends data of SDK processors, readers and exporters, after the policy.

    Thread-safe, never raises.

    Args:
        run: The run that records the data.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._pid = os.getpid()

    def spans(self, spans: Sequence[ReadableSpan]) -> None:
        """Append *spans*; those that cannot be encoded are counted as ``internal_error``.

        A live rollout that one of them belongs to has spans of others from then on.
        """
        # Before the encoding, which may fail: the rollout then knows that it has spans of others.
        for span in spans:
            context = span.get_span_context()
            if context is not None:
                mark_instrumented(context.trace_id)
        self._append(
            Signal.TRACES,
            lambda: encode_spans(list(map(well_formed, spans))),
            len(spans),
        )

    def logs(self, records: Sequence[ReadableLogRecord]) -> None:
        """Append *records*."""
        self._append(
            Signal.LOGS,
            lambda: encode_logs(list(map(well_formed, records))),
            len(records),
        )

    def begin_in_child(self) -> None:
        """Append metrics of this process, a forked child whose reader has forgotten the parent's points."""
        self._pid = os.getpid()

    def metrics(self, data: MetricsData) -> None:
        """Append *data*.

        In a forked child whose reader still has the parent's points, count them as
        ``forked_metrics`` instead: they would be recorded twice, as those of both processes.
        """
        if os.getpid() != self._pid:
            self.run.count_drop("forked_metrics")
            return
        self._append(Signal.METRICS, lambda: encode_metrics(well_formed(data)), 1)

    def _append(self, signal: int, encode: Callable[[], Request], records: int) -> None:
        """Append the request that *encode* makes.

        A failure, also of the SDK's encoder, is counted as ``internal_error`` for its *records*.
        """
        try:
            self._append_request(signal, encode())
        except any_error_but_signals():
            # Nothing of otel-bridge may end a training run, and nothing leaves unseen.
            self.run.count_drop(INTERNAL_ERROR, records)
            _log.debug("a record of a stock SDK could not be encoded", exc_info=True)

    def _append_request(self, signal: int, request: Request) -> None:
        """Append *request* under the content policy, each resource with the run.

        Nothing for one without scopes. Texts that the policy cuts without knowing their names are
        counted as ``unknown_text``.
        """
        entries = list(_entries(request))
        # A reader collects at intervals, also when nothing was measured.
        if not any(scopes for _, scopes in entries):
            return
        policy = self.run.rollout_options.limits.policy
        unknown = 0
        for resource, scopes in entries:
            self._show_run(resource)
            unknown += apply_to_resource(resource, policy)
            unknown += sum(apply_to_scope(scope, policy) for scope in scopes)
        if unknown:
            self.run.count_drop("unknown_text", unknown)
        self.run.append(signal, request.SerializeToString(), whole=True)

    def _show_run(self, resource: Resource) -> None:
        """Add the identity of the run to *resource*, except for what it names itself."""
        keys = {pair.key for pair in resource.attributes}
        # A name alone would lead to another id on the receiving side.
        identity = {
            semconv.RUN_ID: self.run.id,
            semconv.PROJECT: self.run.project,
            semconv.RUN_NAME: self.run.name,
            semconv.ROLE: self.run.role,
        }
        for key, value in identity.items():
            if value is not None and key not in keys:
                resource.attributes.append(
                    KeyValue(key=key, value=AnyValue(string_value=value))
                )


def _entries(request: Request) -> Iterator[tuple[Resource, Sequence[Scope]]]:
    """Yield each resource of *request* with its scopes.

    The three kinds of requests name them differently.
    """
    if isinstance(request, ExportMetricsServiceRequest):
        for metrics in request.resource_metrics:
            yield metrics.resource, metrics.scope_metrics
    elif isinstance(request, ExportTraceServiceRequest):
        for spans in request.resource_spans:
            yield spans.resource, spans.scope_spans
    else:
        for logs in request.resource_logs:
            yield logs.resource, logs.scope_logs
