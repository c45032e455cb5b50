"""Interface of a run for its rollouts, the options of their recording, and the process's current run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol, cast

from otel_bridge import settings
from otel_bridge.emit.config.snapshot import RolloutOptions
from otel_bridge.emit.content.policy import count_refused_with
from otel_bridge.errors import ConfigError


class EmitRun(Protocol):
    """Interface of a run for its rollouts."""

    @property
    def id(self) -> str:
        """Run id."""
        ...

    @property
    def role(self) -> str | None:
        """Role of the resource."""
        ...

    def append(self, signal: int, payload: bytes, *, time_unix_ns: int | None = None) -> None:
        """Append one encoded record; thread-safe, never raises."""
        ...

    def last_step(self, role: str | None = None) -> int | None:
        """Return the last step of *role* in this process."""
        ...

    def count_drop(self, reason: str, n: int = 1, key: str = "") -> None:
        """Count *n* drops for *reason*; *key* is the first dropped key."""
        ...

    def next_event_seq(self) -> int:
        """Return the number of this process's next event."""
        ...


def options_of(run: EmitRun) -> RolloutOptions:
    """Return the options of *run*, read once from its environment; with a malformed option no content leaves."""
    known = cast("RolloutOptions | None", getattr(run, "_rollout_options", None))
    if known is None:
        facts = getattr(run, "facts", None)
        env = cast("Mapping[str, str]", getattr(facts, "env", None) or settings.environment())
        try:
            known = RolloutOptions.read(env)
        except ConfigError:  # init() refuses such an option; a run from elsewhere sends no content
            known = RolloutOptions.read({settings.MESSAGE_CONTENT.name: "off"})
        count_refused_with(run.count_drop)
        with contextlib.suppress(AttributeError):
            run._rollout_options = known  # type: ignore[attr-defined]
    return known


# The run begun by ``init()``, looked up by spans that belong to no rollout.


class _Current:
    run: EmitRun | None = None


def current_run() -> EmitRun | None:
    """Return the process's run; ``None`` before ``init()`` and after the run's end."""
    return _Current.run


def set_current_run(run: EmitRun | None) -> None:
    """Make *run* the process's run."""
    _Current.run = run
