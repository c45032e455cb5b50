"""Variables by which HTTP and gRPC clients reach this machine without the proxy that the environment names. Pure.

A proxy elsewhere takes ``127.0.0.1`` for itself: requests to a receiver of this machine would reach
another server, with their token. Only some clients (Go's, curl for some names) leave this machine
out by themselves; requests, urllib, httpx and gRPC do not.
"""

from __future__ import annotations

from collections.abc import Mapping

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
"""Requests and urllib prefer the first, Go the second; gRPC reads the last, and the first without it."""


def direct_variables(env: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Return the variables by which clients reach this machine and *hosts* directly.

    Empty without a proxy in *env*.

    What *env* excepts stays excepted.

    All three names are set, because clients read different ones.
    """
    if not any(_names_proxy(name) and value for name, value in env.items()):
        return {}
    excepted = env.get("no_proxy") or env.get("NO_PROXY") or ""
    exceptions: dict[str, str] = {}
    for name in _EXCEPTIONS:
        listed = env.get(name) or excepted
        exceptions[name] = _extended(listed, (*_THIS_MACHINE, *hosts))
    return exceptions


def _names_proxy(name: str) -> bool:
    """Return whether a variable names a proxy, of any scheme, not an exception to one."""
    return name.lower().endswith("_proxy") and name not in _EXCEPTIONS


def _extended(exceptions: str, hosts: tuple[str, ...]) -> str:
    """Return *exceptions* with *hosts*, each once."""
    names: list[str] = []
    for name in filter(str.strip, exceptions.split(",")):
        names.append(name.strip())
    if "*" in names:  # no proxy at all, and only if it stands alone
        return exceptions
    return ",".join(dict.fromkeys([*names, *hosts]))
