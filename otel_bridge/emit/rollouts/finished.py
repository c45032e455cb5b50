"""Finished `Rollout` -> one record: a ``ScopeSpans`` with its root and all its children.

It also knows which rollouts this process recorded whole: only their tokens are worth sending one by
one.
"""

from __future__ import annotations

import os

from otel_bridge import semconv
from otel_bridge.emit.arguments import unix_ns
from otel_bridge.emit.conversations.conversation import Content
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.rollouts.child_spans import SpanParent, child_spans
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.emit.rollouts.spans import (
    CallContext,
    failure,
    identity_attributes,
    rollout_content,
    root_attributes,
    trace_id_bytes,
)
from otel_bridge.values.plain import Losses

_MAX_KEPT = 16_384
_kept_ids: dict[bytes, None] = {}


def encode_rollout(
    rollout: Rollout, call: CallContext, now_unix_ns: int
) -> tuple[bytes, Losses]:
    """Encode a finished rollout.

    What the program's own objects raise is raised: the caller drops the rollout, counted as
    ``rollout_unreadable``. The root comes first in the record, and announces the number of spans,
    so that a bridge need not wait for more.

    Args:
        rollout: The rollout; its step and split are those of *call*.
        call: Facts that its call shares.
        now_unix_ns: End of a rollout that names no end.

    Returns:
        The record, and what of the rollout is not in it.
    """
    rollout_id = coerce.name(rollout.id)
    content = rollout_content(rollout, call.options.limits)
    random = os.urandom(24)
    if rollout_id is None:
        trace_id = random[:16]
    else:
        trace_id = trace_id_bytes(call.run_id, rollout_id)
    note_kept(trace_id)
    start, end = _times(rollout, content, now_unix_ns)
    parent = SpanParent(trace_id, random[16:], start, end)
    children = child_spans(rollout, content, parent)
    pairs = identity_attributes(call, rollout_id or trace_id.hex())
    pairs += root_attributes(rollout, content, call.options.limits)
    pairs.append((semconv.SPAN_COUNT, len(children) + 1))
    events = b""
    error = None
    if rollout.error is not None:
        kind, error = failure(rollout.error, content.content_filter)
        events = span_encoding.exception_event(end, kind, error)
    root = span_encoding.span(
        (trace_id, parent.root_id, None),
        semconv.ROLLOUT_SPAN,
        (start, end),
        span_encoding.span_attributes(pairs),
        events=events,
        links=call.link,
        error=error,
    )
    losses = content.content_filter.losses
    return span_encoding.scope_spans([root, *children]), losses


def _times(rollout: Rollout, content: Content, now_unix_ns: int) -> tuple[int, int]:
    """Return start and end; a rollout without either ends now and lasts a nanosecond per child.

    Times that `unix_ns` refuses are counted as ``bad_time``, and are missing, as is a start after
    the end: viewers order the children by their times.
    """
    count = content.content_filter.losses.add
    end = unix_ns(rollout.end_unix_ns, count) or now_unix_ns
    start = unix_ns(rollout.start_unix_ns, count)
    if not 0 < start <= end:
        # At most one child for a message, and one for each further answer of a tool.
        start = end - sum(max(len(message.answers), 1) for message in content.messages)
    return start, end


def note_kept(trace_id: bytes) -> None:
    """Note that a rollout leaves the process whole."""
    _kept_ids[trace_id] = None
    if len(_kept_ids) > _MAX_KEPT:
        # Another thread may have removed the same entry.
        _kept_ids.pop(next(iter(_kept_ids), b""), None)


def is_kept(trace_id: bytes) -> bool:
    """Return whether this process recorded the rollout whole, as far as that is remembered."""
    return trace_id in _kept_ids
