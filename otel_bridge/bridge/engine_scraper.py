"""Reads the Prometheus endpoints of inference engines for one run, while a process that requested it lives.

Each endpoint has a thread of its own, so that a slow one costs the others nothing. The bridge
appends the answers to its own segment, as it does with system metrics: from then on they survive a
kill, and are read once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import requests
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.exposition import engine_request
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import this_host
from otel_bridge.setting_parsers import engine_of_address
from otel_bridge.settings import SCRAPE
from otel_bridge.text.counts import first_ones

_TIMEOUT_S = (2.0, 5.0)
"""Seconds to connect, and to wait for the next bytes."""
_TOTAL_S = 10.0
"""Longest time of one answer."""
_MAX_BYTES = 16 << 20
_MAX_WAITING = 8
"""Most answers of an endpoint that wait for the bridge; the oldest is dropped."""
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
        self._endpoints: dict[str, _Endpoint] = {}
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
        for address in requested.keys() - self._endpoints.keys():
            endpoint = _Endpoint(address, requested[address])
            with contextlib.suppress(
                RuntimeError
            ):  # no thread to spare now: at the next check
                endpoint.start()
                self._endpoints[address] = endpoint
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


class _Endpoint:
    """Reads one endpoint, in a thread of its own.

    Attributes:
        answers: Export requests that are not appended yet. The thread adds at the end, the bridge
            takes the first.
        problem: Why the last answer is missing; empty after an answer.
    """

    def __init__(self, address: str, header: SegmentHeader) -> None:
        self._address = address
        self._engine = engine_of_address(address)
        self._interval_s = header.scrape_s
        self._resource = Resource.FromString(header.resource)
        self._stop = threading.Event()
        self.problem = ""
        self.answers: deque[bytes] = deque(maxlen=_MAX_WAITING)

    def start(self) -> None:
        """Start the thread; raises `RuntimeError` when there can be no more threads."""
        threading.Thread(
            target=self._read, name=f"engine-{self._engine}", daemon=True
        ).start()

    def stop(self) -> None:
        """Let the thread end after the answer that it awaits."""
        self._stop.set()

    def _read(self) -> None:
        with HttpSession() as session:
            # Engines are near: neither a proxy nor netrc is meant for them.
            session.trust_env = False
            while not self._stop.is_set():
                began_s = time.monotonic()
                self.problem = self._answer(session)
                elapsed_s = time.monotonic() - began_s
                self._stop.wait(max(self._interval_s - elapsed_s, 0.0))

    def _answer(self, session: HttpSession) -> str:
        """Read the endpoint once, and return why it gave nothing; empty when it gave something."""
        try:
            body = self._body(session)
        except requests.RequestException as exc:
            # The next reading tries again; the line of the minute names the endpoint.
            return f"{self._engine} cannot be read ({type(exc).__name__}); is the address in {SCRAPE.name} right?"
        except ValueError as exc:
            # An answer that is not usable; the thread goes on to the next reading.
            return f"{self._engine}: {exc}"
        try:
            request = engine_request(
                body.decode("utf-8", "replace"),
                self._resource,
                self._engine,
                time.time_ns(),
            )
        except Exception as exc:  # noqa: BLE001  # the parser raises more than it documents, and the thread must go on
            return f"{self._engine} answers in another format than Prometheus' ({type(exc).__name__})"
        if request is None:
            return f"{self._engine} has no vllm:* or sglang:* metrics; SGLang needs --enable-metrics"
        self.answers.append(request)
        return ""

    def _body(self, session: HttpSession) -> bytes:
        """Return the answer.

        Raises:
            requests.RequestException: The engine does not answer.
            ValueError: It is an error, a redirect, too large or too slow.
        """
        deadline_s = time.monotonic() + _TOTAL_S
        headers = {"Accept": "text/plain; version=0.0.4"}
        body = bytearray()
        with session.get(
            self._address,
            headers=headers,
            timeout=_TIMEOUT_S,
            allow_redirects=False,
            stream=True,
        ) as answer:
            if answer.status_code != 200:
                raise ValueError(
                    f"HTTP {answer.status_code}, expected 200 from {self._address}"
                )
            for chunk in answer.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"an answer of more than {_MAX_BYTES >> 20} MiB")
                if time.monotonic() > deadline_s:
                    raise ValueError(
                        f"an answer that takes longer than {_TOTAL_S:.0f} s"
                    )
        return bytes(body)
