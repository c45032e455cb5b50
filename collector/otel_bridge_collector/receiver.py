"""The receiver as a whole: gRPC and HTTP on one `Ingest`, closed by default."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge_collector.grpc_server import GrpcServer
from otel_bridge_collector.http_server import HttpServer
from otel_bridge_collector.ingest import Ingest, IngestSettings

_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Where to listen, whom to let in, and where to keep what comes.

    Attributes:
        host: Address to bind; one that is not loopback needs a token.
        grpc_port: 0: any that is free.
        http_port: 0: any that is free.
        tokens: Bearer tokens; none: everybody on this machine may send.
        request_bytes: Largest request, inflated too.
        ingest: Where requests are kept.
    """

    host: str
    grpc_port: int
    http_port: int
    tokens: Sequence[str]
    request_bytes: int
    ingest: IngestSettings

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str], base: Path, *, host: str = "127.0.0.1", grpc_port: int = 0, http_port: int = 0
    ) -> ReceiverSettings:
        """Read the settings that have a variable.

        Raises:
            ConfigError: A variable cannot be read, or the address needs a token.
        """
        chosen = cls(
            host=host,
            grpc_port=grpc_port,
            http_port=http_port,
            tokens=settings.TOKEN.read(env),
            request_bytes=settings.REQUEST_BYTES.read(env),
            ingest=IngestSettings(
                base=base,
                max_bytes=settings.MAX_BYTES.read(env),
                fsync=settings.FSYNC.read(env),
                segment_bytes=settings.SEGMENT_BYTES.read(env),
            ),
        )
        if not chosen.tokens and not is_loopback(host):
            raise ConfigError(f"{host} can be reached from other machines: set OTEL_BRIDGE_TOKEN, or bind 127.0.0.1")
        return chosen


class Receiver:
    """Listens from construction until `stop`.

    Raises:
        ConfigError: An address cannot be bound.
    """

    def __init__(self, chosen: ReceiverSettings) -> None:
        self.host = chosen.host
        self._ingest = Ingest(chosen.ingest)
        address = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        try:
            self._grpc = GrpcServer(
                f"{address}:{chosen.grpc_port}",
                self._ingest.accept,
                tokens=chosen.tokens,
                request_bytes=chosen.request_bytes,
            )
        except RuntimeError as exc:
            raise ConfigError(f"gRPC cannot listen on {address}:{chosen.grpc_port}; is the port taken?") from exc
        try:
            self._http = HttpServer(
                chosen.host,
                chosen.http_port,
                self._ingest.accept,
                tokens=chosen.tokens,
                request_bytes=chosen.request_bytes,
            )
        except OSError as exc:
            self._grpc.stop(0)
            raise ConfigError(f"HTTP cannot listen on {address}:{chosen.http_port}: {exc.strerror}") from exc

    @property
    def grpc_endpoint(self) -> str:
        """``http://host:port`` of gRPC, as ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes it."""
        return self._endpoint(self._grpc.port)

    @property
    def http_endpoint(self) -> str:
        """``http://host:port`` of HTTP."""
        return self._endpoint(self._http.port)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Refuse new requests (clients try again elsewhere or later), finish those under way, close the segments."""
        self._grpc.stop(grace_s)
        self._http.stop(grace_s)
        self._ingest.close()

    def _endpoint(self, port: int) -> str:
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"


def is_loopback(host: str) -> bool:
    """Say whether *host* can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
