"""Runs that adapters of frameworks have named, and that begin with their first record.

A captured tracker may record before the adapter does. The run then has the names that the adapter announced, as far as
the program gives the tracker none.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

DEFAULT_PROJECTS: Final = frozenset({"huggingface", "lightning_logs"})
"""Projects that frameworks give their trackers when the user names none."""


class AnnouncedRun(Protocol):
    """Begins a run of an adapter."""

    def begin(self) -> Run | None:
        """Return the run, begun; ``None`` if it cannot begin."""
        ...

    def chosen_names(self) -> tuple[str | None, str | None]:
        """Return project and name that the user gave the adapter, where no variable overrides them."""
        ...


_announced: Final[list[weakref.ref[AnnouncedRun]]] = []


def announce(run: AnnouncedRun) -> None:
    """Note *run*, which has not begun."""
    _announced.append(weakref.ref(run))


def withdraw(run: AnnouncedRun) -> None:
    """Forget *run*, which has begun, or whose names another run has."""
    _announced[:] = [one for one in _announced if (known := one()) is not None and known is not run]


def take_announced() -> AnnouncedRun | None:
    """Return the run that was announced last, and forget it; ``None`` without one."""
    while _announced:
        if (run := _announced.pop()()) is not None:
            return run
    return None


def with_announced_names(project: str | None, name: str | None) -> tuple[str | None, str | None]:
    """Return project and name of a captured run, completed by those of the run that was announced last."""
    if (run := take_announced()) is None:
        return project, name
    chosen_project, chosen_name = run.chosen_names()
    is_default = project is None or project in DEFAULT_PROJECTS
    return chosen_project if is_default and chosen_project else project, name or chosen_name
