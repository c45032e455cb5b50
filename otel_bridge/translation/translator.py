"""Frames of segments -> records: (state, frame or tick, now) -> (changes of state, records). Pure, one thread.

One `Translator` a run. Facts that change with every row are kept in Python objects; `Translator.flush` writes them to
the state and must be called before the state is committed together with the records. A translator made anew from a
committed state goes on exactly where the last one stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from google.protobuf.message import DecodeError

from otel_bridge.records import Record, Row, Status
from otel_bridge.translation.events import Events
from otel_bridge.translation.frames import UNDECODABLE, FastRow, Frame, FrameReader
from otel_bridge.translation.hearing import Hearing
from otel_bridge.translation.keys import Axes
from otel_bridge.translation.life import Life
from otel_bridge.translation.options import Options, OtherTraces, counted
from otel_bridge.translation.own_rows import Piece
from otel_bridge.translation.points import Found, Points
from otel_bridge.translation.process import Process
from otel_bridge.translation.rollouts import Rollouts
from otel_bridge.translation.rows import Rows
from otel_bridge.translation.run_facts import RunFacts
from otel_bridge.translation.seen import Seen
from otel_bridge.translation.starts import Starts
from otel_bridge.translation.state import State, count
from otel_bridge.translation.voices import PROCESS_KINDS, Source, Voice, Voices

__all__ = ["Options", "Source", "Translator", "Waiting"]

_METRICS, _TRACES, _LOGS = 1, 2, 3  # as the journal numbers the signals of its frames
_REDELIVERED: Final = "redelivered"
_MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits: rows for their pieces or their order, traces for spans, rollouts for their step."""

    rows: int
    traces: int
    rollouts: int


