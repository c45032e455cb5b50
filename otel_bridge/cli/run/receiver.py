"""The receiver of ``otel-bridge run``, to which stock SDKs in its command send OTLP."""

from __future__ import annotations

import importlib.util
import secrets
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import SIGNALS


class LauncherReceiver:
    """Runs the launcher's receiver, and holds the variables that stock SDKs need to find it.

    Without the extra ``collector`` the receiver uses the standard library and accepts HTTP only. The variables
    configure stock SDKs for HTTP in any case.
    """

    def __init__(self, env: Mapping[str, str], base: Path, listen: str) -> None:
        plain = any(importlib.util.find_spec(name) is None for name in ("grpc", "starlette", "uvicorn"))
        if plain and listen:
            raise ConfigError(
                f"--listen {listen}: receiving gRPC, and from other machines, needs the extra: "
                "pip install 'otel-bridge[collector]'; without --listen programs of this machine are received over HTTP"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # only for this command
        from otel_bridge_collector.receiver import is_loopback  # noqa: PLC0415

        host, port = _address(listen)
        token = ",".join(settings.TOKEN.read(env))
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        chosen = ReceiverSettings.from_environment(
            {**env, settings.TOKEN.name: token}, base, host=host, grpc_port=port, http_port=port + 1 if port else 0
        )
        self._receiver = Receiver(replace(chosen, plain=True, grpc_port=None, tls=None) if plain else chosen)
        self.environment = {
            **{f"OTEL_{one.upper()}_EXPORTER": "otlp" for one in SIGNALS},
            "OTEL_EXPORTER_OTLP_ENDPOINT": _for_others(self._receiver.http_endpoint, host),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        if token:
            first = token.partition(",")[0]
            self.environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{quote(first)}"
            self.environment[settings.TOKEN.name] = token

    def stop(self) -> None:
        """Stop receiving."""
        self._receiver.stop()


def _for_others(endpoint: str, host: str) -> str:
    """Return *endpoint* as other nodes reach it: a wildcard address is replaced by one of this machine."""
    if host not in {"0.0.0.0", "::"}:  # noqa: S104  # looked for, not bound
        return endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737; sends nothing, and shows the address of the outgoing interface
            own: str = probe.getsockname()[0]
        except OSError:
            own = socket.gethostname()
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{own}:{rest.rpartition(':')[2]}"


def _address(listen: str) -> tuple[str, int]:
    if not listen:
        return "127.0.0.1", 0
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65535:
        raise ConfigError(f"--listen={listen!r}: expected HOST:PORT, where PORT + 1 is free too")
    return host.strip("[]") or "127.0.0.1", int(port)
