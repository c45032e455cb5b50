"""Content policy for spans whose producer applies none, and the size limit of a rollout. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.otlp.content import ContentRules, Limit, redact_log, redact_span
from otel_bridge.otlp.limits import limit_log, limit_span
from otel_bridge.text.secret_patterns import Redaction

_SIZES: Final = (1 << 16, 1 << 14, 1 << 12, 1 << 10, 256, 64)


def limited(span: Span, limit: int) -> tuple[Span, int]:
    """Return a copy of *span* with texts of at most *limit* characters (0: none), and its texts of unknown names."""
    copy = Span.FromString(span.SerializeToString())
    return copy, limit_span(copy, limit)


def redacted(span: Span, redaction: Redaction) -> Span:
    """Return *span* without what *redaction* redacts, or *span* itself when nothing matches; JSON stays JSON."""
    copy = Span.FromString(span.SerializeToString())
    return copy if redact_span(copy, ContentRules(redaction=redaction)) else span


def clean_log(record: LogRecord, redaction: Redaction, limit: Limit) -> LogRecord:
    """Return a copy of *record* without what *redaction* redacts, with its content cut to *limit*."""
    copy = LogRecord.FromString(record.SerializeToString())
    redact_log(copy, ContentRules(redaction=redaction))
    if limit is not None:
        limit_log(copy, limit)
    return copy


def shrunk(spans: Sequence[Span], limit_bytes: int) -> tuple[list[Span], int]:
    """Cut a rollout to about *limit_bytes*: first long texts, then all content, then its last spans.

    Returns:
        The spans that remain, and the number of bytes cut. A rollout within the limit is returned unchanged, with 0.
    """
    sizes = [span.ByteSize() for span in spans]
    total = sum(sizes)
    if total <= limit_bytes:
        return list(spans), 0
    kept = [Span.FromString(span.SerializeToString()) for span in spans]
    for limit in _SIZES:
        for index, span in enumerate(kept):
            if sizes[index] > limit:
                limit_span(span, limit, everything=True)
        if sum(span.ByteSize() for span in kept) <= limit_bytes:
            break
    else:
        room = limit_bytes
        for index, span in enumerate(kept):
            room -= span.ByteSize()
            if room < 0 and index:
                del kept[index:]
                break
    return kept, total - sum(span.ByteSize() for span in kept)
