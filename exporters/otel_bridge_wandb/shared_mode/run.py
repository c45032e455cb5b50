"""Numbers the lines of one of several writers of a shared run, and preserves the other writers' config and axes.

The server's line count covers all writers, so that each line has its number under a hidden key of
its writer. After a kill the writer continues after the highest number that the server returns.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from otel_bridge.exporter import WriterMemory
from otel_bridge.records import axis_of
from otel_bridge_wandb.axes import WandbAxes
from otel_bridge_wandb.online.uploads import Stored

_LABEL = "shared_mode/label"
_MARKERS = "otel_bridge/"
_MAX_REPAIRS = 3
"""Most repeated sends of replaced entries in a row, since two machines with one role may disagree
for good."""
_UPLOADED_S = 6.0
"""wandb uploads a change of config or axes five seconds after it (``runupdatework.go``)."""
_log = logging.getLogger("otel_bridge.wandb")


class SharedRun:
    """Preserves config and axes of a shared run, for one of its writers. For one thread.

    Every upload of a writer replaces the whole config of the run, axes included. So each writer
    also sends the config of the other writers, and an axis for each key of the run's history.
    All methods but `look` raise wandb's own exceptions when the server or its service fails. The
    writer makes them errors of the bridge, which makes the call again.

    Args:
        run: ``wandb.Run``.
        axes: Its axes.
        roles: All roles of the job.
        number: Numbers lines that are about to be logged; see `number_lines`.
        stored: Asks the server for what it stores of the run.
        every_s: Seconds between two checks of the server.
        clock_s: Monotonic seconds.
        pause: Waits for a number of seconds.
    """

    def __init__(
        self,
        run: Any,
        axes: WandbAxes,
        *,
        roles: Sequence[str],
        number: Callable[[Sequence[dict[str, object]]], None],
        stored: Callable[[], Stored],
        every_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._axes = axes
        self.number = number
        self._stored = stored
        self._every_s = every_s
        self._clock_s = clock_s
        self._pause = pause
        self._prefixes = {f"{role}/": axis_of(role) for role in roles}
        self._config = SharedConfig()
        self._next_look_s = clock_s()
        self._adopted_s = self._next_look_s
        self._repairs = 0

    def gather(self, mine: Mapping[str, object] | None = None) -> None:
        """Adopt what the other writers have stored, because the next upload replaces it.

        Args:
            mine: Entries of the config that this writer is about to set.
        """
        if mine:
            self._config.set(mine)
            self._repairs = 0
            self._adopted_s = self._clock_s() + self._every_s + _UPLOADED_S
        self.take_over(self._stored())

    def take_over(self, stored: Stored) -> None:
        """Adopt the config of the other writers, and an axis for each key that they logged.

        This writer's next upload replaces both, so that it must send theirs too.
        """
        changed = self._config.adopt(stored.config)
        if changed:
            self._run.config.update(changed, allow_val_change=True)
        for name, axis in definitions_in(stored.config):
            self._axes.adopt(name, axis)
        for key, axis in self._axes_of(stored.keys):
            self._axes.adopt(key, axis)
        for key in {*stored.keys, *defined_names(stored.config)}:
            # Numbers of another writer's lines: without this W&B shows them as a chart.
            if key.startswith(_MARKERS):
                self._axes.hide(key)

    def look(self) -> None:
        """Check from time to time what the server stores: adopt new entries, and send lost entries again.

        A server that does not answer is asked at the next turn. Repairs stop after `_MAX_REPAIRS`
        in a row, since two machines with one role may disagree for good. Raises wandb's own
        exceptions when its service does not take the entries.
        """
        now_s = self._clock_s()
        if now_s < self._next_look_s:
            return
        # Before the request, so that a server that is down is not asked at each call.
        self._next_look_s = now_s + self._every_s
        try:
            stored = self._stored()
        except Exception as exc:  # noqa: BLE001  # the rows do not depend on it, and their own question reports an outage
            _log.debug(
                "W&B: what the server stores of the shared run could not be read: %r",
                exc,
            )
            return
        self.take_over(stored)
        has_axes = self._axes.declared <= defined_names(stored.config)
        if has_axes and not self._config.is_lost(stored.config):
            self._repairs = 0
        elif self._repairs < _MAX_REPAIRS:
            self._repairs += 1
            # Any change makes wandb send the whole config again, this writer's entries included.
            self._axes.touch()
            self._next_look_s = now_s + max(self._every_s, _UPLOADED_S)
            self._adopted_s = self._next_look_s + self._every_s

    def before_end(self) -> None:
        """Send all entries once more, because the last upload is final."""
        self.gather()
        self._axes.touch()

    def lacking(self) -> list[str]:
        """Return what the server lacks of the run's axes and of this writer's config, once this writer has ended.

        A writer that has not seen an entry of the config replaces it by its next upload, and a
        writer that ended sends nothing again. So a new entry is watched until all other writers
        have seen it, which takes *every_s* and some seconds. Axes need no watching: all writers
        declare those of all roles. Empty when the server has both.
        """
        stored = self._stored()
        defined = defined_names(stored.config)
        lacks_axes = not self._axes.declared <= defined
        for key, _ in self._axes_of(stored.keys):
            lacks_axes |= self._axes.needs(key) and key not in defined
        left_s = self._adopted_s - self._clock_s()
        while left_s > 0 and not self._config.is_lost(stored.config):
            self._pause(min(left_s, self._every_s))
            stored = self._stored()
            left_s = self._adopted_s - self._clock_s()
        parts: list[str] = []
        if lacks_axes:
            parts.append("the axes")
        if self._config.is_lost(stored.config):
            parts.append("the config")
        return parts

    def _axes_of(self, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the keys of *keys* that belong to a listed role, with its axis.

        Others are left out.
        """
        for key in keys:
            for prefix, axis in self._prefixes.items():
                if key.startswith(prefix) and key != axis:
                    yield key, axis
                    break


