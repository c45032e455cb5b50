"""Measures the machine and its inference engines for one run, while a process that requested it lives.

Each source has a thread of its own, because a driver or a server may hang. The bridge appends what
was measured to its own segment: from then on it survives a kill, and is read once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import this_host
from otel_bridge.setting_parsers import engine_of_address
from otel_bridge.text.counts import first_ones

_SYSTEM = "system-metrics"
"""Name of the machine among the sources; the others are addresses of engines."""
_MAX_WAITING = 30
"""Most measurements of a source that wait for the bridge, on a full disk; later ones are dropped."""
_DROPPED = "measurement"
"""Reason under which these are counted."""
_LINE_EVERY_S = 60.0
_MAX_NAMED = 3


class MeasuringThread(threading.Thread):
    """Measures one source again and again.

    Args:
        name: Name of the source.
        header: Header of the process that requested it.
        measure: Returns an export request; an exception is the reason why there is none.
        interval_s: Seconds from the begin of a measurement to that of the next one.

    Attributes:
        requests: Export requests that are not appended yet. The thread adds at the end, the bridge
            takes the first.
        dropped: Number of measurements that found `_MAX_WAITING` others.
        counted: How many of these the bridge has counted.
        problem: Why the last measurement is missing; empty after one.
    """

    def __init__(
        self,
        name: str,
        header: SegmentHeader,
        measure: Callable[[], bytes],
        interval_s: float,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.header = header
        self._measure = measure
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self.requests: deque[bytes] = deque()
        self.dropped = 0
        self.counted = 0
        self.problem = ""

    def run(self) -> None:
        """Measure until `stop`.

        An error is noted in `problem`, and the next measurement is due as usual.
        """
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                request = self._measure()
            except Exception as exc:  # noqa: BLE001  # the next measurement may succeed
                self.problem = str(exc) or type(exc).__name__
            else:
                self.problem = ""
                # The new one is dropped: the bridge may be appending the oldest at this moment.
                if len(self.requests) < _MAX_WAITING:
                    self.requests.append(request)
                else:
                    self.dropped += 1
            elapsed_s = time.monotonic() - began_s
            self._stopping.wait(max(self._interval_s - elapsed_s, 0.0))

    def stop(self) -> None:
        """Let the thread end after the measurement that it makes."""
        self._stopping.set()


class _Request(NamedTuple):
    """Names a source, and the process whose request of it counts."""

    source: str
    instance_id: str


class Measurements:
    """Determines what is measured for one run, and appends it. One thread, and one a source.

    Args:
        bridge_segment: The bridge's own segment.
        reader: Counts measurements that are dropped.
        log_line: Takes one line for the log.
        problems_changed: Called when `problems` are others than before.
    """

    def __init__(
        self,
        bridge_segment: BridgeSegment,
        reader: SegmentReader,
        log_line: Callable[[str], None],
        problems_changed: Callable[[], None],
    ) -> None:
        self._bridge_segment = bridge_segment
        self._reader = reader
        self._log_line = log_line
        self._problems_changed = problems_changed
        self.problems: tuple[str, ...] = ()
        """Why sources gave nothing at their last measurement, one text for each of these."""
        self._threads: dict[_Request, MeasuringThread] = {}
        self._roles: Mapping[int, str] = {}
        self._line_s = float("-inf")

    def measure_if_due(self, living: Iterable[SegmentHeader]) -> bool:
        """Begin or stop as the *living* processes request, append what was measured.

        Return whether anything was appended. Processes of other machines are passed over: their own
        bridge measures there, and an address such as localhost means the machine of the process.

        Raises:
            JournalError: The measurements cannot be appended now; a later call appends them.
        """
        requests = self._requested(living)
        appended = False
        # Before threads are stopped: what they measured while their process lived arrives.
        for thread in self._threads.values():
            while thread.requests:
                self._bridge_segment.metrics(thread.header, thread.requests[0])
                # Removed once appended: on a full disk it waits for the next check.
                thread.requests.popleft()
                appended = True
            # A count that cannot be written is written later.
            dropped = thread.dropped
            if dropped > thread.counted:
                self._reader.count_drops(
                    _DROPPED, dropped - thread.counted, thread.name
                )
                thread.counted = dropped
        for key in self._threads.keys() - requests.keys():
            self._threads.pop(key).stop()
        for key in requests.keys() - self._threads.keys():
            thread = self._thread(key.source, requests[key])
            # Where no more threads are allowed, the next check tries again.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._threads[key] = thread
        # After the answers, so that an engine that just answered is not named.
        self._report_problems()
        return appended

    def _requested(
        self, living: Iterable[SegmentHeader]
    ) -> dict[_Request, SegmentHeader]:
        """Return what the *living* processes request, and note their roles for the next measurement.

        The process is a part of it: translation ignores what is measured for one that has ended.
        """
        boot_id = this_host().boot_id
        sources: dict[str, SegmentHeader] = {}
        roles: dict[int, str] = {}
        for header in living:
            if header.boot_id != boot_id or header.kind != "process":
                continue
            roles[header.pid] = header.role or "main"
            # Of several processes that name one engine the first counts: it is read once.
            for address in header.scrape:
                sources.setdefault(address, header)
            if header.system_metrics_s > 0:
                # The shortest interval counts.
                others = sources.get(_SYSTEM, header)
                sources[_SYSTEM] = min(
                    others, header, key=attrgetter("system_metrics_s")
                )
        self._roles = roles
        requests: dict[_Request, SegmentHeader] = {}
        for source, header in sources.items():
            requests[_Request(source, header.instance_id)] = header
        return requests

    def close(self) -> None:
        """Stop measuring; what was not appended is discarded. May be called twice."""
        for thread in self._threads.values():
            thread.stop()
        self._threads.clear()

    def _thread(self, source: str, header: SegmentHeader) -> MeasuringThread:
        """Return the thread that measures *source* as *header* requests, not started yet.

        What measures is imported here: psutil, the HTTP client and the parser take 0.1 s of a start,
        for which most runs have no use.
        """
        if source == _SYSTEM:
            from otel_bridge.bridge.system_metrics import SystemMeasurement  # noqa: PLC0415

            machine = SystemMeasurement(header, lambda: self._roles)
            return MeasuringThread(
                source, header, machine.request, header.system_metrics_s
            )
        from otel_bridge.bridge.engines.endpoint import read_engine  # noqa: PLC0415

        resource = Resource.FromString(header.resource)
        return MeasuringThread(
            f"engine-{engine_of_address(source)}",
            header,
            partial(read_engine, source, resource),
            header.scrape_s,
        )

    def _report_problems(self) -> None:
        """Note the sources that gave nothing, and write one line a minute on them."""
        threads = self._threads.values()
        problems = tuple(thread.problem for thread in threads if thread.problem)
        if problems != self.problems:
            self.problems = problems
            self._problems_changed()
        now_s = time.monotonic()
        if not problems or now_s - self._line_s < _LINE_EVERY_S:
            return
        self._line_s = now_s
        self._log_line(
            f"no metrics of {len(problems)} of {len(threads)} sources: {first_ones(problems, _MAX_NAMED)}"
        )
