"""Where run folders are: ``OTEL_BRIDGE_DIR``, else ``.otel-bridge`` in the working folder, if its disk is local."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from otel_bridge.journal.netfs import network_file_system
from otel_bridge.settings import DIR

DEFAULT_NAME: Final = ".otel-bridge"
_SHARED_TEMPORARY: Final = ("/var/tmp", "/tmp")  # noqa: S108  # a folder of our own is made there, 0700


@dataclass(frozen=True, slots=True)
class BaseDir:
    """Where run folders are, and why there.

    Attributes:
        path: The folder, absolute.
        instead_of: The folder that would have been taken, were it not on a network file system.
        file_system: Type of that file system, e.g. ``nfs4``; also set when `path` itself had to be on one.
    """

    path: Path
    instead_of: Path | None = None
    file_system: str | None = None


def base_dir(env: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder of run folders; `find_base` says why there."""
    return find_base(env, cwd).path


def find_base(env: Mapping[str, str], cwd: Path, *, mountinfo: str | None = None) -> BaseDir:
    """Choose the folder of run folders; makes nothing.

    A folder that ``OTEL_BRIDGE_DIR`` names is taken, wherever it is. The default folder, were it on a network file
    system, is replaced by one of this machine: record locks and SQLite need that.

    Args:
        env: The environment.
        cwd: The working folder.
        mountinfo: Text of ``/proc/self/mountinfo``; read when not given.
    """
    named = DIR.read(env)
    if named:
        path = Path(os.path.abspath(cwd / Path(named).expanduser()))
        return BaseDir(path, None, network_file_system(path, mountinfo))
    default = Path(os.path.abspath(cwd / DEFAULT_NAME))
    kind = network_file_system(default, mountinfo)
    if kind is None:
        return BaseDir(default)
    for state in _state_folders(env):
        if network_file_system(state, mountinfo) is None and _can_be_made(state):
            return BaseDir(state / _key(default), default, kind)
    return BaseDir(default, None, kind)


def _state_folders(env: Mapping[str, str]) -> list[Path]:
    homes = [env.get("XDG_STATE_HOME", ""), f"{env['HOME']}/.local/state" if env.get("HOME") else ""]
    mine = f"otel-bridge-{os.getuid()}"
    temporary = [env.get("TMPDIR", ""), *_SHARED_TEMPORARY]
    return [Path(home) / "otel-bridge" for home in homes if os.path.isabs(home)] + [
        Path(folder) / mine for folder in temporary if os.path.isabs(folder)
    ]


def _can_be_made(path: Path) -> bool:
    """Say whether *path* is ours and writable, or can be made."""
    if path.exists():
        status = path.stat()
        return path.is_dir() and status.st_uid == os.getuid() and os.access(path, os.W_OK | os.X_OK)
    parent = path.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def _key(path: Path) -> str:
    # The same path on two machines is the same name; each has a disk of its own.
    parent = path.parent.name or "root"
    return f"{parent[:60]}-{sha256(os.fsencode(path)).hexdigest()[:16]}"
