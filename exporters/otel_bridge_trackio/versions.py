"""Which versions of Trackio are written through, and whether the internal call that we use is the one we know."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from typing import Final

from otel_bridge.errors import BlockedError

OLDEST: Final = (0, 43)
UNTRIED: Final = (0, 44)
INSTALL: Final = "pip install 'otel-bridge[trackio]'"
ARGUMENTS: Final = ("project", "run", "metrics_list", "steps", "timestamps", "config", "log_ids", "run_id")
"""What ``SQLiteStorage.bulk_log`` is called with, all by name."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_log: Final = logging.getLogger("otel_bridge.trackio")


def require_supported(version: str) -> None:
    """Raise `BlockedError` when this version of Trackio is too old; say it when it is newer than any that was tried."""
    found = _VERSION.match(version)
    parts = tuple(int(part) for part in found.groups()) if found else ()
    if parts < OLDEST:
        raise BlockedError(f"Trackio {version or 'of an unknown version'} is too old, expected 0.43", help=INSTALL)
    if parts >= UNTRIED:
        _log.warning("Trackio %s is newer than the one tried (0.43); if it fails: %s", version, INSTALL)


def require_arguments(bulk_log: Callable[..., None], version: str) -> None:
    """Raise `BlockedError` unless *bulk_log* can be called with `ARGUMENTS` and nothing else."""
    try:
        inspect.signature(bulk_log).bind(**dict.fromkeys(ARGUMENTS))
    except TypeError as exc:
        raise BlockedError(
            f"Trackio {version} has another SQLiteStorage.bulk_log than 0.43 has: {exc}", help=INSTALL
        ) from exc
