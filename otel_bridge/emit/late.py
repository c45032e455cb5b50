"""Values that come after their rollout -> events ``gen_ai.evaluation.result`` with the rollout's trace id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from otel_bridge import semconv
from otel_bridge.emit import facts as read
from otel_bridge.emit.content import Cutter
from otel_bridge.emit.encoding import trace_id_bytes
from otel_bridge.emit.events import event
from otel_bridge.emit.rollout_options import RolloutOptions
from otel_bridge.emit.rows import SCOPE
from otel_bridge.emit.wire import Attribute

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

LOGS: Final = 3
_MAX_LABEL_CHARS: Final = 256
_EVENTS_A_RECORD: Final = 1000


class Facts(NamedTuple):
    """What the values of one call share."""

    name: str
    role: str | None
    step: int | None
    explanation: str | None


def log_values(run: EmitRun, options: RolloutOptions, values: object, shared: Facts) -> None:
    """Append one event a value, many in one record; a value that is neither number nor text is counted."""
    if not isinstance(values, Mapping):
        run.count_drop("late_not_a_mapping")
        return
    now = time.time_ns()
    cutter = Cutter(options.limits.policy, options.limits.rollout_bytes)
    events: list[bytes] = []
    for rollout_id, value in list(cast("Mapping[object, object]", values).items()):
        known = read.name(rollout_id)
        pairs = _score(value, cutter)
        if known is None or pairs is None:
            run.count_drop("late_value")
            continue
        numbered = {**_shared(run, shared, cutter), **pairs, semconv.EVENT_SEQ: run.next_event_seq()}
        name = semconv.EVENT_EVALUATION
        one = event(name, time_unix_ns=now, pairs=numbered, trace_id=trace_id_bytes(run.id, known))
        events.append(one[len(SCOPE) :])
    for start in range(0, len(events), _EVENTS_A_RECORD):
        run.append(LOGS, SCOPE + b"".join(events[start : start + _EVENTS_A_RECORD]), time_unix_ns=now)


def _score(value: object, cutter: Cutter) -> dict[str, Attribute] | None:
    number = read.number(value)
    if number is not None:
        return {semconv.EVALUATION_VALUE: number}
    if isinstance(value, str) and value:
        return {semconv.EVALUATION_LABEL: "" if cutter.off else cutter.text(value[:_MAX_LABEL_CHARS])}
    return None


def _shared(run: EmitRun, shared: Facts, cutter: Cutter) -> dict[str, Attribute]:
    pairs: dict[str, Attribute] = {semconv.EVALUATION_NAME: read.name(shared.name) or "reward"}
    if shared.explanation is not None and not cutter.off:
        pairs[semconv.EVALUATION_EXPLANATION] = cutter.text(str(shared.explanation))
    if (step := read.integer(shared.step)) is not None:
        pairs[semconv.STEP] = step
    role = read.name(shared.role)
    if role is not None and role != run.role:
        pairs[semconv.ROLE] = role
    return pairs
