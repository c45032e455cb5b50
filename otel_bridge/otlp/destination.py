"""Reads where and how ``otlp`` sends each signal: the one place that resolves ``OTEL_EXPORTER_OTLP_*``.

``init()`` and the launcher read it to refuse what can never work; the bridge, to send. There an
error blocks the signal, which is tried again every minute.

Source: opentelemetry-specification, protocol/exporter.md. A variable of one signal overrides the
variable of all signals. An unset protocol means gRPC, as in the Python SDK, if grpcio is installed;
else ``http/protobuf``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from otel_bridge import settings
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.text.addresses import without_credentials

Protocol: TypeAlias = Literal["grpc", "http/protobuf"]

PREFIX = "OTEL_EXPORTER_OTLP_"
_SIGNALS = ("metrics", "traces", "logs")
_DEFAULT: Mapping[Protocol, str] = {
    "grpc": "http://localhost:4317",
    "http/protobuf": "http://localhost:4318",
}
_GRPC_PORT = 4317
# The default of the specification.
_TIMEOUT_S = 10.0
_ADDRESS = "expected http://host:port or https://host:port"
_HEADER_NAME = re.compile(r"[0-9a-z_.-]+")
"""Names that both gRPC and HTTP accept, in lower case."""
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Describes where one signal is sent, and how.

    Attributes:
        url: The whole address over HTTP; ``scheme://host:port`` over gRPC.
        headers: Names in lower case; may hold credentials.
        gzip: Whether bodies are compressed.
        timeout_s: Timeout of one request.
        secure: Whether TLS is used.
        certificate: File of certificates to check the server's certificate; ``None`` for the
            system's.
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

    @property
    def server(self) -> str:
        """Return ``host:port``, which signals of one server share."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def signals_sent(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signals that have an endpoint.

    All of them, to the default endpoint, when no endpoint is set.

    A backend that takes traces only is named by the endpoint of traces alone: then nothing else is
    sent anywhere.
    """
    with_endpoint = signals_with_endpoint(env)
    return with_endpoint or _SIGNALS


def signals_with_endpoint(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signals for which *env* names an endpoint, of their own or of all."""
    return tuple(signal for signal in _SIGNALS if _value("ENDPOINT", signal, env))


def endpoint_for(signal: str, env: Mapping[str, str]) -> Endpoint:
    """Read where *signal* (``metrics``, ``traces``, ``logs``) is sent.

    A variable of the signal wins over that of all signals, by the specification.

    Raises:
        ConfigError: A variable cannot be used, a file of TLS that one names cannot be read, or a
            client certificate has no key.
        MissingExtraError: gRPC is chosen and grpcio is not installed.
    """
    protocol = _protocol(signal, env)
    url = _url(signal, protocol, env)
    client_certificate = _file("CLIENT_CERTIFICATE", signal, env)
    client_key = _file("CLIENT_KEY", signal, env)
    # gRPC (1.85) aborts the whole process for one without the other.
    if (client_certificate is None) != (client_key is None):
        raise ConfigError(
            f"{PREFIX}CLIENT_CERTIFICATE and {PREFIX}CLIENT_KEY ({signal}): only one of both is set; "
            "expected the files of a certificate and of its key"
        )
    return Endpoint(
        signal=signal,
        protocol=protocol,
        url=url,
        headers=_headers(signal, env),
        gzip=_is_gzip(signal, env),
        timeout_s=_timeout_s(signal, env),
        secure=url.startswith("https://"),
        certificate=_file("CERTIFICATE", signal, env),
        client_certificate=client_certificate,
        client_key=client_key,
    )


def check(
    signals: Iterable[str], env: Mapping[str, str], *, elsewhere: bool = False
) -> None:
    """Check the settings of *signals*, as far as they are sent.

    Args:
        signals: Signals for which ``otlp`` is chosen.
        env: The environment.
        elsewhere: Whether the bridge may run in another environment, so that grpcio is not required
            here.

    Raises:
        ConfigError: A variable can never work.
        MissingExtraError: gRPC is chosen and grpcio is not installed.
    """
    for signal in set(signals) & set(signals_sent(env)):
        try:
            endpoint = endpoint_for(signal, env)
        except MissingExtraError:
            # The bridge may run in an environment that has grpcio, which checks its settings
            # itself.
            if not elsewhere:
                raise
            continue
        _check_certificates(endpoint)


