"""Who may send: bearer tokens, and TLS with certificates of its own for clients. Closed by default."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge_collector.answers import ForbiddenError, UnauthenticatedError


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of TLS, PEM.

    Attributes:
        certificate: The server's, with its chain.
        key: Its key.
        client_ca: Certificates that a client's own must be signed by; ``None``: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Tls | None:
        """Read the three variables and check the files; ``None`` when none is set.

        Raises:
            ConfigError: One is missing, or a file cannot be used.
        """
        certificate, key = settings.TLS_CERT.read(env), settings.TLS_KEY.read(env)
        client_ca = settings.TLS_CLIENT_CA.read(env)
        if not (certificate or key or client_ca):
            return None
        if not (certificate and key):
            raise ConfigError(f"TLS needs both {settings.TLS_CERT.name} and {settings.TLS_KEY.name}; set both or none")
        tls = cls(Path(certificate), Path(key), Path(client_ca) if client_ca else None)
        tls.check()
        return tls

    def check(self) -> None:
        """Load the files; raises `ConfigError` that names the one that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path in (self.certificate, self.key, self.client_ca):
            if path is not None and not path.is_file():
                raise ConfigError(f"{path} is no file; expected PEM, see {settings.TLS_CERT.name}")
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as exc:
            raise ConfigError(f"{self.certificate} with {self.key}: {exc}; expected a certificate and its key") from exc
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (ssl.SSLError, OSError) as exc:
            raise ConfigError(f"{self.client_ca}: {exc}; expected certificates in PEM") from exc


class Access:
    """Decides about each request.

    Args:
        tokens: Bearer tokens, one of which a client must send; several, so that they can be rotated. None: everybody
            may that reaches the port.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    @property
    def open(self) -> bool:
        """No token is asked for."""
        return not self._tokens

    def check(self, authorization: str | None, origin: str | None = None) -> None:
        """Let a request pass, or not.

        ``OTEL_EXPORTER_OTLP_HEADERS`` is percent-encoded by its specification, and some SDKs send it as it stands:
        both a space and ``%20`` behind ``Bearer`` are taken.

        Args:
            authorization: The header of that name.
            origin: The header that a browser adds: a page that somebody looks at must not write here unasked.

        Raises:
            UnauthenticatedError: It carries none of the tokens.
            ForbiddenError: It comes from a web page, and no token is asked for.
        """
        if not self._tokens:
            if origin is not None:
                raise ForbiddenError("requests of web pages are taken with a token only; set OTEL_BRIDGE_TOKEN")
            return
        sent = authorization or ""
        given = [_bearer(sent), _bearer(unquote(sent))]  # a token may hold a percent sign of its own
        # Every token is compared, so that the time says nothing about which one was near.
        matches = [hmac.compare_digest(token, one) for token in self._tokens for one in given if one is not None]
        if not any(matches):
            raise UnauthenticatedError(
                "this receiver wants `authorization: Bearer <token>`; set OTEL_BRIDGE_TOKEN where the data comes from"
            )


def _bearer(authorization: str) -> bytes | None:
    """Return the token of a header, ``None`` when it is of another scheme."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else None


def is_loopback(host: str) -> bool:
    """Say whether *host* can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
