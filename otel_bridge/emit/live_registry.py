"""Live rollouts and phases of this process that have not closed: what is open when its run ends is counted."""

from __future__ import annotations

from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

UNFINISHED = "rollout_unfinished"
_MAX_UNCLOSED = 100_000
_MAX_STEPS = 64
"""Most steps of one role and split that are reported as open, the highest first."""
Track: TypeAlias = tuple[str, str, str]
"""Run id, role (empty without one) and split (empty when none is named)."""


class _Unclosed(NamedTuple):
    run: EmitRun
    name: str
    track: Track
    step: int | None
    reason: str


_unclosed: dict[int, _Unclosed] = {}
_steps: dict[Track, dict[int, int]] = {}
_reported: set[Track] = set()
_lock = RLock()
"""Re-entrant: a signal handler may open a rollout inside a call on its own thread."""
_numbers = count()


def opened(  # noqa: PLR0917  # called for every phase: keywords would cost
    run: EmitRun,
    name: str,
    track: Track,
    step: int | None,
    earlier_number: int = -1,
    reason: str = UNFINISHED,
) -> int:
    """Note a rollout or phase, unless already noted under the number *earlier_number*.

    Return its number for `closed`. What is never closed is counted at the end of its run, or once
    there are more than 100,000.

    Args:
        run: Run of the rollout.
        name: Id of the rollout, name of the phase.
        track: Run id, role and split.
        step: Step that counts as open meanwhile; ``None``: no step does.
        earlier_number: Number of an earlier call for the same rollout.
        reason: Reason of the drop that is counted when the run ends before.
    """
    if earlier_number in _unclosed:
        return earlier_number
    number = next(_numbers)
    with _lock:
        _unclosed[number] = _Unclosed(run, name, track, step, reason)
        if step is not None:
            counts = _steps.setdefault(track, {})
            counts[step] = counts.get(step, 0) + 1
    # The oldest counts as never closed: a program that closes none must not fill the memory.
    if len(_unclosed) > _MAX_UNCLOSED:
        _count(min(_unclosed, default=number))
    return number


def is_open(number: int) -> bool:
    """Return whether a rollout or phase of this process is open, in a run that has not ended."""
    return number in _unclosed


def closed(number: int) -> bool:
    """Note that a rollout or phase closed.

    Return false when it was already counted as never closed.
    """
    return _pop(number) is not None


def open_steps(track: Track) -> tuple[int, ...] | None:
    """Return the steps with open live rollouts, the highest 64.

    A bridge waits for them before it closes a step. ``None`` when there are none and none were
    reported before.
    """
    # Most processes have no live rollout: not even the lock is taken.
    if not _steps and not _reported:
        return None
    with _lock:
        steps = tuple(sorted(_steps.get(track, ()))[-_MAX_STEPS:])
        if steps:
            _reported.add(track)
        elif track in _reported:
            # Reported once more, without steps: else the last ones would stay open.
            _reported.discard(track)
        else:
            return None
    return steps


def _pop(number: int) -> _Unclosed | None:
    """Forget a rollout or phase and its step.

    ``None`` when it was forgotten before, by its end or that of its run.
    """
    with _lock:
        unclosed = _unclosed.pop(number, None)
        if (
            unclosed is not None
            and unclosed.step is not None
            and (counts := _steps.get(unclosed.track))
        ):
            counts[unclosed.step] = counts.get(unclosed.step, 1) - 1
            if counts[unclosed.step] <= 0:
                del counts[unclosed.step]
            if not counts:
                del _steps[unclosed.track]
    return unclosed


def count_unclosed(run_id: str) -> None:
    """Count the rollouts and phases that have not closed when the run *run_id* ends.

    They are not recorded.
    """
    for number, unclosed in list(_unclosed.items()):
        if unclosed.track[0] == run_id:
            _count(number)


def forget_unclosed() -> None:
    """Leave the rollouts and phases that were open at a fork to the parent."""
    global _lock  # noqa: PLW0603  # another thread may have held it at the fork
    _lock = RLock()
    _unclosed.clear()
    _steps.clear()
    _reported.clear()


def _count(number: int) -> None:
    """Count a rollout or phase as never closed. Nothing if it has closed meanwhile."""
    unclosed = _pop(number)
    if unclosed is not None:
        unclosed.run.count_drop(unclosed.reason, 1, unclosed.name)
