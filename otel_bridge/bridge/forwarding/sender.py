"""Sends OTLP requests to the other end of ``otlp``, in the sizes that it accepts, without the items that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_bridge.bridge.forwarding.client import Client, client_for
from otel_bridge.bridge.forwarding.request_split import halves
from otel_bridge.bridge.forwarding.requests import REQUEST_BYTES
from otel_bridge.errors import PermanentError
from otel_bridge.journal.frames import Signal
from otel_bridge.otlp.destination import endpoint_for, signals_sent, unset_without_grpc
from otel_bridge.otlp.request_size import RequestSize

_WHOLE_BYTES: Final = 64 << 10
"""Size down to which refused requests are split, or down to one span or record: other ends accept that much."""
_NO_GRPC: Final = (
    "otlp goes by http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL is unset, and gRPC, the default, needs "
    "pip install 'otel-bridge[collector]'"
)
_SIGNALS: Final = {Signal.METRICS: "metrics", Signal.TRACES: "traces", Signal.LOGS: "logs"}
_THIRD_PARTY_HINT: Final = (
    "otlp: the other end is not otel-bridge; before Prometheus delete the attribute rl.step there "
    '(processor transform: delete_key(attributes, "rl.step")), or each step becomes a series of its own'
)


class RequestSender:
    """Sends the requests of one run. One thread.

    Args:
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        run_id: Id of the run, which each request names.
        refused: Called with the number of items that the other end refused for good.
        log_line: Takes one line for the log.
    """

    def __init__(
        self, env: Mapping[str, str], run_id: str, *, refused: Callable[[int], None], log_line: Callable[[str], None]
    ) -> None:
        self._env, self._run_id, self._refused, self._log_line = env, run_id, refused, log_line
        self._clients: dict[Signal, Client] = {}
        self._size = RequestSize(REQUEST_BYTES, least=_WHOLE_BYTES)
        self._is_hinted = False

    @property
    def limit_bytes(self) -> int:
        """Return the size of a request at present: smaller for a while after a request that timed out."""
        return self._size.now

    def report_protocol(self) -> None:
        """Log why the protocol is not gRPC, the default, where that needs a package."""
        if unset_without_grpc(self._env):
            self._log_line(_NO_GRPC)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def send(self, signal: Signal, datas: Sequence[bytes]) -> None:
        """Send *datas* as one request; items that are refused for good are found by halving and left out.

        After a request that timed out, *datas* are sent in several requests. A signal without an endpoint is not sent.
        """
        if _SIGNALS[signal] not in signals_sent(self._env):
            return
        size = sum(map(len, datas))
        if size > self._size.now and size > _WHOLE_BYTES:
            parts = datas if len(datas) > 1 else halves(signal, datas[0])
            if len(parts) > 1:
                middle = len(parts) // 2
                self.send(signal, parts[:middle])
                self.send(signal, parts[middle:])
                return
        try:
            with self._size.request(size):
                reply = self._client(signal).send(b"".join(datas), self._run_id)
        except PermanentError as exc:
            if len(datas) == 1 and len(datas[0]) > _WHOLE_BYTES:
                datas = halves(signal, datas[0]) or datas
            if len(datas) == 1:
                self._log_line(f"otlp: a record of {len(datas[0])} bytes was refused for good: {exc}")
                self._refused(1)
                return
            middle = len(datas) // 2
            self.send(signal, datas[:middle])
            self.send(signal, datas[middle:])
            return
        if reply.rejected:
            self._log_line(f"otlp: the other end refused {reply.rejected} of a request's items: {reply.message}")
            self._refused(reply.rejected)
        if not reply.from_bridge and not self._is_hinted:
            self._is_hinted = True
            self._log_line(_THIRD_PARTY_HINT)

    def _client(self, signal: Signal) -> Client:
        if signal not in self._clients:
            self._clients[signal] = client_for(endpoint_for(_SIGNALS[signal], self._env))
        return self._clients[signal]
