"""Reads from the standard ``OTEL_EXPORTER_OTLP_*`` variables where and how each signal is sent.

Source: opentelemetry-specification, protocol/exporter.md. A variable of one signal overrides the variable of all
    signals. An unset protocol means gRPC, as in the Python SDK, if grpcio is installed; else ``http/protobuf``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from otel_bridge import settings
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.text.addresses import without_credentials

Protocol: TypeAlias = Literal["grpc", "http/protobuf"]

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_DEFAULT: Final[Mapping[Protocol, str]] = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Describes where one signal is sent, and how.

    Attributes:
        url: The whole address over HTTP; ``scheme://host:port`` over gRPC.
        headers: Names in lower case; may hold credentials.
        gzip: Whether bodies are compressed.
        timeout_s: Timeout of one request.
        secure: Whether TLS is used.
        certificate: File of certificates to check the server's certificate; ``None`` for the system's.
        client_certificate: File of the client's own certificate.
        client_key: File of the key of that certificate.
    """

    signal: str
    protocol: Protocol
    url: str
    headers: Mapping[str, str] = field(repr=False)
    gzip: bool = False
    timeout_s: float = _TIMEOUT_S
    secure: bool = False
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    @property
    def address(self) -> str:
        """Return the url without user, password and query, so that it may be shown."""
        return without_credentials(self.url).partition("?")[0]


def endpoint_for(signal: str, env: Mapping[str, str]) -> Endpoint:
    """Read where *signal* (``metrics``, ``traces``, ``logs``) is sent.

    Raises:
        ConfigError: A variable cannot be used.
        MissingExtraError: gRPC is chosen and grpcio is not installed.
    """
    protocol = _protocol(signal, env)
    url = _url(signal, protocol, env)
    return Endpoint(
        signal=signal,
        protocol=protocol,
        url=url,
        headers=_headers(signal, env),
        gzip=_value("COMPRESSION", signal, env).lower() == "gzip",
        timeout_s=_timeout_s(signal, env),
        secure=_secure(signal, url, protocol, env),
        certificate=_value("CERTIFICATE", signal, env) or None,
        client_certificate=_value("CLIENT_CERTIFICATE", signal, env) or None,
        client_key=_value("CLIENT_KEY", signal, env) or None,
    )


def has_grpc() -> bool:
    """Return whether grpcio is installed, so that gRPC can be used."""
    return importlib.util.find_spec("grpc") is not None


def unset_without_grpc(env: Mapping[str, str]) -> bool:
    """Return whether any signal uses HTTP only because its protocol is unset and grpcio is not installed."""
    return not has_grpc() and not all(_value("PROTOCOL", signal, env) for signal in ("metrics", "traces", "logs"))


def _value(name: str, signal: str, env: Mapping[str, str]) -> str:
    return (env.get(f"{_PREFIX}{signal.upper()}_{name}") or env.get(f"{_PREFIX}{name}") or "").strip()


def _protocol(signal: str, env: Mapping[str, str]) -> Protocol:
    chosen = _value("PROTOCOL", signal, env).lower()
    if chosen == "http/protobuf" or (not chosen and not has_grpc()):
        return "http/protobuf"
    if chosen not in {"", "grpc"}:
        raise ConfigError(f"{_PREFIX}PROTOCOL={chosen!r}: expected grpc or http/protobuf")
    if not has_grpc():
        raise MissingExtraError(
            f"{_PREFIX}PROTOCOL=grpc needs grpcio: pip install 'otel-bridge[collector]', or set it to http/protobuf"
        )
    return "grpc"


def _url(signal: str, protocol: Protocol, env: Mapping[str, str]) -> str:
    own = env.get(f"{_PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    url = own or env.get(f"{_PREFIX}ENDPOINT", "").strip() or _DEFAULT[protocol]
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        seen = without_credentials(url)
        raise ConfigError(f"{_PREFIX}ENDPOINT={seen!r}: expected http://host:port or https://host:port")
    if protocol == "grpc":
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return url if own else f"{url.rstrip('/')}/v1/{signal}"


def _headers(signal: str, env: Mapping[str, str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in _value("HEADERS", signal, env).split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            headers[unquote(name).strip().lower()] = unquote(value).strip()
    tokens = settings.TOKEN.read(env)
    if tokens:
        headers.setdefault("authorization", f"Bearer {tokens[0]}")
    return headers


def _timeout_s(signal: str, env: Mapping[str, str]) -> float:
    raw = _value("TIMEOUT", signal, env)
    if not raw:
        return _TIMEOUT_S
    try:
        return settings.positive_seconds(raw)
    except ValueError as exc:
        raise ConfigError(f"{_PREFIX}TIMEOUT={raw!r}: {exc}") from exc


def _secure(signal: str, url: str, protocol: Protocol, env: Mapping[str, str]) -> bool:
    if protocol == "grpc" and _value("INSECURE", signal, env).lower() in {"1", "true"}:
        return False
    return url.startswith("https://")
