"""Phases of a step: ``with run.phase("generate", step=7):`` -> one span at its end, packed by hand.

Nothing is written at the begin of a phase, so that a phase costs one append. A phase that a crash
leaves open is therefore not recorded; phases that ended inside it are recorded; they carry its name
as ``rl.phase.outer``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AsyncContextDecorator, ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import iscoroutinefunction
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import Any, TypeVar, cast

from otel_bridge.emit.arguments import INTERNAL_ERROR, role_of
from otel_bridge.emit.emit_run import EmitRun, current_run
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import scope_spans, span, span_attributes
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.live_registry import closed, is_open, opened
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import PHASE_NAME, PHASE_OUTER, PHASE_SPAN, ROLE, STEP

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

UNFINISHED = "phase_unfinished"
_MAX_NAME_CHARS = 128
_CLOCK_NS = time_ns() - perf_counter_ns()
"""Added to a clock that only goes forward: no phase of a process jumps when the machine's clock is set."""


@dataclass(slots=True, eq=False)
class _OpenPhase:
    """Holds one phase that is open, on the way from `Phase.__enter__` to `Phase.__exit__`.

    Attributes:
        enclosing: Phase around it in this context, which may be of another run.
        outer: Phase of the same run and process around it.
        number: Its number in `live_registry`.
        start_ns: By a clock that only goes forward.
    """

    run: EmitRun
    name: str
    step: int
    role: str | None
    enclosing: _OpenPhase | None
    outer: _OpenPhase | None
    trace_id: bytes
    span_id: bytes
    number: int
    start_ns: int

    def encoded(self, end_ns: int, error: str | None) -> bytes:
        """Return the phase as one ``ScopeSpans``; *end_ns* is of the clock of `start_ns`.

        The outer phase is named only if it is of the same step and role: the row of a step adds
        up the phases that have none around them. The span is a child of it all the same.
        """
        outer_name = None
        outer = self.outer
        if outer is not None and outer.step == self.step and outer.role == self.role:
            outer_name = outer.name
        pairs: list[tuple[str, Attribute]] = [
            (PHASE_NAME, self.name),
            (PHASE_OUTER, outer_name),
            (STEP, self.step),
            (ROLE, self.role),
        ]
        ids = (self.trace_id, self.span_id, None if outer is None else outer.span_id)
        times = (_CLOCK_NS + self.start_ns, _CLOCK_NS + end_ns)
        return scope_spans(
            (span(ids, PHASE_SPAN, times, span_attributes(pairs), error=error),)
        )


_current: ContextVar[_OpenPhase | None] = ContextVar("otel_bridge.phase", default=None)
"""Innermost open phase: of each thread, and of each asyncio task, which begins with that of its creator."""


def is_inside() -> bool:
    """Return whether a phase is open here; a new phase without a step takes its step."""
    return any(_open_phases())


def _open_phases() -> Iterator[_OpenPhase]:
    """Yield the open phases of this context, from the innermost outwards.

    A task or generator that began in a phase may go on after it, and has it as its current phase
    all the same. A forked child has the phases of its parent around it, which are not open in it.
    """
    phase = _current.get()
    while phase is not None:
        if is_open(phase.number):
            yield phase
        phase = phase.enclosing


