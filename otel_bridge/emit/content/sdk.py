"""The run's content policy for a stock SDK's spans and log records, applied before the segment.

The policy is that of rollouts (`otel_bridge.emit.content.policy`), the rules are those of the bridge for
third-party producers (`otel_bridge.otlp.content`). Nearly every record has nothing to redact, which is checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.emit.content.policy import ContentPolicy, hooked, may_hold_secret
from otel_bridge.otlp.content import (
    ContentRules,
    is_message,
    redact_attributes,
    redact_log,
    redact_span,
)
from otel_bridge.otlp.limits import limit_log, limit_metric, limit_resource, limit_span
from otel_bridge.text.secret_patterns import Redaction, may_be_secret, redact_text

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource as SdkResource
    from opentelemetry.sdk.trace import ReadableSpan

Encoded: TypeAlias = "ExportTraceServiceRequest | ExportLogsServiceRequest | Span"
UNKNOWN_TEXT: Final = "unknown_text"
_NO_TEXT: Final = (bool, int, float, type(None))
_MAX_KNOWN_CHARS: Final = 128


class SdkContent:
    """Applies one policy to SDK records. Thread-safe. When a method raises, the record must not leave.

    Args:
        policy: Policy for texts.
        count: Callable that counts texts of attributes that no convention names, which do not leave whole.
    """

    def __init__(self, policy: ContentPolicy, count: Callable[[str, int], None] | None = None) -> None:
        self._count = count
        self._policy = policy
        self._limit = 0 if policy.off else policy.max_chars
        redaction = Redaction(policy.secrets, policy.email)
        self._rules, self._names = (
            ContentRules(redaction=redaction, text_filter=policy.redact),
            ContentRules(redaction=redaction),
        )
        self._known: tuple[SdkResource | None, bool] = (None, False)

    def spans(self, spans: Sequence[ReadableSpan], request: ExportTraceServiceRequest) -> bytes:
        """Return the bytes of *request*, encoded from *spans*, after the policy."""
        resources = (span.resource for span in spans)
        data = self._apply(request, lambda: self._suspects(resources) or any(map(_suspect_span, spans)))
        return data or request.SerializeToString()

    def logs(self, records: Sequence[ReadableLogRecord], request: ExportLogsServiceRequest) -> bytes:
        """Return the bytes of *request*, encoded from *records*, after the policy."""
        resources = (record.resource for record in records)
        data = self._apply(request, lambda: self._suspects(resources) or any(map(_suspect_log, records)))
        return data or request.SerializeToString()

    def metrics(self, request: ExportMetricsServiceRequest) -> bytes:
        """Return the bytes of *request* after the policy, which also covers texts among the attributes of points."""
        if self._limit is not None:
            found = (one for of in request.resource_metrics for scope in of.scope_metrics for one in scope.metrics)
            unknown = sum(map(limit_metric, found))
            unknown += sum(limit_resource(of.resource.attributes, self._limit) for of in request.resource_metrics)
            if unknown and self._count is not None:
                self._count(UNKNOWN_TEXT, unknown)
        return request.SerializeToString()

    def span(self, source: ReadableSpan, span: Span) -> None:
        """Apply the policy to *span*, encoded from *source*, in place."""
        self._apply(span, lambda: _suspect_span(source))

    def _apply(self, encoded: Encoded, suspect: Callable[[], bool]) -> bytes | None:
        """Apply the policy in place.

        Args:
            encoded: Request or span, changed in place.
            suspect: Callable that returns whether a name or a text that is not content may be a secret.

        Returns:
            The bytes of *encoded*, when they were searched and are still valid.
        """
        if self._limit == 0:  # content that does not leave need not be searched
            self._cut(encoded, 0)
        data, redact_value = None, self._policy.email or hooked()
        if not redact_value and self._policy.secrets and not (redact_value := suspect()):
            redact_value = may_hold_secret(data := encoded.SerializeToString())
        if redact_value:
            self._redact_value(encoded)
        if self._limit:
            self._cut(encoded, self._limit)
        return None if redact_value or self._limit else data

    def _cut(self, encoded: Encoded, limit: int) -> None:
        unknown = 0
        for resource in _resources(encoded):
            unknown += limit_resource(resource.attributes, limit)
        for item in _items(encoded):
            unknown += limit_span(item, limit) if isinstance(item, Span) else limit_log(item, limit)
        if unknown and self._count is not None:
            self._count(UNKNOWN_TEXT, unknown)

    def _suspects(self, resources: Iterable[SdkResource | None]) -> bool:
        return any(map(self._suspect_resource, resources))

    def _suspect_resource(self, resource: SdkResource | None) -> bool:
        known, suspect = self._known
        if resource is not known:
            suspect = resource is not None and _suspect_attributes(resource.attributes)
            self._known = (resource, suspect)
        return suspect

    def _redact_value(self, encoded: Encoded) -> None:
        for resource in _resources(encoded):
            redact_attributes(resource.attributes, self._names)
        for item in _items(encoded):
            if isinstance(item, Span):
                redact_span(item, self._rules)
            else:
                redact_log(item, self._rules)


def _resources(encoded: Encoded) -> Iterator[Resource]:
    if isinstance(encoded, ExportTraceServiceRequest):
        yield from (of_spans.resource for of_spans in encoded.resource_spans)
    elif isinstance(encoded, ExportLogsServiceRequest):
        yield from (of_logs.resource for of_logs in encoded.resource_logs)


def _items(encoded: Encoded) -> Iterator[Span | LogRecord]:
    if isinstance(encoded, Span):
        yield encoded
    elif isinstance(encoded, ExportTraceServiceRequest):
        for of_spans in encoded.resource_spans:
            for spans in of_spans.scope_spans:
                yield from spans.spans
    else:
        for of_logs in encoded.resource_logs:
            for records in of_logs.scope_logs:
                yield from records.log_records


# --- quick checks -----------------------------------------------------------------------------------------------------
def _suspect_span(span: ReadableSpan) -> bool:
    """Return whether *span* may hold a secret by a name, or in a text that is not content."""
    if _suspect_attributes(span.attributes) or _suspect_text(span.name):
        return True
    if span.status.description and _suspect_text(span.status.description):
        return True
    events = any(_suspect_attributes(event.attributes) or _suspect_text(event.name) for event in span.events)
    return events or any(_suspect_attributes(link.attributes) for link in span.links)


def _suspect_log(record: ReadableLogRecord) -> bool:
    log_record = record.log_record
    return _suspect_attributes(log_record.attributes) or _suspect(log_record.body, "", False)


def _suspect_attributes(attributes: Mapping[str, object] | None) -> bool:
    if not attributes:
        return False
    return any(
        _suspect(value, key, is_message(key)) for key, value in attributes.items() if not isinstance(value, _NO_TEXT)
    )


def _suspect(value: object, key: str, message: bool) -> bool:
    """Return whether *value*, named *key*, may hold a secret; content of messages is checked in the bytes instead."""
    if may_be_secret(key):
        return True
    if isinstance(value, str):
        return not message and _suspect_text(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return any(_suspect(item, str(name), message) for name, item in items)
    if isinstance(value, (list, tuple)):
        entries = cast("Sequence[object]", value)
        return any(_suspect(item, "", message) or _is_flag(item) for item in entries)
    return False


def _is_flag(value: object) -> bool:
    return isinstance(value, str) and value.startswith("--")


def _suspect_text(text: str) -> bool:
    return _known_suspect(text) if len(text) <= _MAX_KNOWN_CHARS else redact_text(text) != text


@lru_cache(maxsize=4096)
def _known_suspect(text: str) -> bool:
    return redact_text(text) != text
