"""Values for rollouts that arrive apart from their trace: log events ``gen_ai.evaluation.result``.

Values wait in the state under ``evaluation/<trace id>`` until their rollout is emitted, and become
part of it. A value that arrives afterwards is a record of its own. Of two values of one name from
one process, the higher event number wins; of two processes, the later value. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.translation.decode.attributes import (
    as_float,
    as_name,
    int_in,
    is_span_id,
    is_trace_id,
    mapping_of,
    text_in,
)
from otel_bridge.translation.packing import packed, unpacked, unpacked_below
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.state import TranslationState, count, identity

_PREFIX = "evaluation/"
_SPAN = "."
"""Separator of trace id and span id, for values about one span of a trace whose rollouts are not
known yet."""
_MAX_SPANS = 1_000
"""Most spans of one trace with values of their own; values for further spans count for the
trace."""
_MAX_VALUES = 1_000
"""Most values of one rollout, each of a name and a process."""
_SENT = "l:"
"""Begin of the ids of values that a process sent; those that the bridge computes have others."""
_TRACE_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ReceivedEvaluation:
    """Holds one evaluation as received.

    Attributes:
        id: Id of the evaluation, the same at every redelivery.
        instance_id: Process that sent the evaluation; empty when the process does not number its
            events.
        seq: Number of the event in that process.
        role: Role of the sender.
        step: Step that the event names.
        span_id: 16 hex digits of the evaluated span; empty: the whole trace.
    """

    id: str
    trace_id: str
    score: EvaluationScore
    instance_id: str
    seq: int | None
    time_unix_ns: int
    role: str | None
    step: int | None
    span_id: str = ""

    @property
    def rank(self) -> tuple[int, int, str]:
        """Precedence: of two values of one name and process the higher rank wins."""
        return (self.seq or 0, self.time_unix_ns, self.id)

    def without_value(self) -> ReceivedEvaluation:
        """Return what detects a redelivery once the value was emitted."""
        score = EvaluationScore(self.score.name, None)
        return replace(self, score=score, role=None, step=None)

    @property
    def is_sent(self) -> bool:
        """Return whether a process sent the value; the bridge computes others."""
        return self.id.startswith(_SENT)


@dataclass(slots=True)
class _Entry:
    """Holds the values of one trace as the state has them.

    Attributes:
        since_ns: Time at which the first value arrived.
        is_pending: Whether the trace has not arrived yet.
        is_settled: Whether the rollout was emitted; then only what detects a redelivery is kept.
        values: Name of a value, then the process that sent it, to the value.
    """

    since_ns: int
    is_pending: bool
    is_settled: bool
    values: dict[str, dict[str, ReceivedEvaluation]]


def read_evaluation(
    log_record: LogRecord, instance_id: str, role: str | None, now_unix_ns: int
) -> ReceivedEvaluation | None:
    """Read an event; return ``None`` when the event lacks a trace, a name, or both value and label.

    The caller counts such an event (``evaluation/invalid``). A value that is not finite is one too.

    Only a process that numbers its events is remembered with the value: a later one of it replaces
    it. Of all other producers together the newest counts; one without a time gets that of its arrival.

    Args:
        log_record: The event.
        instance_id: Process that sent the event.
        role: Role of the sender.
        now_unix_ns: Time of an event that names none.
    """
    attributes = mapping_of(log_record.attributes)
    trace_id = log_record.trace_id.hex()
    if not is_trace_id(log_record.trace_id):
        # A scorer outside the trace names the rollout by its id.
        trace_id = text_in(attributes, semconv.ROLLOUT_ID).lower()
        if _TRACE_ID.fullmatch(trace_id) is None:
            return None
    score = EvaluationScore(
        name=as_name(attributes.get(semconv.EVALUATION_NAME)) or "",
        value=as_float(attributes.get(semconv.EVALUATION_VALUE)),
        label=_label(attributes.get(semconv.EVALUATION_LABEL)),
        explanation=as_name(attributes.get(semconv.EVALUATION_EXPLANATION)),
    )
    if not score.name or not score.has_value:
        return None
    span_id = ""
    if is_span_id(log_record.span_id):
        span_id = log_record.span_id.hex()
    seq = int_in(attributes, semconv.EVENT_SEQ)
    sent_unix_ns = log_record.time_unix_nano or log_record.observed_time_unix_nano
    evaluation_id = f"{_SENT}{instance_id}:{seq}"
    if seq is None:
        # Without a number the content identifies it, so that a redelivered one is recognised.
        content = identity(trace_id, score.name, score.value, score.label, sent_unix_ns)
        evaluation_id = f"{_SENT}f:{content.hex()}"
    return ReceivedEvaluation(
        id=evaluation_id,
        trace_id=trace_id,
        score=score,
        instance_id=instance_id if seq is not None else "",
        seq=seq,
        time_unix_ns=sent_unix_ns or now_unix_ns,
        role=as_name(attributes.get(semconv.ROLE)) or role,
        step=int_in(attributes, semconv.STEP),
        span_id=span_id,
    )


def base_of(trace_id: str) -> str:
    """Return the id of the trace, from the key of values that wait for one of its spans."""
    return trace_id.partition(_SPAN)[0]


def _label(value: Json) -> str | None:
    # The content policy emptied this label; the label still counts as a value.
    if value == "":
        return ""
    return as_name(value)


class Evaluations:
    """Holds the received values of each trace, until the trace is forgotten.

    Stored values that the ledger cannot give raise `JournalError`; see `TranslationState`.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        self._pending: dict[str, int] = {}
        self._is_ordered = True
        self._settled: dict[str, None] = {}
        self._of_spans: dict[str, dict[str, None]] = {}
        entries = unpacked_below(_Entry, state, _PREFIX)
        # The state is ordered by key; values are released in the order of their arrival.
        for trace_id in sorted(
            entries, key=lambda trace_id: entries[trace_id].since_ns
        ):
            self._note(trace_id, entries[trace_id])

    def add(
        self,
        evaluation: ReceivedEvaluation,
        now_unix_ns: int,
        *,
        pending: bool,
        settled: bool,
    ) -> bool:
        """Store a value; one beyond `_MAX_VALUES` of its rollout is dropped and counted (``evaluation/too_many``).

        Args:
            evaluation: The value.
            now_unix_ns: Time of arrival.
            pending: Whether the trace has not arrived yet.
            settled: Whether the rollout was emitted; then only the facts that detect a redelivery
                are kept.

        Returns:
            Whether the value is new and stored.
        """
        trace_id = evaluation.trace_id
        entry = self._entry(trace_id) or _Entry(now_unix_ns, pending, settled, {})
        name = evaluation.score.name
        stored = entry.values.get(name, {}).get(evaluation.instance_id)
        # Redelivered, or overtaken by a later value of the same process.
        if stored is not None and (
            evaluation.id == stored.id or evaluation.rank <= stored.rank
        ):
            return False
        if stored is None and sum(map(len, entry.values.values())) >= _MAX_VALUES:
            count(self._state, "evaluation/too_many")
            return False
        if settled:
            # The tracker has the value; only its rank is needed to recognise it again.
            evaluation = evaluation.without_value()
        entry.values.setdefault(name, {})[evaluation.instance_id] = evaluation
        entry.is_pending = pending
        entry.is_settled = settled or entry.is_settled
        self._store(trace_id, entry)
        return True

    def of_span(self, evaluation: ReceivedEvaluation) -> ReceivedEvaluation:
        """Return a value about a span under the key at which it waits until the rollout of the span is known."""
        key = f"{evaluation.trace_id}{_SPAN}{evaluation.span_id}"
        spans = self._of_spans.get(evaluation.trace_id, {})
        has_room = key in spans or len(spans) < _MAX_SPANS
        if has_room:
            return replace(evaluation, trace_id=key)
        return evaluation

    def adopt(self, trace_id: str, targets: Mapping[bytes, str]) -> None:
        """Assign values about spans of a trace to their rollouts.

        Called once the split of the trace is known, so that each value is part of its rollout. A
        trace without such values changes nothing. One older than another of its name and process is
        dropped as overtaken, one beyond the most of its rollout counted (see `add`).

        Args:
            trace_id: The trace.
            targets: Span id to the id of its rollout; other spans belong to the trace's own
                rollout.
        """
        # A copy, because `forget` removes entries.
        for key in list(self._of_spans.get(trace_id, ())):
            entry = self._entry(key)
            self.forget(key)
            if entry is None:
                continue
            span_id = bytes.fromhex(key.partition(_SPAN)[2])
            target = targets.get(span_id, trace_id)
            for of_name in entry.values.values():
                for evaluation in of_name.values():
                    moved = replace(evaluation, trace_id=target)
                    self.add(moved, entry.since_ns, pending=False, settled=False)

    def scores(self, trace_id: str) -> list[EvaluationScore]:
        """Return the values that become part of the rollout, one for each name, in order of names."""
        return [evaluation.score for evaluation in self._waiting(trace_id)]

    def claim(self, trace_id: str) -> int:
        """Note that the trace has arrived.

        Its values now wait for its rollout without a time limit.

        Returns:
            Number of its values that `overdue` has yielded, because the trace was missing until
            now.
        """
        yielded = 0
        for key in (trace_id, *self._of_spans.get(trace_id, ())):
            entry = self._entry(key)
            if entry is None:
                continue
            # They lost what is shown when they were yielded; what is left of them only detects a
            # redelivery. One that came since has it still.
            if entry.is_settled:
                for of_name in entry.values.values():
                    yielded += any(
                        value.is_sent and not value.score.has_value
                        for value in of_name.values()
                    )
            self._settled.pop(key, None)
            self._pending.pop(key, None)
            entry.is_pending = False
            entry.is_settled = False
            self._store(key, entry)
        return yielded

    def unclaim(self, trace_id: str) -> None:
        """Note that a trace has not arrived after all: its values wait for it as before.

        They have waited since they arrived, so that `overdue` soon yields those of a missing trace.
        """
        for key in (trace_id, *self._of_spans.get(trace_id, ())):
            entry = self._entry(key)
            if entry is not None:
                entry.is_pending = True
                self._store(key, entry)
                self._is_ordered = False

    def settle(self, trace_id: str) -> None:
        """Note that the rollout was emitted with its values.

        From then on only redeliveries are detected.

        Nothing changes for a rollout without values.
        """
        entry = self._entry(trace_id)
        if entry is None:
            return
        for of_name in entry.values.values():
            for instance, evaluation in of_name.items():
                of_name[instance] = evaluation.without_value()
        entry.is_pending = False
        entry.is_settled = True
        self._store(trace_id, entry)

    def overdue(self, before_ns: int, limit: int) -> Iterator[list[ReceivedEvaluation]]:
        """Yield the values of each missing trace that wait since before *before_ns*, or exceed *limit* traces.

        The oldest trace first. A trace that is missing for ever would else be waited for until the
        run ends.
        """
        if not self._is_ordered:
            # Once for all that `unclaim` has put behind younger ones.
            self._pending = dict(sorted(self._pending.items(), key=itemgetter(1)))
            self._is_ordered = True
        while self._pending:
            trace_id, since_ns = next(iter(self._pending.items()))
            if since_ns > before_ns and len(self._pending) <= limit:
                return
            yield self.drop_pending(trace_id)

    def drop_pending(self, trace_id: str) -> list[ReceivedEvaluation]:
        """Return the values of a trace that will not arrive.

        From then on only redeliveries are detected.

        Empty when the trace has arrived, or has no values.
        """
        if trace_id not in self._pending:
            return []
        evaluations = self._waiting(trace_id)
        self.settle(trace_id)
        self._pending.pop(trace_id, None)
        return evaluations

    def forget(self, trace_id: str) -> None:
        """Remove all values of a trace."""
        self._pending.pop(trace_id, None)
        self._settled.pop(trace_id, None)
        spans = self._of_spans.get(base_of(trace_id), {})
        spans.pop(trace_id, None)
        if not spans:
            self._of_spans.pop(base_of(trace_id), None)
        self._state.delete(_PREFIX + trace_id)

    def bound(self, limit: int) -> None:
        """Forget the oldest traces beyond *limit* whose values have all been emitted.

        What is kept of them only recognises a redelivery.
        """
        for trace_id in list(islice(self._settled, max(len(self._settled) - limit, 0))):
            if trace_id not in self._pending:
                self.forget(trace_id)

    def _entry(self, trace_id: str) -> _Entry | None:
        stored = self._state.get(_PREFIX + trace_id)
        if stored is None:
            return None
        return unpacked(_Entry, stored)

    def _store(self, trace_id: str, entry: _Entry) -> None:
        self._state.set(_PREFIX + trace_id, packed(entry))
        self._note(trace_id, entry)

    def _note(self, trace_id: str, entry: _Entry) -> None:
        """Note where the values of *trace_id* stand, as `_store` stored them."""
        if entry.is_pending:
            # The first value counts: later ones do not put the time limit off.
            self._pending.setdefault(trace_id, entry.since_ns)
        if entry.is_settled:
            self._settled[trace_id] = None
        if _SPAN in trace_id:
            self._of_spans.setdefault(base_of(trace_id), {})[trace_id] = None

    def _waiting(self, trace_id: str) -> list[ReceivedEvaluation]:
        """Return the values that were not emitted, one for each name: the latest, whichever process sent it.

        Empty for a trace without values, or whose values are all emitted. Across processes the time
        decides: their numbers are not comparable.
        """
        entry = self._entry(trace_id)
        if entry is None:
            return []
        latest: list[ReceivedEvaluation] = []
        for name in sorted(entry.values):
            waiting = [
                value for value in entry.values[name].values() if value.score.has_value
            ]
            if waiting:
                latest.append(
                    max(
                        waiting,
                        key=lambda value: (
                            value.time_unix_ns,
                            value.seq or 0,
                            value.id,
                        ),
                    )
                )
        return latest
