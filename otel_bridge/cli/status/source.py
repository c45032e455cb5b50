"""Reads what `status` shows from a local directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import orjson

from otel_bridge.cli.status.run_state import (
    DirectoryUse,
    RunState,
    StateReader,
    directory_use,
)
from otel_bridge.journal.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Overview:
    """Describes all runs of a directory at one moment.

    Attributes:
        here: Whether the directory is on this machine.
    """

    where: str
    runs: Sequence[RunState]
    room: DirectoryUse | None = None
    time_unix_ns: int = field(default_factory=time.time_ns)
    here: bool = True

    def to_json(self) -> bytes:
        """Return the body of ``/status``."""
        return orjson.dumps(self)


ReadOverview: TypeAlias = Callable[[], Overview]


def overview_of(
    base: Path,
    folders: Sequence[RunFolder],
    env: Mapping[str, str],
    reader: StateReader,
) -> Overview:
    """Return the overview of *folders*, all in *base*; without room if *base* is not there.

    A *reader* that is used again reads only what changed. What of a folder cannot be read is left
    out of its state.

    Raises:
        ConfigError: The limit of the directory cannot be read.
    """
    states = [reader.read(folder) for folder in folders]
    room = None
    if os.path.isdir(base):
        room = directory_use(base, env, states)
    return Overview(str(base), states, room)


def is_url(location: str) -> bool:
    """Return whether *location* names a service, be its address valid or not: `from_service` reports that."""
    return location.lower().startswith(("http://", "https://"))
