"""How far each worker of a role has come with its rollouts, and so which steps may still get some. Pure.

A worker is a process that sent rollouts of the role, or that has the role and lives. Owns ``pace/<instance>`` of the
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from otel_bridge.records import Json
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState

_PACE: Final = "pace/"
_MAX_TRACKS: Final = 64
"""Roles and splits of one process whose steps are remembered."""
_ALL: Final = 1 << 64
_NONE: Final = -(1 << 64)


@dataclass(slots=True)
class WorkerProgress:
    """The rollouts of one process.

    Attributes:
        steps: Role and split to the highest step it sent a rollout of.
        last_ns: When its last rollout arrived.
        rooted: Rollouts whose root arrived and that wait for spans, to their steps.
        open: Role and split to the steps of which it has live rollouts open.
    """

    steps: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    last_ns: int = 0
    rooted: dict[str, int] = field(default_factory=dict[str, int])
    open: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict[tuple[str, str], tuple[int, ...]])


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far the workers of one role and split have come.

    Attributes:
        past_below: Every worker is past each step below this number.
        settles: Some of it came by a network, which may carry what was sent first last.
        under_way: Steps of which some worker has live rollouts open.
        slow: Of each worker the highest step of any split and when its last rollout arrived.
    """

    past_below: int
    settles: bool
    slow: list[tuple[int, int]]
    under_way: frozenset[int] = frozenset()

    def behind_since(self, step: int) -> int | None:
        """Return when the last rollout arrived of those workers that have not reached *step*; ``None``: all have."""
        return max((last_ns for reached, last_ns in self.slow if reached < step), default=None)


class StepWorkers:
    """The workers of all roles of one run.

    Args:
        state: Key space ``pace/``.
        options: Waiting times.
        processes: All processes of the run, by instance, as they stand at any time. One that is not among them lives.
    """

    def __init__(self, state: TranslationState, options: TranslationOptions, processes: Mapping[str, Process]) -> None:
        self._state, self._options, self._processes = state, options, processes
        self._paces = {key.removeprefix(_PACE): _loaded(value) for key, value in state.items(_PACE)}
        self._changed: set[str] = set()

    def attempt(self, instance: str, axis: str) -> int | None:
        """Return which start of the role of *axis* a process belongs to, ``None`` while that is unknown."""
        process = self._processes.get(instance)
        return process.attempts.get(axis) if process is not None else None

    def rooted(self, instance: str, trace_id: str, step: int) -> None:
        """Note that the root of a rollout arrived whose spans are still awaited."""
        self._paces.setdefault(instance, WorkerProgress()).rooted[trace_id] = step

    def complete(self, instance: str, trace_id: str) -> bool:
        """Note that a rollout is awaited no more; return whether it was."""
        pace = self._paces.get(instance)
        return pace is not None and pace.rooted.pop(trace_id, None) is not None

    def sent(self, instance: str, role: str | None, split: str, step: int | None, now_unix_ns: int) -> bool:
        """Note that a process sent a rollout; return whether it is further than it was."""
        pace = self._paces.setdefault(instance, WorkerProgress())
        pace.last_ns = max(pace.last_ns, now_unix_ns)
        self._changed.add(instance)
        track = (role or "", split)
        if step is None or step <= pace.steps.get(track, _NONE):
            return False
        if track in pace.steps or len(pace.steps) < _MAX_TRACKS:
            pace.steps[track] = step
            self._store(instance, pace)
        return True

    def has_open(self, instance: str, role: str | None, split: str, steps: tuple[int, ...]) -> bool:
        """Note of which *steps* a process has live rollouts open; return whether some of before are none any more."""
        pace, track = self._paces.setdefault(instance, WorkerProgress()), (role or "", split)
        before = pace.open.get(track, ())
        if steps == before:
            return False
        if not steps:
            del pace.open[track]
        elif before or len(pace.open) < _MAX_TRACKS:
            pace.open[track] = steps
        self._store(instance, pace)
        return not set(before) <= set(steps)

    def flush(self) -> None:
        """Write to the state when the last rollout of each process arrived, of those that sent some since."""
        for instance in self._changed:
            if (pace := self._paces.get(instance)) is not None and pace.steps:
                self._store(instance, pace)
        self._changed.clear()

    def _store(self, instance: str, pace: WorkerProgress) -> None:
        held: list[Json] = [[[*track, *steps] for track, steps in pace.open.items()]] if pace.open else []
        tracks: list[Json] = [[*pair, at] for pair, at in pace.steps.items()]
        self._state.set(f"{_PACE}{instance}", [*tracks, pace.last_ns, *held])

    def forget(self, instance: str) -> None:
        """Forget a process."""
        if self._paces.pop(instance, None) is not None:
            self._state.delete(f"{_PACE}{instance}")

    def reach(self, role: str, split: str, now_unix_ns: int) -> StepProgress:
        """Return how far the workers of a role and split have come."""
        below, settles, slow = _ALL, False, list[tuple[int, int]]()
        under_way = set[int]()
        for instance, pace in self._paces.items():
            any_step = max((at for (of, _), at in pace.steps.items() if of == role), default=None)
            process = self._processes.get(instance)
            if any_step is None:
                continue
            settles = settles or (process is not None and process.remote)
            if self._ended(process, now_unix_ns):
                continue
            if process is not None and process.anonymous:
                below = _NONE
                continue
            under_way.update(pace.open.get((role, split), ()))
            below = min(below, pace.steps.get((role, split), any_step), *pace.rooted.values())
            if now_unix_ns - pace.last_ns < self._options.step_timeout_ns:
                slow.append((any_step, pace.last_ns))
        if below > _NONE and self._has_newcomer(role, now_unix_ns):
            below = _NONE
        # Without a living worker, what arrives is late: what was sent with it follows shortly.
        return StepProgress(below, settles or below == _ALL, slow, frozenset(under_way))

    def _has_newcomer(self, role: str, now_unix_ns: int) -> bool:
        """Return whether a process of *role* lives that has sent no rollout of it yet, but might."""
        return any(
            (process.role or "") == role
            and process.determines_status
            and process.began_ns <= now_unix_ns
            and not self._ended(process, now_unix_ns)
            and not self._has_sent(process.instance, role)
            for process in self._processes.values()
        )

    def _has_sent(self, instance: str, role: str) -> bool:
        pace = self._paces.get(instance)
        return pace is not None and any(of == role for of, _ in pace.steps)

    def _ended(self, process: Process | None, now_unix_ns: int) -> bool:
        """Return whether nothing more is expected of a process; its end may overtake its rollouts on a network."""
        if process is None:
            return False
        if process.status is None or not process.remote:
            return process.status is not None or process.gone
        return now_unix_ns >= process.ended_ns + self._options.row_wait_ns


def _loaded(value: object) -> WorkerProgress:
    *steps, last_ns = cast("list[Json]", value)
    held: list[list[Json]] = []
    if isinstance(last_ns, list):  # behind the time: of which steps live rollouts are open
        held, last_ns = cast("list[list[Json]]", last_ns), steps.pop()
    entries = cast("list[tuple[str, str, int]]", steps)
    still_open = {(str(role), str(split)): tuple(cast("list[int]", at)) for role, split, *at in held}
    return WorkerProgress({(role, split): step for role, split, step in entries}, cast("int", last_ns), open=still_open)
