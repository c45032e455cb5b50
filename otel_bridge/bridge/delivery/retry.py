"""Decides what follows a failure of an exporter, and keeps its position: where it goes on after any failure.

`RetryPolicy` decides between a retry with backoff, a block and a dead letter. `DeliveryPosition`
replaces the exporter's state, and stores it in the ledger. Neither uses the writer. For the
exporter's own thread; `DeliveryPosition.state` may be read by any.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Mapping

from otel_bridge.bridge.delivery.batch import Batch
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    OtelBridgeError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import ExporterSettings, destination_of
from otel_bridge.records import End, Position
from otel_bridge.text.printable import shown
from otel_bridge.text.secret_patterns import redact_text

BLOCKED_S = 60.0
"""Seconds between two tries of a blocked exporter."""
_REOPEN_AFTER = 4
"""Failures in a row after which the writer is reopened."""
_STRANGE_TRIES = 5
"""Times that an error of an unknown type is treated as one that may pass."""
_UNEXPECTED_DEAD_LETTERS = 3
"""Dead letters in a row for such an error, after which the exporter itself is treated as broken."""
FIRST_S = 0.1
"""Longest wait after the first failure; it doubles with each further one, up to `LONGEST_S`."""
LONGEST_S = 30.0
ASKED_LONGEST_S = 600.0
"""Longest wait that a tracker may request."""


class RetryPolicy:
    """Counts the failures in a row of one exporter. For the exporter's own thread.

    Args:
        context: Context of the exporter's delivery.
        position: Position of the exporter, which shows its state.
    """

    def __init__(self, context: DeliveryContext, position: DeliveryPosition) -> None:
        self._name = context.name
        self._position = position
        self._log_line = context.log_line
        self._backoff = Backoff()
        self._strange = 0
        self._unexpected_dead_letters = 0

    @property
    def call_for_a_new_writer(self) -> bool:
        """Return whether there were so many failures that the open writer must be replaced."""
        return self._backoff.failures >= _REOPEN_AFTER

    @property
    def requested_wait_s(self) -> float:
        """Return how long after a failure the tracker requested not to be called.

        A person may call it earlier.
        """
        if self._position.state.state == "blocked":
            return 0.0
        return self._backoff.requested_s

    def blocked(self, exc: BlockedError | PermanentError) -> float:
        """Show that a person must act; return the seconds until the next try, a minute.

        No backoff, since nothing changes until the person has acted.
        """
        help_ = ""
        if isinstance(exc, BlockedError):
            help_ = exc.help
        state = self._position.state
        # As the state has it, without secrets and control characters.
        reason = shown(str(exc))
        if state.state != "blocked" or state.reason != reason:
            # Logged once for each reason; the try of every minute would fill the log.
            suffix = f"; {help_}" if help_ else ""
            self._log_line(f"{self._name} is blocked: {reason}{suffix}")
        self._position.show("blocked", reason=reason, help_=help_)
        return BLOCKED_S

    def passing(self, exc: Exception) -> float:
        """Count an error that may pass; return the seconds until the next try.

        The wait doubles with each failure in a row, up to 30 s. A `RetryableError` may ask for
        more, up to ten minutes. Any other error of this package (a full disk, a locked ledger)
        waits a second at least. The first failure in a row is logged, and the fourth if its reason
        is another.
        """
        reason = str(exc)
        retry_after_s: float | None = 1.0
        if isinstance(exc, RetryableError):
            retry_after_s = exc.retry_after_s
        elif not isinstance(exc, OtelBridgeError):  # an error of the writer itself
            reason = f"{type(exc).__name__}: {exc}"
            retry_after_s = None
        wait = self._backoff.failed(retry_after_s)
        # The fourth is logged too if its reason is another: the first one of a server that restarts
        # does not last.
        is_other = shown(reason) != self._position.state.reason
        if self._backoff.failures == 1 or (
            self._backoff.failures == _REOPEN_AFTER and is_other
        ):
            self._log_line(f"{self._name}: not written, tried again: {reason}")
        self._position.show("retrying", reason=reason)
        return wait

    def is_for_good(self, error: Exception) -> bool:
        """Count a write that failed; return whether the record that caused *error* is refused for good.

        An unknown type of error is the writer's own, such as a bug of a tracker's library. The call
        is retried, and after `_STRANGE_TRIES` such failures in a row the error counts as permanent,
        since it may be of one record that would stop all behind it. An error of `open` or of a
        query is not counted, because no record is at fault.
        """
        if isinstance(error, PermanentError):
            return True
        # An error of this package is that of a tracker which is away, or of a full disk.
        if isinstance(error, OtelBridgeError):
            self._strange = 0
            return False
        self._strange += 1
        return self._strange > _STRANGE_TRIES

    def before_dead_letter(self, error: Exception) -> None:
        """Count a record that becomes a dead letter because of *error*.

        Raises:
            BlockedError: Every record causes an error of the writer itself, so that the exporter is
                broken.
        """
        if isinstance(error, ExporterError):
            return
        self._unexpected_dead_letters += 1
        if self._unexpected_dead_letters > _UNEXPECTED_DEAD_LETTERS:
            raise BlockedError(
                f"every record fails: {type(error).__name__}: {error}",
                help="see the bridge's log",
            )

    def wrote(self) -> None:
        """Reset the failures, after a call of the writer returned."""
        # A record was written, so that the exporter itself is not what is broken.
        self._unexpected_dead_letters = 0
        self.over()

    def over(self) -> None:
        """Reset the failures, because the exporter works."""
        self._backoff.succeeded()
        self._strange = 0
        if self._position.state.failing:
            self._position.show("writing")


class Backoff:
    """Counts failures in a row. One thread.

    Attributes:
        failures: Number of failures in a row.
        requested_s: Seconds of the wait after the last failure that the other end requested.
    """

    def __init__(self) -> None:
        # Not the global generator: a trainer in this process may have seeded it.
        self._random = random.SystemRandom()
        self.failures = 0
        self.requested_s = 0.0

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure.

        Return the seconds to wait: half to all of the doubled time, at least *retry_after_s*. By
        chance, so that a thousand runs do not all come back to a server in the same moment.
        """
        self.failures += 1
        # The exponent is bounded, because a float overflows after a thousand failures.
        longest = min(FIRST_S * 2.0 ** min(self.failures - 1, 20), LONGEST_S)
        self.requested_s = min(retry_after_s or 0.0, ASKED_LONGEST_S)
        return max(longest * self._random.uniform(0.5, 1.0), self.requested_s)

    def succeeded(self) -> None:
        """Reset the count."""
        self.failures = 0
        self.requested_s = 0.0


