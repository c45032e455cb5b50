"""Events on the wire: one log record in a ``ScopeLogs`` message.

Source: opentelemetry-proto, logs.proto; event name in ``event_name``, attributes and body as any
value. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.emit.encode.protobuf import (
    Attribute,
    any_value,
    attributes,
    fixed64,
    message,
    text,
)
from otel_bridge.emit.encode.row import SCOPE

_NONE: Mapping[str, Attribute] = {}


def event(
    name: str,
    *,
    time_unix_ns: int,
    body: Attribute = None,
    pairs: Mapping[str, Attribute] = _NONE,
    trace_id: bytes = b"",
) -> bytes:
    """Encode an event, whose number and role are among its attributes.

    By hand, as rows are: a process that logs no rollout need not import protobuf.

    Args:
        name: Name of the event, e.g. ``rl.run.config``.
        time_unix_ns: Time of the event, which is also the observed time.
        body: Body of the event, ``None`` for none.
        pairs: Attributes of the event, in order.
        trace_id: 16 bytes, the id of the event's trace, or empty.
    """
    fields = (
        fixed64(1, time_unix_ns),
        message(5, any_value(body)) if body is not None else b"",
        attributes(6, pairs.items()),
        message(9, trace_id) if trace_id else b"",
        fixed64(11, time_unix_ns),
        text(12, name),
    )
    return SCOPE + message(2, b"".join(fields))
