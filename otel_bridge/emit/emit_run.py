"""Interfaces between a run and its rollouts and phases, and the process's current run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from otel_bridge.emit.console import notify
from otel_bridge.emit.encode.values import to_step

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind

    from otel_bridge.emit.config.snapshot import RolloutOptions
    from otel_bridge.emit.encode.span import ExtraAttributes


class RolloutTracer(Protocol):
    """Starts and ends the spans of a run's live rollouts."""

    def start_root(self, trace_id: int, links: Sequence[Link]) -> Span:
        """Start a rollout's root as a trace of its own."""
        ...

    def start_child(self, name: str, context: Context, kind: SpanKind) -> Span:
        """Start a span below the current span of *context*."""
        ...

    def end(self, span: Span, extra: ExtraAttributes, end_unix_ns: int) -> None:
        """End *span* with its additions."""
        ...


class EmitRun(Protocol):
    """Declares what rollouts and phases use of a run."""

    @property
    def id(self) -> str:
        """Run id."""
        ...

    @property
    def role(self) -> str | None:
        """Role of the resource."""
        ...

    @property
    def recording(self) -> bool:
        """Whether the run records."""
        ...

    @property
    def rollout_options(self) -> RolloutOptions:
        """Options of rollouts and of their content."""
        ...

    @property
    def live_tracer(self) -> RolloutTracer:
        """Tracer of live rollouts, created at the first use."""
        ...

    def append(
        self, signal: int, payload: bytes, *, time_unix_ns: int | None = None
    ) -> None:
        """Append one encoded record; thread-safe, never raises."""
        ...

    def last_step(self, role: str | None = None) -> int | None:
        """Return the last step of *role* in this process."""
        ...

    def next_step(self, role: str | None = None) -> int:
        """Return the step of the next row of *role* that names none: what names no step belongs to it."""
        ...

    def count_drop(self, reason: str, n: int = 1, key: str = "") -> None:
        """Count *n* drops for *reason*; *key* is the first dropped key."""
        ...

    def count_after_end(self) -> None:
        """Count a record that comes after the end of the run; the first one is reported."""
        ...

    def next_event_seq(self) -> int:
        """Return the number of this process's next event."""
        ...


def step_of(run: EmitRun, step: object, role: str | None = None) -> int:
    """Return the step of a call: for ``None`` that of the next row of *role*.

    So too for what is not a number, which is counted (`to_step`).
    """
    number = to_step(step, run.count_drop)
    if number is None:
        return run.next_step(role)
    return number


# The run begun by ``init()``, looked up by spans that belong to no rollout.


class _Current:
    run: EmitRun | None = None
    is_missing_reported = False


def current_run() -> EmitRun | None:
    """Return the process's run; ``None`` before ``init()`` and after the run's end."""
    return _Current.run


def set_current_run(run: EmitRun | None) -> None:
    """Make *run* the process's run."""
    _Current.run = run


def report_missing_run(call_name: str) -> None:
    """Report that nothing is recorded because the process has no run; only the first such call is reported.

    Args:
        call_name: Name of the call that needs a run.
    """
    # A training loop without a run would print a line with every step.
    if not _Current.is_missing_reported:
        _Current.is_missing_reported = True
        notify(
            f"{call_name}() without a run, before init() or after finish(): nothing is recorded",
            always=True,
        )