class SharedConfig:
    """Holds the entries of a config that several writers share: those of one writer, and those of the others."""

    def __init__(self) -> None:
        self._mine: dict[str, object] = {}
        self._former: dict[str, object] = {}
        self._others: dict[str, object] = {}

    def set(self, mine: Mapping[str, object]) -> None:
        """Set entries of this writer.

        The former value is remembered, so that `is_lost` recognises an upload of a writer that knew
        only that one.
        """
        for key, value in mine.items():
            if key in self._mine and self._mine[key] != value:
                self._former[key] = self._mine[key]
            self._mine[key] = value

    def adopt(self, stored: Mapping[str, object]) -> dict[str, object]:
        """Take over the entries of other writers in a stored config.

        Return those that have changed; empty when none has.
        """
        changed: dict[str, object] = {}
        for key, item in stored.items():
            value = _value(item)
            is_known = key in self._others and self._others[key] == value
            if key != "_wandb" and key not in self._mine and not is_known:
                changed[key] = value
        self._others |= changed
        return changed

    def is_lost(self, stored: Mapping[str, object]) -> bool:
        """Return whether an entry of this writer is missing, or back at a value from before its last change.

        Then the upload of a writer that had not seen it replaced it. Any other value is of another
        machine with the same role, whose last upload is shown.
        """
        for key in self._mine:
            if key not in stored:
                return True
            if key in self._former and _value(stored[key]) == self._former[key]:
                return True
        return False


def number_lines(
    marker: str, next_line: Callable[[], int], lines: Sequence[dict[str, object]]
) -> None:
    """Number *lines* of one writer of a shared run, from 1, so that it recognises its own at the server.

    Args:
        marker: Key of the numbers, from `marker_of`.
        next_line: Returns the number of the writer's next line, from 0.
        lines: Lines that are about to be logged.
    """
    for number, line in enumerate(lines, next_line() + 1):
        line[marker] = number


def marker_of(memory: WriterMemory) -> str:
    """Return the key under which this writer numbers its lines, the same for a run folder after a restart.

    A new one is stored before it is used; raises `JournalError` when that fails.
    """
    stored = memory.get(_LABEL)
    label = stored.decode() if stored else os.urandom(4).hex()
    if stored is None:
        memory.put(_LABEL, label.encode())
    return f"{_MARKERS}{label}"


def table_suffix_of(marker: str) -> str:
    """Return the suffix of table keys of a writer that is not the primary.

    Each increment of a table names the earlier increments of its own writer. So two writers of one
    key would hide each other's rows, and one role may run on several machines.
    """
    return f"_{marker.rpartition('/')[2]}"


def definitions_in(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys that a stored config binds by their exact names, and their axes.

    Definitions are a list of maps keyed by protobuf field numbers: 1 the name, 5 the place of the
    axis, from 1. Patterns are left out, because each writer declares those of all roles itself
    (`WandbAxes`); they keep their place in the list.
    """
    entries = _definitions(config)
    names = [_name(entry, "1") for entry in entries]
    definitions: list[tuple[str, str]] = []
    for name, entry in zip(names, entries, strict=True):
        place = entry.get("5")
        axis = ""
        if isinstance(place, int) and 0 < place <= len(names):
            axis = names[place - 1]
        if name and axis:
            definitions.append((name, axis))
    return definitions


def defined_names(config: Mapping[str, Any]) -> set[str]:
    """Return the names and patterns that a stored config defines."""
    names: set[str] = set()
    for entry in _definitions(config):
        names.add(_name(entry, "1") or _name(entry, "2"))
    return names


def _name(entry: Mapping[str, Any], field: str) -> str:
    """Return a name in a definition, which has its dots escaped; empty without one."""
    return str(entry.get(field) or "").replace("\\.", ".")


def definitions_count(config: Mapping[str, Any]) -> int:
    """Return how many names a stored config defines."""
    return len(_definitions(config))


def _definitions(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the definitions of a stored config; none if it has another shape than wandb gives it.

    An entry of another shape is empty here, because axes are named by their place in the list.
    """
    internal = _value(config.get("_wandb"))
    entries: object = None
    if isinstance(internal, dict):
        entries = cast("dict[str, object]", internal).get("m")
    if not isinstance(entries, list):
        return []
    definitions: list[dict[str, Any]] = []
    for entry in cast("list[object]", entries):
        definitions.append(
            cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        )
    return definitions


def _value(item: object) -> Any:
    """Return an entry of a stored config without its description."""
    if not isinstance(item, dict):
        return item
    entry = cast("dict[str, Any]", item)
    if "value" in entry and entry.keys() <= {"value", "desc"}:
        return entry["value"]
    return entry
