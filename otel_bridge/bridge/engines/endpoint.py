"""One Prometheus endpoint of an inference engine, read by a thread of its own.

Imported when a process first names an endpoint: the HTTP client and the parser behind it take
0.1 s, which the bridges of most runs need not spend.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import requests
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.engines.exposition import engine_request
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.setting_parsers import engine_of_address
from otel_bridge.settings import SCRAPE

_TIMEOUT_S = (2.0, 5.0)
"""Seconds to connect, and to wait for the next bytes."""
_TOTAL_S = 10.0
"""Longest time of one answer."""
_MAX_BYTES = 16 << 20
_MAX_WAITING = 8
"""Most answers of an endpoint that wait for the bridge; the oldest is dropped."""


class EngineEndpoint:
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
