"""Reads where Trackio keeps its store from Trackio's own variables, without importing it.

Source: ``_get_trackio_dir``, ``resolve_space_id_and_server_url``, ``parse_trackio_server_url`` and
``get_storage_mode`` in trackio/utils.py; ``_space_id_to_url`` in trackio/remote_client.py;
``HF_HOME`` in huggingface_hub/constants.py.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import RunInfo
from otel_bridge.journal.machine import network_file_system
from otel_bridge.semconv import TRACKIO_PROJECT
from otel_bridge.setting_parsers import absolute_path, http_parts
from otel_bridge.settings import Setting, flag, seconds
from otel_bridge.text.addresses import without_credentials

TIMEOUT_S = Setting(
    "OTEL_BRIDGE_TRACKIO_TIMEOUT_S",
    30.0,
    seconds,
    "Time limit for one request to a Trackio server or Space.",
)
ALL_SERIES = Setting(
    "OTEL_BRIDGE_TRACKIO_ALL_SERIES",
    False,
    flag,
    "Write the step axis of every role to each row, so that it can be the x axis, and the statistics `total` and "
    "`kept` of rollouts.",
)
_MODES = ("auto", "sqlite", "jsonl")


@dataclass(frozen=True, slots=True)
class Remote:
    """Identifies a Trackio server, or a Space that runs one.

    Attributes:
        url: Its address without credentials. The path ends in ``/``; a query for the dashboard may
            follow.
        space: Id of the Space, ``None`` for a self-hosted server.
        write_token: Token that a self-hosted server requires.
        hf_token: Token that a Space requires; sent to Spaces only.
        timeout_s: Setting `TIMEOUT_S`.
    """

    url: str
    space: str | None = None
    write_token: str | None = field(default=None, repr=False)
    hf_token: str | None = field(default=None, repr=False)
    timeout_s: float = TIMEOUT_S.default


@dataclass(frozen=True, slots=True)
class TrackioSettings:
    """Holds the settings of one Trackio store.

    Attributes:
        directory: ``TRACKIO_DIR``, absolute: the local store.
        is_default: Whether no variable named it, so that Trackio's own commands find it without a
            variable.
        remote: The server that rows are sent to instead of the local store.
        inbox: Whether files for the dashboard are written instead of the database, because
            `directory` is on a network file system.
        all_series: Setting `ALL_SERIES`.
    """

    directory: Path
    is_default: bool
    remote: Remote | None = None
    inbox: bool = False
    all_series: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> TrackioSettings:
        """Read the settings; a relative folder is relative to *cwd*.

        Raises:
            ConfigError: The value of a variable is not valid: an address, a Space, a mode, a time
                or a folder.
        """
        chosen = env.get("TRACKIO_DIR")
        directory = (
            absolute_path("TRACKIO_DIR", chosen, cwd)
            if chosen
            else _hugging_face_home(env, cwd) / "trackio"
        )
        remote = _remote(env, cwd)
        inbox = _inbox(env, directory)
        # A server is written to over HTTP, whatever file system the local folder is on.
        inbox = inbox and remote is None
        return cls(
            directory, not chosen, remote, inbox=inbox, all_series=ALL_SERIES.read(env)
        )

    @property
    def destination(self) -> Mapping[str, str]:
        """Return the variable that defines the destination.

        It names the destination in the ledger: a delivery goes on only where this is the same.
        """
        if self.remote is None:
            return {"TRACKIO_DIR": str(self.directory)}
        if self.remote.space:
            return {"TRACKIO_SPACE_ID": self.remote.space}
        return {"TRACKIO_SERVER_URL": self.remote.url}

    @property
    def caution(self) -> str:
        """Return what this destination does not keep, printed once at the start.

        Empty when it keeps everything.
        """
        if self.remote is not None:
            return "trackio: a server keeps no event times, rows and traces get the time of their arrival"
        if self.inbox:
            return f"trackio: {self.directory} gets an inbox, rows appear while `trackio show` runs"
        return ""

    def view(self, run: RunInfo) -> str:
        """Return the address of the dashboard, or the command that opens it on the run's project."""
        if self.remote is not None:
            address = without_credentials(self.remote.url)
            return f"{address}{'&' if '?' in address else '?'}project={quote(project_of(run))}"
        command = f"trackio show --project {shlex.quote(project_of(run))}"
        if self.is_default:
            return command
        return f"TRACKIO_DIR={shlex.quote(str(self.directory))} {command}"


