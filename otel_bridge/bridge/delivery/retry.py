"""Decides what follows a failure of an exporter: retry with backoff, block, or dead letter; and shows the failure."""

from __future__ import annotations

import random
from typing import Final

from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.errors import BlockedError, ExporterError, OtelBridgeError, PermanentError, RetryableError

BLOCKED_S: Final = 60.0
"""Seconds between two tries of a blocked exporter."""
_REOPEN_AFTER: Final = 4
"""Failures in a row after which the writer is reopened."""
_STRANGE_TRIES: Final = 5
"""Times that an error of an unknown type is treated as one that may pass."""
_UNEXPECTED_DEAD_LETTERS: Final = 3
"""Dead letters in a row for such an error, after which the exporter itself is treated as broken."""


class RetryPolicy:
    """Counts the failures in a row of one exporter. For the exporter's own thread.

    Args:
        context: Context of the exporter's delivery.
        position: Position of the exporter, which shows its state.
    """

    def __init__(self, context: DeliveryContext, position: DeliveryPosition) -> None:
        self._name, self._position, self._say = context.name, position, context.say
        self._backoff = Backoff()
        self._strange = self._unexpected_dead_letters = 0

    @property
    def call_for_a_new_writer(self) -> bool:
        """Return whether there were so many failures that the open writer must be replaced."""
        return self._backoff.failures >= _REOPEN_AFTER

    def blocked(self, exc: BlockedError | PermanentError) -> float:
        """Show that a person must act; return the seconds until the next try."""
        help_ = exc.help if isinstance(exc, BlockedError) else ""
        shown = self._position.progress
        if shown.state != "blocked" or shown.reason != str(exc):
            self._say(f"{self._name} is blocked: {exc}" + (f"; {help_}" if help_ else ""))
        self._position.show("blocked", reason=str(exc), help_=help_)
        return BLOCKED_S

    def passing(self, exc: Exception) -> float:
        """Count an error that may pass; return the seconds until the next try."""
        if isinstance(exc, OtelBridgeError):
            reason, retry_after_s = str(exc), exc.retry_after_s if isinstance(exc, RetryableError) else 1.0
        else:  # an error of the writer itself
            reason, retry_after_s = f"{type(exc).__name__}: {exc}", None
            self._strange += 1
        wait = self._backoff.failed(retry_after_s)
        if self._backoff.failures in {1, _REOPEN_AFTER}:
            self._say(f"{self._name}: not written, tried again: {reason}")
        self._position.show("retrying", reason=reason)
        return wait

    def is_for_good(self, error: Exception) -> bool:
        """Return whether the record that caused *error* is refused for good.

        An unknown type of error is the writer's own: the call is retried, then the error is treated as permanent.
        """
        strange = not isinstance(error, ExporterError)
        return isinstance(error, PermanentError) or (strange and self._strange >= _STRANGE_TRIES)

    def before_dead_letter(self, error: Exception) -> None:
        """Count a record that becomes a dead letter because of *error*.

        Raises:
            BlockedError: Every record causes an error of the writer itself, so that the exporter is broken.
        """
        if isinstance(error, ExporterError):
            return
        self._unexpected_dead_letters += 1
        if self._unexpected_dead_letters > _UNEXPECTED_DEAD_LETTERS:
            raise BlockedError(f"every record fails: {type(error).__name__}: {error}", help="see the bridge's log")

    def wrote(self) -> None:
        """Reset the failures, after a call of the writer returned."""
        self._unexpected_dead_letters = 0
        self.over()

    def over(self) -> None:
        """Reset the failures, because the exporter works."""
        self._backoff.succeeded()
        self._strange = 0
        if self._position.failing:
            self._position.show("writing")


# Computes the wait after a failure: it doubles from 0.1 s to 30 s, with jitter.

FIRST_S: Final = 0.1
LONGEST_S: Final = 30.0
ASKED_LONGEST_S: Final = 600.0


class Backoff:
    """Counts failures in a row. One thread.

    Args:
        chance: Source of jitter; by default its own, so that no seeded generator of the trainer is used.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.SystemRandom()
        self.failures = 0

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure; return the seconds to wait: half to all of the doubled time, at least *retry_after_s*."""
        self.failures += 1
        longest = min(FIRST_S * 2.0 ** min(self.failures - 1, 20), LONGEST_S)
        wait = longest * self._chance.uniform(0.5, 1.0)
        return wait if retry_after_s is None else max(wait, min(retry_after_s, ASKED_LONGEST_S))

    def succeeded(self) -> None:
        """Reset the count."""
        self.failures = 0
