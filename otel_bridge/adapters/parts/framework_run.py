"""Records what a framework's logger is given; the run begins with the first record, and no exception leaves it.

A framework builds its loggers early, calls them in every process, and ends them after each phase.
So a run begins with its first record, and a record after the end of the run begins it again. If the
program has already called ``otel_bridge.init()``, that run is used, and the adapter does not end
it.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from otel_bridge.errors import ConfigError, OtelBridgeError, any_error_but_signals
from otel_bridge.settings import PROJECT, ROLE, RUN_NAME

if TYPE_CHECKING:
    from otel_bridge.emit.process_runs import ProcessRuns
    from otel_bridge.emit.run import Run

P = ParamSpec("P")
T = TypeVar("T")
FLUSH_S = 2.0
"""Longest wait for delivery at the end of a framework's phase; the records are appended anyway."""
_TRACKERS_PROJECTS = (PROJECT.name, "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME")
_OWN_ARGUMENTS = frozenset({"project", "name", "role", "config"})


@dataclass(frozen=True, slots=True)
class RunNames:
    """Holds the names that a framework gives its run. Variables of otel-bridge override them.

    Attributes:
        project: Project.
        name: Name of the run.
        role: Role of this process.
        default_project: Project that the framework uses when its user names none; trackers' variables override it.
        arguments: Further arguments of ``otel_bridge.init()``.
        default_note: Line that is printed, once, when the default project is used.
    """

    project: str | None = None
    name: str | None = None
    role: str | None = None
    default_project: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    default_note: str = ""


def process_runs() -> ProcessRuns:
    """Return the registry of the process's runs.

    Only programs that make a logger pay for its import.
    """
    from otel_bridge.emit.process_runs import runs  # noqa: PLC0415

    return runs


@functools.cache
def unrecorded_run() -> Run:
    """Return the run of processes that record nothing: ranks above 0, and those where no run can begin."""
    from otel_bridge.emit.startup import nothing_recorded  # noqa: PLC0415

    return nothing_recorded({}, Path())


def _is_only_process() -> bool:
    """Return ``True``: the framework calls its logger in one process only."""
    return True


