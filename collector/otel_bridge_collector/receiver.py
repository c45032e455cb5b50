"""Runs the receiver: gRPC and HTTP on one event loop, in a separate thread, with one `Ingest`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import Metric

from otel_bridge import settings
from otel_bridge.bridge.serving.process_limits import descriptor_limit, exhausted
from otel_bridge.errors import ConfigError
from otel_bridge.text.addresses import is_loopback
from otel_bridge_collector.access import Access, Tls
from otel_bridge_collector.http.server import HttpServer, OpsEndpoints
from otel_bridge_collector.ingest import Ingest, IngestSettings
from otel_bridge_collector.limits import LimitSettings, ReceiverLimits
from otel_bridge_collector.server_context import ServerContext
from otel_bridge_collector.telemetry.counters import Counters
from otel_bridge_collector.telemetry.service_metrics import of_receiver, text_of

if TYPE_CHECKING:
    from otel_bridge_collector.grpc_server import (
        GrpcServer,
    )  # needs the extra `collector`

_log = logging.getLogger("otel_bridge_collector")
_GRACE_S = 5.0
_LOOK_S = 10.0
_T = TypeVar("_T")
_START_S = 30.0
_QUIET_S = 60.0
"""Least time between two log lines about descriptors that are used up."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Holds where the receiver listens, which clients may send, and where data is stored.

    Attributes:
        host: Address to bind for gRPC; one that is not loopback needs a token or client
            certificates.
        grpc_port: Port of gRPC; 0 for any free port, ``None`` for no gRPC.
        http_host: Address to bind for HTTP.
        http_port: Port of HTTP; 0 for any free port, ``None`` for no HTTP.
        tokens: Bearer tokens; without tokens every client that reaches the port may send.
        request_bytes: Largest request, also after decompression.
        limits: Limits of all clients together.
        ingest: Settings of the storage of requests.
        tls: Files of TLS.
    """

    host: str
    grpc_port: int | None
    http_port: int | None
    tokens: Sequence[str]
    request_bytes: int
    limits: LimitSettings
    ingest: IngestSettings
    http_host: str
    tls: Tls | None = None

    @classmethod
    def from_environment(
        cls,
        env: Mapping[str, str],
        base: Path,
        *,
        host: str = "127.0.0.1",
        grpc_port: int | None = 0,
        http_port: int | None = 0,
        http_host: str | None = None,
    ) -> ReceiverSettings:
        """Read the settings that have a variable.

        Raises:
            ConfigError: A variable cannot be read, or an address needs a token or certificates:
                without them anybody who reaches it could write to the run folders.
        """
        chosen = cls(
            host=host,
            grpc_port=grpc_port,
            http_port=http_port,
            http_host=http_host or host,
            tokens=settings.TOKEN.read(env),
            request_bytes=settings.REQUEST_BYTES.read(env),
            limits=LimitSettings(
                settings.MAX_REQUESTS.read(env), settings.MAX_RATE.read(env)
            ),
            ingest=IngestSettings(
                base=base,
                max_bytes=settings.MAX_BYTES.read(env),
                fsync=settings.FSYNC.read(env),
                segment_bytes=settings.SEGMENT_BYTES.read(env),
                max_runs=settings.MAX_RUNS.read(env),
            ),
            tls=Tls.from_environment(env),
        )
        is_open = not chosen.tokens and (
            chosen.tls is None or chosen.tls.client_ca is None
        )
        for address in {chosen.host, chosen.http_host}:
            if is_open and not is_loopback(address):
                raise ConfigError(
                    f"{address} can be reached from other machines: set OTEL_BRIDGE_TOKEN, or "
                    f"{settings.TLS_CERT.name}, {settings.TLS_KEY.name} and {settings.TLS_CLIENT_CA.name}, "
                    "or bind 127.0.0.1"
                )
        return chosen

    @property
    def in_clear(self) -> bool:
        """Return whether tokens and data are sent unencrypted between machines."""
        return self.tls is None and not (
            is_loopback(self.host) and is_loopback(self.http_host)
        )


class Receiver:
    """Listens from construction until `stop`. Its methods are for any thread except the event loop's.

    Args:
        chosen: Addresses, access and storage.
        metrics: Returns more metrics for ``/metrics``; called outside the event loop.
        status: Returns every run as JSON, for ``/status``; called outside the event loop.
        warnings: Returns more reasons for ``/readyz`` to answer 503; called outside the event loop.

    Raises:
        ConfigError: An address cannot be bound.
        TimeoutError: The event loop did not begin to listen within half a minute.
    """

    def __init__(
        self,
        chosen: ReceiverSettings,
        *,
        metrics: Callable[[], Sequence[Metric]] = lambda: (),
        status: Callable[[], bytes] | None = None,
        warnings: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        """Listen before this returns.

        A failed start ends the thread, which would stay otherwise.
        """
        self.counters = Counters()
        self._chosen = chosen
        self._more_metrics = metrics
        self._status = status
        self._warnings = warnings
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_LoopErrors().report)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="otlp-receiver", daemon=True
        )
        self._thread.start()
        try:
            self._on_loop(self._listen()).result(_START_S)
        except BaseException:
            self.stop(0)
            raise

    @property
    def grpc_endpoint(self) -> str:
        """Return ``http://host:port`` of gRPC, as for ``OTEL_EXPORTER_OTLP_ENDPOINT``.

        Empty without gRPC.
        """
        if self._grpc is not None:
            return self._endpoint(self._chosen.host, self._grpc.port)
        return ""

    @property
    def http_endpoint(self) -> str:
        """Return ``http://host:port`` of HTTP; empty without HTTP."""
        if self._http is not None:
            return self._endpoint(self._chosen.http_host, self._http.port)
        return ""

    @property
    def open_runs(self) -> int:
        """Return how many runs have an open segment."""
        return self._ingest.open_runs

    def refuse(self, reason: str) -> None:
        """Keep listening but refuse all requests: clients get *reason* and may retry (UNAVAILABLE, 503)."""
        self._ingest.refuse(reason)

    def same_token(self, run_id: str, other_run_id: str) -> bool:
        """Return whether all data of both runs came with one token since the start.

        Spans that name another run may go to that run only if one client sends both.
        """
        return self._ingest.same_token(run_id, other_run_id)

    def metrics(self) -> list[Metric]:
        """Return the receiver's own metrics at this moment."""
        syncs = None
        if self._ingest.sync is not None:
            syncs = self._ingest.sync.syncs
        return [
            *of_receiver(self.counters, open_runs=self.open_runs, syncs=syncs),
            *self._more_metrics(),
        ]

    def unready(self) -> list[str]:
        """Return why data cannot be accepted now, one line per reason.

        Empty when it can. Space is only asked for when nothing else is wrong, since that writes a
        file. Blocks for up to a second; not for the event loop. Raises `TimeoutError` when the loop
        does not answer within half a minute, which ``/readyz`` answers with 500.
        """
        base = self._chosen.ingest.base
        reasons: list[str] = []
        if self._ingest.refusing:
            reasons.append(self._ingest.refusing)
        if not os.access(base, os.W_OK | os.X_OK):
            reasons.append(f"{base} is not writable")
        if not reasons:
            lack = self._on_loop(self._ingest.lacks_space()).result(_START_S)
            if lack:
                reasons.append(lack)
        if exhausted():
            reasons.append(_no_descriptor())
        elif self._grpc is not None:
            reasons += filter(None, [self._grpc.refusal()])
        return [*reasons, *self._warnings()]

    def release_connections(self) -> None:
        """Close the segments after `refuse`, so that bridges see their ends.

        Running requests are completed. A bridge waits for the receiver as for any process of its
        run, until its segment is closed. Raises `TimeoutError` when the loop does not answer.
        """
        self._on_loop(self._release_connections()).result(_START_S)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Refuse new requests (clients retry elsewhere or later), complete running ones, and close the segments.

        May be called twice. Raises `TimeoutError` when the loop hangs: what it holds open ends with the
        process.
        """
        if self._loop.is_closed():
            return
        self._on_loop(self._close(grace_s)).result(grace_s + _START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    async def _listen(self) -> None:
        """Bind the addresses and begin to answer. Raises `ConfigError` for one that cannot be bound.

        On the event loop, because gRPC's server belongs to the loop on which it was made.
        """
        chosen = self._chosen
        self._ingest = Ingest(chosen.ingest, self.counters)
        self._serving = ServerContext(
            accept=self._ingest.accept,
            access=Access(
                chosen.tokens,
                any_host=chosen.tls is not None and chosen.tls.client_ca is not None,
            ),
            limits=ReceiverLimits(chosen.limits),
            counters=self.counters,
            request_bytes=chosen.request_bytes,
        )
        if chosen.grpc_port is not None:
            from otel_bridge_collector.grpc_server import GrpcServer  # noqa: PLC0415  # the extra

            address = f"{_bracketed(chosen.host)}:{chosen.grpc_port}"
            try:
                self._grpc = GrpcServer(address, self._serving, tls=chosen.tls)
            except RuntimeError as exc:
                raise ConfigError(
                    f"gRPC cannot listen on {address}; is the port taken?"
                ) from exc
            await self._grpc.start()
        if chosen.http_port is not None:
            try:
                self._http = HttpServer(
                    chosen.http_host,
                    chosen.http_port,
                    self._serving,
                    tls=chosen.tls,
                    pages=OpsEndpoints(self.unready, self._text, self._status),
                )
            except OSError as exc:
                address = f"{_bracketed(chosen.http_host)}:{chosen.http_port}"
                raise ConfigError(
                    f"HTTP cannot listen on {address}: {exc.strerror}; is the port taken?"
                ) from exc
            await self._http.start()
        self._idle = asyncio.create_task(self._close_idle())

    async def _close_idle(self) -> None:
        """Close the segments of idle runs every `_LOOK_S`.

        An error is logged, and the task goes on.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._ingest.close_idle()
            except Exception:  # noqa: BLE001  # the task must go on
                _log.exception("segments of idle runs cannot be closed, tried again")

    async def _release_connections(self) -> None:
        self._ingest.close_idle(float("inf"))

    async def _close(self, grace_s: float) -> None:
        """Refuse new requests, wait for running ones, and close the segments; nothing if `_listen` failed early.

        A server that fails to stop is passed over, since the segments must be closed in any case.
        """
        if not hasattr(self, "_ingest"):
            return
        self._ingest.refuse(
            self._ingest.refusing or "the receiver is shutting down; send it again"
        )
        servers = [
            server.stop(grace_s)
            for server in (self._grpc, self._http)
            if server is not None
        ]
        await asyncio.gather(*servers, return_exceptions=True)
        if hasattr(self, "_idle"):
            self._idle.cancel()
        self._serving.decoding.shutdown(wait=False, cancel_futures=True)
        await self._ingest.close()

    def _text(self) -> str:
        return text_of(self.metrics())

    def _on_loop(self, work: Coroutine[None, None, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _endpoint(self, host: str, port: int) -> str:
        """Return the address for clients, with ``https`` if there is a certificate."""
        scheme = "https"
        if self._chosen.tls is None:
            scheme = "http"
        return f"{scheme}://{_bracketed(host)}:{port}"


class _LoopErrors:
    """Logs errors of an event loop, but only one a minute about descriptors that are used up."""

    def __init__(self) -> None:
        self._exhausted_s = float("-inf")

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of *loop*, as its exception handler."""
        # Python 3.11 reports each connection that it cannot accept, as often as the queue is long,
        # every second.
        exc = context.get("exception")
        if not isinstance(exc, OSError) or not exhausted(exc):
            loop.default_exception_handler(context)
        elif loop.time() - self._exhausted_s >= _QUIET_S:
            self._exhausted_s = loop.time()
            _log.warning("no connection can be accepted: %s", _no_descriptor())


def _no_descriptor() -> str:
    return f"all {descriptor_limit():,} files that this process may open are in use; raise that limit (`ulimit -n`)"


def _bracketed(host: str) -> str:
    if ":" in host:
        return f"[{host}]"
    return host
