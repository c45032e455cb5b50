"""Keys and axes: from what a producer sent to what trackers show, and what is known of them so far.

Pure. Owns ``axis/<axis>`` (last step), ``key/<full key>`` (its axis key) and ``attempt/<axis>`` of the state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from otel_bridge.records import Value, axis_of, key_of
from otel_bridge.translation.process import Process
from otel_bridge.translation.state import State

_ILLEGAL = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_SUFFIX = 120
"""Longest attribute part of a key: MLflow takes 250 characters in all (mlflow.utils.validation)."""
MAX_AXES = 256
"""Axes carried by every record; roles beyond it are still written, on their own axis."""
QUIET_NS: Final = 90_000_000_000
"""Silence after which a process behind a receiver is no obstacle to a new attempt: life signs come each minute."""
NO_PROCESSES: Final[Mapping[str, Process]] = MappingProxyType({})


ATTEMPT: Final = "attempt"
"""Key and entry of the config that tell the second start of a role, and later ones, from the first."""


def full_key(role: str | None, key: str, *, rank: int = 0, suffix: str = "") -> str:
    """Return the key that trackers show.

    A user's key that would be the role's own step axis becomes ``…_value``: the axis is never overwritten.

    Args:
        role: Who speaks.
        key: As the producer named it.
        rank: Ranks above 0 are told apart by ``/rank<k>``.
        suffix: What `attribute_suffix` made of further attributes.
    """
    full = key_of(role, key) + suffix
    if rank > 0:
        return f"{full}/rank{rank}"
    return f"{full}_value" if full == axis_of(role) else full


def attribute_suffix(attributes: Mapping[str, object]) -> str:
    """Return the part of a key that tells series of one metric apart: ``/code:200 method:GET``.

    Sorted by name. Only characters that all three trackers take: letters, digits, ``_ . - :`` and space; where one
    was replaced or the text was cut, a hash of the original keeps two series apart.
    """
    if not attributes:
        return ""
    parts = [f"{_legal(name)}:{_legal(_text(value))}" for name, value in sorted(attributes.items())]
    suffix = "/" + " ".join(parts)
    if len(suffix) <= _MAX_SUFFIX:
        return suffix
    return f"{suffix[: _MAX_SUFFIX - 9].rstrip()}-{_short_hash(suffix, 4)}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)


def _legal(text: str) -> str:
    legal = _ILLEGAL.sub("_", text)
    return legal if legal == text and text else f"{legal}-{_short_hash(text, 3)}"


def _short_hash(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()


class Axes:
    """Last step of every axis, axis of every key, attempt of every role: hot, flushed once a batch.

    Args:
        state: Where they are kept.
        max_keys: How many keys are known at most.
        processes: All processes of the run, as they are added.
    """

    def __init__(self, state: State, max_keys: int, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        self._state, self._processes = state, processes
        self._max_keys = max_keys
        self._changed: set[str] = set()
        self._attempts = _integers(state, "attempt/")
        self._known = {key.removeprefix("key/") for key, _ in state.items("key/")}
        self._last: dict[str, int] = {}
        self.restarted: dict[str, int] = {}
        """Axes whose role began its second or a later attempt, to its number; emptied by whoever tells of it."""
        self.reload()

    def reload(self) -> None:
        """Read the last steps again: another part of translation may have moved them."""
        self._last = _integers(self._state, "axis/")

    def advance(self, axis: str, step: int) -> dict[str, int]:
        """Set the last step of *axis* and return all axes as they stand now."""
        last = self._last
        if axis not in last and len(last) >= MAX_AXES:
            return {**last, axis: step}
        last[axis] = step
        self._changed.add(axis)
        return last.copy()

    def beside(self, axis: str, step: int) -> dict[str, int]:
        """Return all axes with *step* on *axis*, without moving it: for a row that comes late."""
        return {**self._last, axis: step}

    def steps(self) -> dict[str, int]:
        """Return all axes."""
        return dict(self._last)

    def register(self, keys: Iterable[str], axis: str) -> None:
        """Note that *keys* are drawn over *axis*; what was noted first holds."""
        for key in keys:
            if key not in self._known and len(self._known) < self._max_keys:
                self._known.add(key)
                self._state.set(f"key/{key}", axis)

    def attempt(self, process: Process, axis: str, step: int) -> int:
        """Return which start of the axis's role *process* is, and remember it.

        The emitter's own word holds; else a new process that starts at or below the last step is the next attempt, if
        no other of the axis is still there: then they are workers side by side. Forked children and ranks above 0
        belong to the attempt of their parent.
        """
        current = self._attempts.get(axis, 1)
        if process.attempt is not None:
            current = process.attempt
        elif process.decides and step <= self._last.get(axis, step - 1) and not self._beside(process, axis):
            current += 1
        if current > max(self._attempts.get(axis, 1), 1):
            self.restarted[axis] = current
        if self._attempts.get(axis) != current and len(self._attempts) < MAX_AXES:
            self._attempts[axis] = current
            self._state.set(f"attempt/{axis}", current)
        if len(process.attempts) < MAX_AXES:
            process.attempts[axis] = current
            process.dirty = True
        return current

    def current(self, axis: str) -> int:
        """Return which start the role of *axis* is in."""
        return self._attempts.get(axis, 1)

    def _beside(self, process: Process, axis: str) -> bool:
        """Tell whether another process of the axis still speaks."""
        return any(
            other.status is None
            and not other.gone
            and other.decides
            and axis in other.attempts
            and (not other.remote or process.seen_ns - other.seen_ns < QUIET_NS)
            for other in self._processes.values()
            if other is not process
        )

    def with_attempt(
        self, values: Mapping[str, Value], process: Process, role: str | None, attempt: int
    ) -> Mapping[str, Value]:
        """Return the *values* of a row with the number of the start they are of; a user's own by that name stays."""
        key = full_key(role, ATTEMPT, rank=process.rank)
        self.register((key,), axis_of(role))
        return {key: attempt, **values}

    def flush(self) -> None:
        """Write what changed to the state."""
        for axis in self._changed:
            self._state.set(f"axis/{axis}", self._last[axis])
        self._changed.clear()


def _integers(state: State, prefix: str) -> dict[str, int]:
    pairs = ((key.removeprefix(prefix), value) for key, value in state.items(prefix))
    return {key: value for key, value in pairs if isinstance(value, int)}
