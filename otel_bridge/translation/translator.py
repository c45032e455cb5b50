"""Frames of segments -> records: (state, frame or tick, now) -> (changes of state, records). Pure, one thread.

Each run has one `Translator`. Facts that change with every row are kept in Python objects.
`Translator.flush` writes these facts to the state; call it before the state is committed together
with the records. A new translator, made from a committed state, continues exactly where the last
one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from otel_bridge import semconv
from otel_bridge.records import AXIS, Record, Status
from otel_bridge.translation.alerts import AlertWatcher
from otel_bridge.translation.events import Events
from otel_bridge.translation.featured import FeaturedKeys
from otel_bridge.translation.frame_decoder import (
    UNDECODABLE,
    DecodedFrame,
    FrameReader,
)
from otel_bridge.translation.metrics.attempts import note_attempt
from otel_bridge.translation.metrics.dedup import Deduplicator
from otel_bridge.translation.metrics.defined_summaries import DefinedSummaries
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.metrics.pipeline import MetricsPipeline
from otel_bridge.translation.metrics.third_party_points import ThirdPartyPoints
from otel_bridge.translation.options import OtherTraces, TranslationOptions, counted
from otel_bridge.translation.phases.pipeline import PhasePipeline
from otel_bridge.translation.phases.slow_ranks import StragglerCauses
from otel_bridge.translation.processes.lifecycle import RunLifecycle
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.producers import (
    PROCESS_KINDS,
    ProducerRegistry,
    SegmentInfo,
)
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.processes.run_metadata import RunMetadata
from otel_bridge.translation.rollouts.assembly import ReceivedTrace
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.span_pipelines import SpanPipelines
from otel_bridge.translation.state import TranslationState, count, number_at

__all__ = ["PendingCounts", "SegmentInfo", "TranslationOptions", "Translator"]

# Members of the journal's `Signal`, written again because translation must not import the journal.
_METRICS = 1
_TRACES = 2
_LOGS = 3
_REDELIVERED = "redelivered"
_MISSING = "missing"


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """Counts what waits: rows (for fragments or their order), traces (for spans), rollouts (for their step).

    `steps` are those whose row waits for what is late.
    """

    rows: int
    traces: int
    rollouts: int
    steps: int


class Translator:
    """Translates one run.

    No method raises for what a producer sent: that is counted (``drop/<reason>``). `JournalError`
    of the state passes, and its reader begins again at the last commit. Any other exception is a bug:
    the reader counts the frame as ``translation_errors`` and goes on; one that is not of a frame
    fails the run's bridge, which tries again.

    Args:
        state: Stored state; the translator reads it at the start and relies on being its only
            writer.
        options: Waiting times, bounds, selection.
        other_traces: Callable that decides on a trace that is not a rollout.
        opened_unix_ns: Unix ns when this bridge began to receive. Timeouts of remote producers
            start no earlier. 0: it has always received.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        *,
        other_traces: Callable[[], OtherTraces] = counted,
        opened_unix_ns: int = 0,
    ) -> None:
        self._state = state
        receive_clock = ReceiveClock(opened_unix_ns, options.end_of_stream_wait_ns)
        self._lifecycle = RunLifecycle(state, options, receive_clock)
        metadata = RunMetadata(state, options.run_id)
        self._producers = ProducerRegistry(metadata, self._lifecycle)
        self._reader = FrameReader(state, self._producers)
        processes = self._lifecycle.processes
        self._axes = StepAxes(state, options.max_keys, processes)
        run = RunContext(state, options, self._axes, processes, receive_clock)
        deduplicator = Deduplicator(state, options.seen_limit)
        points = ThirdPartyPoints(state, self._axes, deduplicator, options)
        self._metrics = MetricsPipeline(run, self._lifecycle, points)
        self._spans = SpanPipelines(run, points, other_traces)
        self._defined = DefinedSummaries(state)
        self._events = Events(
            run,
            self._lifecycle,
            deduplicator,
            rollout_handlers={
                semconv.EVENT_EVALUATION: self.rollouts.evaluation,
                semconv.EVENT_ROLLOUTS: self.rollouts.sampled_out,
            },
            read_content=self.rollouts.content,
            defined=self._defined,
            metadata=metadata,
        )
        self._featured = FeaturedKeys(run)
        self._redelivered_before = number_at(state, _REDELIVERED)
        # None without rules: then the causes of a bridge with rules stay stored, so that none is
        # alerted twice.
        self._alerts: AlertWatcher | None = None
        if options.alert_rules:
            stragglers = StragglerCauses(state, options.alert_rules)
            self._alerts = AlertWatcher(state, options, processes, stragglers.row)

    @property
    def phases(self) -> PhasePipeline:
        """The phases of the run."""
        return self._spans.phases

    @property
    def rollouts(self) -> RolloutPipeline:
        """The rollouts of the run."""
        return self._spans.rollouts

    # --- what the reader calls --------------------------------------------------------------------
    def opened(self, source: SegmentInfo, now_unix_ns: int) -> None:
        """Process the header of a segment: its process is open from then on.

        No process of a segment whose resource cannot be read, which is counted (``undecodable``), or
        that belongs to another run (``other_run``), and of segments of many processes, whose
        records name theirs.
        """
        if source.kind in PROCESS_KINDS:
            context = self._reader.of_segment(source, now_unix_ns)
            if context is not None:
                self._lifecycle.on_frame(context.process, now_unix_ns)

    def mark_drained(self, instances: Iterable[str]) -> None:
        """Mark processes as dead and fully read, so that a successor counts as the next attempt.

        An instance that sent nothing yet, or was forgotten, is ignored.
        """
        for instance in instances:
            if instance in self._lifecycle.processes:
                self._lifecycle.processes[instance].mark_drained()

    def frame(  # noqa: PLR0917  # called for every row: keywords would cost
        self,
        source: SegmentInfo,
        signal: int,
        payload: bytes,
        whole: bool,
        append_unix_ns: int,
        now_unix_ns: int,
    ) -> list[Record]:
        """Translate one frame.

        Args:
            source: The segment that holds the frame; always the same object for one segment, for a
                fast lookup.
            signal: 0 control, 1 metrics, 2 traces, 3 logs.
            payload: One ``Scope…`` message, or, when *whole*, a whole export request.
            whole: Whether the payload carries its own resources.
            append_unix_ns: Time at which the frame was appended; replaces a missing time of a
                point.
            now_unix_ns: Now, for everything that waits.

        Returns:
            The records that the frame completes. Bytes that cannot be decoded are counted and never
            raise.
        """
        frame = DecodedFrame(source, payload, whole, append_unix_ns, now_unix_ns)
        records = self._translated(signal, frame)
        return self._finished(records + self._end_if_due(now_unix_ns), now_unix_ns)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Apply the passage of time to rows, traces, steps, silent processes and the end of the run.

        A record that is released here continues a run that has ended, which then ends anew.
        """
        records = [*self._metrics.tick(now_unix_ns), *self._spans.tick(now_unix_ns)]
        # What was released follows the end of the run, so the run must end once more after it.
        if records and self._lifecycle.ended:
            self._lifecycle.reopen(now_unix_ns)
        self._lifecycle.expire_silent(now_unix_ns)
        # After the silent ones have ended: processes that ended are forgotten first.
        for process in self._lifecycle.over_limit(now_unix_ns):
            records += self._forget(process, now_unix_ns)
        if self._alerts is not None and not self._lifecycle.ended:
            records += self._alerts.tick(now_unix_ns, self._axes.steps())
        return self._finished(records + self._end_if_due(now_unix_ns), now_unix_ns)

    def close(self, now_unix_ns: int, status: Status | None = None) -> list[Record]:
        """Release everything that waits, since no more data will arrive.

        Remote processes end. The run ends when no process remains open. Data that arrive all the
        same reopen it; a second call without any gives nothing.

        Args:
            now_unix_ns: Now.
            status: A person's statement of how processes without an end event ended; ``None``: as
                derived.
        """
        records = self._pause(now_unix_ns)
        # Not at a pause: then the process may still send the missing parts to the next bridge.
        self._events.media.close()
        self._lifecycle.close(now_unix_ns, status)
        return self._finished(
            records + self._end_if_due(now_unix_ns, closing=True), now_unix_ns
        )

    def pause(self, now_unix_ns: int) -> list[Record]:
        """Release everything that waits, as a bridge drains.

        Processes may continue later, at this or the next bridge.

        A run of third-party producers alone ends here, since only silence would end it otherwise.
        """
        records = self._pause(now_unix_ns)
        self._lifecycle.end_third_party(now_unix_ns)
        return self._finished(
            records + self._end_if_due(now_unix_ns, closing=True), now_unix_ns
        )

    def flush(self) -> None:
        """Write all facts kept in memory to the state.

        Call before the state is committed with the records: facts that change with every row are
        written once a batch.
        """
        self._axes.flush()
        self._metrics.flush()
        self._spans.flush()
        self._featured.flush()
        self._lifecycle.flush()
        self._defined.flush()
        if self._alerts is not None:
            self._alerts.flush()
        for key, number in (
            (_REDELIVERED, self.redelivered()),
            (_MISSING, self.missing_rows()),
        ):
            # Unchanged counts are not written: each key is a row in the transaction of the batch.
            if number != number_at(self._state, key):
                self._state.set(key, number)

    def engine_problems(self) -> list[str]:
        """Return which families engines no longer send, one text for each engine."""
        return self._metrics.engines.problems()

    def adopt(self, stray: ReceivedTrace, now_unix_ns: int) -> list[Record]:
        """Process spans of a rollout of this run that another run received.

        No record unless they complete the rollout, or it was emitted already; spans that this run
        has are ignored.
        """
        records = self.rollouts.adopt(stray, now_unix_ns)
        if records and self._lifecycle.ended:
            self._lifecycle.reopen(now_unix_ns)
        return self._finished(records + self._end_if_due(now_unix_ns), now_unix_ns)

    # --- what the report shows --------------------------------------------------------------------
    def waiting(self) -> PendingCounts:
        """Return the numbers of waiting rows, traces, rollouts and steps."""
        steps = self._spans.waiting_steps + self._metrics.ranks.waiting
        return PendingCounts(
            self._metrics.rows.waiting, *self.rollouts.waiting(), steps
        )

    def waiting_rows_of(self) -> dict[str, int]:
        """Return the number of waiting rows of each process, by instance.

        Processes without any are left out.
        """
        return self._metrics.rows.waiting_of()

    def missing_rows(self) -> int:
        """Return the number of rows known to be missing: gaps in ``rl.seq``."""
        return self._lifecycle.missing_rows()

    def redelivered(self) -> int:
        """Return the number of redelivered rows, fragments and events, which were dropped."""
        newly = self._metrics.rows.redelivered + self._events.redelivered
        return self._redelivered_before + newly

    def status(self) -> str:
        """Return ``running``, or the status of the run after its end."""
        if self._lifecycle.ended:
            return self._lifecycle.status().value
        return "running"

    def processes_by_role(self) -> dict[str, tuple[int, int]]:
        """Return, by role, how many processes are open, and how many there are.

        See `RunLifecycle.counts_by_role`.
        """
        return self._lifecycle.counts_by_role()

    # --- one frame --------------------------------------------------------------------------------
    def _translated(self, signal: int, frame: DecodedFrame) -> list[Record]:
        """Return the records of one frame; nothing for control frames.

        A frame that cannot be decoded is counted (``undecodable``): its bytes would fail again at
        every try.
        """
        try:
            if signal == _METRICS:
                # All of the frame is decoded before anything has an effect: it may be undecodable.
                return self._metrics.take(frame, self._reader.metrics(frame))
            if signal == _TRACES:
                return self._traces(frame)
            if signal == _LOGS:
                return self._logs(frame)
        except DecodeError:
            # The same bytes would fail again; they are one frame, and the next one begins anew.
            count(self._state, UNDECODABLE)
        return []

    def _traces(self, frame: DecodedFrame) -> list[Record]:
        """Return the records of a frame of traces.

        The attempt is detected before the spans are used: they belong to it.

        Raises:
            google.protobuf.message.DecodeError: The frame cannot be decoded.
        """
        records: list[Record] = []
        for context, scopes in self._reader.spans(frame):
            if frame.from_receiver:
                self.rollouts.received(frame.now_unix_ns)
            self._lifecycle.on_frame(context.process, frame.now_unix_ns)
            note_attempt(self._axes, context, scopes)
            for received in scopes:
                self._lifecycle.on_record(context.process, frame.now_unix_ns)
                records += self._spans.take(frame, context, received)
        return records

    def _logs(self, frame: DecodedFrame) -> list[Record]:
        """Return the records of a frame of events; log lines and unknown events give none.

        Raises:
            google.protobuf.message.DecodeError: The frame cannot be decoded; nothing has changed.
        """
        records: list[Record] = []
        for context, scopes in self._reader.logs(frame):
            # A bridge's statement about a dead process is not a heartbeat.
            if frame.source.kind != "bridge":
                self._lifecycle.on_frame(context.process, frame.now_unix_ns)
                note_attempt(self._axes, context, scopes)
            for scope in scopes:
                for record in scope.log_records:
                    records += self._events.take(
                        context.producer, context.process, record, frame.now_unix_ns
                    )
        return records

    def _finished(self, records: list[Record], now_unix_ns: int) -> list[Record]:
        """Return *records* with the configs of further attempts, defined summaries, and the alerts that rows raise.

        Alerts watch the rows that the steps before them add, and not the section of featured keys,
        which shows values of these once more.
        """
        engines = self._metrics.engines
        if engines.active:
            records = [*records, *engines.rows()]
        records = self._spans.finished(records, now_unix_ns)
        records = self._with_restarts(records, now_unix_ns)
        if self._alerts is not None:
            records = self._alerts.rows(records, now_unix_ns)
        records = self._featured.rows(records)
        if self._defined.defined:
            records = self._defined.rows(records)
        return records

    def _with_restarts(self, records: list[Record], now_unix_ns: int) -> list[Record]:
        """Return *records* behind the configs of roles that began another attempt.

        Unchanged without one, as nearly always. Trackers show the number in the config, so that it
        comes before the first row of the attempt.
        """
        if not self._axes.restarted:
            return records
        configs: list[Record] = []
        for axis, attempt in self._axes.restarted.items():
            role = axis.removesuffix(AXIS).removesuffix("/") or None
            configs += self._events.restarted(role, attempt, now_unix_ns)
        self._axes.restarted.clear()
        return configs + records

    # --- the end ----------------------------------------------------------------------------------
    def _pause(self, now_unix_ns: int) -> list[Record]:
        records = self._closed(now_unix_ns)
        if records and self._lifecycle.ended:
            self._lifecycle.reopen(now_unix_ns)
        return records

    def _end_if_due(self, now_unix_ns: int, *, closing: bool = False) -> list[Record]:
        """Return what waits and the run's end, if it ends now.

        Nothing while a process is awaited.
        """
        if not self._lifecycle.due(now_unix_ns, closing=closing):
            return []
        return [*self._closed(now_unix_ns), self._lifecycle.run_end()]

    def _closed(self, now_unix_ns: int) -> list[Record]:
        # Rows first: a statistic of a step gives way to a key that rows use.
        return [*self._metrics.close(now_unix_ns), *self._spans.close(now_unix_ns)]

    def _forget(self, process: Process, now_unix_ns: int) -> list[Record]:
        """Forget a process that has ended; return its rows that waited.

        Its media that wait for parts are counted (``media/incomplete``). Data that still arrive of it
        begin a new process.
        """
        rows = self._metrics.forget(process, now_unix_ns)
        self._lifecycle.forget(process)
        self._spans.forget(process.instance)
        self._events.media.forget(process.instance)
        # Its contexts hold the process object; a later frame must make a new one.
        self._producers.clear()
        return list(rows)
