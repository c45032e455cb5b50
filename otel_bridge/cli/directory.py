"""The directory that a command writes to: made, or a line that says why not."""

from __future__ import annotations

import os
from pathlib import Path

from otel_bridge.errors import ConfigError


def made(path: Path, *, help_text: str = "set --dir or OTEL_BRIDGE_DIR") -> Path:
    """Make *path*, with what is above it, and return it.

    Args:
        path: The directory.
        help_text: What to do where it cannot be used.

    Raises:
        ConfigError: It cannot be made or written.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be made: {exc.strerror}; {help_text}") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} is not writable; make it yours, or {help_text}")
    return path
