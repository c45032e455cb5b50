"""Where `status` reads: the run folders of a directory here, or ``/status`` of a service over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, cast
from urllib.parse import urlsplit

import orjson
import requests

from otel_bridge import settings
from otel_bridge.cli.run_state import Room, RunState, room_of, run_state_from, state_of
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder, base_dir, run_folders
from otel_bridge.semconv import HEADER_SERVER

NAME_ANOTHER: Final = "pass the folder that holds run folders, or set OTEL_BRIDGE_DIR"
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Overview:
    """All runs of a directory at one moment; *here*: it is one of the machine that is told of it."""

    where: str
    runs: Sequence[RunState]
    room: Room | None = None
    time_unix_ns: int = field(default_factory=time.time_ns)
    here: bool = True

    def to_json(self) -> bytes:
        """Return what ``/status`` answers."""
        return orjson.dumps(self)


Read: TypeAlias = Callable[[], Overview]


def overview_of(base: Path, folders: Sequence[RunFolder], env: Mapping[str, str]) -> Overview:
    """Look at *folders*, all below *base*."""
    room = room_of(base, env) if base.is_dir() else None
    return Overview(str(base), [state_of(folder) for folder in folders], room)


def folders_of(directory: Path | None) -> list[RunFolder]:
    """Return the run folders of *directory*, or the one that it is."""
    base = base_dir(settings.environment(), Path.cwd()) if directory is None else directory
    if (base / "segments").is_dir():
        return [folder for folder in run_folders(base.resolve().parent) if folder.path == base.resolve()]
    return run_folders(base)


def runs_below(base: Path) -> Path | None:
    """Return the first folder in *base* that holds run folders, as ``runs`` in what the demo makes."""
    found = (path for path in sorted(base.glob("*/")) if run_folders(path)) if base.is_dir() else iter(())
    return next(found, None)


def no_run_folder(base: Path) -> str:
    """Return what is said of a directory without run folders: the one below it that has some, if there is one."""
    below = runs_below(base)
    where = NAME_ANOTHER if below is None else f"they are in {below}"
    return f"{base}: no run folder here; {where}"


def is_url(place: str) -> bool:
    """Say whether *place* names a service."""
    return urlsplit(place).scheme in {"http", "https"}


def from_service(url: str, env: Mapping[str, str]) -> Overview:
    """Ask the service at *url*, its HTTP address.

    Raises:
        JournalError: It does not answer, wants another token, or is something else.
    """
    shown = urlsplit(url)._replace(query="", fragment="").geturl().rpartition("@")[2]
    tokens = settings.TOKEN.read(env)
    headers = {"authorization": f"Bearer {tokens[0]}"} if tokens else {}
    try:
        answer = requests.get(f"{url.rstrip('/')}/status", headers=headers, timeout=_TIMEOUT_S, allow_redirects=False)
    except (requests.RequestException, ValueError) as exc:
        raise JournalError(f"{shown} does not answer ({type(exc).__name__}); is `otel-bridge serve` there?") from exc
    if answer.status_code in {401, 403}:
        raise JournalError(f"{shown} refuses us; set OTEL_BRIDGE_TOKEN to a token of the service")
    found = _overview(url, answer.content) if answer.status_code == 200 else None
    if found is None:
        ours = "an otel-bridge without /status: upgrade it" if HEADER_SERVER in answer.headers else "no otel-bridge"
        raise JournalError(f"{shown} answered {answer.status_code}, it is {ours}; name the HTTP address of `serve`")
    return found


def _overview(url: str, body: bytes) -> Overview | None:
    try:
        table = cast("dict[str, object]", orjson.loads(body))
        runs = [run_state_from(raw) for raw in cast("list[object]", table["runs"])]
        room = cast("dict[str, int] | None", table["room"])
        return Overview(
            f"{table['where']} at {url.rpartition('@')[2]}",
            [run for run in runs if run is not None],
            None if room is None else Room(int(room["used_bytes"]), int(room["limit_bytes"])),
            int(cast("int", table["time_unix_ns"])),
            here=False,
        )
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError):
        return None
