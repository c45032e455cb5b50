"""Begins the runs of captured programs as their trackers would: names, status, and several runs at a time."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any, Final

from otel_bridge import semconv
from otel_bridge.capture.announced_runs import with_announced_names
from otel_bridge.emit import api
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.identity import MAX_NAME_CHARS, InitArguments, new_name, tags_of
from otel_bridge.emit.run import Run
from otel_bridge.settings import GENERATED_NAME, LAUNCHER, RUN_ID, RUN_NAME

_owners: Final[weakref.WeakKeyDictionary[Run, str]] = weakref.WeakKeyDictionary()
"""Run to the tracker whose capture began it."""


class _Process:
    begun = False
    """Whether a captured run without a name has begun in this process."""


def begin_run(
    tracker: str,
    project: str | None = None,
    name: str | None = None,
    *,
    handle: bool = False,
    config: object = None,
    tags: Any = (),
    **named: Any,
) -> Run:
    """Begin a run for the capture of *tracker*, or return the process's run, as ``otel_bridge.init()`` does.

    A run that another tracker's capture has begun is neither replaced nor shared: either tracker may end its own.

    Args:
        tracker: The package that is captured.
        project: The project, when the program names one.
        name: The name, when the program names one; else the run is a new one, as in the trackers, unless an adapter
            has announced a name.
        handle: Whether the run is one next to the process's own.
        config: Hyperparameters.
        tags: Tags of the run.
        named: Further fields of `InitArguments`.
    """
    current = api.current_run()
    of_another = current is not None and current.recording and _owners.get(current, tracker) != tracker
    if current is None and named.get("id") is None:
        project, name = with_announced_names(project, name)
    generated = new_name() if name is None and named.get("id") is None and _needs_name() else None
    asked = InitArguments(
        project=project, name=name, tags=tags_of(tags), captured=tracker, generated_name=generated, **named
    )
    run = api.begin_run(asked, config=config, handle=handle or of_another)
    _owners[run] = tracker
    return run


def owner_of(run: Run) -> str | None:
    """Return the tracker whose capture began *run*; ``None`` for a run of the program or of an adapter."""
    return _owners.get(run)


def rename(run: Run, name: object) -> bool:
    """Record the name that the program gave *run* after its begin; return whether trackers will show it.

    They do in place of a generated name. A name that was given when the run began stays.
    """
    shown = "".join(char for char in str(name).strip() if char.isprintable())[:MAX_NAME_CHARS]
    if not shown or not run.facts.identity.name_generated or run.recorder is None:
        return False
    run.recorder.event(semconv.EVENT_RENAMED, {semconv.RUN_NAME: shown})
    return True


def _needs_name() -> bool:
    """Return whether a run without a name needs one of its own.

    A name or id that the user's variables give applies. The name that a launcher generated is for the first run of the
    program that the launcher started: there, what a stock SDK sends belongs to it.
    """
    env = api.environment_of_user()
    if RUN_ID.read(env) or _chosen_name(env):
        return False
    first, _Process.begun = not _Process.begun, True
    return not (first and launcher_alive(env) and LAUNCHER.read(env).partition(":")[0] == str(os.getppid()))


def _chosen_name(env: Mapping[str, str]) -> bool:
    named = RUN_NAME.read(env)
    return bool(named) and named != GENERATED_NAME.read(env)
