"""Timers of frameworks -> phases of the process's run, by wrapping the timers that the frameworks have.

In a process without a run the timers do what they did. A phase inside another has its step, so that
only the outermost one asks the framework. A failure in a `guarded` function is counted as
``adapter_failed``, and the framework's timer goes on.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.calling_object import calling_object
from otel_bridge.adapters.parts.framework_run import guarded

if TYPE_CHECKING:
    from otel_bridge.emit.phases.phase import Phase

_TIMED = "otel_bridge_timed"
_VERL = "verl.utils.profiler.performance"
_SKYRL = ("skyrl.train.utils.utils", "skyrl_train.utils.utils")
_TRL = "trl.extras.profiling"
_LIGHTNING_ACTIONS = frozenset(
    {
        "run_training_batch", "train_dataloader_next", "training_step", "backward", "optimizer_step",
        "validation_step", "test_step", "save_checkpoint",
    }
)  # fmt: skip
"""Actions of Lightning's profilers that are phases; the others are hooks of each callback and module."""


def time_verl() -> None:
    """Make each ``marked_timer`` and ``simple_timer`` of verl a phase, once.

    Nothing happens where verl has not imported the module, or it has no such function: the adapter
    then records no phases. Both of verl's timers use ``_timer`` (0.9.1).
    """
    module: Any = sys.modules.get(_VERL)
    real: Any = getattr(module, "_timer", None)
    if real is None or getattr(real, _TIMED, False):
        return

    @functools.wraps(real)
    def timer(name: str, *arguments: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        with _phase(name, _step_of_verl):
            yield from real(name, *arguments, **keywords)

    setattr(timer, _TIMED, True)
    module._timer = timer


def time_skyrl() -> None:
    """Make each ``Timer`` of SkyRL a phase, once.

    SkyRL's package is ``skyrl`` or, in older versions, ``skyrl_train``. Nothing happens where it has
    not imported its timers yet.
    """
    for name in _SKYRL:
        cls: Any = getattr(sys.modules.get(name), "Timer", None)
        if cls is not None:
            _time_contexts(cls, lambda timer: timer.message, lambda _: _step_of_skyrl())


def time_trl() -> None:
    """Make each ``profiling_context`` of TRL a phase, once.

    Nothing happens without TRL, or where it has no such class.
    """
    cls: Any = getattr(sys.modules.get(_TRL), "ProfilingContext", None)
    if cls is not None:
        # TRL names them "GRPOTrainer._generate", and counts the steps that have ended.
        _time_contexts(
            cls,
            lambda context: context.name.rpartition(".")[2].lstrip("_"),
            lambda context: None if context.step is None else context.step + 1,
        )


@guarded
def time_lightning(trainer: Any) -> None:
    """Make what the profiler of a Lightning trainer measures in the loops phases, also where none is chosen, once.

    Nothing happens without a trainer. The methods of this profiler are replaced, not of its class:
    another trainer in the process may have no logger of this kind.
    """
    profiler: Any = getattr(trainer, "profiler", None)
    if profiler is None or isinstance(profiler.start, _TimedAction):
        return
    phases = TimerPhases()
    # Weak, since the profiler would keep the trainer, and so the model, in memory.
    owner = weakref.ref(trainer)
    real_start = profiler.start
    real_stop = profiler.stop

    def start(action_name: str) -> None:
        # The phase lies within what the profiler measures.
        real_start(action_name)
        # Lightning names actions as "[Strategy]DDPStrategy.backward".
        name = action_name.rpartition(".")[2]
        if name in _LIGHTNING_ACTIONS:
            phases.begin(action_name, name, _step_of_lightning(owner()))

    def stop(action_name: str) -> None:
        phases.end(action_name)
        real_stop(action_name)

    profiler.start = _TimedAction(real_start, start)
    profiler.stop = _TimedAction(real_stop, stop)


class _TimedAction:
    """Replaces a method of one profiler. A copy of the profiler has its own method again: its trainer is another one.

    Args:
        method: The method.
        call: What is called in its place.
    """

    def __init__(self, method: Any, call: Callable[[str], None]) -> None:
        self._method = method
        self._call = call

    def __call__(self, action_name: str) -> None:
        """Call what replaces the method."""
        self._call(action_name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the method alone: Lightning pickles a trainer for the processes that it spawns."""
        return getattr, (self._method.__self__, self._method.__name__)


@guarded
def _step_of_lightning(trainer: Any) -> int:
    """Return the step of the row that Lightning logs after the batch.

    ``None``, counted, where the trainer is gone or of another form: the phase then has no step of
    its own.
    """
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


class TimerPhases:
    """Holds the open phases of timers that are started and ended by calls. For the thread that trains."""

    def __init__(self) -> None:
        self._open: dict[object, Phase] = {}

    @guarded
    def begin(self, timer: object, name: str, step: int | None) -> None:
        """Begin phase *name* of *timer*; without a step it has that of the phase around it.

        A timer that is started again before its end replaces its phase, which is then never
        recorded.
        """
        from otel_bridge.emit.phases.phase import Phase  # noqa: PLC0415  # only programs that train pay for it

        self._open[timer] = Phase(None, name, step).__enter__()

    @guarded
    def end(self, timer: object) -> None:
        """End the phase of *timer*, if it has one: it may have been started before it was wrapped."""
        phase = self._open.pop(timer, None)
        if phase is not None:
            phase.__exit__(None, None, None)


@guarded
def _step_of_verl() -> int | None:
    """Return the step of the trainer that calls: in the fully async mode the next version of the weights.

    ``None`` outside of one.
    """
    trainer = calling_object(
        lambda caller: (
            hasattr(caller, "global_steps") or hasattr(caller, "current_param_version")
        )
    )
    version = getattr(trainer, "current_param_version", None)
    if version is not None:
        return int(version) + 1
    if trainer is None:
        return None
    return int(trainer.global_steps)


@guarded
def _step_of_skyrl() -> int | None:
    """Return the global step of the trainer that calls; ``None`` outside of one."""
    trainer = calling_object(lambda caller: hasattr(caller, "global_step"))
    if trainer is None:
        return None
    return int(trainer.global_step)


def _time_contexts(
    cls: Any, name_of: Callable[[Any], str], step_of: Callable[[Any], int | None]
) -> None:
    """Make each ``with`` and ``async with`` of a timer class a phase, once.

    Marked on the class itself: a subclass with methods of its own is another class. A failure of the
    adapter is counted as ``adapter_failed``, and the timer goes on.

    Args:
        cls: The class.
        name_of: Returns the name of a timer's phase.
        step_of: Returns the step of a timer that is inside no other phase.
    """
    if _TIMED in vars(cls):
        return
    setattr(cls, _TIMED, True)

    phases = TimerPhases()

    @guarded
    def begin(timer: Any) -> None:
        from otel_bridge.emit.phases.phase import is_inside  # noqa: PLC0415

        step = None if is_inside() else step_of(timer)
        # By its id, so that a phase that never ends does not keep the timer alive.
        phases.begin(id(timer), name_of(timer), step)

    def end(timer: Any) -> None:
        phases.end(id(timer))

    for enter_name, exit_name in (
        ("__enter__", "__exit__"),
        ("__aenter__", "__aexit__"),
    ):
        if hasattr(cls, enter_name):
            _wrap(cls, enter_name, begin)
            _wrap(cls, exit_name, end)


def _phase(name: str, step_of: Callable[[], int | None]) -> Phase:
    """Return a phase; *step_of* is called unless it is inside another one, whose step it has."""
    from otel_bridge.emit.phases.phase import Phase, is_inside  # noqa: PLC0415  # only programs that train pay for it

    return Phase(None, name, None if is_inside() else step_of())


def _wrap(cls: Any, name: str, prelude: Callable[[Any], object]) -> None:
    """Call *prelude* ahead of method *name*, which may be an ``async def``.

    What the method raises passes; *prelude* raises nothing.
    """
    real = getattr(cls, name)

    @functools.wraps(real)
    def method(self: Any, *arguments: Any) -> Any:
        prelude(self)
        return real(self, *arguments)

    setattr(cls, name, method)
