"""Sends one signal of a run, at a position of its own in each process's segments, with a state of its own.

So a signal whose endpoint is down, refuses it or does not have it holds up no other. Requests go
in the sizes that the other end accepts, without the items that it refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.forwarding.client import Client, Reply, client_for
from otel_bridge.bridge.forwarding.requests import REQUEST_BYTES, halves
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    PermanentError,
    RetryableError,
    SignalMissingError,
)
from otel_bridge.journal.frames import Signal
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge.otlp.request_size import RequestSize
from otel_bridge.text.printable import shown

_WHOLE_BYTES = 64 << 10
"""Size down to which refused requests are split, or down to one span or record: other ends accept
that much."""
SIGNAL_NAMES = {Signal.METRICS: "metrics", Signal.TRACES: "traces", Signal.LOGS: "logs"}
_THIRD_PARTY_HINT = (
    "otlp: the other end is not otel-bridge; before Prometheus delete the attribute rl.step there "
    '(processor transform: delete_key(attributes, "rl.step")), or each step becomes a series of its own'
)


@dataclass(slots=True)
class RequestSender:
    """Sends the requests of one signal of one run. One thread.

    Attributes:
        signal: The signal.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        run_id: Id of the run, which each request names.
        check_endpoints: Raises `ConfigError` when the endpoints in *env* must not be used.
        log_line: Takes one line for the log.
        server: ``host:port`` of the endpoint; empty until the first request.
        to_bridge: Whether the other end is an otel-bridge; ``None`` until it accepted a request.
        refused: How many items the other end has refused for good since this was set to 0.
    """

    signal: Signal
    env: Mapping[str, str]
    run_id: str
    check_endpoints: Callable[[], None]
    log_line: Callable[[str], None]
    server: str = ""
    to_bridge: bool | None = None
    refused: int = 0
    _client: Client | None = None
    _size: RequestSize = field(
        default_factory=lambda: RequestSize(REQUEST_BYTES, least=_WHOLE_BYTES)
    )

    @property
    def limit_bytes(self) -> int:
        """Return the size of a request at present: smaller for a while after a request that timed out."""
        return self._size.now

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def send(self, datas: Sequence[bytes]) -> None:
        """Send *datas* as one request.

        Items that are refused for good are found by halving and left out.

        After a request that timed out, *datas* are sent in several requests.

        Raises:
            RetryableError, BlockedError: The other end took nothing, or not all.
            ConfigError: The endpoint cannot be used; nothing was sent.
        """
        size = sum(map(len, datas))
        # A request that timed out is not sent in the same size again.
        if size > self._size.now and size > _WHOLE_BYTES:
            parts = datas if len(datas) > 1 else halves(self.signal, datas[0])
            if len(parts) > 1:
                self._send_halves(parts)
                return
        try:
            with self._size.request(size):
                reply = self._connected().send(b"".join(datas), self.run_id)
        except PermanentError as exc:
            self._leave_out_refused(datas, exc)
        else:
            self._note_reply(reply)

    def _leave_out_refused(self, datas: Sequence[bytes], error: PermanentError) -> None:
        """Send the two halves of a refused request; a single record that is refused is counted.

        A record of at most `_WHOLE_BYTES` is not split further. Raises as `send` does; what was
        sent before is sent again by the next try, and an otel-bridge drops it by its ids.
        """
        if len(datas) == 1 and len(datas[0]) > _WHOLE_BYTES:
            datas = halves(self.signal, datas[0]) or datas
        if len(datas) > 1:
            self._send_halves(datas)
            return
        self.log_line(
            f"otlp: a record of {len(datas[0])} bytes was refused for good: {error}"
        )
        # Counted and passed over, because it would stop all that is behind it.
        self.refused += 1

    def _note_reply(self, reply: Reply) -> None:
        """Count the items that the other end refused, and note whether that is an otel-bridge.

        Items that it refuses in an accepted request are gone for good by the specification.
        """
        if reply.rejected:
            self.log_line(
                f"otlp: the other end refused {reply.rejected} of a request's items: {reply.message}"
            )
            self.refused += reply.rejected
        if (
            self.to_bridge is None
            and not reply.from_bridge
            and self.signal is Signal.METRICS
        ):
            self.log_line(_THIRD_PARTY_HINT)
        self.to_bridge = reply.from_bridge

    def _send_halves(self, datas: Sequence[bytes]) -> None:
        middle = len(datas) // 2
        self.send(datas[:middle])
        self.send(datas[middle:])

    def _connected(self) -> Client:
        """Return the client; raises `ConfigError` when the endpoint cannot be used."""
        if self._client is None:
            # Before the client, which would already hold the credentials.
            self.check_endpoints()
            endpoint = endpoint_for(SIGNAL_NAMES[self.signal], self.env)
            self._client = client_for(endpoint)
            self.server = endpoint.server
        return self._client


BLOCKED_S = 60.0
"""Seconds between two tries of a signal that only a person can mend."""
_NEWS_S = 1.0
"""Least seconds before new data begins another try, or a server that is down would get one a row."""


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
        Records that the other end refuses for good do not fail it: the sender has counted them.
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
