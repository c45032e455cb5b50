"""Keys and axes: names as sent by a producer -> names as shown by trackers, with the state of each axis.

Pure. Owns ``axis/<axis>`` (step of the last row), ``furthest/<axis>`` (highest step of the current
attempt), ``key/<full key>`` (its axis key), ``ownkey/<full key>`` (keys of rows that statistics may
share), ``attempt/<axis>``, ``led/<axis>`` (last attempt with a rank 0) and ``reached/<axis>``
(highest step of a rollout) of the state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from otel_bridge.records import Row, Status, Value, axis_of, key_of
from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState, count, named

_ILLEGAL = re.compile(r"[^\w.\-]", re.ASCII)
MAX_SUFFIX = 120
"""Longest attribute part of a key: MLflow takes 250 characters in all (mlflow.utils.validation)."""
_HASH_BYTES = 4
MAX_AXES = 256
"""Most axes that every record carries; further roles are still written, on their own axis."""
QUIET_NS = 90_000_000_000
"""Silence after which a remote process no longer prevents a new attempt; heartbeats arrive each
minute."""
NO_PROCESSES: Mapping[str, Process] = MappingProxyType({})


SAME_KEY = "same_key"
_OWN = "ownkey/"
"""Key space of the state: keys of rows that statistics of a step may also use."""
_STATISTICS = re.compile(
    r"(?:^|/)rollouts/(?:.+/)?"
    r"(?:total|kept|zero_variance_groups|reward/(?:mean|std|min|max)|staleness/(?:mean|max))$"
    r"|(?:^|/)(?:time|lineage|tokens)/."
)
ATTEMPT = "attempt"
"""Key and config entry that number the second and later attempts of a role."""


# Hot path: the same keys come with each row. Bounded, because keys come over the wire.
@lru_cache(maxsize=4096)
def _is_statistic(key: str) -> bool:
    """Return whether the statistics of a step may use *key*, in the form that trackers show."""
    return _STATISTICS.search(key) is not None


def keyed(values: Mapping[str, Value], role: str | None) -> dict[str, Value]:
    """Return *values* by the keys that trackers show for *role*."""
    return {key_of(role, key): value for key, value in values.items()}


def attribute_suffix(attributes: Mapping[str, object]) -> str:
    """Return the part of a key that distinguishes the series of one metric: ``/code:200 method:GET``.

    Attributes are sorted by name. All three trackers accept letters, digits, ``_ . - :`` and space.
    Where another character was replaced, a hash of the original distinguishes the series. Of a set
    that is too long the longest attributes are left out, and a hash of these distinguishes the
    series.
    """
    if not attributes:
        return ""
    parts = [
        f"{_legal(name)}:{_legal(_text(value))}"
        for name, value in sorted(attributes.items())
    ]
    suffix = _suffix(parts)
    # The usual case: no hash, so that a person can read the whole key.
    if len(suffix) <= MAX_SUFFIX:
        return suffix
    # For the hash in hex digits and its hyphen.
    room = MAX_SUFFIX - 2 * _HASH_BYTES - 1
    # Addresses, paths and names of models are long; what distinguishes series, as a status or a
    # kind, is short.
    left_out: list[str] = []
    while len(parts) > 1 and len(_suffix(parts)) > room:
        longest = max(parts, key=len)
        parts.remove(longest)
        left_out.append(longest)
    left_out.append(_suffix(parts)[room:])
    return (
        f"{_suffix(parts)[:room].rstrip()}-{short_hash(_suffix(left_out), _HASH_BYTES)}"
    )


def _suffix(parts: Iterable[str]) -> str:
    return "/" + " ".join(parts)


def _text(value: object) -> str:
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    return str(value)


def _legal(text: str) -> str:
    legal = _ILLEGAL.sub("_", text)
    # Two texts that differ in replaced characters only must not become one series.
    if legal == text and text:
        return legal
    return f"{legal}-{short_hash(text, 3)}"


def address_part(address: str) -> str:
    """Return an address as part of a key: ``10.0.0.1:8000``."""
    return ":".join(_legal(part) for part in address.split(":"))


def short_hash(text: str, size: int) -> str:
    """Return *size* bytes of a hash of *text* as hex digits."""
    return hashlib.blake2b(
        text.encode("utf-8", "replace"), digest_size=size
    ).hexdigest()


class StepAxes:
    """Holds the last step of every axis, the axis of every key and the attempt of every role, flushed once a batch.

    Args:
        state: State that stores them.
        max_keys: Most keys that are known.
        processes: All processes of the run, as they are added.
    """

    def __init__(
        self,
        state: TranslationState,
        max_keys: int,
        processes: Mapping[str, Process] = NO_PROCESSES,
    ) -> None:
        self._state = state
        self._processes = processes
        self._max_keys = max_keys
        self._changed: set[str] = set()
        self._attempts: dict[str, int] = named(state, "attempt/")
        self._led: dict[str, int] = named(state, "led/")
        self._reached: dict[str, int] = named(state, "reached/")
        self._registered = set(named(state, "key/"))
        self._row_statistics = set(named(state, _OWN))
        self._last: dict[str, int] = named(state, "axis/")
        self._furthest: dict[str, int] = named(state, "furthest/")
        self.restarted: dict[str, int] = {}
        """Axis to attempt, for roles that began a second or later attempt, until its config is made."""

    def advance(self, axis: str, step: int) -> dict[str, int]:
        """Set the last step of *axis*, which may go back, and return the last step of every axis.

        Beyond `MAX_AXES` the new axis is on this row alone, and is not remembered.
        """
        last = self._last
        # Every row carries all axes, so their number bounds the size of each row.
        if axis not in last and len(last) >= MAX_AXES:
            return {**last, axis: step}
        last[axis] = step
        self._furthest[axis] = max(step, self._furthest.get(axis, step))
        self._changed.add(axis)
        return last.copy()

    def furthest(self, axis: str) -> int | None:
        """Return the highest step of the current attempt on *axis*.

        ``None`` before its first row.
        """
        return self._furthest.get(axis)

    def beside(self, axis: str, step: int) -> dict[str, int]:
        """Return the steps of a late row: *step* on *axis*, whose last step does not change."""
        return {**self._last, axis: step}

    def steps(self) -> dict[str, int]:
        """Return the last step of every axis."""
        return dict(self._last)

    def register(self, keys: Iterable[str], axis: str) -> None:
        """Note that *keys* are drawn over *axis*; the first axis of a key wins.

        Unlike `admit`, nothing is counted, and values of keys beyond the limit are shown all the
        same.
        """
        for key in keys:
            if key not in self._registered and len(self._registered) < self._max_keys:
                self._registered.add(key)
                self._state.set(f"key/{key}", axis)

    def admit(
        self, values: Mapping[str, Value], axis: str | None
    ) -> Mapping[str, Value]:
        """Return *values* without the keys beyond the limit of the run, each counted.

        The others are registered.

        Keys of statistics are noted as used by rows, because a program's own value wins over a
        statistic.

        Args:
            values: Key to value of one row.
            axis: Axis over which the values are drawn; ``None``: time.
        """
        for key in filter(_is_statistic, values):
            if key not in self._row_statistics:
                self._row_statistics.add(key)
                self._state.set(f"{_OWN}{key}", axis)
        return self._within_limit(values, axis)

    def admit_statistics(
        self, values: Mapping[str, Value], axis: str | None
    ) -> Mapping[str, Value]:
        """Return the statistics of a step as `admit` does, without values whose key a row already uses.

        Those are counted (``same_key``): two values of one key at one step would overwrite each
        other.

        Args:
            values: Key to value.
            axis: Axis over which the values are drawn; ``None``: time.
        """
        unused: dict[str, Value] = {}
        for key, value in values.items():
            if key in self._row_statistics:
                count(self._state, SAME_KEY, name=key)
            else:
                unused[key] = value
        return self._within_limit(unused, axis)

    def _within_limit(
        self, values: Mapping[str, Value], axis: str | None
    ) -> Mapping[str, Value]:
        """Return *values* without new keys beyond the limit of the run, which are counted.

        Register the others.

        They are counted as ``too_many_keys``, with the first one as the example. Keys that are drawn
        over time are not stored: after a restart of the bridge they count anew.

        Trackers and the state hold every key of a run, so ever-new keys must not grow without
        bound.
        """
        new = [key for key in values if key not in self._registered]
        if not new:
            return values
        room = max(self._max_keys - len(self._registered), 0)
        for key in new[:room]:
            self._registered.add(key)
            if axis is not None:
                self._state.set(f"key/{key}", axis)
        if len(new) <= room:
            return values
        count(self._state, "too_many_keys", len(new) - room, name=new[room])
        beyond = frozenset(new[room:])
        return {key: value for key, value in values.items() if key not in beyond}

    def reached(self, axis: str, step: int) -> None:
        """Note that a rollout of *step* was sent, since a role may send rollouts without rows."""
        if step > self._reached.get(axis, step - 1):
            self._store("reached/", self._reached, axis, step)

    def _store(
        self, key_space: str, numbers: dict[str, int], axis: str, number: int
    ) -> None:
        """Store *number* as that of *axis*, if it is another one.

        Of axes beyond `MAX_AXES` nothing is stored.
        """
        has_room = axis in numbers or len(numbers) < MAX_AXES
        if has_room and numbers.get(axis) != number:
            numbers[axis] = number
            self._state.set(f"{key_space}{axis}", number)

    def attempt(self, process: Process, axis: str, step: int) -> int:
        """Return the attempt of the axis's role that *process* belongs to, and remember the attempt.

        An attempt stated by the emitter wins. Else a process begins the next attempt under three
        conditions. It starts below the last step of rows or rollouts, or at that step when its
        predecessor did not finish. It follows a process of its rank from the current attempt. No
        other process of the current attempt still lives. The ranks of one attempt may arrive in any
        order: the first one begins the attempt, the others join. Forked children belong to the
        attempt of their parent.
        """
        current = self._attempt_of(process, axis, step)
        # Only a further attempt is reported; a process that joins it later is not.
        if current > max(self._attempts.get(axis, 1), 1):
            self.restarted[axis] = current
        if self._attempts.get(axis, current) != current:
            # A further attempt continues from an earlier step.
            self._furthest[axis] = step
            self._state.set(f"furthest/{axis}", step)
        self._store("attempt/", self._attempts, axis, current)
        # `_starts_again` needs it once the rank 0 of an attempt is forgotten.
        if process.determines_status:
            self._store("led/", self._led, axis, current)
        # A process may name any number of roles, each an axis of its state.
        if len(process.attempts) < MAX_AXES:
            process.begin_attempt(axis, current)
        return current

    def _attempt_of(self, process: Process, axis: str, step: int) -> int:
        """Return the attempt that *process* states, or else begins or joins with *step*.

        Only a worker whose step is at or below one that its role reached may begin the next
        attempt.
        """
        # An emitter that counts its restarts knows more than steps can show.
        if process.attempt is not None:
            return process.attempt
        current = self._attempts.get(axis, 1)
        last = max(
            steps.get(axis, step - 1)
            for steps in (self._last, self._furthest, self._reached)
        )
        if (
            step <= last
            and process.is_rank
            and self._starts_again(process, axis, current, behind=step < last)
        ):
            return current + 1
        return current

    def current(self, axis: str) -> int:
        """Return the current attempt of the role of *axis*."""
        return self._attempts.get(axis, 1)

    def _starts_again(
        self, process: Process, axis: str, current: int, *, behind: bool
    ) -> bool:
        """Return whether *process* follows one of its rank in attempt *current*, of which no process still lives.

        A predecessor that finished is followed only by a process that is *behind* its last step: at
        the same step *process* is one more worker, which started late. Without a predecessor, a
        rank 0 follows a rank 0 of which only the state is left.
        """
        workers = self._other_workers(process)
        predecessors: list[Process] = []
        for worker in workers:
            is_of_attempt = worker.attempts.get(axis) == current
            if worker.rank == process.rank and is_of_attempt:
                predecessors.append(worker)
        if predecessors:
            follows = behind or any(
                worker.status is not Status.FINISHED for worker in predecessors
            )
        else:
            follows = process.rank == 0 and self._led.get(axis) == current
        return follows and not any(
            _keeps_attempt(worker, process, axis, predecessors) for worker in workers
        )

    def _other_workers(self, process: Process) -> list[Process]:
        return [
            worker
            for worker in self._processes.values()
            if worker.is_rank and worker is not process
        ]

    def row(
        self,
        id_: str,
        process: Process,
        *,
        role: str | None,
        step: int | None,
        time_unix_ns: int,
        values: Mapping[str, Value],
        late: bool = False,
    ) -> Row:
        """Return a row of *process* with its attempt and the last steps of all axes.

        Args:
            id_: Id of the row.
            process: Process that sent it.
            role: Role of the row.
            step: Its step; ``None``: the row is placed by time, and belongs to no attempt.
            time_unix_ns: Its time.
            values: Full key to value; those of keys beyond the limit are counted and left out, so
                that a row may have none.
            late: Whether a later row was written before: the row shows its own step, and must not
                take the axis back.
        """
        if step is None:
            return Row(
                id=id_,
                role=role,
                step=None,
                axis=None,
                time_unix_ns=time_unix_ns,
                values=self.admit(values, None),
                steps=self.steps(),
            )
        axis = axis_of(role)
        attempt = process.attempts.get(axis) or self.attempt(process, axis, step)
        if attempt > 1:
            # Rows that are merged have the same keys on all ranks.
            rank = 0 if process.merge_world else process.rank
            key = full_key(role, ATTEMPT, rank=rank)
            self.register((key,), axis)
            # The number first: a user's value of that name stays.
            values = {key: attempt, **values}
        values = self.admit(values, axis)
        steps = self.beside(axis, step) if late else self.advance(axis, step)
        return Row(id_, role, step, axis, time_unix_ns, values, steps, attempt)

    def flush(self) -> None:
        """Write what changed to the state."""
        for axis in self._changed:
            self._state.set(f"axis/{axis}", self._last[axis])
            self._state.set(f"furthest/{axis}", self._furthest[axis])
        self._changed.clear()


def _keeps_attempt(
    worker: Process, process: Process, axis: str, predecessors: list[Process]
) -> bool:
    """Return whether *worker* is still in the current attempt, so that *process* does not begin the next one.

    A worker of another rank belongs to the attempt if it ran beside a predecessor of *process*. One
    of the same rank belongs to it even before its first step, if its role has this *axis*.
    """
    has_steps = axis in worker.attempts
    if worker.rank != process.rank:
        ran_in_attempt = not predecessors or _ended_after_any(predecessors, worker)
        return has_steps and ran_in_attempt and _was_beside(worker, process)
    if has_steps:
        return _was_beside(worker, process)
    return (
        axis_of(worker.role) == axis
        and _runs_beside(worker, process)
        and _ended_after_any(predecessors, worker)
    )


def _was_beside(worker: Process, process: Process) -> bool:
    """Return whether *worker* runs, or ran when *process* began."""
    return _runs_beside(worker, process) or _ended_after(worker, process)


def _runs_beside(worker: Process, process: Process) -> bool:
    """Return whether *worker* still runs.

    A remote one only if it was seen in the last `QUIET_NS` before *process*.
    """
    if worker.status is not None or worker.drained:
        return False
    return not worker.remote or process.seen_ns - worker.seen_ns < QUIET_NS


def _ended_after(worker: Process, process: Process) -> bool:
    """Return whether *worker* ended after *process* began; ``False`` while it runs.

    The clocks of two machines differ, so a remote end is placed by the time it was read, unless
    silence ended it: that end is the last time it was seen.
    """
    if worker.status is None:
        return worker.drained and worker.seen_ns > process.began_ns
    ended_by_arrival = worker.remote and not worker.timed_out
    return (
        worker.ended_ns if ended_by_arrival else worker.end_time_ns
    ) > process.began_ns


def _ended_after_any(predecessors: Iterable[Process], process: Process) -> bool:
    return any(_ended_after(predecessor, process) for predecessor in predecessors)