class DeliveryPosition:
    """Holds the state of one exporter, and stores what of it a next bridge needs.

    Attributes:
        state: The state; a new object with each change.
    """

    def __init__(self, context: DeliveryContext) -> None:
        self.state = ExporterState(exporter=context.name)
        self._ledger = context.ledger
        self._log_line = context.log_line

    @property
    def now(self) -> ExporterState:
        """Return the state; raise `RetryableError` while the exporter has no destination."""
        if not self.state.resolved:
            raise RetryableError(
                f"exporter {self.state.exporter} has no destination yet"
            )
        return self.state

    def resume(self, settings: ExporterSettings) -> ExporterState:
        """Continue at the ledger's position for the destination of *settings*; return the state.

        Read from the ledger once. A new destination begins at the oldest record that the ledger
        still has. Raises `JournalError` when the ledger fails; the next step tries again.
        """
        if not self.state.resolved:
            stored = self._ledger.destination(
                self.state.exporter, destination_of(settings)
            )
            in_doubt = stored.durable < stored.written and not stored.ended
            self.state = dataclasses.replace(
                stored,
                resolved=True,
                settings=settings,
                # After its open, the writer reports where to continue with records in doubt.
                written=stored.durable if in_doubt else stored.written,
                state=self.state.state,
                reason=self.state.reason,
                help=self.state.help,
                failing_since_s=self.state.failing_since_s,
            )
        return self.state

    def save(self, state: ExporterState) -> None:
        """Replace the state by *state*, in the ledger too.

        Raises `JournalError` when the ledger refuses it; the state is then unchanged.
        """
        # The ledger first: if it fails, memory shows no position that a restart would not have.
        self._ledger.save(state)
        self.state = state

    def advance(
        self, through: Position, batch: Batch, *, reports_durable: bool | None
    ) -> None:
        """Store that all records up to *through* are written, and add the counts of *batch*.

        Args:
            through: Position up to which all records are written.
            batch: Batch whose counts are added and then reset.
            reports_durable: Whether the open writer's records are durable only once it reports so;
                ``None`` without a writer.

        Raises:
            JournalError: The ledger refuses it; the counts stay in *batch*, for the next try.
        """
        state = self.now
        # Without a writer the last one's word holds: what it left unconfirmed stays so.
        in_doubt = reports_durable
        if reports_durable is None:
            in_doubt = state.durable < state.written
        written = max(through, state.written)
        moved = dataclasses.replace(
            state,
            written=written,
            durable=state.durable if in_doubt else written,
            counted=max(state.counted, through),
            rows=state.rows + batch.rows,
            rollouts=state.rollouts + batch.rollouts,
            left_out=_added(state.left_out, batch.left_out),
        )
        if moved != state:
            self.save(moved)
        batch.counted()  # after the save, which may fail and be repeated

    def end(self, end: End, left_out: Mapping[str, int]) -> None:
        """Store the end that the tracker's run has now, and what the writer left out while it ended the run.

        Raises `JournalError` when the ledger refuses; the tracker then gets the end again.
        """
        self.save(
            dataclasses.replace(
                self.now,
                ended=end.position,
                end_status=end.status,
                left_out=_added(self.now.left_out, left_out),
            )
        )

    def rewind(self) -> bool:
        """Move back to the durable position, to write later records again.

        Return whether the position moved. It does not when all is durable, or when the tracker's
        run has ended: its end settled the records in doubt.
        """
        state = self.state
        if state.durable >= state.written or state.ended:
            return False
        self.state = dataclasses.replace(state, written=state.durable)
        with contextlib.suppress(Exception):  # the next bridge begins there anyway
            self.save(self.state)
        return True

    def dead_letter(
        self, position: Position, kind: int, data: bytes, *, record_id: str, reason: str
    ) -> None:
        """Store a record that was refused for good as a dead letter, and log that.

        Raises `JournalError` when the ledger refuses it: then the record stays in its batch and is
        tried again, so that it is never lost uncounted.
        """
        name = self.now.exporter
        # A tracker's answer may quote the record, and the reason is shown in `status`.
        reason = redact_text(reason)
        added = self._ledger.dead_letter(
            self.now.id, position, kind, data, record_id=record_id, reason=reason
        )
        self.state = dataclasses.replace(
            self.state, dead_letters=self.state.dead_letters + added
        )
        self._log_line(
            f"{name}: record {record_id or position} is refused for good and set aside: {reason}"
        )

    def damaged(self, reason: str) -> None:
        """Show that the ledger was found damaged.

        The bridge's thread replaces it at its next poll.
        """
        self.state = dataclasses.replace(self.state, damaged=True, reason=shown(reason))

    def show(self, state: str, *, reason: str = "", help_: str = "") -> None:
        """Show *state* to other threads and in the report; it is not stored, because the next bridge tries anew.

        A failing state keeps its start and, unless they are given, its reason and help.
        """
        is_failing = state in {"retrying", "blocked"}
        failing_since_s = None
        if is_failing:
            # Kept over retries: a run that is over is parked by the time since the first failure,
            # or since its end if that came later.
            failing_since_s = self.state.failing_since_s or time.monotonic()
        if is_failing and state == self.state.state:
            reason = reason or self.state.reason
            help_ = help_ or self.state.help
        self.state = dataclasses.replace(
            self.state,
            state=state,
            reason=shown(reason),
            help=shown(help_),
            failing_since_s=failing_since_s,
        )


def _added(counts: Mapping[str, int], new_counts: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(new_counts))
