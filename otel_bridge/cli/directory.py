"""Creates the directory that a command writes to, or reports why it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.journal.base_dir import why_not_ours


def made(path: Path, *, help_text: str = "set --dir or OTEL_BRIDGE_DIR") -> Path:
    """Create the directory *path*, with its parents, and return it.

    Args:
        path: The directory.
        help_text: What to do when *path* cannot be used.

    Raises:
        ConfigError: *path* cannot be created or written, or another user owns it.
    """
    _refuse_other_owner(path, help_text)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be created: {exc.strerror}; {help_text}"
        ) from exc
    # Another user may have created it between the check and mkdir.
    _refuse_other_owner(path, help_text)
    # Now and not with the first segment: a trainer could then only drop its rows.
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} is not writable; make it yours, or {help_text}")
    return path


def _refuse_other_owner(path: Path, help_text: str) -> None:
    """Raise `ConfigError` if *path* is there and of another user, who could read or replace what is stored."""
    reason = why_not_ours(path, may_be_link=True)
    if reason:
        raise ConfigError(f"{reason}; {help_text}")
