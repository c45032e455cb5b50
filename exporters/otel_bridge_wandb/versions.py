"""Which versions of wandb are written through, and which may share a run."""

from __future__ import annotations

import logging
from typing import Final

from otel_bridge.errors import BlockedError
from otel_bridge.releases import release_of

OLDEST: Final = (0, 28)
UNTRIED: Final = (0, 32)
INSTALL: Final = "pip install 'otel-bridge[wandb]'"
SHARING_FROM: Final = (0, 28, 2)
SHARING_BELOW: Final = (0, 31)
INSTALL_SHARING: Final = "pip install 'wandb>=0.28.2,<0.31'"
_log: Final = logging.getLogger("otel_bridge.wandb")


def require_supported(version: str) -> None:
    """Raise `BlockedError` when this version of wandb is too old; say it when it is newer than any that was tried."""
    parts = release_of(version)
    if parts < OLDEST:
        raise BlockedError(f"W&B: wandb {version} is too old, expected 0.28 to 0.31", help=INSTALL)
    if parts >= UNTRIED:
        _log.warning("W&B: wandb %s is newer than those tried (0.28 to 0.31); if it fails: %s", version, INSTALL)


def require_safe_sharing(version: str) -> None:
    """Raise `BlockedError` unless shared mode of this version of wandb is known to be safe."""
    if SHARING_FROM <= release_of(version) < SHARING_BELOW:
        return
    reason = (
        "its writers number their rows themselves, so that those of two machines may replace one another"
        if release_of(version) >= SHARING_BELOW
        else "it was never tried"
    )
    raise BlockedError(f"W&B: shared mode of wandb {version} is refused: {reason}", help=INSTALL_SHARING)