def addresses(env: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the signals that are sent, as the report shows them.

    Without those that are wrong.

    A wrong one was an error at start-up; the report must be written all the same.
    """
    addresses_by_signal: dict[str, str] = {}
    for signal in signals_sent(env):
        try:
            addresses_by_signal[signal] = endpoint_for(signal, env).address
        except ConfigError:  # noqa: PERF203  # three signals
            continue
    return addresses_by_signal


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the destination, without credentials, as a process announces them."""
    values: dict[str, str] = {}
    for part in ("", "METRICS_", "TRACES_", "LOGS_"):
        for kind in ("ENDPOINT", "PROTOCOL"):
            name = f"{PREFIX}{part}{kind}"
            if env.get(name):
                values[name] = without_credentials(env[name])
    return values


def host(env: Mapping[str, str]) -> str:
    """Return the host of the endpoint of all signals; ``localhost`` without one, or for a malformed one."""
    try:
        return urlsplit(env.get(f"{PREFIX}ENDPOINT", "")).hostname or "localhost"
    except ValueError:
        return "localhost"


def note(signals: Collection[str], env: Mapping[str, str]) -> str:
    """Return a hint on the destination of *signals* for the first lines of a run; empty without one.

    Signals that are not sent, and HTTP to the port of gRPC, surprise but are not errors.
    """
    sent = signals_sent(env)
    unsent: list[str] = []
    for signal in _SIGNALS:
        if signal in signals and signal not in sent:
            unsent.append(signal)
    if unsent:
        return (
            f"otlp sends {' and '.join(sent)} only: set {PREFIX}ENDPOINT, or "
            f"{PREFIX}{unsent[0].upper()}_ENDPOINT, for {' and '.join(unsent)}"
        )
    if has_grpc() or not any(_is_http_to_grpc_port(signal, env) for signal in signals):
        return ""
    return (
        f"otlp goes by HTTP, since grpcio is not installed, but port {_GRPC_PORT} is gRPC's: "
        "pip install 'otel-bridge[collector]', or name the port of HTTP, 4318"
    )


def has_grpc() -> bool:
    """Return whether grpcio is installed, so that gRPC can be used."""
    return importlib.util.find_spec("grpc") is not None


def unset_without_grpc(env: Mapping[str, str]) -> bool:
    """Return whether any signal uses HTTP only because its protocol is unset and grpcio is not installed."""
    return not has_grpc() and not all(
        _value("PROTOCOL", signal, env) for signal in signals_sent(env)
    )


def _variable(name: str, signal: str, env: Mapping[str, str]) -> str:
    """Return which variable sets *name* for *signal*: its own, else that of all signals."""
    of_signal = f"{PREFIX}{signal.upper()}_{name}"
    if env.get(of_signal, "").strip():
        return of_signal
    return f"{PREFIX}{name}"


def _value(name: str, signal: str, env: Mapping[str, str]) -> str:
    return env.get(_variable(name, signal, env), "").strip()


def _protocol(signal: str, env: Mapping[str, str]) -> Protocol:
    """Return the protocol of *signal*: gRPC unless it is not installed or another one is set.

    Raises:
        ConfigError: The variable names neither of both.
        MissingExtraError: It names gRPC, and grpcio is not installed.
    """
    chosen = _value("PROTOCOL", signal, env).lower()
    if chosen == "http/protobuf" or (not chosen and not has_grpc()):
        return "http/protobuf"
    variable = _variable("PROTOCOL", signal, env)
    if chosen not in {"", "grpc"}:
        raise ConfigError(
            f"{variable}={chosen!r}: expected grpc or http/protobuf; set it to one of them"
        )
    if not has_grpc():
        raise MissingExtraError(
            f"{variable}=grpc needs grpcio: pip install 'otel-bridge[collector]', or set it to http/protobuf"
        )
    return "grpc"


def _url(signal: str, protocol: Protocol, env: Mapping[str, str]) -> str:
    """Return the address that requests of *signal* go to.

    The general endpoint gets the path of the signal, that of one signal is used as it is
    (specification).

    Raises:
        ConfigError: Nothing can be reached at it.
    """
    variable = _variable("ENDPOINT", signal, env)
    url = _value("ENDPOINT", signal, env) or _DEFAULT[protocol]
    # The specification allows gRPC targets without a scheme.
    if "://" not in url:
        url = f"http://{url}"
    parts = _parts(url, variable)
    if protocol == "grpc":
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    # By the specification the endpoint of one signal is used as it is; the general one gets the
    # path.
    is_of_signal = variable != f"{PREFIX}ENDPOINT"
    if is_of_signal:
        return url
    # A query stays behind the path.
    path = f"{parts.path.rstrip('/')}/v1/{signal}"
    return parts._replace(path=path).geturl()


def _parts(url: str, variable: str) -> SplitResult:
    """Return the parts of *url*; raises `ConfigError` when nothing can be reached at it."""
    shown_url = without_credentials(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError(f"{variable}={shown_url!r}: {exc}; {_ADDRESS}") from exc
    # urlsplit drops line breaks in silence, and HTTP clients do not.
    is_one_word = url.isprintable() and not any(map(str.isspace, parts.netloc))
    # An empty port: of a variable that is not set, or of another kind of address, unix:/path.
    has_bad_port = port == 0 or parts.netloc.endswith(":")
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or has_bad_port
        or not is_one_word
    ):
        raise ConfigError(f"{variable}={shown_url!r}: {_ADDRESS}")
    return parts


def _headers(signal: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of *signal*, with the bearer token unless they name another.

    Raises `ConfigError`.

    An error never shows a value, which may be a credential.

    Names are in lower case, which gRPC demands.
    """
    variable = _variable("HEADERS", signal, env)
    headers: dict[str, str] = {}
    for number, pair in enumerate(_value("HEADERS", signal, env).split(","), 1):
        if not pair.strip():
            continue
        # Percent-encoded, as W3C Baggage is, by the specification.
        quoted_name, equals, quoted_value = pair.partition("=")
        name = unquote(quoted_name).strip().lower()
        if not equals or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(
                f"{variable}: entry {number} is not a header; expected name=value,name=value, with "
                "letters, digits, '-', '_' and '.' in names, and special characters of values as %XX"
            )
        headers[name] = _header_value(
            f"{variable}: the value of {name}", unquote(quoted_value).strip()
        )
    tokens = settings.TOKEN.read(env)
    if tokens:
        headers.setdefault(
            "authorization", _header_value(settings.TOKEN.name, f"Bearer {tokens[0]}")
        )
    return headers


def _header_value(source: str, value: str) -> str:
    """Return *value*; raise `ConfigError` when it cannot be sent.

    The error shows only *source*, as the value may be a token.
    """
    if not _HEADER_VALUE.fullmatch(value):
        raise ConfigError(
            f"{source} has a line break, a control or a non-ASCII character; expected printable ASCII"
        )
    return value


def _is_gzip(signal: str, env: Mapping[str, str]) -> bool:
    """Return whether *signal* is compressed; raise `ConfigError` for another method."""
    compression = _value("COMPRESSION", signal, env).lower()
    if compression not in {"", "none", "gzip"}:
        variable = _variable("COMPRESSION", signal, env)
        raise ConfigError(
            f"{variable}={compression!r}: expected gzip or none; set it to one of them"
        )
    return compression == "gzip"


def _timeout_s(signal: str, env: Mapping[str, str]) -> float:
    """Return the time-out of requests of *signal* in seconds, the specification's default when none is set.

    The number is in seconds, as in the Python SDK; the specification has milliseconds.

    Raises:
        ConfigError: It is not a number above 0.
    """
    raw = _value("TIMEOUT", signal, env)
    if not raw:
        return _TIMEOUT_S
    try:
        return settings.positive_seconds(raw)
    except ValueError as exc:
        raise ConfigError(
            f"{_variable('TIMEOUT', signal, env)}={raw!r}: {exc}"
        ) from exc


def _file(name: str, signal: str, env: Mapping[str, str]) -> str | None:
    """Return the path of a file of TLS, ``None`` without one.

    Raises `ConfigError` when it cannot be read.

    It is read here once, so that a wrong path is an error at start-up, not one of each request.
    """
    path = _value(name, signal, env)
    if not path:
        return None
    try:
        with open(path, "rb"):
            return path
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        variable = _variable(name, signal, env)
        raise ConfigError(
            f"{variable}={path!r}: {reason}; expected a PEM file that can be read"
        ) from exc


def _check_certificates(endpoint: Endpoint) -> None:
    """Raise `ConfigError` when the files of TLS, which `_file` has opened, cannot be used.

    They are checked at start-up, where a person reads the error: each request would fail later.
    """
    # The import takes 12 ms at the start of every program, of which few have a certificate.
    import ssl  # noqa: PLC0415

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if endpoint.certificate:
            context.load_verify_locations(endpoint.certificate)
        if endpoint.client_certificate and endpoint.client_key:
            # An empty passphrase: else OpenSSL asks for one on the terminal, which a bridge does
            # not have.
            context.load_cert_chain(
                endpoint.client_certificate, endpoint.client_key, password=""
            )
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"{PREFIX}CERTIFICATE, _CLIENT_CERTIFICATE or _CLIENT_KEY ({endpoint.signal}): {exc}; "
            "expected PEM files, the key without a passphrase"
        ) from exc


def _is_http_to_grpc_port(signal: str, env: Mapping[str, str]) -> bool:
    """Return whether HTTP goes to gRPC's port by default.

    A protocol that is set is meant, whatever the port.
    """
    if _value("PROTOCOL", signal, env):
        return False
    try:
        return urlsplit(_value("ENDPOINT", signal, env)).port == _GRPC_PORT
    except ValueError:
        return False
