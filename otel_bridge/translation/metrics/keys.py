"""Keys and axes: names as sent by a producer -> names as shown by trackers, with the state of each axis.

Pure. Owns ``axis/<axis>`` (step of the last row), ``furthest/<axis>`` (highest step of the current attempt),
``key/<full key>`` (its axis key), ``ownkey/<full key>`` (keys of rows that statistics may share), ``attempt/<axis>``,
``led/<axis>`` (last attempt with a rank 0) and ``reached/<axis>`` (highest step of a rollout) of the state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from otel_bridge.records import Status, Value, axis_of
from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState, count, name_first

_ILLEGAL = re.compile(r"[^\w.\-]", re.ASCII)
MAX_SUFFIX = 120
"""Longest attribute part of a key: MLflow takes 250 characters in all (mlflow.utils.validation)."""
MAX_AXES = 256
"""Most axes that every record carries; further roles are still written, on their own axis."""
QUIET_NS: Final = 90_000_000_000
"""Silence after which a remote process no longer prevents a new attempt; heartbeats arrive each minute."""
NO_PROCESSES: Final[Mapping[str, Process]] = MappingProxyType({})


SAME_KEY: Final = "same_key"
_OWN: Final = "ownkey/"
"""Key space of the state: keys of rows that statistics of a step may also use."""
_STATISTICS: Final = re.compile(
    r"(?:^|/)rollouts/(?:.+/)?"
    r"(?:total|kept|zero_variance_groups|reward/(?:mean|std|min|max)|staleness/(?:mean|max))$"
    r"|(?:^|/)(?:time|lineage)/."
)
ATTEMPT: Final = "attempt"
"""Key and config entry that number the second and later attempts of a role."""


def is_statistic(key: str) -> bool:
    """Return whether the statistics of a step may use *key*, in the form that trackers show."""
    is_candidate = "rollouts" in key or "time/" in key or "lineage/" in key
    return is_candidate and _STATISTICS.search(key) is not None


def attribute_suffix(attributes: Mapping[str, object], *, cut: bool = True) -> str:
    """Return the part of a key that distinguishes the series of one metric: ``/code:200 method:GET``.

    Attributes are sorted by name. All three trackers accept letters, digits, ``_ . - :`` and space. Where another
    character was replaced or the text was cut, a hash of the original distinguishes the series.
    """
    if not attributes:
        return ""
    suffix = "/" + " ".join(attribute_parts(attributes).values())
    if not cut or len(suffix) <= MAX_SUFFIX:
        return suffix
    return f"{suffix[: MAX_SUFFIX - 9].rstrip()}-{short_hash(suffix, 4)}"


def attribute_parts(attributes: Mapping[str, object]) -> dict[str, str]:
    """Return the name of each attribute with its text in a key, sorted by name: ``method:GET``."""
    return {name: f"{_legal(name)}:{_legal(_text(value))}" for name, value in sorted(attributes.items())}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)


def _legal(text: str) -> str:
    legal = _ILLEGAL.sub("_", text)
    return legal if legal == text and text else f"{legal}-{short_hash(text, 3)}"


def short_hash(text: str, size: int) -> str:
    """Return *size* bytes of a hash of *text* as hex digits."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()


