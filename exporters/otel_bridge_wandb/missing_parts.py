"""What the server lacks of a run's axes and config at its end: wandb gives up an upload that was answered 403.

A run that lacks some is opened by a new writer, which defines all names one by one.
"""

from __future__ import annotations

import logging

from otel_bridge.exporter import WriterMemory
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.online.uploads import Server
from otel_bridge_wandb.shared_mode.run import SharedRun, definitions_count

_MISSED = "online/missed"
# Then the run ends: a server that never shows what it was sent must not keep it open.
_MAX_MISSED = 3
_log = logging.getLogger("otel_bridge.wandb")


def lacked_parts(memory: WriterMemory) -> bool:
    """Return whether the server lacked axes or config at the last end."""
    return memory.get(_MISSED) is not None


def missing_parts(
    server: Server,
    memory: WriterMemory,
    shared: SharedRun | None,
    names: int,
    configured: bool,
) -> str:
    """Return what the server lacks of the run's axes and config, empty when nothing or it was sent often enough.

    wandb gives up an upload that was answered 403, and reports nothing.

    Raises:
        RetryableError: The server did not answer.
        BlockedError: The server refuses the question.
    """
    with as_bridge_errors("asking for config and axes"):
        lacking = (
            _lacking(server, names, configured=configured)
            if shared is None
            else shared.lacking()
        )
    if not lacking:
        memory.delete(_MISSED)
        return ""
    times = int(memory.get(_MISSED) or b"0") + 1
    # Stored, because the run is opened by a new writer, which then defines all names one by one.
    memory.put(_MISSED, str(times).encode())
    if times <= _MAX_MISSED:
        return " and ".join(lacking)
    _log.warning(
        "W&B: the server shows less than was sent of %s of the run",
        " and ".join(lacking),
    )
    return ""


def _lacking(server: Server, names: int, *, configured: bool) -> list[str]:
    """Return which of axes and config the server has less of than was sent; raises as `Server.stored`.

    Numbers of names are compared: a resumed run may have more than this writer declared. wandb's
    own part of the config is there in any case, and shows nothing. Empty when nothing is lacking.
    """
    stored = server.stored().config
    lacking: list[str] = []
    if definitions_count(stored) < names:
        lacking.append("the axes")
    if configured and not stored.keys() - {"_wandb"}:
        lacking.append("the config")
    return lacking