class FrameworkRun:
    """Records what one logger of a framework is given. Thread-safe; no method raises.

    Args:
        framework: Name of the framework, for messages.
        names: Names of the run.
        config: Hyperparameters, recorded each time the run begins.
        is_rank_zero: Callable that asks the framework whether this process is its rank 0, the only one that records.
    """

    def __init__(
        self,
        framework: str,
        names: RunNames,
        config: object = None,
        *,
        is_rank_zero: Callable[[], bool] = _is_only_process,
    ) -> None:
        self.framework = framework
        self.names = names
        self.is_rank_zero = is_rank_zero
        self._config = config
        # Of two threads with a first record, one begins the run.
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._last_own: Run | None = None
        self._stopped = False
        _recordings.add(self)
        process_runs().announce(self)

    def begin_in_child(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy in another process begin its own part of the run.

        Locks and runs cannot be pickled, and Ray pickles loggers on their way to workers.
        """
        begin = functools.partial(FrameworkRun, is_rank_zero=self.is_rank_zero)
        return begin, (self.framework, self.names, self._config)

    @property
    def run(self) -> Run | None:
        """Return the run that was begun last, which may have ended.

        ``None`` before the first one.
        """
        with self._lock:
            return self._run

    def chosen_names(self) -> tuple[str | None, str | None]:
        """Return project and name that the user gave the framework, where no variable overrides them."""
        return chosen_names(self.names)

    def is_of(self, names: RunNames) -> bool:
        """Return whether *names* lead to the run of this recording, so that a new phase of training continues it.

        ``True`` too where the run is not of this adapter (the program's own, a captured one), or
        none may begin: then names have no say. ``False`` before the first record, except for the
        same names.
        """
        with self._lock:
            run = self._run
            is_own = self._is_own
        if self._stopped or names == self.names or (run is not None and not is_own):
            return True
        if run is None or names.arguments.get("id") != self.names.arguments.get("id"):
            return False
        arguments = _arguments_of(names)
        return run.facts.identity.is_named(arguments["project"], arguments["name"])

    def change_config(self, config: object) -> None:
        """Record *config* in place of the earlier one, unless they are equal.

        Before the run begins it is only kept. They are compared as texts, which costs more than a
        comparison, but a config may have arrays anywhere. Raises what the ``repr()`` of an object in
        them raises; the callers are `guarded`.
        """
        with self._lock:
            if repr(config) == repr(self._config):  # arrays have no truth value
                return
            self._config = config
            run = self._run
        if run is not None:
            self.begin().log_config(config)

    def begin(self, beside: Iterable[FrameworkRun] = ()) -> Run:
        """Return the run, and begin it if necessary; one that records nothing where it cannot begin, which is printed.

        The program's own run, or one of a captured tracker, is used before names are looked at, and
        each time: it may begin after this adapter's. Where none can begin, the reason is printed
        once, and nothing is recorded until the process ends. On ranks above 0 nothing is recorded
        either, without a line.

        Args:
            beside: Loggers that record the same training; their runs and this one go on together.
        """
        with self._lock:
            # Asked each time: a framework builds its loggers before it knows its ranks.
            if self._stopped or not self.is_rank_zero():
                return unrecorded_run()
            # The run of the program, or of a captured tracker, goes before the framework's names.
            current = process_runs().current
            if current is not None and self._is_of_others(current):
                return self._take(current, is_own=False)
            last_run = self._run
            if last_run is not None and self._goes_on(last_run, current):
                return last_run
            is_one_of_several = self._run is not None or any(
                logger.run is current for logger in beside
            )
            try:
                return self._take(
                    self._requested(current if is_one_of_several else None), is_own=True
                )
            except any_error_but_signals() as exc:  # the framework must continue
                # For good: the same error would come with every record.
                self._stop(
                    str(exc)
                    if isinstance(exc, OtelBridgeError)
                    else f"{type(exc).__name__}: {exc}"
                )
                return unrecorded_run()

    def _is_of_others(self, current: Run) -> bool:
        """Return whether *current*, new here, is the run of the program or of a captured tracker, not of an adapter."""
        return (
            current is not self._run and current.facts.identity.request.adapter is None
        )

    @property
    def _is_own(self) -> bool:
        """Return whether the run that records is one that this adapter began."""
        return self._run is not None and self._run is self._last_own

    def _goes_on(self, last_run: Run, current: Run | None) -> bool:
        """Return whether records belong to *last_run*, begun last; after its end they are counted as late.

        A run of the adapter's own that has ended is begun again, also after one of others that was in
        its place. One of others is not, since its owner has ended it.
        """
        return not last_run.has_ended or current is last_run or self._last_own is None

    def flush(self) -> None:
        """Wait for delivery, 2 s at most; nothing before the first record.

        A framework calls it at the end of a phase, which must not wait for a slow tracker: the
        records are appended anyway.
        """
        if (run := self.run) is not None:
            run.flush(FLUSH_S)

    def finish(self, status: str | int | None = None) -> None:
        """End the run if this logger's framework began it; a later record begins it again.

        The run of the program, or of a captured tracker, is only flushed: its owner ends it.
        Nothing happens before the first record. It waits for delivery as `Run.finish` does.
        """
        with self._lock:
            run = self._run
            is_own = self._is_own
        if run is not None and is_own:
            run.finish(status)
        elif run is not None:
            run.flush(FLUSH_S)

    def _requested(self, beside: Run | None) -> Run:
        """Return the process's run, begun with the names of the framework.

        The default project is printed, once, where it is used.

        Args:
            beside: The process's run if it goes on: a run of other names is then a further one of the process.

        Raises:
            ConfigError: A setting of otel-bridge, or an argument, cannot be used.
            MissingExtraError: An exporter's package is not installed.
        """
        from otel_bridge.emit.config.run_request import RunRequest  # noqa: PLC0415

        arguments = _arguments_of(self.names)
        if (
            self.names.project is None
            and arguments["project"] == self.names.default_project
        ):
            notify_once(self.names.default_note)
        if self._last_own is not None:  # it has ended, or another run has replaced it
            arguments |= _names_of(self._last_own)
        names = {key: arguments.get(key) for key in ("project", "name", "role", "id")}
        if beside is not None and not beside.facts.identity.is_named(**names):
            # A handle takes no stock instruments of the process: they are recorded in its own run.
            arguments |= {"otel": False, "handle": True}
        return process_runs().begin(RunRequest(adapter=self.framework, **arguments))

    def _take(self, run: Run, *, is_own: bool) -> Run:
        """Note *run* as the one that records, with the config and the failures that came before it, and return it."""
        self._run = run
        if is_own:
            self._last_own = run
        process_runs().withdraw(self)
        # Failures before the run began have been counted for it.
        _failures.hand_over(run)
        if self._config is not None:
            run.log_config(self._config)
        return run

    def _stop(self, reason: str) -> None:
        """Record nothing from now on, and print why."""
        from otel_bridge.emit.console import notify  # noqa: PLC0415

        self._stopped = True
        notify(
            f"{self.framework} continues, and nothing more of it is recorded: {reason}",
            always=True,
        )


def _arguments_of(names: RunNames) -> dict[str, Any]:
    """Return the arguments of ``init()``: a name is left out where a variable gives it.

    A variable of otel-bridge counts unless a run of this process has set it for its children. Those
    of trackers replace a default project only: the user has named theirs. Raises `ConfigError` for a
    variable that cannot be read.
    """
    from otel_bridge.emit.config.run_request import is_chosen, usable_name  # noqa: PLC0415

    env = process_runs().environment_of_user()
    project = names.project
    if project is None and not any(
        env.get(variable) for variable in _TRACKERS_PROJECTS
    ):
        project = names.default_project
    arguments = dict(names.arguments)
    arguments["project"] = None if is_chosen(PROJECT, env) else usable_name(project)
    arguments["name"] = None if is_chosen(RUN_NAME, env) else usable_name(names.name)
    arguments["role"] = None if ROLE.read(env) else usable_name(names.role)
    return arguments


def _names_of(last_run: Run) -> dict[str, Any]:
    """Return the arguments of ``init()`` that lead to *last_run* again.

    It is found by its id. A name that was made for it, or completed for ``OTEL_BRIDGE_NEW_RUN``,
    would be another one when it is made again.
    """
    identity = last_run.facts.identity
    return {
        "project": None if identity.project_generated else identity.project,
        "name": None if identity.name_generated else identity.name,
        "id": identity.id,
        "generated_name": identity.name,
    }


def chosen_names(names: RunNames) -> tuple[str | None, str | None]:
    """Return project and name that a user gave a framework, where no variable overrides them.

    ``None`` for each that the user did not give. Raises as `_arguments_of`.
    """
    chosen = _arguments_of(replace(names, default_project=None))
    return chosen["project"], chosen["name"]


_notified: set[str] = set()


def notify_once(line: str) -> None:
    """Print *line* once in this process; an empty one never."""
    from otel_bridge.emit.console import notify  # noqa: PLC0415

    if line and line not in _notified:
        _notified.add(line)
        notify(line)


def checked_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return further arguments of ``init()`` that a user gave an adapter.

    It is called by constructors, whose error the user sees at once; ``init()`` itself comes with
    the first record.

    Raises:
        ConfigError: ``init()`` does not have one of them.
    """
    from otel_bridge.emit.api import init  # noqa: PLC0415

    argument_names = sorted(inspect.signature(init).parameters.keys() - _OWN_ARGUMENTS)
    unknown = next((name for name in arguments if name not in argument_names), None)
    if unknown is not None:
        raise ConfigError(
            f"{unknown}= is not an argument of otel_bridge.init(); expected some of {', '.join(argument_names)}"
        )
    return arguments


def guarded(call: Callable[P, T]) -> Callable[P, T | None]:
    """Return *call* such that an exception in it is counted as a drop and never reaches the framework.

    It returns ``None`` then. Exits and interrupts pass.
    """

    @functools.wraps(call)
    def guarding(*positional: P.args, **keywords: P.kwargs) -> T | None:
        try:
            return call(*positional, **keywords)
        except any_error_but_signals() as exc:  # a framework's objects may be anything
            count_failure(call.__qualname__, exc)
            return None

    return guarding


class _Failures:
    """Counts failures of adapters while no run records, for the next run.

    Prints the first one at once.
    """

    def __init__(self) -> None:
        # Re-entrant: the garbage collection may finalise a logger that fails in here.
        self._lock = threading.RLock()
        self._number = 0
        self._first = ""

    def begin_in_child(self) -> None:
        """Replace the lock in a forked child, and leave the parent's failures to the parent."""
        self.__init__()  # type: ignore[misc]

    def add(self, described: str) -> bool:
        """Add one failure; return whether it is the first one."""
        with self._lock:
            self._number += 1
            self._first = self._first or described
            return self._number == 1

    def hand_over(self, run: Run) -> None:
        """Count the failures in *run*, if it records.

        Else they are kept for a run that does: a failure must not be lost in a rank that records
        nothing.
        """
        with self._lock:
            number = self._number
            first = self._first
            if not number or not run.recording:
                return
            self._number = 0
            self._first = ""
        run.count_drop("adapter_failed", number, key=first)


_failures = _Failures()
_recordings: weakref.WeakSet[FrameworkRun] = weakref.WeakSet()


def _after_fork() -> None:
    _failures.begin_in_child()
    for recording in list(_recordings):
        recording.begin_in_child()


os.register_at_fork(after_in_child=_after_fork)


def count_failure(place: str, exc: Exception) -> None:
    """Count a failure of an adapter in *place*: in the run that records, else in the next one.

    Without a run only the first failure is printed; all are counted.
    """
    from otel_bridge.emit.console import notify  # noqa: PLC0415

    described = f"{place}: {_text_of(exc)}"
    run = process_runs().current
    if run is not None and run.recording:
        run.count_drop("adapter_failed", key=described)
    # Printed at once, since no run may ever begin to count it.
    elif _failures.add(described):
        notify(
            f"an adapter failed, and the framework continues: {described}", always=True
        )


def _text_of(exc: Exception) -> str:
    """Return an error as text; its type alone where making the text fails."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except any_error_but_signals():  # an error of the framework's
        return type(exc).__name__