class StepAxes:
    """Holds the last step of every axis, the axis of every key and the attempt of every role, flushed once a batch.

    Args:
        state: State that stores them.
        max_keys: Most keys that are known.
        processes: All processes of the run, as they are added.
    """

    def __init__(self, state: TranslationState, max_keys: int, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        self._state, self._processes = state, processes
        self._max_keys = max_keys
        self._changed: set[str] = set()
        self._attempts = _integers(state, "attempt/")
        self._led = _integers(state, "led/")
        self._reached = _integers(state, "reached/")
        self._known = {key.removeprefix("key/") for key, _ in state.items("key/")}
        self._own = {key.removeprefix(_OWN) for key, _ in state.items(_OWN)}
        self._last: dict[str, int] = {}
        self._furthest = _integers(state, "furthest/")
        self.restarted: dict[str, int] = {}
        """Axis to attempt, for roles that began a second or later attempt; the reporter of the attempt removes it."""
        self.reload()

    def reload(self) -> None:
        """Read the last steps again, since another part of translation may have changed them."""
        self._last = _integers(self._state, "axis/")

    def advance(self, axis: str, step: int) -> dict[str, int]:
        """Set the last step of *axis*, and return the last step of every axis."""
        last = self._last
        if axis not in last and len(last) >= MAX_AXES:
            return {**last, axis: step}
        last[axis] = step
        if step >= self._furthest.get(axis, step):
            self._furthest[axis] = step
        self._changed.add(axis)
        return last.copy()

    def beside(self, axis: str, step: int) -> dict[str, int]:
        """Return all axes with *step* on *axis*, without changing the last step of *axis*: for a late row."""
        return {**self._last, axis: step}

    def steps(self) -> dict[str, int]:
        """Return the last step of every axis."""
        return dict(self._last)

    def register(self, keys: Iterable[str], axis: str) -> None:
        """Note that *keys* are drawn over *axis*; the first axis of a key wins."""
        for key in keys:
            if key not in self._known and len(self._known) < self._max_keys:
                self._known.add(key)
                self._state.set(f"key/{key}", axis)

    def admit(self, values: Mapping[str, Value], axis: str | None) -> Mapping[str, Value]:
        """Return *values* without the keys beyond the limit of the run, each counted; the others are registered.

        Args:
            values: Key to value of one row.
            axis: Axis over which the values are drawn; ``None``: time.
        """
        for key in filter(is_statistic, values):
            if key not in self._own:
                self._own.add(key)
                self._state.set(f"{_OWN}{key}", axis)
        return self._within_limit(values, axis)

    def admit_statistics(self, values: Mapping[str, Value], axis: str | None) -> Mapping[str, Value]:
        """Return the statistics of a step as `admit` does, without values whose key a row already uses.

        Args:
            values: Key to value.
            axis: Axis over which the values are drawn; ``None``: time.
        """
        own = self._own.intersection(values)
        if own:
            count(self._state, SAME_KEY, len(own))
            name_first(self._state, SAME_KEY, next(key for key in values if key in own))
            values = {key: value for key, value in values.items() if key not in own}
        return self._within_limit(values, axis)

    def _within_limit(self, values: Mapping[str, Value], axis: str | None) -> Mapping[str, Value]:
        new = [key for key in values if key not in self._known]
        if not new:
            return values
        room = max(self._max_keys - len(self._known), 0)
        for key in new[:room]:
            self._known.add(key)
            if axis is not None:
                self._state.set(f"key/{key}", axis)
        if len(new) <= room:
            return values
        count(self._state, "too_many_keys", len(new) - room)
        name_first(self._state, "too_many_keys", new[room])
        beyond = frozenset(new[room:])
        return {key: value for key, value in values.items() if key not in beyond}

    def reached(self, axis: str, step: int) -> None:
        """Note that a rollout of *step* was sent, since a role may send rollouts without rows."""
        if step > self._reached.get(axis, step - 1) and (axis in self._reached or len(self._reached) < MAX_AXES):
            self._reached[axis] = step
            self._state.set(f"reached/{axis}", step)

    def attempt(self, process: Process, axis: str, step: int) -> int:
        """Return the attempt of the axis's role that *process* belongs to, and remember the attempt.

        An attempt stated by the emitter wins. Else a process begins the next attempt under three conditions. It starts
        below the last step of rows or rollouts, or at that step when its predecessor did not finish. It follows a
        process of its rank from the current attempt. No other process of the current attempt still lives. The ranks of
        one attempt may arrive in any order: the first one begins the attempt, the others join. Forked children belong
        to the attempt of their parent.
        """
        current = self._attempts.get(axis, 1)
        last = max(known.get(axis, step - 1) for known in (self._last, self._furthest, self._reached))
        if process.attempt is not None:
            current = process.attempt
        elif step <= last and _is_worker(process) and self._starts_again(process, axis, current, behind=step < last):
            current += 1
        if current > max(self._attempts.get(axis, 1), 1):
            self.restarted[axis] = current
        if self._attempts.get(axis, current) != current:
            self._furthest[axis] = step  # a further attempt continues from an earlier step
            self._state.set(f"furthest/{axis}", step)
        if self._attempts.get(axis) != current and len(self._attempts) < MAX_AXES:
            self._attempts[axis] = current
            self._state.set(f"attempt/{axis}", current)
        if (
            process.determines_status
            and self._led.get(axis) != current
            and (axis in self._led or len(self._led) < MAX_AXES)
        ):
            self._led[axis] = current
            self._state.set(f"led/{axis}", current)
        if len(process.attempts) < MAX_AXES:
            process.begin_attempt(axis, current)
        return current

    def current(self, axis: str) -> int:
        """Return the current attempt of the role of *axis*."""
        return self._attempts.get(axis, 1)

    def _starts_again(self, process: Process, axis: str, current: int, *, behind: bool) -> bool:
        """Return whether *process* follows one of its rank in attempt *current*, of which no process still lives.

        A process of another rank belongs to that attempt when it ran beside the predecessor of *process*; one of the
        same rank also when it has sent nothing yet. A predecessor that finished is followed only by a process that is
        *behind* its last step: at the same step *process* is one more worker, which started late.
        """
        workers = [other for other in self._processes.values() if _is_worker(other) and other is not process]
        others = [other for other in workers if axis in other.attempts]
        same_rank = [other for other in others if other.rank == process.rank]
        before = [other for other in same_rank if other.attempts[axis] == current]
        if not before and (process.rank > 0 or self._led.get(axis) != current):
            return False
        if before and not behind and all(other.status is Status.FINISHED for other in before):
            return False
        if any(_was_beside(other, process) for other in same_rank):
            return False
        for other in workers:
            is_silent_twin = axis not in other.attempts and other.rank == process.rank and axis_of(other.role) == axis
            if is_silent_twin and _runs_beside(other, process) and _ended_after_any(before, other):
                return False
        return not any(
            _was_beside(other, process) and (not before or _ended_after_any(before, other))
            for other in others
            if other.rank != process.rank
        )

    def with_attempt(
        self, values: Mapping[str, Value], process: Process, role: str | None, attempt: int
    ) -> Mapping[str, Value]:
        """Return the *values* of a row with the number of their attempt; a user's value of that name stays."""
        key = full_key(role, ATTEMPT, rank=process.rank)
        self.register((key,), axis_of(role))
        return {key: attempt, **values}

    def flush(self) -> None:
        """Write what changed to the state."""
        for axis in self._changed:
            self._state.set(f"axis/{axis}", self._last[axis])
            self._state.set(f"furthest/{axis}", self._furthest[axis])
        self._changed.clear()


def _is_worker(process: Process) -> bool:
    """Return whether a process is a rank of its job, not a forked child or a launcher."""
    return not process.forked and not process.launcher


def _was_beside(other: Process, process: Process) -> bool:
    """Return whether *other* runs, or ran when *process* began."""
    return _runs_beside(other, process) or _ended_after(other, process)


def _runs_beside(other: Process, process: Process) -> bool:
    if other.status is not None or other.drained:
        return False
    return not other.remote or process.seen_ns - other.seen_ns < QUIET_NS


def _ended_after(other: Process, process: Process) -> bool:
    """Return whether *other* ended after *process* began; for a remote end, compare the time it was read."""
    if other.status is None:
        return other.drained and other.seen_ns > process.began_ns
    known_by_arrival = other.remote and not other.timed_out
    return (other.ended_ns if known_by_arrival else other.end_time_ns) > process.began_ns


def _ended_after_any(predecessors: Iterable[Process], process: Process) -> bool:
    return any(_ended_after(predecessor, process) for predecessor in predecessors)


def _integers(state: TranslationState, prefix: str) -> dict[str, int]:
    pairs = ((key.removeprefix(prefix), value) for key, value in state.items(prefix))
    return {key: value for key, value in pairs if isinstance(value, int)}
