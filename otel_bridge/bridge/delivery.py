"""One exporter of one run: ledger -> writer, one step at a time. No thread here: `Worker` runs the steps.

What became of a write is one of four: done; retry, with backoff; blocked, tried again every minute; permanent, a dead
letter, and what stands behind goes on. Nothing is lost: *written* moves only behind writes that returned, and a bridge
that starts again goes on from what the writer says its tracker holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from otel_bridge.bridge.calls import calls_of, kinds_of, needs_writer
from otel_bridge.bridge.duty import Duty
from otel_bridge.bridge.failures import Failures
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.letters import Letters
from otel_bridge.bridge.standing import Standing
from otel_bridge.bridge.tables import Destination
from otel_bridge.bridge.window import Describe, OpenWriter, Progress, Window
from otel_bridge.bridge.writer_life import WriterLife
from otel_bridge.bridge.writing import Writing
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    LedgerDamagedError,
    MissingExtraError,
    PermanentError,
)
from otel_bridge.exporter import Exporter, ExporterSettings
from otel_bridge.otlp_content import Limit
from otel_bridge.records import End, Position
from otel_bridge.translation.strict_content import with_less_text

BATCH_BYTES: Final = 4 << 20
SAFE_POLL_S: Final = 1.0


def unlimited() -> Limit:
    """Return the limit of an exporter that gets all text."""
    return None


class Delivery:
    """Brings the ledger's records to one writer. For one thread; `progress` may be read by any.

    Args:
        name: The exporter.
        signals: What it is named for.
        ledger: The run's ledger.
        resolve: Returns the exporter and its settings; raises `ConfigError`.
        describe: Tells the run.
        say: Takes one line for the log.
        limit: Tells how many characters a text may have for this exporter.
        more_comes: Says whether more records are about to come without a pause, so that the writer may not rest.

    Attributes:
        letters: Its dead letters that are to be tried again.
        resting: After the step that was made last, so that more records gather: what is new need not wake it.
    """

    def __init__(
        self,
        name: str,
        signals: Sequence[str],
        ledger: Ledger,
        *,
        resolve: Callable[[], tuple[Exporter, ExporterSettings]],
        describe: Describe,
        say: Callable[[str], None],
        limit: Callable[[], Limit] = unlimited,
        more_comes: Callable[[], bool] = lambda: False,
    ) -> None:
        self._standing = Standing(name, ledger, say)
        self._name, self._signals = name, signals
        self._ledger, self._resolve, self._say = ledger, resolve, say
        self._limit, self._more_comes = limit, more_comes
        self._failures, self._duty = Failures(name, self._standing, say), Duty()
        self._writing = Writing(self._standing, self._failures, self._duty)
        self.letters = Letters(say)
        self.resting = False
        self._view = ledger.view()
        self._writer = WriterLife(name, self._standing, ledger, view=self._view, describe=describe, say=say)
        self._target: tuple[Exporter, ExporterSettings] | None = None
        self._window: Window | None = None
        self._passed_end: Position = 0

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._standing.progress

    @property
    def destination_id(self) -> int | None:
        """Id of the destination in the ledger, ``None`` while the settings cannot be read."""
        return None if self._standing.at is None else self._standing.at.id

    def set_signals(self, signals: Sequence[str]) -> None:
        """Deliver these from the next window on."""
        self._signals = signals

    @property
    def _kinds(self) -> Sequence[int]:
        return kinds_of(self._signals, takes_traces=self._target is not None and self._target[0].takes_traces)

    def step(self) -> float | None:
        """Do one thing. Raises nothing.

        Returns:
            Seconds after which the next step is due; ``None``: when something new is there.
        """
        self.resting = False
        try:
            return self._step()
        except Exception as exc:  # noqa: BLE001  # nothing may end the thread
            return self._outcome(exc)

    def _outcome(self, exc: Exception) -> float | None:
        if isinstance(exc, LedgerDamagedError):
            self._standing.damaged(str(exc))
            return None
        if isinstance(exc, (BlockedError, PermanentError)):  # permanent: of open, with no record to blame
            self._give_up_writer()
            self._window = None
            return self._failures.blocked(exc)
        wait = self._failures.passing(exc)
        if self._failures.call_for_a_new_writer:
            self._give_up_writer()
        return wait

    def close(self) -> None:
        """Let go of the writer and the connection; what is written stays written. Raises nothing."""
        with contextlib.suppress(Exception):
            self._note_whole_window()
        opened = self._writer.opened
        if opened is not None and self._standing.at is not None:
            with contextlib.suppress(Exception):
                self._writer.look_at_safe(opened, self._standing.at)
        if self._writer.close():
            self._go_back()
        self._view.close()

    def _note_whole_window(self) -> None:
        """Note a window that was written whole just before the end: else the next one would write it again."""
        window = self._window
        if window is None or window.calls or window.letter:
            return
        self._advance(window.through if window.end is None else window.end.position - 1, window)

    def let_go(self, through: Position) -> None:
        """Take what is written up to *through* for safe: the bound needs its room. The writer is closed first."""
        at = self._standing.at
        if at is None or at.safe >= min(through, at.written):
            return
        self._writer.close()
        self._window = None
        self._standing.save(dataclasses.replace(at, safe=min(through, at.written)))

    def _step(self) -> float | None:
        target = self._target = self._target or self._resolved()
        at = self._standing.take_up(target[1])
        if self._window is None:
            self._window = self.letters.window(self._view, at) or self._fetch(at, target[0])
        window = self._window
        if window.letter and not window.calls:  # written, and the ledger refused to note it
            return self._letter_tried(window)
        if window.calls or window.end is not None or (at.put_off and self._writer.opened is None):
            opened = self._writer.opened or self._writer.open(target, at, self._kinds)
            if opened is None:
                self._window = None  # the tracker holds more or less than was noted: read again from there
                return 0.0
            if window.calls:
                if self.progress.state in {"idle", "ended"}:
                    self._standing.show("writing")
                record = window.calls[0].records[0]
                self._writing.write(opened, window, ordered=target[0].ordered)
                if window.letter and not window.calls:
                    window.tried = None if window.refused else record
                    return self._letter_tried(window)
                return 0.0
            if window.end is not None:
                # While the writer is open: only it can say whether what it wrote is safe.
                self._advance(window.end.position - 1, window)
                if self._ledger.position <= window.end.position and not self._caught_up(opened):
                    return 0.0
            self._act_on_end(opened, window)
        self._advance(window.through, window)
        self._window = None
        return self._after(window)

    def _letter_tried(self, window: Window) -> float:
        self._standing.save(self.letters.done(self._ledger, self._standing.now, window))
        return 0.0

    def _resolved(self) -> tuple[Exporter, ExporterSettings]:
        try:
            return self._resolve()
        except MissingExtraError as exc:
            command = str(exc).rpartition(": ")[2]
            raise BlockedError(str(exc), help=command if command.startswith("pip ") else "") from exc
        except ConfigError as exc:
            raise BlockedError(str(exc)) from exc

    def _fetch(self, at: Destination, exporter: Exporter) -> Window:
        """Read the next window. Records that need no writer while none is open are passed over."""
        known, more_comes = self._ledger.position, self._more_comes()
        batch = self._ledger.records(
            self._view, at.written, self._kinds, limit=exporter.window_records, limit_bytes=BATCH_BYTES
        )
        for position, kind, data, reason in batch.broken:
            self._standing.bury(position, kind, data, record_id="", reason=reason)
        last = batch.records[-1] if batch.records else None
        end = last if isinstance(last, End) and last.position == batch.last else None
        # An end with anything behind it is cancelled by that.
        limit = self._limit()
        given = batch.records if limit is None else [with_less_text(record, limit) for record in batch.records]
        records = [record for record in given if not isinstance(record, End)]
        if self._writer.opened is None and not needs_writer(at, records, end):
            self._passed_end = 0 if end is None else end.position
            return Window(deque(), batch.through)
        return Window(
            deque(calls_of(records, ordered=exporter.ordered)),
            batch.through,
            end,
            whole=batch.through >= known and not more_comes,
        )

    def _advance(self, through: Position, window: Window) -> None:
        opened = self._writer.opened
        self._standing.advance(through, window, tells_safe=None if opened is None else opened.tells_safe)

    def _act_on_end(self, opened: OpenWriter, window: Window) -> None:
        """End the run in the tracker, unless something came behind the end meanwhile."""
        end = window.end
        if end is None or self._ledger.position > end.position:
            return
        try:
            opened.writer.end(end.status)
        except PermanentError as exc:
            self._say(f"{self._name}: the end of the run is refused for good: {exc}")
        ended = dataclasses.replace(self._standing.now, ended=end.position, end_status=end.status)
        self._standing.save(ended)
        with contextlib.suppress(Exception):
            self._writer.look_at_safe(opened, dataclasses.replace(ended, written=end.position))
        self._writer.close()
        self._failures.over()

    def _after(self, window: Window) -> float | None:
        """Rest after a window that took all there was; with more waiting, put off or just ended there is no rest."""
        due_s = self._due()
        wanted = window.whole and window.end is None and not (self.letters.waiting or self.progress.put_off)
        rest_s = self._duty.rest_s(wanted=wanted)
        if not rest_s:
            return due_s
        self.resting = True
        return rest_s if not due_s else min(rest_s, due_s)

    def _due(self) -> float | None:
        at, opened = self._standing.now, self._writer.opened
        behind = self.letters.waiting or self._ledger.position > at.written
        if behind or (opened is not None and not self._caught_up(opened)):
            return 0.0
        in_doubt = opened if at.safe < at.written else None
        failing = self._standing.failing
        if in_doubt is not None and (failing or time.monotonic() - in_doubt.looked_s >= SAFE_POLL_S):
            self._writer.look_at_safe(in_doubt, at)
        if failing:
            self._failures.over()
        # A run that was never opened, for want of a row, has ended too once its end is passed.
        self._standing.show("ended" if at.ended or (self._passed_end and self._passed_end == at.written) else "idle")
        return None if in_doubt is None else SAFE_POLL_S

    def _caught_up(self, opened: OpenWriter) -> bool:
        """Let the writer do a little of what it put off; say whether nothing is left of it."""
        done = self._writer.catch_up(opened)
        if not done and self._standing.failing:  # one that had nothing to do has proved nothing
            self._failures.over()
        return done

    def _give_up_writer(self) -> None:
        """Close a writer that failed and go back to what is safe: only the next one can tell what of the rest arrived.

        Else what was lost behind the last record would wait for another record, with nothing to show for it.
        """
        self._writer.close()
        self._go_back()

    def _go_back(self) -> None:
        if self._standing.go_back():
            self._window = None
