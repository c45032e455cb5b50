"""Sends one signal of a run, at a position of its own in each process's segments, with a state of its own.

So a signal whose endpoint is down, refuses it or does not have it holds up no other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.forwarding.sender import SIGNAL_NAMES, RequestSender
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    RetryableError,
    SignalMissingError,
)
from otel_bridge.journal.frames import Signal
from otel_bridge.text.printable import shown

BLOCKED_S = 60.0
_NEWS_S = 1.0


class SegmentOffset(NamedTuple):
    """Describes a position in the segments of one process."""

    number: int
    offset: int


class LaneFailure(NamedTuple):
    """Describes why a signal waits.

    Attributes:
        state: ``retrying`` or ``blocked``.
        is_missing: Whether the other end does not have the signal.
    """

    state: str
    reason: str
    help: str = ""
    is_missing: bool = False


class SignalLane:
    """Sends one signal. The forwarder's thread uses it.

    Args:
        signal: The signal.
        sender: Sends its requests.

    Attributes:
        positions: Process to the position of the next frame to send.
        failure: The last failure; ``None`` after a request that was accepted.
        logged_failure: The failure that the log has.
        waits: Whether no request may be sent now.
    """

    def __init__(self, signal: Signal, sender: RequestSender) -> None:
        self.signal = signal
        self.name = SIGNAL_NAMES[signal]
        self.sender = sender
        self.positions: dict[str, SegmentOffset] = {}
        self.failure: LaneFailure | None = None
        self.logged_failure: LaneFailure | None = None
        self.waits = False
        self._backoff = Backoff()
        self._failed_s = 0.0
        self._wait_s = 0.0
        self._requested_time = False

    @property
    def due_in_s(self) -> float:
        """Return the seconds until the next try of a signal that waits."""
        return max(self._failed_s + self._wait_s - time.monotonic(), 0.0)

    @property
    def requested_s(self) -> float:
        """Return the seconds that the other end still requests; a flush waits for them too."""
        return max(self._failed_s + self._backoff.requested_s - time.monotonic(), 0.0)

    def open_if_due(self, *, retry: bool, flush: bool) -> None:
        """Open the signal again when its wait is over.

        With *retry* it is over at once, with *flush* as soon as the other end allows. A retry may
        begin a second after the failure whenever there is new data, unless the other end requested
        time.
        """
        if not self.waits:
            return
        is_rested = (
            time.monotonic() - self._failed_s >= _NEWS_S and not self._requested_time
        )
        may_retry_for_news = (
            is_rested and self.failure is not None and self.failure.state == "retrying"
        )
        may_flush = flush and self.requested_s <= 0
        if retry or may_flush or may_retry_for_news or self.due_in_s == 0:
            self.waits = False

    def send(self, datas: Sequence[bytes]) -> bool:
        """Send *datas* as one request; return whether they were accepted, else the signal waits.

        A failure that may pass waits with backoff, one that a person must mend for a minute.
        Nothing is raised for either: the data stays in the segments, and other signals go on.
        """
        try:
            self.sender.send(datas)
        except RetryableError as exc:
            # Then new data does not shorten the wait, as it does otherwise.
            self._requested_time = exc.retry_after_s is not None
            self._wait(
                self._backoff.failed(exc.retry_after_s),
                LaneFailure("retrying", shown(str(exc))),
            )
        except (BlockedError, ConfigError) as exc:
            # A wrong address too only a person can change; the data stays in the segments.
            help_text = ""
            if isinstance(exc, BlockedError):
                help_text = shown(exc.help)
            is_missing = isinstance(exc, SignalMissingError)
            self._backoff.succeeded()
            self._requested_time = False
            self._wait(
                BLOCKED_S,
                LaneFailure("blocked", shown(str(exc)), help_text, is_missing),
            )
        else:
            self._backoff.succeeded()
            self.failure = None
            return True
        return False

    def _wait(self, wait_s: float, failure: LaneFailure) -> None:
        """Keep the signal waiting from now on, for the reason of *failure*."""
        self.failure = failure
        self._failed_s = time.monotonic()
        self._wait_s = wait_s
        self.waits = True
