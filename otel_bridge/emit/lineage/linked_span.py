"""Facts about rollouts of any process -> a span of its own trace, with a link to each rollout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from otel_bridge.emit.emit_run import step_of
from otel_bridge.emit.encode.span import (
    rollout_link,
    scope_spans,
    span,
    span_attributes,
)
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import ROLE, STEP

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun
    from otel_bridge.emit.encode.protobuf import Attribute


def step_pairs(
    run: EmitRun, step: object, role: str | None
) -> list[tuple[str, Attribute]]:
    """Return the attributes of the step of a call by `step_of`, and of its role if it is not the run's."""
    pairs: list[tuple[str, Attribute]] = [(STEP, step_of(run, step, role))]
    if role is not None and role != run.role:
        pairs.append((ROLE, role))
    return pairs


def append_linked_span(
    run: EmitRun,
    name: str,
    pairs: Iterable[tuple[str, Attribute]],
    trace_ids: Iterable[bytes],
) -> None:
    """Append a span with the attributes *pairs* that begins and ends now, of a trace of its own.

    Not of the trace of a rollout: that may have ended long ago, in another process, or be sampled
    out. Never raises; a record that cannot be appended is a counted drop of the run.
    """
    now = time.time_ns()
    random = os.urandom(24)
    ids = (random[8:], random[:8], None)
    links = b"".join(map(rollout_link, trace_ids))
    packed = span(ids, name, (now, now), span_attributes(pairs), links=links)
    run.append(Signal.TRACES, scope_spans((packed,)), time_unix_ns=now)
