"""Spans and evaluations -> rollouts, their statistics and evaluations: the entry of this part of translation.

Spans of one trace arrive in any order, in several frames, from several processes, late, twice or
never. Waiting data are in the state; a new object made from the same state continues where the last
one stopped. Pure. Bad input is counted (``drop/<reason>``) and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.content.otlp import apply_to_log
from otel_bridge.records import Record
from otel_bridge.translation.decode.attributes import is_span_id, is_trace_id
from otel_bridge.translation.decode.content_events import content_span
from otel_bridge.translation.decode.resources import Producer, SpanOrigin, origin_of
from otel_bridge.translation.generated_rollouts import GeneratedRollouts
from otel_bridge.translation.options import OtherTraces
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.processes.step_workers import StepWorkers
from otel_bridge.translation.rollouts.assembly import ReceivedTrace
from otel_bridge.translation.rollouts.evaluations import (
    Evaluations,
    ReceivedEvaluation,
    read_evaluation,
)
from otel_bridge.translation.rollouts.pending import PendingTraces
from otel_bridge.translation.rollouts.publish import RolloutPublisher
from otel_bridge.translation.rollouts.sampled_out import read_sampled_out
from otel_bridge.translation.rollouts.trace_split import SpanRouter, sub_traces
from otel_bridge.translation.rollouts.trace_store import (
    PendingTrace,
    TraceStore,
    unknown,
)
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count

_ELSEWHERE = "trace/elsewhere"
"""Key of the state: whether a receiver has ever received spans of the run."""
_NEVER = 1 << 63


class RolloutPipeline:
    """Processes everything that waits for spans, for its step, or for its trace.

    Args:
        run: The run; key spaces ``trace/``, ``step/``, ``evaluation/``, ``sampled_out/`` of its
            state. A process that the run does not know counts as alive. After a rollback of the
            state, make a new pipeline.
        other_traces: Callable that decides on each trace that turns out not to be a rollout.
    """

    def __init__(
        self, run: RunContext, other_traces: Callable[[], OtherTraces]
    ) -> None:
        # Of its own, since rows and spans reconnect separately. In a run of local processes alone no
        # connection can be late, so that nothing waits for one.
        opened_ns = 0
        if run.state.get(_ELSEWHERE):
            opened_ns = run.receive_clock.opened_ns
        self._receive_clock = ReceiveClock(opened_ns, run.options.end_of_stream_wait_ns)
        run = replace(run, receive_clock=self._receive_clock)
        self._state = run.state
        self._options = run.options
        self._other_traces = other_traces
        self._store = TraceStore(run.state)
        self._evaluations = Evaluations(run.state)
        self._sender = ""
        self._is_native = False
        self._workers = StepWorkers(run.state, run.options, run.processes)
        self._publisher = RolloutPublisher(
            run,
            self._store,
            self._evaluations,
            self._workers,
            GeneratedRollouts(run.state),
        )
        self._router = SpanRouter(self._store, self._publisher.ended, self._evaluations)
        self._open = PendingTraces(self._store.traces, run)
        # Which roots have arrived is not stored with the workers, but with the traces.
        for trace in self._store.traces.values():
            self._await(trace)

    @property
    def generated(self) -> GeneratedRollouts:
        """The rollouts of the run, as the training steps that consume them remember them."""
        return self._publisher.generated

    def received(self, now_unix_ns: int) -> None:
        """Note that a receiver accepted spans *now*; call before `spans`."""
        if self._receive_clock.receive(now_unix_ns):
            self._state.set(_ELSEWHERE, 1)
            self._open.reconsider()
            self._publisher.steps.reconsider()

    def spans(
        self,
        producer: Producer,
        instance_id: str,
        scope_spans: ScopeSpans,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process the spans of one scope of one process; return the records that they complete.

        A span with an invalid trace or span id is dropped and counted (``span/invalid``): it cannot
        be joined with others. What is due is released first, so that late data meet the state that
        time demands; the bounds of open traces are kept last.
        """
        records = self.tick(now_unix_ns)
        origin = origin_of(producer, scope_spans.scope.name)
        by_trace: dict[bytes, list[Span]] = {}
        for span in scope_spans.spans:
            if is_trace_id(span.trace_id) and is_span_id(span.span_id):
                by_trace.setdefault(span.trace_id, []).append(span)
            else:
                count(self._state, "span/invalid")
        self._sender = instance_id
        self._is_native = origin.is_native or not producer.third_party
        for trace_id, spans in by_trace.items():
            records += self._received(trace_id.hex(), origin, spans, now_unix_ns)
        return records + self._bounded(now_unix_ns)

    def evaluation(
        self,
        producer: Producer,
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process an evaluation (event ``gen_ai.evaluation.result``): part of a waiting rollout, else a record.

        Nothing while its rollout waits, or when it is redelivered. One without a trace, a name or a
        value is dropped and counted (``evaluation/invalid``), one for a trace that was not a
        rollout as ``evaluation/other``.
        """
        records = self.tick(now_unix_ns)
        # Third-party: no policy applied yet.
        if all(pair.key != semconv.EVENT_SEQ for pair in log_record.attributes):
            # A copy: the policy changes it, and the caller still has the original.
            log_record = LogRecord.FromString(log_record.SerializeToString())
            apply_to_log(log_record, self._options.content)
        evaluation = read_evaluation(
            log_record, instance_id, producer.third_party_role, now_unix_ns
        )
        if (
            evaluation is None
            or self._publisher.other.get(evaluation.trace_id) is not None
        ):
            count(
                self._state,
                "evaluation/invalid" if evaluation is None else "evaluation/other",
            )
            return records
        return records + self._publisher.value(
            self._router.addressed(evaluation), now_unix_ns
        )

    def value(self, evaluation: ReceivedEvaluation, now_unix_ns: int) -> list[Record]:
        """Process a value of a rollout that the bridge itself computes."""
        return self._publisher.value(evaluation, now_unix_ns)

    def content(
        self,
        producer: Producer,
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process an event with messages: content of the span that the event names.

        A record that names no span is dropped and counted (``event/no_span``). As a span it waits
        with its trace, since SDKs send log records and spans by different connections, in any
        order.
        """
        span = content_span(log_record)
        if span is None:
            count(self._state, "event/no_span")
            return self.tick(now_unix_ns)
        return self.spans(producer, instance_id, ScopeSpans(spans=[span]), now_unix_ns)

    def sampled_out(
        self,
        producer: Producer,
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process the statistics of rollouts that an emitter sampled out (event ``rl.rollouts``).

        Without statistics, or with a negative number of rollouts, it is dropped and counted
        (``rollouts/invalid``).

        A process sends no spans of rollouts that it did not choose; the statistics of a step must
        count them.
        """
        records = self.tick(now_unix_ns)
        sampled_out = read_sampled_out(
            log_record,
            instance_id,
            producer.third_party_role,
            run_id=producer.run.id,
        )
        if sampled_out is None:
            count(self._state, "rollouts/invalid")
            return records
        return records + self._publisher.sampled_out(
            sampled_out, instance_id, now_unix_ns
        )

    def strays(self) -> set[str]:
        """Return the ids of waiting traces that may be parts of another run's rollouts.

        An inference server that serves several runs names one of them in all of its spans.

        Empty unless spans wait whose root has not arrived and of which no native process sent a
        part.
        """
        return {
            trace.id
            for trace in self._store.traces.values()
            if not (trace.begins_rollout or trace.further)
        }

    def own_traces(self) -> frozenset[str]:
        """Return the ids of all rollouts of this run that are remembered, waiting or decided on."""
        waiting = {
            trace.id for trace in self._store.traces.values() if trace.begins_rollout
        }
        return self._publisher.ended.ids() | waiting

    def stray(self, trace_id: str) -> ReceivedTrace:
        """Return the spans of one of `strays`, which stay here until `give_away`.

        Raises:
            KeyError: The trace no longer waits; the caller asks `strays` before, in the same round.
            JournalError: The ledger cannot give them; the next round tries again.
        """
        return self._store.read(self._store.traces[trace_id])

    def give_away(self, trace_id: str) -> None:
        """Forget a stray, after another run has stored its spans.

        Raises `KeyError` as `stray` does.
        """
        trace = self._store.traces[trace_id]
        self._workers.complete(trace.sender, trace_id)
        self._store.forget(trace)

    def adopt(self, stray: ReceivedTrace, now_unix_ns: int) -> list[Record]:
        """Process spans of a rollout of this run that another run received, whatever their resource says.

        Spans that are given again, as after a kill between the two runs, are recognised by their
        ids.
        """
        records = self.tick(now_unix_ns)
        waiting = self._store.traces.get(stray.id)
        # The process that sent a stray is of another run, and not one of this run's workers.
        self._sender = ""
        if waiting is not None:
            self._sender = waiting.sender
        self._is_native = False
        for origin, span in stray.spans:
            records += self._received(stray.id, origin, [span], now_unix_ns)
        return records + self._bounded(now_unix_ns)

    def flush(self) -> None:
        """Write the facts in memory to the state.

        Without this a restart loses nothing but may close a step early.
        """
        self._workers.flush()

    def forget(self, instance_id: str) -> None:
        """Forget the progress of a process."""
        self._workers.forget(instance_id)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Release everything due: overdue traces, then steps, corrected statistics, values without a trace.

        In this order, because an overdue trace may be what a step waits for.
        """
        records: list[Record] = []
        for trace, due_ns in self._open.due(now_unix_ns):
            records += self._expire(trace, due_ns)
        return records + self._publisher.tick(now_unix_ns)

    def close(self, now_unix_ns: int) -> list[Record]:
        """Release everything that waits, since no more data are expected.

        Later data are processed as usual.

        Incomplete rollouts are emitted as they are, traces that are not rollouts shown or counted.
        """
        records = self.tick(now_unix_ns)
        # Spans that a split leaves over begin to wait again here, and are due as well.
        for trace, _ in self._open.due(_NEVER):
            records += self._expire(trace, now_unix_ns)
        return records + self._publisher.close()

    def waiting(self) -> tuple[int, int]:
        """Return the number of traces that wait for spans, and of rollouts that wait for their step."""
        rollouts = self._publisher.waiting
        return len(self._store.traces) - rollouts, rollouts

    def _received(
        self, trace_id: str, origin: SpanOrigin, spans: list[Span], now_unix_ns: int
    ) -> list[Record]:
        """Process spans of one trace; return the records that they complete.

        Nothing of a trace that turned out not to be a rollout (`RolloutPublisher.is_other`).
        """
        if self._publisher.is_other(trace_id, spans):
            return []
        records: list[Record] = []
        for target, members in self._router.routed(trace_id, spans).items():
            records += self._deliver(target, origin, members, now_unix_ns)
        return records

    def _deliver(
        self, trace_id: str, origin: SpanOrigin, spans: list[Span], now_unix_ns: int
    ) -> list[Record]:
        """Add spans to the waiting trace of this id, or emit those that a rollout lacks which was emitted.

        Return the records that they complete. A trace that is not known yet begins to wait, and
        claims the values that arrived before it.
        """
        ended = self._publisher.ended.get(trace_id)
        if ended is not None:
            late = [(origin, span) for span in unknown(ended, spans)]
            return self._publisher.late(ReceivedTrace(trace_id, late), ended)
        trace = self._store.traces.get(trace_id)
        if trace is None:
            self._publisher.claim(trace_id)
            trace = PendingTrace(trace_id, now_unix_ns, now_unix_ns)
        return self._add(trace, origin, spans, now_unix_ns)

    def _add(
        self,
        trace: PendingTrace,
        origin: SpanOrigin,
        spans: list[Span],
        now_unix_ns: int,
    ) -> list[Record]:
        """Add spans to a waiting trace, those beyond its limit counted.

        Return the records of its rollout if it is complete with them.

        Nothing for spans that the trace has already, and for those of a rollout that waits for its
        step: they change its facts alone.
        """
        fresh, too_many = trace.fresh(spans)
        if too_many:
            count(self._state, "span/too_many", too_many)
        if not fresh:
            return []
        # Before the spans are added: a new root makes the trace due earlier.
        had_root = trace.root_ns is not None
        trace.sent_by(self._sender, native=self._is_native)
        trace.add(fresh, now_unix_ns)
        self._store.keep(trace, origin, fresh)
        if trace.complete_rollout:
            return self._complete(trace, now_unix_ns)
        # Its step still waits, so further spans can change what is chosen.
        if trace.facts is not None:
            self._publisher.revise(trace)
            return []
        root_is_new = trace.root_ns is not None and not had_root
        if trace.chunks == 1 or root_is_new:
            self._open.add(trace)
        self._await(trace)
        return []

    def _await(self, trace: PendingTrace) -> None:
        """Keep the step of an incomplete rollout open, once its root has arrived.

        Without a step or a root nothing is known to wait for. Its worker may be past the step
        already, so its progress alone would close it.
        """
        if (
            trace.facts is None
            and trace.rollout
            and trace.root_ns is not None
            and trace.step is not None
        ):
            self._workers.rooted(trace.sender, trace.id, trace.step)

    def _complete(self, trace: PendingTrace, now_unix_ns: int) -> list[Record]:
        """Emit, sample out or hold a complete rollout; each rollout of a trace that has several.

        Nothing while it waits for its step, unless it closes earlier ones. `JournalError` of its
        stored spans passes (`TraceStore.read`).
        """
        source = self._store.read(trace)
        # With one marked span or none the trace is one rollout, as nearly always.
        if trace.further or len(trace.marks) > 1:
            parts = sub_traces(source, further=trace.further)
            if trace.further or len(parts) > 1:
                return self._split(trace, source, parts, now_unix_ns)
        self._evaluations.adopt(trace.id, {})
        return self._publisher.rollout(trace, source, now_unix_ns)

    def _split(
        self,
        trace: PendingTrace,
        source: ReceivedTrace,
        parts: list[ReceivedTrace],
        now_unix_ns: int,
    ) -> list[Record]:
        """Process each rollout of a trace as a trace of its own, then the spans that belong to none.

        Only spans behind the first rollout (`PendingTrace.further`) belong to none. If some rollout
        was among them, the others wait on for theirs; if none was, those that no complete rollout
        holds are counted (``span/late``).
        """
        rollout_ids: dict[bytes, str] = {}
        for part in parts:
            for _, span in part.spans:
                rollout_ids[span.span_id] = part.id
        # Before the trace is forgotten: values of its spans must reach the rollouts they belong to.
        self._evaluations.adopt(trace.base, rollout_ids)
        self._workers.complete(trace.sender, trace.id)
        self._store.forget(trace)
        records: list[Record] = []
        for part in parts:
            records += self._split_off(trace, part, now_unix_ns)
        rest = {
            span.span_id: (origin, span)
            for origin, span in source.spans
            if span.span_id not in rollout_ids
        }
        # Of all origins at once: the span above may be of another one.
        routed = self._router.routed(trace.base, [span for _, span in rest.values()])
        # Nothing came for a whole waiting time: the rollout of these spans never will.
        if not parts and (lost := routed.pop(trace.id, None)):
            count(self._state, "span/late", len(lost))
        for target, members in routed.items():
            pairs = [(rest[span.span_id][0], span) for span in members]
            for origin, spans in _by_origin(pairs):
                # As of their arrival, so that what waits again waits no longer than others.
                records += self._deliver(target, origin, spans, trace.last_ns)
        return records

    def _split_off(
        self, trace: PendingTrace, part: ReceivedTrace, now_unix_ns: int
    ) -> list[Record]:
        """Process one rollout of a trace that was split; return its record, if any, and those of steps that it closes.

        One that waits or was decided on already gets its spans as late ones: its trace was forgotten
        before it, for its age, and then came again.
        """
        records: list[Record] = []
        if self._router.is_complete(part.id):
            for origin, spans in _by_origin(part.spans):
                records += self._deliver(part.id, origin, spans, now_unix_ns)
            return records
        rollout = trace.split_off(part.id)
        self._publisher.claim(rollout.id)
        for origin, spans in _by_origin(part.spans):
            rollout.add(spans, now_unix_ns)
            self._store.keep(rollout, origin, spans)
        return self._publisher.rollout(rollout, part, now_unix_ns)

    def _expire(self, trace: PendingTrace, now_unix_ns: int) -> list[Record]:
        """Process an overdue trace as it is: a rollout, several, or a trace of something else.

        Log records whose spans never arrived are counted (``event/no_span``), and values that came
        for them wait on for the trace. One that is not a rollout is shown or counted, by
        `OtherTraces`.
        """
        # Log records alone: the spans that they name never arrived.
        if trace.contents and trace.contents == len(trace.span_ids):
            count(self._state, "event/no_span", trace.contents)
            self._store.forget(trace)
            self._evaluations.unclaim(trace.id)
            return []
        if trace.rollout or trace.further:
            return self._complete(trace, now_unix_ns)
        return self._publisher.no_rollout(trace, self._other_traces())

    def _bounded(self, now_unix_ns: int) -> list[Record]:
        """Keep the bounds: release undecided traces first, then close steps early, then release incomplete rollouts.

        In this order, because it costs least first: an undecided trace is rarely a rollout, a step
        that closes early still shows its rollouts, and an incomplete rollout lacks spans (counted:
        ``trace/evicted``).
        """
        records: list[Record] = []
        max_traces = self._options.max_open_traces
        while True:
            open_traces, waiting = self.waiting()
            too_large = self._store.size > self._options.max_open_trace_bytes
            too_many = too_large or open_traces > max_traces
            if too_many and (undecided := self._open.oldest(rollout=False)) is not None:
                records += self._expire(undecided, now_unix_ns)
            elif waiting and (too_large or waiting > max_traces):
                # Thinning first, because it keeps the step open.
                if not self._publisher.thin():
                    records += self._publisher.close_oldest()
            elif too_many and (rollout := self._open.oldest(rollout=True)) is not None:
                count(self._state, "trace/evicted")
                records += self._expire(rollout, now_unix_ns)
            else:
                return records


def _by_origin(
    pairs: Sequence[tuple[SpanOrigin, Span]],
) -> Iterator[tuple[SpanOrigin, list[Span]]]:
    """Yield the spans of each producer that follow each other, as the store keeps them."""
    for origin, group in groupby(pairs, key=lambda pair: pair[0]):
        yield origin, [span for _, span in group]
