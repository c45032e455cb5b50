"""Sends the OTLP requests of one signal in the sizes that the other end accepts, without the items that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from otel_bridge.bridge.forwarding.client import Client, Reply, client_for
from otel_bridge.bridge.forwarding.request_split import halves
from otel_bridge.bridge.forwarding.requests import REQUEST_BYTES
from otel_bridge.errors import PermanentError
from otel_bridge.journal.frames import Signal
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge.otlp.request_size import RequestSize

_WHOLE_BYTES = 64 << 10
"""Size down to which refused requests are split, or down to one span or record: other ends accept
that much."""
SIGNAL_NAMES = {Signal.METRICS: "metrics", Signal.TRACES: "traces", Signal.LOGS: "logs"}
_THIRD_PARTY_HINT = (
    "otlp: the other end is not otel-bridge; before Prometheus delete the attribute rl.step there "
    '(processor transform: delete_key(attributes, "rl.step")), or each step becomes a series of its own'
)


class RequestSender:
    """Sends the requests of one signal of one run. One thread.

    Args:
        signal: The signal.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        run_id: Id of the run, which each request names.
        check_endpoints: Raises `ConfigError` when the endpoints in *env* must not be used.
        refused: Called with the number of items that the other end refused for good.
        log_line: Takes one line for the log.

    Attributes:
        server: ``host:port`` of the endpoint; empty until the first request.
        to_bridge: Whether the other end is an otel-bridge; ``None`` until it accepted a request.
    """

    def __init__(
        self,
        signal: Signal,
        env: Mapping[str, str],
        run_id: str,
        *,
        check_endpoints: Callable[[], None],
        refused: Callable[[int], None],
        log_line: Callable[[str], None],
    ) -> None:
        self._check_endpoints = check_endpoints
        self._signal = signal
        self._env = env
        self._run_id = run_id
        self._refused = refused
        self._log_line = log_line
        self._client: Client | None = None
        self._size = RequestSize(REQUEST_BYTES, least=_WHOLE_BYTES)
        self.server = ""
        self.to_bridge: bool | None = None

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
            ConfigError: The endpoint cannot be used.
        """
        size = sum(map(len, datas))
        # A request that timed out is not sent in the same size again.
        if size > self._size.now and size > _WHOLE_BYTES:
            parts = datas if len(datas) > 1 else halves(self._signal, datas[0])
            if len(parts) > 1:
                self._send_halves(parts)
                return
        try:
            with self._size.request(size):
                reply = self._connected().send(b"".join(datas), self._run_id)
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
            datas = halves(self._signal, datas[0]) or datas
        if len(datas) > 1:
            self._send_halves(datas)
            return
        self._log_line(
            f"otlp: a record of {len(datas[0])} bytes was refused for good: {error}"
        )
        # Counted and passed over, because it would stop all that is behind it.
        self._refused(1)

    def _note_reply(self, reply: Reply) -> None:
        """Count the items that the other end refused, and note whether that is an otel-bridge.

        Items that it refuses in an accepted request are gone for good by the specification.
        """
        if reply.rejected:
            self._log_line(
                f"otlp: the other end refused {reply.rejected} of a request's items: {reply.message}"
            )
            self._refused(reply.rejected)
        if (
            self.to_bridge is None
            and not reply.from_bridge
            and self._signal is Signal.METRICS
        ):
            self._log_line(_THIRD_PARTY_HINT)
        self.to_bridge = reply.from_bridge

    def _send_halves(self, datas: Sequence[bytes]) -> None:
        middle = len(datas) // 2
        self.send(datas[:middle])
        self.send(datas[middle:])

    def _connected(self) -> Client:
        """Return the client; raises `ConfigError` when the endpoint cannot be used."""
        if self._client is None:
            # Before the client, which would already hold the credentials.
            self._check_endpoints()
            endpoint = endpoint_for(SIGNAL_NAMES[self._signal], self._env)
            self._client = client_for(endpoint)
            self.server = endpoint.server
        return self._client
