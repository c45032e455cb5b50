"""What becomes of an exporter that fails: which of the outcomes it is, how long to wait, what is shown and said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_bridge.bridge.backoff import Backoff
from otel_bridge.bridge.standing import Standing
from otel_bridge.errors import BlockedError, ExporterError, OtelBridgeError, PermanentError, RetryableError

BLOCKED_S: Final = 60.0
"""How often a blocked exporter is tried again."""
_REOPEN_AFTER: Final = 4
"""Failures in a row after which the writer is opened anew."""
_STRANGE_TRIES: Final = 5
"""How often an error that is none of the three is taken for a passing one."""
_STRANGE_LETTERS: Final = 3
"""Dead letters in a row for such an error, after which the exporter itself is taken for broken."""


class Failures:
    """The failures in a row of one exporter. For its own thread.

    Args:
        name: The exporter.
        standing: Where it is shown.
        say: Takes one line for the log.
    """

    def __init__(self, name: str, standing: Standing, say: Callable[[str], None]) -> None:
        self._name, self._standing, self._say = name, standing, say
        self._backoff = Backoff()
        self._strange = self._strange_letters = 0

    @property
    def call_for_a_new_writer(self) -> bool:
        """There were so many that the open writer is not to be trusted."""
        return self._backoff.failures >= _REOPEN_AFTER

    def blocked(self, exc: BlockedError | PermanentError) -> float:
        """Note that a person must act; return the seconds until it is tried again."""
        help_ = exc.help if isinstance(exc, BlockedError) else ""
        shown = self._standing.progress
        if shown.state != "blocked" or shown.reason != str(exc):
            self._say(f"{self._name} is blocked: {exc}" + (f"; {help_}" if help_ else ""))
        self._standing.show("blocked", reason=str(exc), help_=help_)
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
        self._standing.show("retrying", reason=reason)
        return wait

    def is_for_good(self, error: Exception) -> bool:
        """Say whether the record that met *error* is refused for good.

        An error that is none of the three is the writer's own fault: it is tried again, then taken for permanent.
        """
        strange = not isinstance(error, ExporterError)
        return isinstance(error, PermanentError) or (strange and self._strange >= _STRANGE_TRIES)

    def before_burial(self, error: Exception) -> None:
        """Count a record that is to be set aside for *error*.

        Raises:
            BlockedError: Every record meets the writer's own fault: the exporter is broken, not they.
        """
        if isinstance(error, ExporterError):
            return
        self._strange_letters += 1
        if self._strange_letters > _STRANGE_LETTERS:
            raise BlockedError(f"every record fails: {type(error).__name__}: {error}", help="see the bridge's log")

    def wrote(self) -> None:
        """A call of the writer returned."""
        self._strange_letters = 0
        self.over()

    def over(self) -> None:
        """The exporter works."""
        self._backoff.succeeded()
        self._strange = 0
        if self._standing.failing:
            self._standing.show("writing")
