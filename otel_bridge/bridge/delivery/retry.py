"""Decide what follows a failure of an exporter: retry with backoff, block, or dead letter; and what is shown."""

from __future__ import annotations

import random
from typing import Final

from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.errors import BlockedError, ExporterError, OtelBridgeError, PermanentError, RetryableError

BLOCKED_S: Final = 60.0
"""How often a blocked exporter is tried again."""
_REOPEN_AFTER: Final = 4
"""Failures in a row after which the writer is opened anew."""
_STRANGE_TRIES: Final = 5
"""How often an error that is none of the three is treated as a passing one."""
_UNEXPECTED_DEAD_LETTERS: Final = 3
"""Dead letters in a row for such an error, after which the exporter itself is treated as broken."""


class RetryPolicy:
    """The failures in a row of one exporter. For its own thread.

    Args:
        context: Of its delivery.
        position: Where it is shown.
    """

    def __init__(self, context: DeliveryContext, position: DeliveryPosition) -> None:
        self._name, self._position, self._say = context.name, position, context.say
        self._backoff = Backoff()
        self._strange = self._unexpected_dead_letters = 0

    @property
    def call_for_a_new_writer(self) -> bool:
        """There were so many that the open writer is not to be trusted."""
        return self._backoff.failures >= _REOPEN_AFTER

    def blocked(self, exc: BlockedError | PermanentError) -> float:
        """Note that a person must act; return the seconds until it is tried again."""
        help_ = exc.help if isinstance(exc, BlockedError) else ""
        shown = self._position.progress
        if shown.state != "blocked" or shown.reason != str(exc):
            self._say(f"{self._name} is blocked: {exc}" + (f"; {help_}" if help_ else ""))
        self._position.show("blocked", reason=str(exc), help_=help_)
        return BLOCKED_S

    def passing(self, exc: Exception) -> float:
        """Note an error that may pass; return the seconds until the next try."""
        if isinstance(exc, OtelBridgeError):
            reason, retry_after_s = str(exc), exc.retry_after_s if isinstance(exc, RetryableError) else 1.0
        else:  # a writer's own fault
            reason, retry_after_s = f"{type(exc).__name__}: {exc}", None
            self._strange += 1
        wait = self._backoff.failed(retry_after_s)
        if self._backoff.failures in {1, _REOPEN_AFTER}:
            self._say(f"{self._name}: not written, tried again: {reason}")
        self._position.show("retrying", reason=reason)
        return wait

    def is_for_good(self, error: Exception) -> bool:
        """Return whether the record that met *error* is refused for good.

        An error that is none of the three is the writer's own fault: it is tried again, then treated as permanent.
        """
        strange = not isinstance(error, ExporterError)
        return isinstance(error, PermanentError) or (strange and self._strange >= _STRANGE_TRIES)

    def before_dead_letter(self, error: Exception) -> None:
        """Count a record that is to be set aside for *error*.

        Raises:
            BlockedError: Every record meets the writer's own fault: the exporter is broken, not they.
        """
        if isinstance(error, ExporterError):
            return
        self._unexpected_dead_letters += 1
        if self._unexpected_dead_letters > _UNEXPECTED_DEAD_LETTERS:
            raise BlockedError(f"every record fails: {type(error).__name__}: {error}", help="see the bridge's log")

    def wrote(self) -> None:
        """A call of the writer returned."""
        self._unexpected_dead_letters = 0
        self.over()

    def over(self) -> None:
        """The exporter works."""
        self._backoff.succeeded()
        self._strange = 0
        if self._position.failing:
            self._position.show("writing")


# How long to wait after a failure: doubling from 0.1 s to 30 s, with jitter of its own.

FIRST_S: Final = 0.1
LONGEST_S: Final = 30.0
ASKED_LONGEST_S: Final = 600.0


class Backoff:
    """Counts failures in a row. One thread.

    Args:
        chance: Source of jitter; default: one of its own, so that nobody's seeded generator is drawn from.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.SystemRandom()
        self.failures = 0

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure; return the seconds to wait: half to all of the doubled time, at least what was asked for."""
        self.failures += 1
        longest = min(FIRST_S * 2.0 ** min(self.failures - 1, 20), LONGEST_S)
        wait = longest * self._chance.uniform(0.5, 1.0)
        return wait if retry_after_s is None else max(wait, min(retry_after_s, ASKED_LONGEST_S))

    def succeeded(self) -> None:
        """Begin anew."""
        self.failures = 0
