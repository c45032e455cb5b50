"""Progress of each worker of a role with its rollouts, which determines the steps that may still get rollouts. Pure.

A worker is a process that sent rollouts of the role, or a living process with the role. Owns
``pace/<instance>`` of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.packing import NOT_STORED, packed, unpacked_below
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState

_PACE = "pace/"
_MAX_TRACKS = 64
"""Most roles and splits of one process whose steps are remembered."""
_ABOVE_ALL_STEPS = 1 << 64
_BELOW_ALL_STEPS = -(1 << 64)


@dataclass(slots=True)
class WorkerProgress:
    """Holds the progress of one process with its rollouts.

    Attributes:
        steps: Role and split to the highest step with a rollout.
        last_ns: Arrival time of the last rollout.
        rooted: Rollouts that wait for spans and whose root arrived, to their steps.
        open: Role and split to the steps with open live rollouts.
    """

    steps: dict[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int]
    )
    last_ns: int = 0
    rooted: dict[str, int] = field(default_factory=dict[str, int], metadata=NOT_STORED)
    open: dict[tuple[str, str], tuple[int, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[int, ...]]
    )

    def highest_step(self, role: str) -> int | None:
        """Return the highest step of any split of *role*, ``None`` if the process sent none of its rollouts."""
        highest_step: int | None = None
        for (step_role, _), step in self.steps.items():
            is_higher = highest_step is None or step > highest_step
            if step_role == role and is_higher:
                highest_step = step
        return highest_step


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Tracks the progress of the workers of one role and split.

    Attributes:
        past_below: Every worker is past each step below this number.
        settles: Whether some rollouts arrived by a network, which may reorder them.
        under_way: Steps of which some worker has open live rollouts.
        newcomer: Whether a process of the role that has sent nothing yet lives, or may still start.
        slow: For each worker, its highest step of any split and the arrival time of its last
            rollout.
    """

    past_below: int
    settles: bool
    slow: list[tuple[int, int]]
    under_way: frozenset[int] = frozenset()
    newcomer: bool = False

    def behind_since(self, step: int) -> int | None:
        """Return the latest arrival from workers that have not reached *step*.

        ``None``: all workers reached it.
        """
        return max(
            (last_ns for reached, last_ns in self.slow if reached < step), default=None
        )


