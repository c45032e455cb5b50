"""The bridge of one run folder: lock, ledger, reader, lanes, report, one turn at a time. One thread."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from otel_bridge.bridge import bounds
from otel_bridge.bridge.cleanup import delete_read_segments, forget_own
from otel_bridge.bridge.content_limits import ContentLimits
from otel_bridge.bridge.ending import Ending
from otel_bridge.bridge.hold import Hold
from otel_bridge.bridge.lanes import Lanes
from otel_bridge.bridge.ledger import Ledger, open_or_rebuild
from otel_bridge.bridge.lives import Lives
from otel_bridge.bridge.naming import Naming
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.own_segment import OwnSegment
from otel_bridge.bridge.pacing import READ_AT_LEAST_S, nobody_takes, writers_have_enough
from otel_bridge.bridge.reader import Read, Reader
from otel_bridge.bridge.report_writer import ReportWriter
from otel_bridge.bridge.rest import Remaining, Rest
from otel_bridge.bridge.run_info import RunDescription
from otel_bridge.bridge.segments_read import SegmentsRead
from otel_bridge.bridge.system_metrics import SystemMetrics
from otel_bridge.bridge.window import Progress
from otel_bridge.bridge.worker import Lane
from otel_bridge.errors import JournalError, LedgerDamagedError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.ask import Ask, take_asks
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.netfs import network_file_system
from otel_bridge.records import Status

CHORES_POLLS: Final = 20
"""Polls between two looks at who lives, what can be deleted, which exporters are named: a second."""
ENDING_CHORES_POLLS: Final = 4


class RunBridge:
    """Serves one run folder while it is open.

    Args:
        folder: The run folder.
        options: How.
        wake: Called from any thread when a lane got on: the report is due.
        say: Takes one line for the log.
        lock: The folder's lock, where this process holds it already.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: BridgeOptions,
        *,
        wake: Callable[[], None],
        say: Callable[[str], None],
        lock: RecordLock | None = None,
    ) -> None:
        self.folder, self.options = folder, options
        self.hold, self.ending = Hold(folder, lock, say), Ending(closing=options.closing)
        self._wake, self._say = wake, say
        self._chores_s = self._read_s = 0.0
        self._handed_over = False
        self.segments_read = SegmentsRead(folder, {})
        self._asks: deque[Ask] = deque()
        self._asked_letters: dict[str, list[int]] = {}
        self._undeletable = ""

    # --- begin --------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Take the lock and open the ledger.

        Raises:
            FolderLockedError: Another bridge has the folder and keeps it.
            FormatVersionError: A newer version wrote it.
            JournalError: It cannot be used.
        """
        self.folder.check_format()
        self.hold.take(self.options)
        try:
            self._open_ledger()
        except BaseException:
            self.hold.release()
            raise

    def _open_ledger(self) -> None:
        folder, options = self.folder, self.options
        shared = options.exclusive or network_file_system(folder.path) is not None
        self.ledger: Ledger
        self.ledger, aside = open_or_rebuild(folder.ledger_path, exclusive=shared)
        if aside is not None:
            self._say(f"{folder.ledger_path} was damaged; it lies at {aside}, what segments remain are read again")
        self.reader = Reader(folder, self.ledger, options.of_run(folder.run_id), say=self._say)
        self.reader.began = self._began
        self._view = self.ledger.view()
        self._content_kept: dict[str, str] = cast("dict[str, str] | None", self._view.meta("message_content")) or {}
        self._content = ContentLimits(options.places.env, self._content_kept)
        self._own = OwnSegment(folder)
        self._system = SystemMetrics(self._own)
        self.lives = Lives(folder, self.reader, self._own, silence_ns=options.translation.silence_ns)
        describe = RunDescription(folder, local=options.local)
        self._report = ReportWriter(folder, self.ledger, self.reader, describe, launcher=options.launcher)
        self.lanes = Lanes(
            self.ledger,
            options.places,
            describe,
            progressed=self._progressed,
            say=self._say,
            forward=self._forward,
            limit_of=self._content.of,
            more_comes=lambda: self.ending.draining or not self.reader.caught_up,
        )
        self._naming = Naming(
            self.ledger, view=self._view, lives=self.lives, lanes=self.lanes, given=options.exporters, say=self._say
        )
        self.reader.others = self._naming.other_traces
        self._bound = bounds.Bound(folder.base, options.max_bytes, look_s=bounds.LOOK_POLLS * options.poll_s)

    def _began(self, header: SegmentHeader) -> None:
        # Before its records are there: no writer may get more of them than it allows.
        self._content.tell(header.message_content)
        if self._content.told != self._content_kept:
            self.ledger.set_meta("message_content", self._content.told)
            self._content_kept = self._content.told

    def _forward(self) -> Lane:
        # Here, for it imports an HTTP client that no other exporter needs.
        from otel_bridge.bridge.forwarding.lane import ForwardLane  # noqa: PLC0415

        return ForwardLane(
            self.folder,
            self.ledger,
            self.options.places.env,
            every_process=self.options.exporters is not None,
            say=self._say,
            progressed=self._progressed,
        )

    def _progressed(self) -> None:
        self._report.set_due()
        self._wake()

    # --- work ---------------------------------------------------------------------------------------------------------
    def turn(self) -> bool:
        """Read one batch and do what is due; say whether there is more to read right away.

        Raises:
            JournalError: Something on disk failed; nothing is lost, call it again later.
            LedgerDamagedError: The ledger is damaged: close this object and open a new one.
        """
        if not self.hold.kept():
            return False
        try:
            return self._turn()
        except JournalError:
            with contextlib.suppress(JournalError):  # what was delivered meanwhile makes room for what was not
                self._make_room()
            raise

    def _turn(self) -> bool:
        self._asks.extend(take_asks(self.folder))
        while self._asks:
            self._answer(self._asks[0])
            self._asks.popleft()
        if any(lane.progress.damaged for lane in self.lanes.by_name.values()):
            raise LedgerDamagedError(f"{self.folder.ledger_path}: an exporter found the ledger damaged")
        if self.reader.caught_up:
            self.ending.end_processes(self.lives)
        self.reader.look(now=self.ending.closing)
        found = self._read()
        if found.frames or found.records:
            self._read_s = time.monotonic()
            self._report.set_due()
            self.ending.let_go = False
            self.lanes.poke(retry=found.flush)
        if self.reader.caught_up and self.lives.say_ends(self.ending.spared_pid):
            self.reader.look(now=True)
            return True
        now_s = time.monotonic()
        ending = self.ending.closing or self.ending.draining or self.reader.translator.status() != "running"
        polls = ENDING_CHORES_POLLS if ending else CHORES_POLLS
        if now_s - self._chores_s >= polls * self.options.poll_s:
            self._chores_s = now_s
            self._do_chores()
        return found.more

    def _read(self) -> Read:
        if self._far_ahead():
            return Read()
        try:
            return self.reader.read()
        except JournalError:
            self.ending.let_go = False  # it was there, and waits
            raise

    def _far_ahead(self) -> bool:
        """Say whether reading can wait: nobody could take it now, or every writer at work has enough to do."""
        position = self.ledger.position
        if self.options.lazy and self.reader.behind() and nobody_takes(self.lanes, position, self.lives):
            self.reader.caught_up = False
            return True
        self.ledger.recent.forget(min(self.lanes.written(), default=position))
        late = not self.reader.caught_up and time.monotonic() - self._read_s < READ_AT_LEAST_S
        return late and writers_have_enough(self.lanes, position)

    def poke(self, *, retry: bool = True) -> None:
        """Try at once what failed."""
        self.lanes.poke(retry=retry)

    def drain(self) -> None:
        """Let go of all that waits once everything is read, though processes live; what they say later comes late."""
        self.ending.draining, self._chores_s = True, 0.0
        self.lanes.poke(retry=True)

    def write_report(self, *, now: bool = False) -> None:
        """Write the report when it is due."""
        if self.hold.lost:
            return
        with contextlib.suppress(JournalError):  # a full disk: the next one may fit
            delivered, _ = self._delivered()
            settled = delivered or now
            self._report.write(self.lanes.by_name, ended=self._run_ended() and delivered, settled=settled, now=now)

    def rest(self) -> Rest:
        """Say what is left to do."""
        if self.hold.lost:
            return Rest.GONE
        if self._handed_over:
            return Rest.HANDED_OVER
        if self._asks or self._asked_letters or self.ending.asked is not None:
            return Rest.BUSY
        if not self.reader.caught_up or self.ending.waits_for(self.lives) or not self._run_ended():
            return Rest.BUSY
        done, parked = self._delivered()
        if done:
            return Rest.DONE
        return Rest.PARKED if parked else Rest.BUSY

    def remaining(self) -> Remaining:
        """Say what is not delivered."""
        position = self.ledger.position
        return Remaining(
            run_id=self.folder.run_id,
            rest=self.rest(),
            living=len(self.lives.living()),
            unread=not self.reader.caught_up,
            status=self.reader.translator.status(),
            position=position,
            rows=self.ledger.rows,
            rollouts=self.ledger.rollouts,
            exporters=self.progress(),
            reason=self._left_as_it_is(),
        )

    def _left_as_it_is(self) -> str:
        """Say which processes' segments a newer version wrote; empty when all can be read."""
        refused = sorted(name for name, tail in self.reader.tails.items() if tail.refused)
        return f"a newer version wrote the segments of {', '.join(refused)}; upgrade otel-bridge" if refused else ""

    def progress(self) -> dict[str, Progress]:
        """Return how far each exporter is."""
        return {name: lane.progress for name, lane in self.lanes.by_name.items()}

    def _run_ended(self) -> bool:
        return (
            self.reader.translator.status() != "running" or next(iter(self.reader.state.items("proc/")), None) is None
        )

    def _delivered(self) -> tuple[bool, bool]:
        if not self._naming.chosen:
            return False, False
        return self.lanes.rest(self.ledger.position, self.options.park_s)

    def _do_chores(self) -> None:
        now_ns = time.time_ns()
        self.hold.beat()
        if self.lives.look(now_ns):
            self._report.set_due()
        if self._naming.choose():
            self._report.set_due()
        letters, self._asked_letters = self._asked_letters, {}
        self.lanes.retry_letters(letters)
        if OTLP in self.lanes.names:
            self.lives.sign(now_ns)
        if self._system.look([] if self.ending.closing else self.lives.living()):
            self.reader.look(now=True)
        self._make_room()  # before more is let go: on a full disk that might fail for want of it
        self._let_go()

    def _let_go(self) -> None:
        """Let go of what waits for more, when it is time."""
        if self.reader.caught_up and self.ending.due(self.lives):
            # A service that ends, ends no run: those who speak to it go on with the next one.
            if self.reader.close_translation(self.ending.asked, over=self.ending.closing):
                self.lanes.poke()
            self.ending.done()

    def _make_room(self) -> None:
        """Delete what nobody needs any more; what cannot be deleted is said, once, and keeps nothing else waiting.

        Nothing goes while it is not known who needs it: an exporter that could not begin yet has no destination.
        """
        if not (self._naming.chosen and self.reader.sound):
            return
        try:
            self._delete_segments()
        except OSError as exc:
            if str(exc) != self._undeletable:
                self._undeletable = str(exc)
                self._say(f"a segment cannot be deleted: {exc}")
        self._prune()

    def _delete_segments(self) -> None:
        forwarding = self._view.sources() if OTLP in self.lanes.names else None
        delete_read_segments(self.folder, self.ledger, self.reader, forwarding)

    def _prune(self) -> int:
        """Delete some records that every destination is safe past, return how many."""
        if not self.lanes.names or self.lanes.unresolved():
            return 0
        if self._bound.near():
            done = self._bound.make_room(self.ledger, self._view, self.lanes.by_name.values())
            if done:
                self._say(f"{self.folder.base} is near its limit: {done}")
        return self.ledger.prune(min((item.safe for item in self._view.destinations()), default=self.ledger.position))

    def _answer(self, asked: Ask) -> None:
        if asked.kind == "retry":
            self._asked_letters |= asked.letters
            self._chores_s = 0.0
            self.lanes.poke(retry=True)
        elif asked.kind == "handover":
            self._handed_over = True
        elif asked.kind == "finish":
            with contextlib.suppress(ValueError):
                self.ending.ask(Status(str(asked.values.get("status", Status.FINISHED.value))))
        else:
            exporter = asked.values.get("exporter")
            if asked.values.get("what") == "waiting":
                self.ledger.take_from_unnamed(self.ledger.position)
            else:
                self.ledger.discard_dead_letters(None if exporter is None else str(exporter), asked.letters)
        self._report.set_due()

    # --- end ----------------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Ask all lanes to end; returns at once."""
        self.lanes.stop()

    def close(self, deadline_s: float, *, keep_lock: bool = False) -> list[str]:
        """Close everything; what is committed stays, the rest is delivered by the next bridge.

        Args:
            deadline_s: `time.monotonic` until which writers may take to close.
            keep_lock: This process goes on with it later: nobody else may until then.

        Returns:
            Exporters whose writer hangs.
        """
        self.lanes.stop()
        hanging = self.lanes.join(deadline_s)
        if not self.hold.lost:
            self._report.set_due()
            self.write_report(now=True)
        if self.rest() is Rest.DONE:
            with contextlib.suppress(JournalError):
                self._make_room()
                while self._prune():
                    pass
            if OTLP not in self.lanes.names:
                forget_own(self.folder, self.ledger, self.reader, self._own.instance_id)
        if not self.hold.lost:
            with contextlib.suppress(JournalError):
                self.ledger.give_back()  # also of a run that sleeps: a service has thousands of them
        self.segments_read = SegmentsRead(self.folder, self.reader.known())
        self._system.close()
        self._own.close()
        for part in (self._report, self.reader, self._view, self.ledger):
            part.close()
        if not keep_lock:
            self.hold.release()
        return hanging
