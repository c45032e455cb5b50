"""Counts what the receiver has done since its start, for metrics, and logs its refusals once a minute."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from otel_bridge_collector.error_table import ErrorResponse

_log = logging.getLogger("otel_bridge_collector")
_LOG_EVERY_S = 60.0


@dataclass(slots=True)
class Counters:
    """Holds totals since the start. Written on the event loop only; read from any thread.

    Attributes:
        requests: Accepted requests, by signal.
        appended_bytes: Bytes appended to segments.
        refused: Refused requests, by reason.
        rejected: Rejected points, spans and records of accepted requests.
    """

    requests: Counter[str] = field(default_factory=Counter[str])
    appended_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    rejected: int = 0
    _logged_s: dict[str, float] = field(default_factory=dict[str, float])
    _logged: Counter[str] = field(default_factory=Counter[str])

    def accept(self, signal: str, rejected: int) -> None:
        """Count an accepted request, *rejected* points, spans or records of which were not."""
        self.requests[signal] += 1
        self.rejected += rejected

    def append(self, size_bytes: int) -> None:
        """Count the bytes that were appended to a segment."""
        self.appended_bytes += size_bytes

    def refuse(
        self, answer: ErrorResponse, protocol: str, error: BaseException
    ) -> None:
        """Count a refusal.

        Each reason is logged at once and then once a minute, with the number of refusals: a client
        that retries would fill the log.
        """
        reason = answer.reason
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._logged_s.get(reason, float("-inf")) < _LOG_EVERY_S:
            return
        self._logged_s[reason] = now_s
        number = self.refused[reason] - self._logged[reason]
        self._logged[reason] = self.refused[reason]
        # A traceback only where the cause is here, and not in a client.
        unforeseen = error if reason == "internal" else None
        _log.warning(
            "%s request refused (%s, %d since last logged): %s",
            protocol,
            reason,
            number,
            error,
            exc_info=unforeseen,
        )
