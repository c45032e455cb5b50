"""The receiver of ``otel-bridge run``, to which stock SDKs in its command send OTLP."""

from __future__ import annotations

import importlib.util
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import SIGNALS
from otel_bridge.otlp.destination import PREFIX
from otel_bridge.setting_parsers import host_and_port
from otel_bridge.text.addresses import is_loopback


class LauncherReceiver:
    """Runs the launcher's receiver, and holds the variables that stock SDKs need to find it.

    Without the extra ``collector`` the receiver accepts HTTP only. The variables configure stock
    SDKs for HTTP, and for gRPC only a signal for which the user chose it.

    Attributes:
        environment: These variables.
        host: Where the command's processes reach the receiver.

    Raises:
        ConfigError: *listen* needs gRPC, which is not installed, is not an address, or is not free;
            or a setting of the receiver cannot be used. The command is not started then.
    """

    def __init__(self, env: Mapping[str, str], base: Path, listen: str) -> None:
        has_grpc = importlib.util.find_spec("grpc") is not None
        if listen and not has_grpc:
            raise ConfigError(
                f"--listen {listen}: receiving gRPC needs the extra: pip install 'otel-bridge[collector]'; "
                "without --listen programs of this machine are received over HTTP"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # only for this command

        host, port = _address(listen)
        token = ",".join(settings.TOKEN.read(env))
        if not token and not is_loopback(host):
            # Any machine of the network reaches it; only the children get the token.
            token = secrets.token_urlsafe(24)
        chosen = ReceiverSettings.from_environment(
            {**env, settings.TOKEN.name: token},
            base,
            host=host,
            grpc_port=port if has_grpc else None,
            http_port=port + 1 if port else 0,
        )
        self._receiver = Receiver(chosen)
        http_endpoint = _for_others(self._receiver.http_endpoint, host)
        grpc_endpoint = _for_others(self._receiver.grpc_endpoint, host)
        self.host = urlsplit(http_endpoint).hostname or ""
        self.environment = {
            f"{PREFIX}ENDPOINT": http_endpoint,
            f"{PREFIX}PROTOCOL": "http/protobuf",
        }
        for signal in SIGNALS:
            self.environment[f"OTEL_{signal.upper()}_EXPORTER"] = "otlp"
            self.environment |= _variables_of(signal, env, http_endpoint, grpc_endpoint)
        if token:
            first = token.partition(",")[0]
            self.environment[f"{PREFIX}HEADERS"] = (
                f"authorization=Bearer%20{quote(first)}"
            )
            self.environment[settings.TOKEN.name] = token

    def stop(self) -> None:
        """Stop receiving: running requests are completed first, new ones find no server. May be called twice.

        Raises:
            TimeoutError: A running request hangs, as on a disk that does not answer.
        """
        self._receiver.stop()


def _variables_of(
    signal: str, env: Mapping[str, str], http_endpoint: str, grpc_endpoint: str
) -> dict[str, str]:
    """Return the endpoint and protocol of *signal*: gRPC if the user chose it and it is there.

    vLLM's server reads the variables of traces only, and takes gRPC when their protocol is not set.
    """
    prefix = f"{PREFIX}{signal.upper()}_"
    if grpc_endpoint and env.get(f"{prefix}PROTOCOL", "").strip().lower() == "grpc":
        return {f"{prefix}ENDPOINT": grpc_endpoint, f"{prefix}PROTOCOL": "grpc"}
    return {
        f"{prefix}ENDPOINT": f"{http_endpoint}/v1/{signal}",
        f"{prefix}PROTOCOL": "http/protobuf",
    }


def _for_others(endpoint: str, host: str) -> str:
    """Return *endpoint* as other nodes reach it: for a wildcard, an address of this machine.

    A child on another node inherits the endpoint, and could not send to ``0.0.0.0``. On a machine
    with several networks it is the address of the one with the default route.
    """
    if host not in {"0.0.0.0", "::"}:  # noqa: S104  # looked for, not bound
        return endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # RFC 5737; sends nothing, and shows the address of the outgoing interface.
            probe.connect(("192.0.2.1", 9))
            own: str = probe.getsockname()[0]
        except OSError:
            # Without a route the name is all that other nodes may know.
            own = socket.gethostname()
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{own}:{rest.rpartition(':')[2]}"


def _address(listen: str) -> tuple[str, int]:
    """Return host and port; without *listen* a free port of this machine alone, without a host that port of it.

    Raises:
        ConfigError: It is not an address, or has no port after its own for HTTP.
    """
    if not listen:
        return "127.0.0.1", 0
    if listen.startswith(":"):
        listen = f"127.0.0.1{listen}"
    expected = "e.g. 127.0.0.1:4317, where PORT + 1 is free too"
    return host_and_port("--listen", listen, expected=expected, highest=65534)
