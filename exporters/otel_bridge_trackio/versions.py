"""Which versions of Trackio are written through, and whether its internal calls that we use are those we know."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from otel_bridge.errors import BlockedError
from otel_bridge.releases import release_of

OLDEST: Final = (0, 43)
UNTRIED: Final = (0, 44)
INSTALL: Final = "pip install 'otel-bridge[trackio]'"
CALLS: Final[Mapping[str, Sequence[str]]] = {
    "bulk_log": ("project", "run", "metrics_list", "steps", "timestamps", "config", "log_ids", "run_id"),
    "get_log_count": ("project", "run", "run_id"),
    "get_run_config": ("project", "run", "run_id"),
    "validate_project_name": ("project",),
}
"""What is called of ``SQLiteStorage``, and with which arguments, all by name."""
_log: Final = logging.getLogger("otel_bridge.trackio")


def require_supported(version: str) -> None:
    """Raise `BlockedError` when this version of Trackio is too old; say it when it is newer than any that was tried."""
    parts = release_of(version)
    if parts < OLDEST:
        raise BlockedError(f"Trackio {version or 'of an unknown version'} is too old, expected 0.43", help=INSTALL)
    if parts >= UNTRIED:
        _log.warning("Trackio %s is newer than the one tried (0.43); if it fails: %s", version, INSTALL)


def require_calls(storage: object, version: str) -> None:
    """Raise `BlockedError` unless each of `CALLS` is there and can be made with those arguments and no other."""
    for name, arguments in CALLS.items():
        _require_call(storage, name, arguments, version)


def _require_call(storage: object, name: str, arguments: Sequence[str], version: str) -> None:
    try:
        inspect.signature(getattr(storage, name)).bind(**dict.fromkeys(arguments))
    except (AttributeError, TypeError) as exc:
        raise BlockedError(
            f"Trackio {version} has another SQLiteStorage.{name} than 0.43 has: {exc}", help=INSTALL
        ) from exc
