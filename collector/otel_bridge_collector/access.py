"""Decides which clients may send, by bearer tokens and TLS client certificates. Closed by default."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge_collector.error_table import ForbiddenError, UnauthenticatedError

_PORT = re.compile(r":\d*$")
_SHOWN = 80
"""Most characters of a header that an error shows."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Holds the files of TLS, in PEM.

    Attributes:
        certificate: The server's certificate, with its chain.
        key: Its key.
        client_ca: CA certificates that must have signed a client's certificate; ``None`` when
            clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Tls | None:
        """Read the three variables and check the files; ``None`` when none is set.

        Raises:
            ConfigError: A variable is missing, or a file cannot be used.
        """
        certificate = settings.TLS_CERT.read(env)
        key = settings.TLS_KEY.read(env)
        client_ca = settings.TLS_CLIENT_CA.read(env)
        if not (certificate or key or client_ca):
            return None
        if not (certificate and key):
            raise ConfigError(
                f"TLS needs both {settings.TLS_CERT.name} and {settings.TLS_KEY.name}; set both or none"
            )
        tls = cls(Path(certificate), Path(key), Path(client_ca) if client_ca else None)
        tls.check()
        return tls

    def check(self) -> None:
        """Load the files; raise a `ConfigError` that names a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path in (self.certificate, self.key, self.client_ca):
            # Not `Path.is_file`, which raises where this user may not enter a folder above.
            if path is not None and not os.path.isfile(path):
                raise ConfigError(
                    f"{path} is not a file; expected PEM, see {settings.TLS_CERT.name}"
                )
        try:
            # An empty passphrase: else OpenSSL asks for one on the terminal, and the servers cannot.
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as exc:  # `ssl.SSLError` is one
            raise ConfigError(
                f"{self.certificate} with {self.key}: {exc}; expected a certificate and its key, without a passphrase"
            ) from exc
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except OSError as exc:
            raise ConfigError(
                f"{self.client_ca}: {exc}; expected certificates in PEM"
            ) from exc


class Access:
    """Accepts or refuses each request; what it raises is an answer of `error_table`, and is final.

    Args:
        tokens: Bearer tokens, one of which a client must send; several, so that they can be
            rotated. Without tokens every client that reaches the port may send, except web pages.
        any_host: Whether any host name is accepted, because clients must have a certificate.
    """

    def __init__(self, tokens: Sequence[str], *, any_host: bool = False) -> None:
        self._tokens = [token.encode() for token in tokens]
        self._any_host = any_host

    def check(self, headers: Mapping[str, str], *, is_page: bool = False) -> int:
        """Return which token an allowed request has, from 1, and 0 where no token is required.

        Raises for a request that is not allowed.

        ``OTEL_EXPORTER_OTLP_HEADERS`` is percent-encoded by its specification, and some SDKs send
        it without decoding. So both a space and ``%20`` after ``Bearer`` are accepted.

        Args:
            headers: Headers of the request, with names in lower case. Some are of browsers, because
                a web page must not write or read here without permission.
            is_page: Whether the request reads a page.

        Raises:
            UnauthenticatedError: The request has none of the tokens.
            ForbiddenError: The request comes from a web page, and no token is required.
        """
        if not self._tokens:
            self._refuse_web_pages(headers, is_page=is_page)
            return 0
        sent = str(headers.get("authorization", ""))
        candidates = (_bearer(sent), _bearer(unquote(sent)))
        accepted = 0
        # Every token is compared, so that the duration does not reveal which token was similar.
        # Two candidates, because a token may hold a percent sign of its own.
        for number, token in enumerate(self._tokens, 1):
            for candidate in candidates:
                if candidate and hmac.compare_digest(token, candidate):
                    accepted = number
        if not accepted:
            raise UnauthenticatedError(
                "this receiver requires `authorization: Bearer <token>`; set OTEL_BRIDGE_TOKEN where data is sent from"
            )
        return accepted

    def _refuse_web_pages(self, headers: Mapping[str, str], *, is_page: bool) -> None:
        """Raise `ForbiddenError` for a request that a web page may have made.

        Without a token anything on this machine may send, and a page in a browser of this machine
        could. Requests of programs have neither of the headers.
        """
        # Browsers send Origin with every POST, but not with a GET of the page's own site.
        # Sec-Fetch-Site is how the page's site relates to this server's (W3C Fetch Metadata);
        # "none": a person typed the address, or opened a bookmark.
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise ForbiddenError(
                "requests of web pages are accepted with a token only; set OTEL_BRIDGE_TOKEN"
            )
        # After DNS rebinding it is the name of the page's server, not of this one.
        host = headers.get("host", "localhost")
        if is_page and not self._any_host and not _is_own_name(host):
            raise ForbiddenError(
                f"Host {host[:_SHOWN]!r} is neither localhost nor an address: a web page may be behind it; "
                "use 127.0.0.1, or set OTEL_BRIDGE_TOKEN"
            )


def _is_own_name(host: str) -> bool:
    """Return whether *host* is an address or localhost, so that no other DNS server can have led a browser here."""
    name = host
    if _PORT.search(host):
        name = host.rpartition(":")[0]
    name = name.strip("[]").lower().rstrip(".")
    # Browsers resolve these names to this machine without asking any DNS server.
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(authorization: str) -> bytes | None:
    """Return the token of a header, ``None`` when it is of another scheme or absent."""
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return token.strip().encode("utf-8", "surrogateescape")
    return None
