"""Runs of a program that logs to two captured trackers: the second one's run begins beside the first one's."""

from __future__ import annotations

import weakref
from typing import Any, Final

from otel_bridge.emit import api
from otel_bridge.emit.run import Run

_owners: Final[weakref.WeakKeyDictionary[Run, str]] = weakref.WeakKeyDictionary()
"""Run to the tracker whose capture began it."""


def begin_run(tracker: str, *names: str | None, handle: bool = False, **arguments: Any) -> Run:
    """Begin a run for the capture of *tracker*, or return the process's run, as ``otel_bridge.init()`` does.

    A run that another tracker's capture has begun is neither replaced nor shared: either tracker may end its own.
    """
    current = api.current_run()
    of_another = current is not None and current.recording and _owners.get(current, tracker) != tracker
    run = api.init(*names, handle=handle or of_another, **arguments)
    _owners[run] = tracker
    return run
