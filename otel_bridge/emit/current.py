"""The process's current run: begun by ``init()``, looked up by spans that belong to no rollout."""

from __future__ import annotations

from otel_bridge.emit.emit_run import EmitRun


class _Current:
    run: EmitRun | None = None


def current_run() -> EmitRun | None:
    """Return the process's run; ``None`` before ``init()`` and after the run's end."""
    return _Current.run


def set_current_run(run: EmitRun | None) -> None:
    """Make *run* the process's run."""
    _Current.run = run
