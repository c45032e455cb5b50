"""What a process runs: host, script, user and the commit of its repository. Reads three small files, starts nothing.

Source: OpenTelemetry semantic conventions (host, process, vcs); gitrepository-layout(5).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_bridge import semconv

_REVISION: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FILE_BYTES: Final = 1 << 20


def source_of(env: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return what is known of this process's source, attribute to value; what cannot be told is left out.

    Args:
        env: Where the user's name is.
        cwd: Working folder; its repository counts when the script has none.
    """
    script = sys.argv[0] if sys.argv and sys.argv[0] not in {"", "-", "-c", "-m"} else ""
    place = (cwd / script).parent if script else cwd
    found = {
        semconv.HOST_NAME: os.uname().nodename,
        semconv.PROCESS_COMMAND: script,
        semconv.PROCESS_OWNER: env.get("USER") or env.get("LOGNAME") or "",
        semconv.VCS_REVISION: revision_of(place) or revision_of(cwd) or "",
    }
    return {key: value for key, value in found.items() if value}


def revision_of(folder: Path) -> str | None:
    """Return the commit that is checked out where *folder* is, ``None`` outside a repository."""
    try:
        inside = Path(os.path.realpath(folder))
        for parent in (inside, *inside.parents):
            git = parent / ".git"
            if git.is_dir():
                return _head(git, git)
            if git.is_file():  # a worktree or submodule: the folder is elsewhere
                real = parent / _read(git).removeprefix("gitdir:").strip()
                common = real / "commondir"
                return _head(real, real / _read(common).strip() if common.is_file() else real)
    except (OSError, UnicodeDecodeError, ValueError):
        pass
    return None


def _head(git: Path, common: Path) -> str | None:
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _REVISION.fullmatch(head) else None
    reference = head.removeprefix("ref:").strip()
    for folder in (git, common):
        if (folder / reference).is_file():
            loose = _read(folder / reference).strip()
            return loose if _REVISION.fullmatch(loose) else None
    packed = common / "packed-refs"
    for line in _read(packed).splitlines() if packed.is_file() else ():
        revision, _, name = line.partition(" ")
        if name.strip() == reference and _REVISION.fullmatch(revision):
            return revision
    return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES).decode()
