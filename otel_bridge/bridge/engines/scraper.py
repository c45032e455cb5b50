"""Reads the Prometheus endpoints of inference engines for one run, while a process that requested it lives.

Each endpoint has a thread of its own, so that a slow one costs the others nothing. The bridge
appends the answers to its own segment, as it does with system metrics: from then on they survive a
kill, and are read once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import this_host
from otel_bridge.text.counts import first_ones

if TYPE_CHECKING:
    from otel_bridge.bridge.engines.endpoint import EngineEndpoint

_LINE_EVERY_S = 60.0
_MAX_NAMED = 3


class EngineScraper:
    """Determines which endpoints are read, and appends what they answered.

    Args:
        bridge_segment: The bridge's own segment.
        log_line: Takes one line for the log.
        problems_changed: Called when `problems` are others than before.
    """

    def __init__(
        self,
        bridge_segment: BridgeSegment,
        log_line: Callable[[str], None],
        problems_changed: Callable[[], None],
    ) -> None:
        self._bridge_segment = bridge_segment
        self._log_line = log_line
        self._problems_changed = problems_changed
        self.problems: tuple[str, ...] = ()
        """Why endpoints gave nothing at their last reading, one text for each of these."""
        self._endpoints: dict[str, EngineEndpoint] = {}
        self._line_s = 0.0

    def scrape_if_due(self, living: Iterable[SegmentHeader]) -> bool:
        """Begin or stop as the *living* processes request.

        Append answers, and return whether there were any.

        Raises:
            JournalError: The answers cannot be appended now.
        """
        boot_id = this_host().boot_id
        requested: dict[str, SegmentHeader] = {}
        for header in living:
            # An address such as localhost means the machine of the process that named it.
            if header.boot_id == boot_id:
                for address in header.scrape:
                    # Of several processes that name one endpoint the first counts: it is read once.
                    requested.setdefault(address, header)
        for address in self._endpoints.keys() - requested.keys():
            self._endpoints.pop(address).stop()
        new_addresses = requested.keys() - self._endpoints.keys()
        if new_addresses:
            self._read_from(new_addresses, requested)
        appended = False
        for address, endpoint in self._endpoints.items():
            while endpoint.answers:
                self._bridge_segment.metrics(requested[address], endpoint.answers[0])
                # Removed once appended: on a full disk the answer waits for the next check.
                endpoint.answers.popleft()
                appended = True
        # After the answers, so that an endpoint that just answered is not named.
        self._report_problems()
        return appended

    def _read_from(
        self, addresses: Iterable[str], headers: Mapping[str, SegmentHeader]
    ) -> None:
        """Begin to read *addresses*; those without a thread to spare are tried at the next check."""
        from otel_bridge.bridge.engines.endpoint import (  # noqa: PLC0415  # its docstring has the reason
            EngineEndpoint,
        )

        for address in addresses:
            endpoint = EngineEndpoint(address, headers[address])
            with contextlib.suppress(RuntimeError):
                endpoint.start()
                self._endpoints[address] = endpoint

    def close(self) -> None:
        """Stop reading; answers that were not appended are discarded. May be called twice."""
        for endpoint in self._endpoints.values():
            endpoint.stop()
        self._endpoints.clear()

    def _report_problems(self) -> None:
        """Note the endpoints that gave nothing, and write one line a minute on them."""
        answers = [endpoint.problem for endpoint in self._endpoints.values()]
        problems = tuple(filter(None, answers))
        if problems != self.problems:
            self.problems = problems
            self._problems_changed()
        now_s = time.monotonic()
        if not problems or now_s - self._line_s < _LINE_EVERY_S:
            return
        self._line_s = now_s
        self._log_line(
            f"no metrics of {len(problems)} of {len(self._endpoints)} engines: {first_ones(problems, _MAX_NAMED)}"
        )
