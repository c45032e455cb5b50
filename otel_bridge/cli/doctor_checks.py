"""What `doctor` finds out beyond settings: versions, ports, tokens, credentials, who answers, whose clock is off.

Each check returns lines to show, and lines that say what is wrong and what to do. Nothing here writes anywhere; a check
that needs the network waits a few seconds at most.
"""

from __future__ import annotations

import importlib.metadata
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import psutil
import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from otel_bridge import settings
from otel_bridge.exporter import OTLP
from otel_bridge.semconv import HEADER_SERVER

_TIMEOUT_S: Final = 3.0
_SKEW_S: Final = 60.0
_TOKEN_CHARACTERS: Final = 16
_PORTS: Final = (4317, 4318)
_CREDENTIALS: Final[Mapping[str, Sequence[str]]] = {
    "wandb": ("WANDB_API_KEY",),
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    "trackio": ("HF_TOKEN",),
    OTLP: ("OTEL_EXPORTER_OTLP_HEADERS",),
}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(slots=True)
class Found:
    """Lines to show, and lines that say what is wrong."""

    shown: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])


def versions(exporters: Iterable[str]) -> Found:
    """Compare the trackers' packages with the versions that this one was tested with."""
    found = Found()
    wanted = _ranges()
    for name in exporters:
        if name not in wanted:
            continue
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # the exporter says so itself
        if not within(version, wanted[name]):
            found.wrong.append(
                f"{name} {version} is installed, tested are {wanted[name]}: pip install 'otel-bridge[{name}]'"
            )
    return found


def within(version: str, wanted: str) -> bool:
    """Say whether *version* lies in a range such as ``>=0.28,<0.32``."""
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _ranges() -> dict[str, str]:
    """Return the range of each package that an extra of ours names."""
    ranges: dict[str, str] = {}
    for requirement in map(Requirement, importlib.metadata.requires("otel-bridge") or ()):
        if requirement.marker is not None and requirement.specifier:
            ranges[requirement.name] = str(requirement.specifier)
    return ranges


def ports() -> Found:
    """Say whether the ports of OTLP are free on this machine, or who has them."""
    return Found([f"port {port}: {_holder(port)}" for port in _PORTS])


def _holder(port: int) -> str:
    with socket.socket() as probe:
        probe.settimeout(_TIMEOUT_S)
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return "free"
    try:
        answer = requests.get(f"http://127.0.0.1:{port}/healthz", timeout=_TIMEOUT_S)
        if HEADER_SERVER in answer.headers:
            return f"otel-bridge {answer.headers[HEADER_SERVER]}"
    except requests.RequestException:
        pass  # gRPC, TLS, or somebody else
    return _process_at(port) or "taken by a process of another user"


def _process_at(port: int) -> str:
    try:
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.laddr[1] == port and one.status == psutil.CONN_LISTEN and one.pid:
                return f"taken by process {one.pid} ({psutil.Process(one.pid).name()})"
    except (psutil.Error, OSError):
        pass
    return ""


def tokens(env: Mapping[str, str]) -> Found:
    """Say which tokens there are, masked, and which is too short to be safe."""
    found = Found()
    for token in settings.TOKEN.read(env):
        found.shown.append(f"token: {masked(token)}")
        if len(token) < _TOKEN_CHARACTERS:
            found.wrong.append(
                f"a token of {settings.TOKEN.name} has {len(token)} characters, at least {_TOKEN_CHARACTERS} are "
                "hard to guess: openssl rand -hex 24"
            )
    return found


def masked(secret: str) -> str:
    """Return what may be shown of a secret: its length, and its last characters when it is long."""
    tail = f"…{secret[-4:]}, " if len(secret) >= _TOKEN_CHARACTERS else ""
    return f"{tail}{len(secret)} characters"


def tracker(name: str, destination: Mapping[str, str], env: Mapping[str, str]) -> Found:
    """Say which credentials a chosen exporter has, masked, and whether its addresses answer.

    Args:
        name: The exporter.
        destination: Where it delivers; values that are addresses are asked.
        env: The environment.
    """
    found = Found()
    given = [variable for variable in _CREDENTIALS.get(name, ()) if env.get(variable)]
    found.shown += [f"{name}: {variable} is set ({masked(env[variable])})" for variable in given]
    for address in dict.fromkeys(destination.values()):
        if urlsplit(address).scheme in _DEFAULT_PORTS:
            _ask(found, name, address)
    return found


def _ask(found: Found, name: str, address: str) -> None:
    parts = urlsplit(address)
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        socket.create_connection((parts.hostname or "", port), _TIMEOUT_S).close()
    except (OSError, ValueError) as exc:
        found.wrong.append(
            f"{name}: {shown} does not answer ({exc}); what is emitted waits here until it does: check the address, "
            "the network, and whether it runs"
        )
        return
    found.shown.append(f"{name}: {shown} answers")
    skew_s = _skew_s(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/")
    if abs(skew_s) > _SKEW_S:
        found.wrong.append(
            f"{name}: the clock of {parts.hostname} differs from this machine's by {skew_s:.0f} s: set this one by NTP"
        )


def _skew_s(url: str) -> float:
    """Return how far the other clock is ahead, by the Date of its answer; 0 where it has none."""
    try:
        answer = requests.head(url, timeout=_TIMEOUT_S, allow_redirects=False)
        return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()
    except (requests.RequestException, KeyError, ValueError, TypeError):
        return 0.0
