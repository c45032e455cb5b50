"""What the receiver has done since it began, for metrics; and its refusals, said once a minute."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from otel_bridge_collector.answers import Answer

_log = logging.getLogger("otel_bridge_collector")
_SAY_S: Final = 60.0


@dataclass(slots=True)
class Counters:
    """Totals. Written on the event loop only; read from anywhere.

    Attributes:
        requests: Requests taken, by signal.
        appended_bytes: Bytes appended to segments.
        refused: Requests refused, by reason.
        rejected: Points, spans and records left out of requests that were taken.
    """

    requests: Counter[str] = field(default_factory=Counter[str])
    appended_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    rejected: int = 0
    _said_s: dict[str, float] = field(default_factory=dict[str, float])
    _said: Counter[str] = field(default_factory=Counter[str])

    def refuse(self, answer: Answer, protocol: str, error: BaseException) -> None:
        """Count a refusal; each reason is logged at once and then once a minute, with how many there were."""
        reason = answer.reason
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._said_s.get(reason, float("-inf")) < _SAY_S:
            return
        self._said_s[reason] = now_s
        since = self.refused[reason] - self._said[reason]
        self._said[reason] = self.refused[reason]
        unforeseen = error if reason == "internal" else None
        _log.warning(
            "%s request refused (%s, %d since last said): %s", protocol, reason, since, error, exc_info=unforeseen
        )
