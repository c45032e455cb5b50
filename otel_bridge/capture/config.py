"""What the captures of several trackers share: changes of a run's config, the exporters, and calls of both runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from otel_bridge import semconv
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.exporters import choose
from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.run import Run
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.base_dir import working_folder
from otel_bridge.settings import environment


def record_config(run: Run, changed: Mapping[str, Any]) -> None:
    """Record entries of the config of *run*: a nested one replaces the one of its name, as in W&B and Trackio.

    Nothing happens where the run records nothing. Entries that cannot be read are counted by their
    reason; an object of the program that raises costs all of *changed*, counted as
    ``internal_error``. It is not `Run.log_config`, which would merge nested entries, and would
    record on rank 0 only.
    """
    if run.recorder is None:
        return
    try:
        body = config_of(changed, run.count_drop)
    except any_error_but_signals():  # code of the user's own objects
        run.count_drop(INTERNAL_ERROR)
        return
    if body:
        run.recorder.event(semconv.EVENT_CONFIG, {semconv.CONFIG_REPLACE: True}, body)


def both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls *first*, then *second*, with its arguments, and returns the result of *second*.

    What either raises reaches the caller, and an exception of *first* skips *second*.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        first(*arguments, **keywords)
        return second(*arguments, **keywords)

    return call


def requested_exporters() -> tuple[str, ...]:
    """Return the exporters that the variables of this process, or its launcher, name.

    Packages of exporters are not required here: the launcher may have another Python.

    Raises:
        ConfigError: They, or the working folder, cannot be read.
    """
    env = environment()
    return choose(
        None, env, working_folder(), launched=launcher_alive(env), elsewhere=True
    ).names
