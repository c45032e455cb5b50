"""One finished `Rollout` -> one record: a ``ScopeSpans`` with its root and all its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.conversation import content_of
from otel_bridge.emit.rollout import Rollout
from otel_bridge.emit.rollout_children import Place, child_count, child_spans
from otel_bridge.emit.rollout_options import RolloutOptions
from otel_bridge.emit.rollout_root import Pairs, failure, root_attributes
from otel_bridge.records import trace_id_of

_HEX: Final = frozenset("0123456789abcdef")
_MAX_TIME: Final = 1 << 63


class Frame(NamedTuple):
    """What the rollouts of one call share.

    Attributes:
        role: Where it differs from the resource's.
        link: The caller's span, encoded, or empty.
    """

    run_id: str
    step: int | None
    split: str | None
    role: str | None
    options: RolloutOptions
    link: bytes = b""


class Encoded(NamedTuple):
    """A rollout ready to append."""

    payload: bytes
    skipped_messages: int


def trace_id_bytes(run_id: str, rollout_id: str) -> bytes:
    """Return the trace id of a rollout: its id itself when that is one, else an md5 of run and id."""
    lowered = rollout_id.lower()
    if len(lowered) == 32 and _HEX.issuperset(lowered) and lowered != "0" * 32:
        return bytes.fromhex(lowered)
    return bytes.fromhex(trace_id_of(run_id, rollout_id))


def place_attributes(frame: Frame, rollout_id: str) -> Pairs:
    """Return what says where a rollout belongs."""
    pairs: list[tuple[str, int | str | None]] = [
        (semconv.ROLLOUT_ID, rollout_id),
        (semconv.STEP, frame.step),
        (semconv.ROLE, frame.role),
        (semconv.SPLIT, frame.split),
        (semconv.ROLLOUT_KEY, frame.options.key or None),
    ]
    return [(key, value) for key, value in pairs if value is not None]


def encode_rollout(rollout: Rollout, frame: Frame, now_unix_ns: int) -> Encoded:
    """Encode a finished rollout.

    Args:
        rollout: The rollout; its step and split are those of *frame*.
        frame: What its call shares.
        now_unix_ns: Its end when it does not say.
    """
    given = facts.name(rollout.id)
    content = content_of(rollout.messages, frame.options.limits)
    children = child_count(content.messages)
    random = os.urandom(16 + 8 * (children + 1))
    trace_id = random[:16] if given is None else trace_id_bytes(frame.run_id, given)
    root_id = random[16:24]
    start, end = _times(rollout, children, now_unix_ns)
    pairs = place_attributes(frame, given or trace_id.hex())
    pairs += root_attributes(rollout, content, frame.options.limits)
    pairs.append((semconv.SPAN_COUNT, children + 1))
    kind, text = (None, None) if rollout.error is None else failure(rollout.error, content.cutter)
    root = span_encoding.span(
        (trace_id, root_id, None),
        semconv.ROLLOUT_SPAN,
        (start, end),
        span_encoding.span_attributes(pairs),
        events=b"" if kind is None or text is None else span_encoding.exception_event(end, kind, text),
        links=frame.link,
        error=text,
    )
    spans = [root, *child_spans(rollout, content, Place(trace_id, root_id, start, end), _ids(random[24:]))]
    return Encoded(span_encoding.scope_spans(spans), content.conversation.skipped)


def _ids(random: bytes) -> Iterator[bytes]:
    return (random[index : index + 8] for index in range(0, len(random), 8))


def _times(rollout: Rollout, children: int, now_unix_ns: int) -> tuple[int, int]:
    """Return start and end; a rollout that says neither ends now and lasts a nanosecond a child."""
    end = facts.integer(rollout.end_unix_ns)
    end = end if end is not None and 0 < end < _MAX_TIME else now_unix_ns
    start = facts.integer(rollout.start_unix_ns)
    return (start if start is not None and 0 < start <= end else end - children), end


def caller_link() -> bytes:
    """Return a link to the span that is current in the caller, encoded; empty when there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:  # nobody in this process makes spans: importing the API would find none
        return b""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return b""
    return span_encoding.link(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"))
