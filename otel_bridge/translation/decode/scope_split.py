"""Separates the spans of one kind from the others of a scope. Pure."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span


def split_spans(
    scope_spans: ScopeSpans, belongs: Callable[[Span], bool]
) -> tuple[list[Span], ScopeSpans | None]:
    """Separate the spans that *belong* together from the other spans of one scope.

    Returns:
        These spans, and the scope without them: the same message if there are none, ``None`` if
            nothing else is left.
    """
    chosen = [span for span in scope_spans.spans if belongs(span)]
    if not chosen:
        return [], scope_spans
    if len(chosen) == len(scope_spans.spans):
        return chosen, None
    rest = [span for span in scope_spans.spans if not belongs(span)]
    return chosen, ScopeSpans(
        scope=scope_spans.scope, spans=rest, schema_url=scope_spans.schema_url
    )
