"""Rollouts that a training step consumed, or left unused -> spans ``rl.train`` with a link to each rollout.

A link holds the trace id of the rollout. The bridge knows the rollout by it, whichever process
recorded the rollout, and also when it was sampled out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from otel_bridge.emit.emit_run import EmitRun, step_of
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import (
    rollout_link,
    scope_spans,
    span,
    span_attributes,
)
from otel_bridge.emit.rollouts.identity import rollout_ids
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import ROLE, STEP, TRAIN_SPAN, TRAIN_UNUSED

_MAX_LINKS = 10_000
"""Most links of one span (300 KB); the rest of a call goes into further spans of the same step."""
_MAX_REASON_CHARS = 64


def train_on(
    run: EmitRun,
    step: object,
    rollouts: object,
    *,
    unused: object = None,
    role: str | None = None,
) -> None:
    """Record which rollouts a training step consumed. Unreadable ones are counted by `rollout_ids`.

    Raises what an object of the program raises when it is read; the caller counts that.

    Args:
        run: The run.
        step: The training step; ``None``: that of the role's next row.
        rollouts: Rollouts, mappings with ``id``, ids, or parallel lists as a mapping with ``ids``.
        unused: Rollouts that the step leaves out for good, by reason, such as ``stale`` or
            ``filtered``; without a mapping the reason is ``unknown``.
        role: Another role than the run's own.
    """
    pairs = step_pairs(run, step, role)
    _append(run, pairs, rollouts)
    for reason, unused_rollouts in _by_reason(unused).items():
        name = (coerce.name(reason) or "unknown")[:_MAX_REASON_CHARS]
        _append(run, [*pairs, (TRAIN_UNUSED, name)], unused_rollouts)


def _by_reason(unused: object) -> Mapping[object, object]:
    """Return *unused* by reason; ``None`` is the reason of rollouts without a mapping."""
    if isinstance(unused, Mapping):
        return cast("Mapping[object, object]", unused)
    return {} if unused is None else {None: unused}


def _append(
    run: EmitRun, pairs: Sequence[tuple[str, Attribute]], rollouts: object
) -> None:
    """Append spans with links to *rollouts*, each once; none without a rollout that has an id.

    What names no rollout is counted by `rollout_ids` (``train_rollout_id`` …).
    """
    ids = filter(None, rollout_ids(run, rollouts, "train"))
    trace_ids = list(dict.fromkeys(trace_id_bytes(run.id, name) for name in ids))
    for start in range(0, len(trace_ids), _MAX_LINKS):
        linked_ids = trace_ids[start : start + _MAX_LINKS]
        append_linked_span(run, TRAIN_SPAN, pairs, linked_ids)


# --- spans with links, also of tokens ---------------------------------------------------------------
def step_pairs(
    run: EmitRun, step: object, role: str | None
) -> list[tuple[str, Attribute]]:
    """Return the attributes of the step of a call by `step_of`, and of its role if it is not the run's."""
    if role == run.role:
        role = None
    return [(STEP, step_of(run, step, role)), (ROLE, role)]


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
