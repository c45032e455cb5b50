"""Checks of `doctor` beyond settings: versions, tokens, credentials, addresses, clocks.

Each check returns lines to show, and lines that state what is wrong and what to do. No check writes
anywhere. A check that needs the network waits a few seconds at most.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import requests

from otel_bridge import settings
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import OTLP, Exporter, ExporterSettings
from otel_bridge.text.addresses import without_credentials

_TIMEOUT_S = 3.0
_SKEW_S = 60.0
_TOKEN_CHARACTERS = 16
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


@dataclass(slots=True)
class Finding:
    """Holds the lines of a check: those to show, and those that state what is wrong."""

    shown: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])


def versions(exporters: Mapping[str, Exporter]) -> Finding:
    """Return the version of each tracker next to those that its exporter was tested with.

    An untested version is not a problem by itself: `abilities` probes what works.
    """
    finding = Finding()
    for name, exporter in exporters.items():
        for package in exporter.requires if exporter.tested_with else ():
            # The exporter reports it itself.
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(package)
                of = "" if name == package else f"{name}: "
                finding.shown.append(
                    f"{of}{package} {version}: the exporter was tested with {exporter.tested_with}"
                )
    return finding


def abilities(name: str, exporter: Exporter, settings: ExporterSettings) -> Finding:
    """Import the tracker of a chosen exporter, and return what its installed version lacks."""
    if exporter.probe is None:
        return Finding()
    try:
        return Finding([f"{name}: {sentence}" for sentence in exporter.probe(settings)])
    except Exception as exc:  # noqa: BLE001  # a tracker may raise anything while it is imported
        packages = " ".join(exporter.requires)
        error = (
            incompatibility(exc, packages, f"pip install --upgrade {packages}") or exc
        )
        help_ = (
            f"; {error.help}" if isinstance(error, BlockedError) and error.help else ""
        )
        return Finding(wrong=[f"{name}: {error}{help_}"])


def tokens(env: Mapping[str, str]) -> Finding:
    """Return the configured tokens, masked, and which of them is too short to be safe."""
    finding = Finding()
    for token in settings.TOKEN.read(env):
        finding.shown.append(f"token of {settings.TOKEN.name}: {masked(token)}")
        if len(token) < _TOKEN_CHARACTERS:
            finding.wrong.append(
                f"a token of {settings.TOKEN.name} has {len(token)} characters, fewer than {_TOKEN_CHARACTERS}; make a "
                "longer one: openssl rand -hex 24"
            )
    return finding


def masked(secret: str) -> str:
    """Return what may be shown of a secret: its length and, of a long one, its last characters."""
    # Four characters of a short secret would be a good part of it.
    tail = f"…{secret[-4:]}, " if len(secret) >= _TOKEN_CHARACTERS else ""
    return f"{tail}{len(secret)} characters"


def tracker(
    name: str, destination: Mapping[str, str], env: Mapping[str, str]
) -> Finding:
    """Return which credentials a chosen exporter has, masked, and whether its addresses answer.

    Args:
        name: The exporter.
        destination: Its destination; values that are addresses are contacted.
        env: The environment.
    """
    finding = Finding()
    credentials = [
        variable for variable in _CREDENTIALS.get(name, ()) if env.get(variable)
    ]
    finding.shown += [
        f"{name}: {variable} is set ({masked(env[variable])})"
        for variable in credentials
    ]
    for address in dict.fromkeys(destination.values()):
        if urlsplit(address).scheme in _DEFAULT_PORTS:
            _ask(finding, name, address)
    return finding


def _ask(finding: Finding, name: str, address: str) -> None:
    parts = urlsplit(address)
    shown = without_credentials(address).partition("?")[0]
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        # A connection only: a request could need credentials, or have an effect.
        socket.create_connection((parts.hostname or "", port), _TIMEOUT_S).close()
    except (OSError, ValueError) as exc:
        finding.wrong.append(
            f"{name}: {shown} does not answer ({exc}); records wait on this machine until it does: check the address, "
            "the network, and whether the server runs"
        )
        return
    finding.shown.append(f"{name}: {shown} answers")
    skew_s = _skew_s(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/")
    if abs(skew_s) > _SKEW_S:
        finding.wrong.append(
            f"{name}: the clock of {parts.hostname} and of this machine differ by {skew_s:.0f} s: set yours by NTP"
        )


def _skew_s(url: str) -> float:
    """Return how many seconds the server's clock is ahead, by the Date of its answer.

    It is 0 without a Date.
    """
    try:
        answer = HttpSession().head(url, timeout=_TIMEOUT_S, allow_redirects=False)
        return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()
    except (requests.RequestException, KeyError, ValueError, TypeError):
        # Without an answer or its Date the clock is not judged.
        return 0.0