class StepWorkers:
    """Tracks the workers of all roles of one run.

    Args:
        state: Key space *space*.
        options: Waiting times.
        processes: Live view of all processes of the run, by instance; a missing process counts as
            alive.
        space: Key space of the state; phases of steps have one of their own.
        every_rank: Whether processes of every rank are workers, as for phases. Then a newcomer
            prevents nothing here.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        processes: Mapping[str, Process],
        *,
        space: str = _PACE,
        every_rank: bool = False,
    ) -> None:
        self._state = state
        self._options = options
        self._processes = processes
        self._space = space
        self._every_rank = every_rank
        self._paces = unpacked_below(WorkerProgress, state, space)
        self._changed: set[str] = set()

    def rooted(self, instance: str, trace_id: str, step: int) -> None:
        """Note that the root of a rollout arrived, while its other spans are still awaited."""
        # Not stored: after a restart the waiting traces give it again.
        self._paces.setdefault(instance, WorkerProgress()).rooted[trace_id] = step

    def complete(self, instance: str, trace_id: str) -> bool:
        """Note that a rollout is no longer awaited; return whether it was awaited."""
        pace = self._paces.get(instance)
        return pace is not None and pace.rooted.pop(trace_id, None) is not None

    def sent(
        self,
        instance: str,
        role: str | None,
        split: str,
        step: int | None,
        now_unix_ns: int,
    ) -> bool:
        """Note that a process sent a rollout; return whether this advances the process.

        Without a step, or of a step that is not higher than all before, it does not. Beyond
        `_MAX_TRACKS` roles and splits the step is not remembered, and each rollout counts as an
        advance.
        """
        pace = self._paces.setdefault(instance, WorkerProgress())
        pace.last_ns = max(pace.last_ns, now_unix_ns)
        # Stored once a batch: the time changes with every rollout.
        self._changed.add(instance)
        track = (role or "", split)
        if step is None or step <= pace.steps.get(track, _BELOW_ALL_STEPS):
            return False
        if track in pace.steps or len(pace.steps) < _MAX_TRACKS:
            pace.steps[track] = step
            self._store(instance, pace)
        return True

    def has_open(
        self, instance: str, role: str | None, split: str, steps: tuple[int, ...]
    ) -> bool:
        """Note the *steps* of which a process has open live rollouts.

        Return whether an earlier one is now missing.

        ``False`` while the same or more are open: only a step without live rollouts may close
        earlier. Beyond `_MAX_TRACKS` roles and splits of a process its steps are not remembered, and
        hold nothing open.
        """
        pace = self._paces.setdefault(instance, WorkerProgress())
        track = (role or "", split)
        last_steps = pace.open.get(track, ())
        if steps == last_steps:
            return False
        if not steps:
            del pace.open[track]
        elif last_steps or len(pace.open) < _MAX_TRACKS:
            pace.open[track] = steps
        self._store(instance, pace)
        return not set(last_steps) <= set(steps)

    def flush(self) -> None:
        """Write the arrival time of the last rollout to the state, for processes with new rollouts.

        Without it a restarted bridge may wait for a worker longer or shorter, and loses nothing.
        """
        for instance in self._changed:
            if (pace := self._paces.get(instance)) is not None and pace.steps:
                self._store(instance, pace)
        self._changed.clear()

    def _store(self, instance: str, pace: WorkerProgress) -> None:
        self._state.set(f"{self._space}{instance}", packed(pace))

    def forget(self, instance: str) -> None:
        """Forget a process."""
        if self._paces.pop(instance, None) is not None:
            self._state.delete(f"{self._space}{instance}")

    def living(self, role: str, now_unix_ns: int) -> set[str]:
        """Return the workers of a role, by instance, of which more data are expected.

        A worker whose process is unknown counts: nothing shows that it ended.
        """
        living: set[str] = set()
        for instance, pace in self._paces.items():
            has_ended = self._ended(self._processes.get(instance), now_unix_ns)
            if pace.highest_step(role) is not None and not has_ended:
                living.add(instance)
        return living

    def reach(self, role: str, split: str, now_unix_ns: int) -> StepProgress:
        """Return the progress of the workers of a role and split.

        `past_below` is above all steps when no worker is left, and below all steps when only time
        can close one: a process that sent nothing yet may still send rollouts of any step, and
        several anonymous ones look like one.
        """
        past_below = _ABOVE_ALL_STEPS
        settles = False
        slow: list[tuple[int, int]] = []
        under_way: set[int] = set()
        for instance, pace in self._paces.items():
            highest_step = pace.highest_step(role)
            if highest_step is None:
                continue
            process = self._processes.get(instance)
            settles = settles or _is_remote(process)
            if self._ended(process, now_unix_ns):
                continue
            if process is not None and process.anonymous:
                # It may stand for several processes, whose steps are in one: only time closes a
                # step.
                past_below = _BELOW_ALL_STEPS
                continue
            under_way.update(pace.open.get((role, split), ()))
            # A rollout whose root arrived holds its step open, also if its worker has gone on.
            past_below = min(
                past_below,
                pace.steps.get((role, split), highest_step),
                *pace.rooted.values(),
            )
            # One that has been silent for longer is not waited for any more.
            if now_unix_ns - pace.last_ns < self._options.step_timeout_ns:
                slow.append((highest_step, pace.last_ns))
        newcomer = past_below > _BELOW_ALL_STEPS and self._awaits_newcomer(
            role, now_unix_ns
        )
        if newcomer and not self._every_rank:
            past_below = _BELOW_ALL_STEPS
        # Without a living worker, arriving rollouts are late; others sent with them follow shortly.
        without_worker = past_below == _ABOVE_ALL_STEPS
        return StepProgress(
            past_below, settles or without_worker, slow, frozenset(under_way), newcomer
        )

    def _awaits_newcomer(self, role: str, now_unix_ns: int) -> bool:
        """Return whether a process of *role* that has sent no rollout of the role yet may send some.

        It is a living process, or a process that is about to start: the workers of a role rarely
        start at one instant, and a fast one may pass its first steps before the next one exists.
        """
        for process in self._processes.values():
            may_send = (process.role or "") == role and self._is_worker(process)
            if not may_send or process.began_ns > now_unix_ns:
                continue
            if now_unix_ns < process.began_ns + self._options.step_startup_ns:
                return True
            if not self._ended(process, now_unix_ns) and not self._has_sent(
                process.instance, role
            ):
                return True
        return False

    def _is_worker(self, process: Process) -> bool:
        if self._every_rank:
            return process.is_rank
        return process.determines_status

    def _has_sent(self, instance: str, role: str) -> bool:
        pace = self._paces.get(instance)
        return pace is not None and pace.highest_step(role) is not None

    def _ended(self, process: Process | None, now_unix_ns: int) -> bool:
        """Return whether no more data are expected of a process.

        Its end may overtake its rollouts on a network.

        A process that the run does not know, as of another bridge, has not ended.
        """
        if process is None:
            return False
        if process.status is None or not process.remote:
            return process.status is not None or process.drained
        return now_unix_ns >= process.ended_ns + self._options.row_wait_ns


def _is_remote(process: Process | None) -> bool:
    return process is not None and process.remote
