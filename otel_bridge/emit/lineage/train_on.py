"""Rollouts that a training step consumed, or left unused -> spans ``rl.train`` with a link to each rollout.

A link holds the trace id of the rollout. The bridge knows the rollout by it, whichever process recorded the rollout,
and also when it was sampled out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from otel_bridge.emit.emit_run import next_step
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.span import rollout_link, scope_spans, span, span_attributes
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.errors import any_error
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import ROLE, STEP, TRAIN_SPAN, TRAIN_UNUSED

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun
    from otel_bridge.emit.encode.protobuf import Attribute

NO_ID: Final = "train_rollout_id"
NOT_ROLLOUTS: Final = "train_no_rollouts"
TOO_MANY: Final = "train_too_many"
BAD_STEP: Final = "bad_step"
_MAX_ROLLOUTS: Final = 100_000
_MAX_LINKS: Final = 10_000
"""Most links of one span (300 KB); the rest of a call goes into further spans of the same step."""
_MAX_REASON_CHARS: Final = 64


def train_on(
    run: EmitRun, step: object, rollouts: object, *, unused: Mapping[str, object] | None = None, role: str | None = None
) -> None:
    """Record which rollouts a training step consumed. Never raises; what cannot be read is counted.

    Args:
        run: The run.
        step: The training step; ``None``: that of the role's next row.
        rollouts: Rollouts, mappings with ``id``, ids, or parallel lists as a mapping with ``ids``.
        unused: Reason to rollouts that the step leaves out for good, such as ``stale`` or ``filtered``.
        role: Another role than the run's own.
    """
    number = _step(run, step, role)
    pairs: list[tuple[str, Attribute]] = [(STEP, number)]
    if role is not None and role != run.role:
        pairs.append((ROLE, role))
    _append(run, pairs, _trace_ids(run, rollouts))
    for reason, left in (unused or {}).items():
        name = (coerce.name(reason) or "unknown")[:_MAX_REASON_CHARS]
        _append(run, [*pairs, (TRAIN_UNUSED, name)], _trace_ids(run, left))


def _step(run: EmitRun, step: object, role: str | None) -> int:
    number = None if step is None else coerce.integer(step)
    if number is not None:
        return number
    if step is not None:
        run.count_drop(BAD_STEP)
    return next_step(run, role)


def _append(run: EmitRun, pairs: Sequence[tuple[str, Attribute]], trace_ids: Sequence[bytes]) -> None:
    now = time.time_ns()
    for start in range(0, len(trace_ids), _MAX_LINKS):
        links = b"".join(map(rollout_link, trace_ids[start : start + _MAX_LINKS]))
        random = os.urandom(24)
        ids = (random[8:], random[:8], None)
        packed = span(ids, TRAIN_SPAN, (now, now), span_attributes(pairs), links=links)
        run.append(Signal.TRACES, scope_spans((packed,)), time_unix_ns=now)


def _trace_ids(run: EmitRun, rollouts: object) -> list[bytes]:
    """Return the trace id of each rollout, each once; a rollout without an id is counted."""
    trace_ids: dict[bytes, None] = {}
    for entry in _entries(run, rollouts):
        rollout_id = entry if type(entry) is str else _id_of(entry)
        if rollout_id:
            trace_ids[trace_id_bytes(run.id, rollout_id)] = None
        else:
            run.count_drop(NO_ID)
    return list(trace_ids)


def _entries(run: EmitRun, rollouts: object) -> Iterable[object]:
    """Return what stands for one rollout each; nothing, counted, when *rollouts* is none of the known shapes."""
    if isinstance(rollouts, Mapping):
        columns = cast("Mapping[str, object]", rollouts)
        rollouts = columns.get("ids", [columns])
    tolist = getattr(rollouts, "tolist", None)
    if callable(tolist):
        rollouts = tolist()
    if isinstance(rollouts, (str, int, Rollout)):
        return [rollouts]
    if rollouts is None or isinstance(rollouts, bytes) or not isinstance(rollouts, Iterable):
        if rollouts is not None:
            run.count_drop(NOT_ROLLOUTS, 1, type(rollouts).__name__)
        return []
    entries = list(islice(cast("Iterable[object]", rollouts), _MAX_ROLLOUTS + 1))
    if len(entries) > _MAX_ROLLOUTS:
        run.count_drop(TOO_MANY)
    return entries[:_MAX_ROLLOUTS]


def _id_of(entry: object) -> str | None:
    """Return the id of a rollout, of a mapping with ``id``, or an id itself, as text; ``None`` without one."""
    if isinstance(entry, Rollout):
        return coerce.name(entry.id)
    if isinstance(entry, Mapping):
        return coerce.name(cast("Mapping[str, object]", entry).get("id"))
    try:
        return coerce.name(entry)
    except any_error():  # code of the user's own object
        return None
