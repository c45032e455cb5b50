"""Tracks the records of an online writer, which are durable up to the server's line count.

After a `RetryableError` the bridge makes the call again later, after some in a row through a new
writer, which sends what the server lacks. After a `BlockedError` it does so every minute.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.records import Position
from otel_bridge_wandb.online.line_ledger import LineLedger
from otel_bridge_wandb.online.upload_timeouts import UploadTimeouts
from otel_bridge_wandb.online.uploads import ServerProgress, Uploads
from otel_bridge_wandb.settings import UploadLimits

OTHER_RUN_HELP = (
    "end the other writer, do not call wandb.init() with this run's id, or let the job have another (WANDB_RUN_ID); "
    "for one run of several machines set OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`"
)
_log = logging.getLogger("otel_bridge.wandb")
_END_S = 10.0
"""Seconds that the server may take to count the lines that it acknowledged."""


class OnlineStore:
    """Tracks the lines of one open run and their upload.

    Args:
        lines: Lines that were logged.
        uploads: Lines that arrived.
        limits: Limits of lines that are not confirmed.
        folder: wandb's folder of the run, deleted when all of it is in the store; ``None`` when it
            is the user's.
        timeouts: Notified whether the waits were long enough.
        alone: Whether no other process writes the run; in shared mode the server's count of a
            writer's lines may lag.
    """

    def __init__(
        self,
        lines: LineLedger,
        uploads: Uploads,
        limits: UploadLimits,
        folder: Path | None,
        *,
        timeouts: UploadTimeouts,
        alone: bool = True,
    ) -> None:
        self._lines = lines
        self._uploads = uploads
        self._limits = limits
        self._folder = folder
        self._alone = alone
        self._timeouts = timeouts

    @property
    def next_line(self) -> int:
        """Return the number of the next line, from 0."""
        return self._lines.next

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return the positions of *positions* that the server does not hold and this writer did not log."""
        return self._lines.due(positions)

    def passed(self, position: Position) -> None:
        """Note that the record at *position* has no line.

        Without this note `durable` would wait for a line that never comes.
        """
        self._lines.passed(position)

    @contextmanager
    def lines(
        self, positions: Sequence[Position], table: str = "", *, has_files: bool = False
    ) -> Generator[list[object]]:
        """Store that lines follow: one per position, or one increment of *table* with all of them.

        The block appends each line that it has logged to the list.

        Raises:
            RetryableError: Too many lines are not confirmed yet, or the upload is dead; before the
                block.
            BlockedError: The upload was refused, or another process writes the run; before the block.
        """
        del has_files  # wandb's service takes files from anywhere
        self._make_room(positions[0], 1 if table else len(positions))
        # Before the first line: after a kill, the line numbers show which records arrived.
        self._lines.announce(positions, table, _now_unix_ms())
        logged: list[object] = []
        try:
            yield logged
        finally:
            # Also after an error: lines that were announced and not logged would be awaited for
            # ever, and their numbers are free for the next ones.
            self._lines.logged(len(logged), _now_unix_ms())
            self._expect()

    def durable(self) -> Position | None:
        """Return the last position that the server holds, as of its last answer.

        Raises:
            RetryableError: The upload is dead, so that no more will arrive.
            BlockedError: The upload was refused, or another process writes the run.
        """
        self._apply(self._uploads.progress())
        # After the answer is applied: lines that did arrive are durable, whatever comes next.
        self._raise_dead()
        return self._lines.durable()

    def timed_out(self) -> None:
        """Note that the run was not finished in time."""
        self._timeouts.timed_out()

    def ended(self) -> Position | None:
        """Check after the end of the run that the server holds every line and increment.

        Return the last position.

        The server counts a line some seconds after it acknowledged it, so that this waits, longer
        after each try that was too short.

        Raises:
            RetryableError: Something is missing; the run is opened again and the rest is sent.
            BlockedError: The upload was refused, or another process writes the run.
        """
        self._expect()
        self._uploads.hasten()
        deadline = time.monotonic() + self._timeouts.wait_s(
            _END_S + self._limits.poll_s
        )
        while True:
            progress = self._uploads.progress()
            self._apply(progress)
            if self._lines.outstanding <= 0 and not self._lines.pending:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._uploads.wait(progress, left_s):
                missing = self._missing(progress)
                if self._alone or isinstance(missing, BlockedError):
                    self._timeouts.timed_out()
                    raise missing
                # In shared mode the server's count of the own lines may lag, so that a missing one
                # proves nothing.
                _log.warning(
                    "%s; it took them, and they are not given again while this bridge runs",
                    missing,
                )
                break
        self._timeouts.completed()
        # Only now: wandb's copies are needed until all of it is in the store.
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._lines.durable()

    def left(self) -> Position | None:
        """Take over what arrived of a run that stays open, and return the last position that the server holds.

        What did not arrive is found when the run is opened again. ``finish()`` returned in time, so
        that the next wait is the usual one again. It does not wait for the server's count: the
        records are delivered again if a line is missing. Raises `BlockedError` when another process
        writes the run.
        """
        self._timeouts.completed()
        self._apply(self._uploads.progress())
        return self._lines.durable()

    def _missing(self, progress: ServerProgress) -> RetryableError | BlockedError:
        """Return the error for what the server lacks after the end: why the upload ended, else the numbers."""
        dead = self._uploads.dead() or progress.error
        if dead is not None:
            return dead
        tables = ", ".join(sorted({entry.table for entry in self._lines.pending}))
        size = f"{progress.lines} of {self._lines.next} lines" + (
            f", not all of {tables}" if tables else ""
        )
        return RetryableError(f"W&B holds {size} after the end of the run")

    def close(self) -> None:
        """Stop watching the upload; may be called twice."""
        self._uploads.close()

    def _make_room(self, position: Position, count: int) -> None:
        """Wait until *count* more lines fit under the limit of unconfirmed ones.

        The limit bounds what a dead upload makes the bridge send again. A call larger than it is
        let through once nothing else is outstanding. Errors name *position*.

        Raises:
            RetryableError: The server did not confirm enough within two polls, or the upload is
                dead.
            BlockedError: The upload was refused, or another process writes the run.
        """
        self._raise_dead(position)
        self._apply(self._uploads.progress())
        if self._fits(count):
            return
        # At most all lines: a call that is larger than the limit has room once nothing is outstanding.
        enough = self._lines.next + min(count - self._limits.max_lines, 0)
        self._uploads.hasten()
        self._uploads.wait_lines(enough, self._limits.poll_s * 2)
        self._apply(self._uploads.progress())
        if not self._fits(count):
            raise RetryableError(
                f"W&B has not yet taken {self._lines.outstanding} rows; waiting for it",
                position=position,
            )

    def _fits(self, count: int) -> bool:
        outstanding = self._lines.outstanding
        return not outstanding or outstanding + count <= self._limits.max_lines

    def _raise_dead(self, position: Position | None = None) -> None:
        """Raise the error of a dead upload, with *position*; nothing while the upload works.

        After a retryable one the next waits are longer, since the server may only be slow.
        """
        dead = self._uploads.dead()
        if dead is not None:
            if isinstance(dead, RetryableError):
                self._timeouts.timed_out()
            dead.position = position
            raise dead

    def _apply(self, progress: ServerProgress) -> None:
        """Take over an answer of the server.

        Raises:
            BlockedError: The run has more lines than were logged here: another process writes it.
                In shared mode that is normal.
        """
        # Lines that were never logged here: going on would number rows wrongly, and lose them.
        if self._alone and progress.lines > self._lines.next:
            raise other_writers(progress.lines - self._lines.next)
        self._lines.advance(progress.lines)
        if self._lines.pending:
            self._lines.committed(progress.committed)
            self._expect()

    def _expect(self) -> None:
        self._uploads.expect(self._lines.next, self._lines.awaited_tables())


def other_writers(lines: int) -> BlockedError:
    """Return the error for a run in which another process has written *lines* and still writes."""
    return BlockedError(
        f"W&B: another process writes this run too ({lines:,} lines are not ours); two writers of one run lose rows",
        help=OTHER_RUN_HELP,
    )


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