class Translator:
    """Translates everything of one run.

    Args:
        state: Where everything is kept; this object reads it here, and relies on being its only writer.
        options: Waiting times, bounds, selection.
        others: Asked what becomes of a trace that is no rollout.
        opened_unix_ns: Since when it listens; what waits for producers elsewhere does not age before. 0: all along.
    """

    def __init__(
        self,
        state: State,
        options: Options,
        *,
        others: Callable[[], OtherTraces] = counted,
        opened_unix_ns: int = 0,
    ) -> None:
        self._state = state
        self._hearing = Hearing(opened_unix_ns, options.tail_wait_ns)
        self._life = Life(state, options, self._hearing)
        self._voices = Voices(RunFacts(state, options.run_id), self._life)
        self._reader = FrameReader(state, self._voices)
        self._axes = Axes(state, options.max_keys, self._life.processes)
        self._rows = Rows(state, options, self._axes, self._life.processes, self._hearing)
        self._seen = Seen(state, options.seen_limit)
        self._points = Points(state, self._axes, self._seen, options.max_keys)
        self._rollouts = Rollouts(state, options, self._axes.steps, others=others, attempt_of=self._axes.current)
        self._rollouts.listen(opened_unix_ns)
        self._events = Events(state, self._life, self._seen, self._rollouts)
        self._starts = Starts(self._axes, self._events)
        self._redelivered_before = _number(state, _REDELIVERED)

    # --- what the reader calls ----------------------------------------------------------------------------------------
    def opened(self, source: Source, now_unix_ns: int) -> list[Record]:
        """Take the header of a segment: its process is open from here on."""
        if source.kind in PROCESS_KINDS:
            voice = self._reader.of_segment(source, now_unix_ns)
            if voice is not None:
                self._life.heard(voice.process, now_unix_ns)
        return []

    def gone(self, instances: Iterable[str]) -> None:
        """Take these processes for dead and wholly read: whoever comes after them goes on from them."""
        for instance in instances:
            if instance in self._life.processes:
                self._life.processes[instance].gone = True

    def frame(  # noqa: PLR0917  # called for every row: keywords would cost
        self, source: Source, signal: int, payload: bytes, whole: bool, append_unix_ns: int, now_unix_ns: int
    ) -> list[Record]:
        """Take one frame.

        Args:
            source: The segment it stands in; one object for one segment, so that it is known again at once.
            signal: 0 control, 1 metrics, 2 traces, 3 logs.
            payload: One ``Scope…`` message, or, when *whole*, a whole export request.
            whole: The payload carries its own resources.
            append_unix_ns: When it was appended; stands for a time that a point lacks.
            now_unix_ns: Now, for everything that waits.

        Returns:
            The records that are complete by it. Bytes that cannot be decoded are counted, never an exception.
        """
        if signal == _METRICS and not whole:
            voice = self._voices.known(source)
            found = voice.decoder.fast(payload) if voice is not None else None
            if voice is not None and found is not None and self._rows.expected(voice.process, found[1][2]):
                process = voice.process
                process.seen_ns = now_unix_ns
                record = self._rows.next(process, *found)
                if process.status is not None or self._life.ended:
                    self._life.row(process, now_unix_ns)
                return self._told([record]) if self._axes.restarted else [record]
        records = self._slow(signal, Frame(source, payload, whole, append_unix_ns, now_unix_ns))
        return self._told(records + self._end_if_due(now_unix_ns))

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Let time pass: rows, traces, steps, silence, the end of the run."""
        records: list[Record] = [*self._rows.tick(now_unix_ns), *self._rollouts.tick(now_unix_ns)]
        if records and self._life.ended:
            self._life.more(now_unix_ns)
        self._life.silence(now_unix_ns)
        for process in self._life.excess(now_unix_ns):
            records += self._forget(process)
        return self._told(records + self._end_if_due(now_unix_ns))

    def close(self, now_unix_ns: int, status: Status | None = None) -> list[Record]:
        """Nothing more will come: release all that waits; remote processes end, and the run, if none is open then.

        Args:
            now_unix_ns: Now.
            status: A person's word on how those ended that did not say it themselves; ``None``: as it looks.
        """
        records = self._let_go(now_unix_ns)
        self._life.close(now_unix_ns, status)
        return self._told(records + self._end_if_due(now_unix_ns, closing=True))

    def let_go(self, now_unix_ns: int) -> list[Record]:
        """Release all that waits; who speaks may go on later, to us or to the next one, and the run with them."""
        return self._told(self._let_go(now_unix_ns) + self._end_if_due(now_unix_ns, closing=True))

    def flush(self) -> None:
        """Write all that is kept hot to the state; call it before the state is committed with the records."""
        self._axes.flush()
        self._rows.flush()
        self._points.flush()
        self._seen.flush()
        self._life.flush()
        for key, number in ((_REDELIVERED, self.redelivered()), (_MISSING, self.missing_rows())):
            if number != _number(self._state, key):
                self._state.set(key, number)

    # --- what the report shows ----------------------------------------------------------------------------------------
    def waiting(self) -> Waiting:
        """Return what waits."""
        return Waiting(self._rows.waiting, *self._rollouts.waiting())

    def missing_rows(self) -> int:
        """Return how many rows are known to be missing: gaps in ``rl.seq``."""
        return self._life.missing_rows()

    def redelivered(self) -> int:
        """Return how many rows, parts of rows and events came again and were passed over."""
        return self._redelivered_before + self._rows.redelivered + self._events.redelivered

    def status(self) -> str:
        """Return ``running``, or, once the run has ended, its status."""
        return self._life.status().value if self._life.ended else "running"

    # --- one frame ----------------------------------------------------------------------------------------------------
    def _slow(self, signal: int, frame: Frame) -> list[Record]:
        try:
            if signal == _METRICS:
                return self._metrics(frame)
            if signal == _TRACES:
                return self._traces(frame)
            if signal == _LOGS:
                return self._logs(frame)
        except DecodeError:
            count(self._state, UNDECODABLE)
        return []

    def _metrics(self, frame: Frame) -> list[Record]:
        heard = self._reader.metrics(frame)  # all of it, before anything has an effect: it may be undecodable
        if frame.held:
            self._hearing.heard(frame.now_unix_ns)
        records: list[Record] = []
        for said in heard:
            process = said.voice.process
            if said.voice.speaker.system:
                continue  # no word of the process itself
            self._life.heard(process, frame.now_unix_ns)
            for row in said.rows:
                records += self._row(frame, said.voice, row)
        # Measured while a process ended: that must not open it, or the run, again.
        counted = [said for said in heard if not said.voice.speaker.system or said.voice.process.status is None]
        foreign: list[Found] = [(said.voice.speaker, said.voice.process, said.others) for said in counted]
        points = self._points.rows(foreign, frame.append_unix_ns)
        for speaker, process, _ in foreign if points else ():
            if not speaker.system:
                self._life.data(process, frame.now_unix_ns)
        return [*records, *points]

    def _row(self, frame: Frame, voice: Voice, row: FastRow | Sequence[Piece]) -> list[Record]:
        """Take what one scope holds of rows."""
        process, pieces = voice.process, row
        if isinstance(row, FastRow):
            if self._rows.expected(process, row.read[2]):
                record = self._rows.next(process, row.learned, row.read)
                self._life.row(process, frame.now_unix_ns)
                return [record]
            pieces, _ = voice.decoder.slow(row.scope)
        records: list[Record] = []
        for piece in cast("Sequence[Piece]", pieces):
            known = self._rows.redelivered
            records += self._rows.take(process, piece, frame.now_unix_ns, hold=frame.held)
            if self._rows.redelivered == known:
                self._life.row(process, frame.now_unix_ns)
        return records

    def _traces(self, frame: Frame) -> list[Record]:
        records: list[Record] = []
        for voice, scopes in self._reader.spans(frame):
            if frame.held:
                self._rollouts.received(frame.now_unix_ns)
            self._life.heard(voice.process, frame.now_unix_ns)
            records += self._starts.of_spans(voice, scopes, frame.now_unix_ns)
            for scope in scopes:
                self._life.data(voice.process, frame.now_unix_ns)
                who = voice.speaker.attributes, voice.process.instance
                records += self._rollouts.spans(*who, scope, frame.now_unix_ns)
        return records

    def _logs(self, frame: Frame) -> list[Record]:
        records: list[Record] = []
        for voice, scopes in self._reader.logs(frame):
            if frame.source.kind != "bridge":  # what a bridge says of a dead process is no life sign
                self._life.heard(voice.process, frame.now_unix_ns)
                records += self._starts.of_logs(voice, scopes, frame.now_unix_ns)
            for scope in scopes:
                for record in scope.log_records:
                    records += self._events.take(voice.speaker, voice.process, record, frame.now_unix_ns)
        return records

    def _told(self, records: list[Record]) -> list[Record]:
        """Put before the first row of a role's further attempt the config that names it."""
        if not self._axes.restarted:
            return records
        told: list[Record] = []
        for record in records:
            if isinstance(record, Row) and record.axis in self._axes.restarted:
                del self._axes.restarted[record.axis]
                told += self._events.restarted(record.role, record.attempt, record.time_unix_ns)
            told.append(record)
        self._axes.restarted.clear()
        return told

    # --- the end ------------------------------------------------------------------------------------------------------
    def _let_go(self, now_unix_ns: int) -> list[Record]:
        records: list[Record] = [*self._rows.close(), *self._rollouts.close(now_unix_ns)]
        if records and self._life.ended:
            self._life.more(now_unix_ns)
        return records

    def _end_if_due(self, now_unix_ns: int, *, closing: bool = False) -> list[Record]:
        if not self._life.due(now_unix_ns, closing=closing):
            return []
        return [*self._rows.close(), *self._rollouts.close(now_unix_ns), self._life.run_end()]

    def _forget(self, process: Process) -> list[Record]:
        rows = self._rows.forget(process)
        self._life.forget(process)
        self._voices.clear()
        return [*rows]


def _number(state: State, key: str) -> int:
    value = state.get(key)
    return value if isinstance(value, int) else 0
