"""Checks of `doctor` beyond settings: abilities, tokens, credentials, addresses, clocks.

Each check adds lines to show, and lines that state what is wrong and what to do. No check writes
anywhere. A check that needs the network waits a few seconds at most.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit

import requests
from requests.utils import get_environ_proxies, select_proxy
from rich.table import Table

from otel_bridge import settings
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import OTLP, Exporter, ExporterSettings
from otel_bridge.text.addresses import without_credentials

_TIMEOUT_S = 3.0
_SKEW_S = 60.0
_TOKEN_CHARACTERS = 16
"""Characters of a token below which it counts as easy to guess."""
_CREDENTIALS: Mapping[str, Sequence[str]] = {
    "wandb": ("WANDB_API_KEY",),
    "mlflow": (
        "MLFLOW_TRACKING_TOKEN",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
    ),
    "trackio": ("HF_TOKEN",),
    OTLP: ("OTEL_EXPORTER_OTLP_HEADERS",),
}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SOCKS_PORT = 1080


@dataclass(slots=True)
class Findings:
    """Collects what is shown below the verdict, and one line for each problem.

    Attributes:
        whole: Whether what is neither set nor chosen is shown too.
    """

    whole: bool = False
    tables: list[Table] = field(default_factory=list[Table])
    lines: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])


def abilities(
    findings: Findings, name: str, exporter: Exporter, settings: ExporterSettings
) -> None:
    """Import the tracker of a chosen exporter, and show what its installed version lacks.

    A tracker that cannot be imported, or lacks what every run needs, is wrong. Nothing happens for
    an exporter without a tracker. Nothing is raised, whatever the import raises.
    """
    if exporter.probe is None:
        return
    try:
        findings.lines += [f"{name}: {lack}" for lack in exporter.probe(settings)]
    except Exception as exc:  # noqa: BLE001  # a tracker may raise anything while it is imported
        packages = " ".join(exporter.requires)
        error = (
            incompatibility(exc, packages, f"pip install --upgrade {packages}") or exc
        )
        help_ = (
            f"; {error.help}" if isinstance(error, BlockedError) and error.help else ""
        )
        findings.wrong.append(f"{name}: {error}{help_}")


def tokens(findings: Findings, env: Mapping[str, str]) -> None:
    """Show the configured tokens, masked, and which of them is too short to be safe.

    Raises:
        ConfigError: The setting cannot be read.
    """
    for token in settings.TOKEN.read(env):
        findings.lines.append(f"token of {settings.TOKEN.name}: {masked(token)}")
        if len(token) < _TOKEN_CHARACTERS:
            findings.wrong.append(
                f"a token of {settings.TOKEN.name} has {len(token)} characters, fewer than {_TOKEN_CHARACTERS}; make a "
                "longer one: openssl rand -hex 24"
            )


def masked(secret: str) -> str:
    """Return what may be shown of a secret: its length and, of a long one, its last characters."""
    # Four characters of a short secret would be a good part of it.
    tail = f"…{secret[-4:]}, " if len(secret) >= _TOKEN_CHARACTERS else ""
    return f"{tail}{len(secret)} characters"


def tracker(
    findings: Findings,
    name: str,
    destination: Mapping[str, str],
    env: Mapping[str, str],
) -> None:
    """Show which credentials a chosen exporter has, masked, and whether its addresses answer.

    Args:
        findings: Where it is shown.
        name: The exporter.
        destination: Its destination; values that are addresses are contacted.
        env: The environment.
    """
    for variable in _CREDENTIALS.get(name, ()):
        if env.get(variable):
            credential = masked(env[variable])
            findings.lines.append(f"{name}: {variable} is set ({credential})")
    for address in dict.fromkeys(destination.values()):
        # Not by `urlsplit`, which raises for some addresses: `_ask` reports those as wrong.
        if address.partition("://")[0].lower() in _DEFAULT_PORTS:
            _ask(findings, name, address)


def _ask(findings: Findings, name: str, address: str) -> None:
    """Show whether a server answers, and that its clock differs by more than a minute.

    One that does not answer within `_TIMEOUT_S`, or whose address is malformed, is wrong. Behind a
    proxy of the environment the proxy is asked: the server's name may be known only to it. Rows
    carry the times of this machine, by which trackers order runs.
    """
    server = without_credentials(address).partition("?")[0]
    by_proxy = ""
    try:
        parts = urlsplit(address)
        proxy = _proxy_of(address)
        next_hop = proxy or parts
        port = next_hop.port or _DEFAULT_PORTS.get(next_hop.scheme, _SOCKS_PORT)
        if proxy is not None:
            by_proxy = f" by the proxy {proxy.hostname}:{port}"
        # A connection only: a request could need credentials, or have an effect.
        socket.create_connection((next_hop.hostname or "", port), _TIMEOUT_S).close()
    except (OSError, ValueError) as exc:
        findings.wrong.append(
            f"{name}: {server} does not answer{by_proxy} ({exc}); records wait on this machine until it does: "
            "check the address, the network, and whether the server runs"
        )
        return
    if by_proxy:
        findings.lines.append(f"{name}: {server} is reached{by_proxy}, which answers")
    else:
        findings.lines.append(f"{name}: {server} answers")
    skew_s = _skew_s(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/")
    if abs(skew_s) > _SKEW_S:
        findings.wrong.append(
            f"{name}: the clock of {parts.hostname} and of this machine differ by {skew_s:.0f} s: set yours by NTP"
        )


def _proxy_of(address: str) -> SplitResult | None:
    """Return the address of the proxy by which requests reach *address*; ``None`` without one.

    Raises `ValueError` for an address that cannot be read.
    """
    proxy = select_proxy(address, get_environ_proxies(address))
    if proxy is None:
        return None
    # As requests reads one without a scheme.
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _skew_s(url: str) -> float:
    """Return how many seconds the server's clock is ahead, by the Date of its answer.

    It is 0 without an answer or a Date that can be read.
    """
    try:
        answer = HttpSession().head(url, timeout=_TIMEOUT_S, allow_redirects=False)
        return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()
    except (requests.RequestException, KeyError, ValueError, TypeError):
        # Without an answer or its Date the clock is not judged.
        return 0.0
