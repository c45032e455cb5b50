"""Timers of slime and miles -> phases of the process's run: ``--capture slime`` wraps their class ``Timer``.

Both have one ``Timer`` a process, whose ``start()`` and ``end()`` need no block: ``train_wait``
lasts from the end of one step to the begin of the next, and the timers of a weight sync or
checkpoint are inside it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from otel_bridge.adapters.parts.calling_object import calling_argument
from otel_bridge.adapters.parts.framework_run import guarded
from otel_bridge.adapters.parts.timers import TimerPhases

_STEP = "rollout_id"
"""Argument of the methods of trainer and rollout manager by which slime and miles number their steps."""
_MARK = "otel_bridge_timed"


def install(module: ModuleType, mode: str) -> None:
    """Make each timer of *module* a phase; a second call changes nothing, and the mode has no effect.

    Raises `AttributeError` where the module has no ``Timer``, which the import hook prints.

    Args:
        module: ``slime.observability.timer``, ``slime.utils.timer`` or ``miles.utils.timer``, wholly loaded.
        mode: Of the capture.
    """
    del mode
    timer: Any = module.Timer
    if getattr(timer, _MARK, False):
        return
    setattr(timer, _MARK, True)
    phases = TimerPhases()
    process = _Process()
    real_start = timer.start
    real_end = timer.end

    @functools.wraps(real_start)
    def start(self: Any, name: str) -> None:
        # The phase lies within what the timer measures.
        real_start(self, name)
        phases.begin(name, name, process.step())

    @functools.wraps(real_end)
    def end(self: Any, name: str) -> None:
        phases.end(name)
        real_end(self, name)

    timer.start = start
    timer.end = end


class _Process:
    """Holds the step that this process has reached."""

    def __init__(self) -> None:
        self._step = 0

    @guarded
    def step(self) -> int:
        """Return the step of the calling method, else the last one.

        A timer that starts in another method, such as ``train_wait`` between two steps, belongs to
        the step before. ``None`` after a failure, which is counted: the phase then has the step of
        the one around it.
        """
        step = calling_argument(_STEP)
        if step is not None:
            self._step = int(step)
        return self._step
