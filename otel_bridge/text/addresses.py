"""Addresses -> the form to store and show, without user, password and secret parameters; which are of this machine.

Pure.

Source: RFC 3986, section 3.2.1, for the user information of an authority.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote_plus

_USER = re.compile(r"[^/?#]*@")
_UNQUOTED_USER = re.compile(r"[^/?#:@\s\[]*:(?!\d{1,5}(?:[/?#]|\Z))\S*@")
"""A password with ``/``, ``?`` or ``#`` that was not percent-encoded: no port follows the colon."""
_USER_WITHOUT_SCHEME = re.compile(r"[^/?#:@\s]+:[^/@\s]+@")
_SECRET_PARAMETERS = (
    "pass",
    "pwd",
    "token",
    "secret",
    "key",
    "credential",
    "auth",
    "sig",
    "cookie",
    "jwt",
)
"""Parts of names, each of a parameter whose value may be a secret: more than in a config, where ``key`` is a word."""


def without_credentials(address: str) -> str:
    """Return *address* without user, password and secret query parameters.

    Other text stays unchanged; nothing raises. A password in an address that breaks RFC 3986 goes
    as well: people paste it as it is.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        if _USER_WITHOUT_SCHEME.match(address):
            return _USER_WITHOUT_SCHEME.sub("", address, count=1)
        return address
    # The rule of RFC 3986 first; a password that breaks it must not be shown either.
    user = _USER.match(rest) or _UNQUOTED_USER.match(rest)
    address, mark, query = (rest[user.end() :] if user else rest).partition("?")
    if not mark:
        return f"{scheme}://{address}"
    parameters, hash_mark, fragment = query.partition("#")
    parameters = "&".join(
        pair for pair in parameters.split("&") if not _is_secret(pair)
    )
    return (
        f"{scheme}://{address}"
        + (f"?{parameters}" if parameters else "")
        + hash_mark
        + fragment
    )


def is_loopback(host: str) -> bool:
    """Return whether *host* can be reached from this machine only: by its address, or as ``localhost``.

    Other names are not looked up.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_secret(pair: str) -> bool:
    """Return whether a query parameter has the name of a secret, also within a longer name.

    ``X-Amz-Signature`` is such a name.
    """
    name = unquote_plus(pair.partition("=")[0]).lower()
    return any(word in name for word in _SECRET_PARAMETERS)
