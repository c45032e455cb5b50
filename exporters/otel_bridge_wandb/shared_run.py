"""One of several writers of a shared run: its own lines are numbered, the others' config and axes are not lost.

The server's line count says nothing of one writer, so each line carries its number under a hidden key of the writer's
own; after a kill the highest number that the server names says where to go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from otel_bridge.exporter import Memory
from otel_bridge_wandb.axes import Axes

_LABEL: Final = "shared/label"


class SharedRun:
    """What the writer of a shared run does besides writing.

    Args:
        run: ``wandb.Run``.
        axes: Its axes.
        next_line: Number of this writer's next line, from 0.
        stored_config: Asks the server for the run's config.
        marker: From `marker_of`.
        primary: It ends the run, after all others.
    """

    def __init__(
        self,
        run: Any,
        axes: Axes,
        *,
        next_line: Callable[[], int],
        stored_config: Callable[[], Mapping[str, Any]],
        marker: str,
        primary: bool,
    ) -> None:
        self._run, self._axes, self._next_line, self._stored_config = run, axes, next_line, stored_config
        self._marker, self._primary = marker, primary
        self._mine: set[str] = set()

    def number(self, lines: Sequence[dict[str, object]]) -> None:
        """Number the lines that are about to be logged, from 1."""
        for number, line in enumerate(lines, self._next_line() + 1):
            line[self._marker] = number

    def gather(self, mine: Iterable[str] = ()) -> None:
        """Take over what the other writers have said of config and axes.

        Args:
            mine: Entries of the config that this writer is about to set.
        """
        self._mine.update(mine)
        stored = self._stored_config()
        others = {key: _value(item) for key, item in stored.items() if key != "_wandb" and key not in self._mine}
        if others:
            self._run.config.update(others, allow_val_change=True)
        for name, axis in definitions_in(stored):
            self._axes.adopt(name, axis)

    def before_end(self) -> None:
        """Say all of it once more, as the one who finishes the run."""
        if self._primary:
            self.gather()
            self._axes.again()


def marker_of(memory: Memory) -> str:
    """Return the key under which this writer numbers its lines: one for a run folder, over restarts."""
    stored = memory.get(_LABEL)
    label = stored.decode() if stored else os.urandom(4).hex()
    if stored is None:
        memory.put(_LABEL, label.encode())
    return f"otel_bridge/{label}"


def table_suffix_of(marker: str) -> str:
    """Return what ends the keys of the tables of a writer that is not the primary.

    Each increment of a table names those before it that its own writer made, so that of two writers of one key each
    would hide the other's rows; one role may run on several machines.
    """
    return f"_{marker.rpartition('/')[2]}"


def definitions_in(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys that a stored config binds by their exact names, and their axes.

    Definitions are a list of maps keyed by protobuf field numbers: 1 the name, 5 the place of the axis, from 1.
    """
    entries = _definitions(config)
    names = [str(entry.get("1") or "").replace("\\.", ".") for entry in entries]
    found: list[tuple[str, str]] = []
    for name, entry in zip(names, entries, strict=True):
        at = entry.get("5")
        if name and isinstance(at, int) and 0 < at <= len(names) and names[at - 1]:
            found.append((name, names[at - 1]))
    return found


def definitions_count(config: Mapping[str, Any]) -> int:
    """Return how many names a stored config defines."""
    return len(_definitions(config))


def _definitions(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    internal = cast("Mapping[str, Any]", _value(config.get("_wandb")) or {})
    return cast("list[dict[str, Any]]", internal.get("m") or [])


def _value(item: object) -> Any:
    """Return an entry of a stored config without its description."""
    if not isinstance(item, dict):
        return item
    entry = cast("dict[str, Any]", item)
    return entry["value"] if "value" in entry and entry.keys() <= {"value", "desc"} else entry