class Phase(ContextDecorator, AsyncContextDecorator):
    """Measures one phase of a step; `Run.phase` and `otel_bridge.phase` return it.

    Use it with ``with`` or ``async with``, any number of times, also in several threads and tasks at
    one time, or as a decorator of a function or coroutine function. A phase inside another is its
    child. Phases of threads that run at one time overlap. An exception of the block passes through.
    Apart from that nothing raises.
    """

    def __init__(
        self,
        run: EmitRun | None,
        name: object,
        step: object = None,
        role: object = None,
    ) -> None:
        """Prepare a phase.

        Args:
            run: The run; ``None``: the process's run at the begin of each block.
            name: Name of the phase.
            step: Step of the phase.
            role: Another role than the run's own.
        """
        self._run = run
        self._name = name
        self._step = step
        self._role = role
        self._open: list[_OpenPhase | None] = []

    def __enter__(self) -> Phase:
        """Begin a phase.

        Without a run, or after its end (counted as ``ended``), nothing is recorded.
        """
        run = self._run or current_run()
        phase = None
        if run is not None and run.recording:
            try:
                phase = self._begin(run)
            except any_error_but_signals():
                # Nothing of otel-bridge may end a training run.
                run.count_drop(INTERNAL_ERROR)
        elif run is not None:
            run.count_after_end()
        self._open.append(phase)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record the phase; an exception of the block gives its span an error, and passes through.

        Nothing is recorded without a phase that `__enter__` began.
        """
        # First, so that the phase does not measure its own end.
        end_ns = perf_counter_ns()
        phase = self._take_open()
        if phase is None:
            return
        # Not when the block ends in another context than it began in.
        if _current.get() is phase:
            _current.set(phase.enclosing)
        # The run ended meanwhile and counted the phase, or this is a forked child.
        if not closed(phase.number):
            return
        error_name = None if kind is None else kind.__name__
        try:
            phase.run.append(Signal.TRACES, phase.encoded(end_ns, error_name))
        except any_error_but_signals():
            phase.run.count_drop(INTERNAL_ERROR)

    def _take_open(self) -> _OpenPhase | None:
        """Return the phase that ends now; ``None`` without one that `__enter__` began.

        That of this thread or task, of which several may have begun one by this object; else the
        one begun last, as where the block ends in another context than it began in.
        """
        current = _current.get()
        try:
            self._open.remove(current)
        except ValueError:
            return self._open.pop() if self._open else None
        return current

    async def __aenter__(self) -> Phase:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: FunctionT) -> FunctionT:
        """Return *function* with each of its calls as a phase.

        A coroutine function is awaited in it.
        """
        # Calls that overlap in threads and tasks share this object, as blocks may.
        if iscoroutinefunction(function):
            return AsyncContextDecorator.__call__(self, function)
        return ContextDecorator.__call__(self, function)

    def _begin(self, run: EmitRun) -> _OpenPhase:
        """Return a phase that begins now, made the current one of this context.

        It is within that of its own run and process, if one is open here. A name that is not a text
        becomes one or ``phase`` (counted as ``phase_name``), a step that is not a number is as none
        (see `to_step`). Without a step it has that of the phase around it if that is of the same
        role, else that of the role's next row. May raise what the program's own objects raise.
        """
        name = coerce.name(self._name)
        if name is None:
            run.count_drop("phase_name")
            name = "phase"
        name = name[:_MAX_NAME_CHARS]
        step = to_step(self._step, run.count_drop)
        role = role_of(self._role)
        if role == run.role:
            role = None
        # A phase of another run may lie between.
        outer = next((phase for phase in _open_phases() if phase.run is run), None)
        if step is None and outer is not None and outer.role == role:
            step = outer.step
        if step is None:
            step = run.next_step(role)
        ids = os.urandom(24)
        phase = _OpenPhase(
            run,
            name,
            step,
            role,
            next(_open_phases(), None),
            outer,
            ids[8:] if outer is None else outer.trace_id,
            ids[:8],
            opened(run, name, (run.id, role or "", ""), None, reason=UNFINISHED),
            # Last, so that the phase does not measure its own begin.
            perf_counter_ns(),
        )
        _current.set(phase)
        return phase


def phase_of(
    run: EmitRun | None, name: object, step: object = None, role: object = None
) -> Phase:
    """Return a phase.

    Or, if *name* is a function, that function with each of its calls as a phase of its name.

    The latter is what a decorator without parentheses calls. Type checkers refuse it, but the
    program must not fail.
    """
    if not callable(name):
        return Phase(run, name, step, role)
    return cast("Phase", Phase(run, getattr(name, "__name__", None), step, role)(name))


def phase(
    name: str = "phase", step: int | None = None, *_: object, role: str | None = None
) -> Phase:
    """Measure a phase of a step in the process's run: ``with otel_bridge.phase("generate", step=7):``.

    As a decorator it may stand before ``init()``: each call looks up the run. Without a run nothing
    is recorded.

    Args:
        name: Name of the phase.
        step: Step of the phase; ``None`` for that of the phase around it, else for that of the
            role's next row.
        role: Another role than the run's own.
    """
    return phase_of(None, name, step, role)
