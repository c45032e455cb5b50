"""What an online writer knows of its records: held as far as the server's line count says."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.records import Position
from otel_bridge_wandb.lines import Lines
from otel_bridge_wandb.patience import Patience
from otel_bridge_wandb.settings import Limits
from otel_bridge_wandb.uploads import News, Uploads

STRANGER_HELP: Final = (
    "end the other writer, do not call wandb.init() with this run's id, or let the job have another (WANDB_RUN_ID); "
    "for one run of several machines set OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`"
)
_log: Final = logging.getLogger("otel_bridge.wandb")
_END_S = 10.0
"""How long the server may take to count what it acknowledged."""


class OnlineStore:
    """The lines of one open run and their upload.

    Args:
        lines: What was logged, and is remembered.
        uploads: What arrived.
        limits: How much may be on its way.
        folder: wandb's folder of the run, deleted when all of it is in the store; ``None``: it is the user's.
        patience: Told whether the waits were long enough.
        alone: Nobody else writes the run; in shared mode what the server says of a writer's own lines may lag.
    """

    def __init__(
        self,
        lines: Lines,
        uploads: Uploads,
        limits: Limits,
        folder: Path | None,
        *,
        patience: Patience,
        alone: bool = True,
    ) -> None:
        self._lines, self._uploads, self._limits, self._folder = lines, uploads, limits, folder
        self._alone, self._patience = alone, patience

    @property
    def next_line(self) -> int:
        """Number of the next line, from 0."""
        return self._lines.next

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return those of *positions* that the server does not hold and this writer did not log."""
        return self._lines.due(positions)

    def passed(self, position: Position) -> None:
        """The record at *position* has no line."""
        self._lines.passed(position)

    def announce(self, positions: Sequence[Position]) -> None:
        """Remember the next lines; waits for room, raises when the upload is dead."""
        self._make_room(positions[0], len(positions))
        self._lines.announce(positions)

    def logged(self, count: int) -> None:
        """*count* of the lines announced were logged."""
        self._lines.logged(count)
        self._expect()

    def announce_table(self, key: str, positions: Sequence[Position]) -> None:
        """Remember that the next line is an increment of table *key*."""
        self._make_room(positions[0], 1)
        self._lines.announce_table(key, positions, _now_unix_ms())

    def log_table(self, log: Callable[[], None]) -> None:
        """Log the increment just announced."""
        try:
            log()
        except BaseException:
            self._lines.logged(0)
            raise
        self._lines.logged_table(_now_unix_ms())
        self._expect()

    def safe(self) -> Position | None:
        """Return how far the server holds our records; raises when no more will arrive."""
        self._apply(self._uploads.news())
        self._raise_dead()
        return self._lines.safe()

    def ran_out(self) -> None:
        """The run was not finished in time."""
        self._patience.ran_out()

    def ended(self) -> Position | None:
        """The run was finished: check that the server holds every line."""
        self._expect()
        self._uploads.hasten()
        deadline = time.monotonic() + self._patience.wait_s(_END_S + self._limits.poll_s)
        while True:
            news = self._uploads.news()
            self._apply(news)
            if self._lines.outstanding <= 0 and not self._lines.pending:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._uploads.wait(news, left_s):
                missing = self._missing(news)
                if self._alone or isinstance(missing, BlockedError):
                    self._patience.ran_out()
                    raise missing
                _log.warning("%s; it took them, and they are not given again while this bridge runs", missing)
                break
        self._patience.sufficed()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._lines.safe()

    def left(self) -> Position | None:
        """What did not arrive is seen when the run is opened again."""
        self._patience.sufficed()
        self._apply(self._uploads.news())
        return self._lines.safe()

    def _missing(self, news: News) -> RetryableError | BlockedError:
        dead = self._uploads.dead() or news.error
        if dead is not None:
            return dead
        tables = ", ".join(sorted({entry.table for entry in self._lines.pending}))
        what = f"{news.lines} of {self._lines.next} lines" + (f", not all of {tables}" if tables else "")
        return RetryableError(f"W&B holds {what} after the end of the run")

    def close(self) -> None:
        """Stop asking."""
        self._uploads.close()

    def _make_room(self, position: Position, count: int) -> None:
        self._raise_dead(position)
        self._apply(self._uploads.news())
        if self._lines.outstanding and self._lines.outstanding + count > self._limits.max_lines:
            enough = self._lines.next + count - self._limits.max_lines
            self._uploads.hasten()
            self._uploads.wait_lines(enough, self._limits.poll_s * 2)
            self._apply(self._uploads.news())
            if self._lines.outstanding + count > self._limits.max_lines:
                raise RetryableError(
                    f"W&B has not yet taken {self._lines.outstanding} rows; waiting for it", position=position
                )

    def _raise_dead(self, position: Position | None = None) -> None:
        dead = self._uploads.dead()
        if dead is not None:
            if isinstance(dead, RetryableError):
                self._patience.ran_out()
            dead.position = position
            raise dead

    def _apply(self, news: News) -> None:
        if self._alone and news.lines > self._lines.next:
            raise strangers(news.lines - self._lines.next)
        self._lines.advance(news.lines)
        if self._lines.pending:
            self._lines.committed(lambda key: news.committed.get(key, ()))
            self._expect()

    def _expect(self) -> None:
        self._uploads.expect(self._lines.next, self._lines.awaited_tables())


def strangers(lines: int) -> BlockedError:
    """Return the error for a run in which somebody else has written *lines* and goes on."""
    return BlockedError(
        f"W&B: another process writes this run too ({lines:,} lines are not ours); two writers of one run lose rows",
        help=STRANGER_HELP,
    )


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