def project_of(run: RunInfo) -> str:
    """Return the Trackio project: the producer's ``TRACKIO_PROJECT``, else the run's project."""
    return run.identity.get(TRACKIO_PROJECT) or run.project


def _remote(env: Mapping[str, str], cwd: Path) -> Remote | None:
    """Return the server that the variables name, ``None`` for the local store.

    Raises:
        ConfigError: The Space or the address is not valid. It is shown without a token.
    """
    space = env.get("TRACKIO_SPACE_ID", "").strip()
    url = env.get("TRACKIO_SERVER_URL", "").strip()
    # requests refuses a timeout of 0.
    timeout_s = max(TIMEOUT_S.read(env), 1.0)
    if space:  # takes precedence over the server, as in Trackio
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", space):
            raise ConfigError(
                f"TRACKIO_SPACE_ID={space!r}: expected OWNER/NAME, e.g. ada/trackio"
            )
        # The host that the Hub gives a Space (_space_id_to_url in trackio/remote_client.py).
        host = re.sub(r"[_.]", "-", space.replace("/", "-").lower())
        return Remote(
            f"https://{host}.hf.space/",
            space,
            hf_token=_hf_token(env, cwd),
            timeout_s=timeout_s,
        )
    if not url:
        return None
    parts = http_parts(url)
    if parts is None:
        raise ConfigError(
            f"TRACKIO_SERVER_URL={without_credentials(url).partition('?')[0]!r}: expected http(s)://HOST[:PORT]"
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    # Out of the address, which is shown in messages and reports.
    token = query.pop("write_token", None) or env.get("TRACKIO_WRITE_TOKEN") or None
    # Without user and password, because the address is shown.
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/")
    # A self-hosted server never gets the token of the Hub (trackio/remote_client.py).
    hf_token = None
    if host.lower().endswith(".hf.space"):
        hf_token = _hf_token(env, cwd)
    query_text = f"?{urlencode(query)}" if query else ""
    return Remote(
        f"{parts.scheme}://{host}{path}/{query_text}", None, token, hf_token, timeout_s
    )


def _inbox(env: Mapping[str, str], directory: Path) -> bool:
    """Return whether files are written for the dashboard instead of the database.

    Raises:
        ConfigError: ``TRACKIO_STORAGE_MODE`` is not one of Trackio's.
    """
    mode = env.get("TRACKIO_STORAGE_MODE", "").strip().lower() or "auto"
    if mode not in _MODES:
        raise ConfigError(
            f"TRACKIO_STORAGE_MODE={mode!r}: expected one of {', '.join(_MODES)}"
        )
    # "auto" as Trackio does it: SQLite's locks do not hold on network file systems.
    return mode == "jsonl" or (
        mode == "auto" and network_file_system(directory) is not None
    )


def _hf_token(env: Mapping[str, str], cwd: Path) -> str | None:
    """Return the token that a variable holds, or ``hf auth login`` has stored, ``None`` without one.

    Raises:
        ConfigError: The folder in which it may be stored is not known.
    """
    variable = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if variable:
        return variable.strip()
    # No readable file means no login, as for huggingface_hub: a public server needs no token.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = (
            _expanded_path("HF_TOKEN_PATH", env, cwd)
            if env.get("HF_TOKEN_PATH")
            else _hugging_face_home(env, cwd) / "token"
        )
        return path.read_text("utf-8").strip() or None
    return None


def _hugging_face_home(env: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder of Hugging Face, as huggingface_hub finds it.

    Raises:
        ConfigError: It is below a home that is not known.
    """
    if env.get("HF_HOME"):
        return _expanded_path("HF_HOME", env, cwd)
    if env.get("XDG_CACHE_HOME"):
        cache = _expanded_path("XDG_CACHE_HOME", env, cwd)
    else:
        cache = absolute_path("HOME", env.get("HOME") or "~", cwd) / ".cache"
    return cache / "huggingface"


def _expanded_path(name: str, env: Mapping[str, str], cwd: Path) -> Path:
    """Return the path that the variable *name* has, with the variables in it replaced, as huggingface_hub does.

    Raises `ConfigError` as `absolute_path`.
    """
    # An unknown one stays as it is. No shell replaces them in a container's file of variables.
    value = re.sub(
        r"\$(\w+|\{[^}]*\})",
        lambda match: env.get(match[1].strip("{}"), match[0]),
        env[name],
    )
    return absolute_path(name, value, cwd)
