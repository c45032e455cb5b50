"""The registry of this process's runs: it begins or adopts what an entry requests, and ends all with the process."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import resource
import sys
import threading
import time
import weakref
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from otel_bridge.emit.arguments import DEFAULT_FINISH_S, EndStatus
from otel_bridge.emit.config.child_env import ChildEnvironment, launcher_alive
from otel_bridge.emit.config.run_request import RunRequest, is_chosen
from otel_bridge.emit.console import notify
from otel_bridge.emit.emit_run import current_run, set_current_run
from otel_bridge.emit.process_end import status_at_exit, watch_process_end
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import NONE
from otel_bridge.journal.base_dir import working_folder
from otel_bridge.settings import (
    DIR,
    GENERATED_NAME,
    LAUNCHER,
    NEW_RUN,
    PROJECT,
    RUN_ID,
    RUN_NAME,
    environment,
)
from otel_bridge.values.mappings import without

if TYPE_CHECKING:
    from otel_bridge.emit.bridge_process.shared_bridge import SharedBridges
    from otel_bridge.emit.encode.protobuf import Attribute
    from otel_bridge.emit.run import Run

DEFAULT_PROJECTS = frozenset({"huggingface", "lightning_logs"})
"""Projects that frameworks give their trackers when the user names none."""
MAX_HANDLES = 256
"""Most runs of one process beside its own at a time; each has three open files."""
_SPARE_FILES = 16
"""Open files that the last handle leaves to the program, which also needs some to begin and to end a run."""
_REMEMBERED_RUNS = 64
"""Number of runs whose last steps are kept, for a later request of the same run."""
_OF_THE_PROCESS = frozenset({
    RUN_ID.name, RUN_NAME.name, GENERATED_NAME.name, "WANDB_RUN_ID", "WANDB_NAME", "WANDB_SWEEP_ID", "MLFLOW_RUN_ID",
    "OTEL_RESOURCE_ATTRIBUTES", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
})  # fmt: skip
"""Variables that name the process's own run, and no other."""


class AnnouncedRun(Protocol):
    """Begins a run of an adapter, which begins with its first record."""

    def begin(self) -> Run | None:
        """Return the run, begun; ``None`` if it cannot begin."""
        ...

    def chosen_names(self) -> tuple[str | None, str | None]:
        """Return project and name that the user gave the adapter, where no variable overrides them."""
        ...


class ProcessRuns:
    """Holds the runs of one process: its own run, which its children join, and further ones beside it. Thread-safe."""

    def __init__(self) -> None:
        # Guards the registry against other threads; re-entrant for init() in a signal handler.
        self._lock = threading.RLock()
        self._beside: dict[int, Run] = {}
        self._bridges: SharedBridges | None = None
        self._child_env = ChildEnvironment()
        self._config: dict[
            str, Attribute
        ] = {}  # what all requests of the process's own run gave
        self._captures: weakref.WeakKeyDictionary[Run, str] = (
            weakref.WeakKeyDictionary()
        )
        self._announced: list[weakref.ref[AnnouncedRun]] = []
        self._last_steps: dict[tuple[str, str], dict[str | None, int]] = {}
        self._connected: Run | None = None
        self._has_unnamed = False
        self._ends_at_exit = False

    @property
    def current(self) -> Run | None:
        """Return the process's own run; ``None`` before it begins and after its end."""
        return cast("Run | None", current_run())

    @property
    def has_begun(self) -> bool:
        """Return whether a run has begun in this process, which may have ended since."""
        return bool(self._last_steps) or self.current is not None

    def capture_of(self, run: Run) -> str | None:
        """Return the captured tracker that records in *run*.

        ``None`` for a run of the program or an adapter alone.
        """
        return self._captures.get(run)

    def environment_of_user(self) -> dict[str, str]:
        """Return the environment without what the process's own run has set in it for children."""
        return self._child_env.before(environment())

    # --- the answer to a request ------------------------------------------------------------------

    def begin(self, request: RunRequest) -> Run:
        """Return the run that *request* asks for: the process's own, or one that begins now.

        Under a lock: two threads that call ``init()`` get one run. The config is recorded in any
        case, also into a run that was adopted. Where the OpenTelemetry SDK cannot be connected, a
        line in the log says so, and the run goes on.

        Raises:
            ConfigError: A setting or a part of the request cannot be used.
            MissingExtraError: An exporter's package is not installed.
        """
        # A folder of the request may be relative to a working folder that was deleted.
        with self._lock, _config_errors():
            if request.captured is not None:
                request = self._completed(request)
            is_beside = request.handle or self._is_of_another_capture(request)
            if is_beside or self._leaves_current_open(request):
                run = self._begin_beside(request)
            else:
                run = self._adopted(request) or self._begin_own(request)
            if request.captured is not None:
                self._captures[run] = request.captured
        # Once a run: a second processor of the SDK would append each span twice.
        if request.otel and run.recording and run is not self._connected:
            self._connected = run
            from otel_bridge.emit.sdk.connect import connect  # noqa: PLC0415  # brings the OTel SDK

            connect(run)
        self._record_config(run, request.config)
        return run

    def begin_from_environment(self, env: Mapping[str, str]) -> Run:
        """Begin the run of stock OpenTelemetry SDKs, which *env* alone names, and which children join.

        It is not the process's own run, so that ``init()`` may still begin that one.

        Raises:
            ConfigError: A setting cannot be used.
            MissingExtraError: An exporter's package is not installed.
        """
        with self._lock:
            run = self._started(RunRequest(), env, ChildEnvironment())
            self._beside[id(run)] = run
            return run

    def _completed(self, request: RunRequest) -> RunRequest:
        """Return the *request* of a captured tracker with the names that it lacks.

        A captured tracker may record before an adapter that has announced its run: the names are
        those that the user gave the adapter. Without any name the run is a new one, as in the
        trackers. A default project of a framework gives way to one that the user chose. An id needs
        no names.
        """
        if request.project in DEFAULT_PROJECTS and is_chosen(
            PROJECT, self.environment_of_user()
        ):
            request = replace(request, project=None)
        if request.id is not None:
            return request
        announced = self.take_announced() if self.current is None else None
        if announced is not None:
            project, name = announced.chosen_names()
            if request.project is None or request.project in DEFAULT_PROJECTS:
                request = replace(request, project=project or request.project)
            request = replace(request, name=request.name or name)
        if request.name is None and self._needs_name():
            from otel_bridge.emit.config.identity import new_name  # noqa: PLC0415

            request = replace(request, generated_name=new_name())
        return request

    def _needs_name(self) -> bool:
        """Return whether a captured run without a name needs one of its own.

        A name or id that the user's variables give applies. The name that a launcher generated is
        for the first run of the program that the launcher started: there, what a stock SDK sends
        belongs to it.
        """
        env = self.environment_of_user()
        if is_chosen(RUN_ID, env) or is_chosen(RUN_NAME, env):
            return False
        is_first = not self._has_unnamed
        self._has_unnamed = True
        launcher_pid = LAUNCHER.read(env).partition(":")[0]
        return not (
            is_first and launcher_alive(env) and launcher_pid == str(os.getppid())
        )

    def _is_of_another_capture(self, request: RunRequest) -> bool:
        """Return whether another tracker's capture has the current run.

        Either tracker may end its own run, so that they cannot share one.
        """
        current = self.current
        if request.captured is None or current is None or not current.recording:
            return False
        return self._captures.get(current, request.captured) != request.captured

    def _leaves_current_open(self, request: RunRequest) -> bool:
        """Return whether *request* is of another run than the current one of its capture, which goes on.

        A request without a name is.
        """
        current = self.current
        if not request.leaves_open_runs or current is None or not current.recording:
            return False
        if self._captures.get(current) != request.captured:
            return False
        return (
            request.generated_name is not None
            or not current.facts.identity.is_named(
                request.project, request.name, request.role, request.id
            )
        )

    def _adopted(self, request: RunRequest) -> Run | None:
        """Return the current run if *request* is of it, and print how they differ.

        ``None`` if another run begins: there is no current one, it has another name, or it differs
        under ``OTEL_BRIDGE_NEW_RUN``.

        Raises:
            ConfigError: The exporters of *request*, or that variable, cannot be read.
        """
        current = self.current
        if current is None:
            return None
        if not current.recording:
            # A run that records nothing (`none`) answers a plain init(), not one with a name.
            if request.is_open:
                return current
            return None
        if not current.facts.identity.is_named(
            request.project, request.name, request.role, request.id
        ):
            return None
        differences = [
            *self._ignored(current, request),
            *self._replaced(current, request),
        ]
        # A captured tracker decides itself when its init() begins another run. The current run has
        # removed the variable for its children.
        if (
            differences
            and request.captured is None
            and NEW_RUN.read(self.environment_of_user())
        ):
            return None
        for line in differences:
            notify(line, always=True)
        return current

    def _ignored(self, current: Run, request: RunRequest) -> list[str]:
        """Return a line on what *current* ignores of *request*, with the remedy.

        Empty if it ignores nothing. Exporters, attributes and the folder are fixed in the header of
        the segment that is open. Under a launcher its choice applies, so that other exporters are
        no difference.

        Raises:
            ConfigError: The exporters of *request* cannot be read.
        """
        from otel_bridge.emit.config.exporters import requested_names  # noqa: PLC0415

        facts = current.facts
        ignored: list[str] = []
        exporters = requested_names(request.exporters)
        if (
            exporters is not None
            and set(exporters) != set(facts.choice.names)
            and not launcher_alive(facts.env)
        ):
            ignored.append(f"exporters={','.join(exporters) or NONE}")
        for name, value in request.attributes.items():
            if name == "rank":
                begun_with = facts.identity.rank
            else:
                begun_with = getattr(facts.identity.request, name)
            if value != begun_with:
                ignored.append(name)
        base = facts.child_environment.get(DIR.name)
        if (
            isinstance(request.dir, str | Path)
            and base is not None
            and Path(request.dir).resolve() != Path(base).resolve()
        ):
            ignored.append("dir")
        return _lines_of(
            current, ignored, "{} ignored; call finish() first, then init() again"
        )

    def _replaced(self, current: Run, request: RunRequest) -> list[str]:
        """Return a line on entries of the config that *request* replaces, with the remedy.

        Empty without any. A captured tracker replaces entries silently itself.
        """
        if request.captured is not None or request.config is None:
            return []
        from otel_bridge.emit.config.hyperparameters import (  # noqa: PLC0415
            config_snapshot,
            replaced_entries,
        )

        return _lines_of(
            current,
            replaced_entries(self._config, config_snapshot(request.config)),
            "other values of {} replace those of its config; to begin another run, give init() another name=, or set"
            f" {NEW_RUN.name}=1",
        )

    def _begin_own(self, request: RunRequest) -> Run:
        """Begin the process's own run, after the end of the present one.

        Raises what `_started` raises; then the process has no run of its own.
        """
        current = self.current
        if current is not None:
            if current.recording:
                role = current.role or "no role"
                notify(
                    f"init() of another run: {current.project}/{current.name} as {role} is finished"
                )
            current.finish()
        # After the end of the present run, which restores the variables that this start reads.
        run = self._started(request, environment(), self._child_env)
        set_current_run(run)
        # The entries of the run before are not those that a request of this one could replace.
        self._config = {}
        return run

    def _begin_beside(self, request: RunRequest) -> Run:
        """Begin a run beside the process's own: children do not join it, and no variable names it.

        Raises:
            ConfigError: *request* asks for the process's spans, too many runs are open, or it cannot begin.
            MissingExtraError: An exporter's package is not installed.
        """
        from otel_bridge.emit.bridge_process.shared_bridge import SharedBridges  # noqa: PLC0415

        if request.otel:
            raise ConfigError(
                "init(handle=True, otel=True): a handle takes no spans or metrics of the process; drop otel"
            )
        # Before anything is created, so that an error leaves nothing behind.
        self._require_room()
        self._bridges = self._bridges or SharedBridges()
        env = without(self.environment_of_user(), _OF_THE_PROCESS)
        run = self._started(request, env, None, shared=self._bridges)
        if run.recording:
            self._beside[id(run)] = run
        return run

    def _started(
        self,
        request: RunRequest,
        env: Mapping[str, str],
        child_env: ChildEnvironment | None,
        *,
        shared: SharedBridges | None = None,
    ) -> Run:
        """Return a run that has begun in *env*, and is ended with the process.

        If this process was in it before, its steps go on: a second ``init()`` after ``finish()``
        must not begin at 0 again.

        Raises:
            ConfigError: A setting, the working folder or the folder of *request* cannot be used.
            MissingExtraError: An exporter's package is not installed.
        """
        from otel_bridge.emit.startup import begin  # noqa: PLC0415  # only programs that record pay for it

        with _config_errors():
            run = begin(
                request,
                _with_dir(env, request.dir),
                working_folder(),
                child_env,
                shared=shared,
            )
        if run.recorder is not None:
            run.recorder.go_on_from(self._last_steps.get(_key_of(run), {}))
        # Once: a handler for each run would end all runs once for each.
        if not self._ends_at_exit:
            self._ends_at_exit = True
            atexit.register(lambda: self._end_all(status_at_exit()))
        watch_process_end(self._end_all)
        run.call_before_end(self._release)
        return run

    def _record_config(self, run: Run, config: object) -> None:
        """Record the config of a request, and remember what the process's own run got.

        Nothing without one. A config that cannot be read is counted, and stops nothing.
        """
        if config is None:
            return
        if run is self.current:
            from otel_bridge.emit.config.hyperparameters import config_snapshot  # noqa: PLC0415

            self._config.update(config_snapshot(config))
        run.log_config(config)

    def _require_room(self) -> None:
        """Check whether one more handle may begin.

        Raises:
            ConfigError: Too many are open, or too few files are left for the program.
        """
        if len(self._beside) >= MAX_HANDLES:
            raise ConfigError(
                f"init(handle=True): {len(self._beside)} handles are open in this process, the most it may have;"
                " call finish() on those that are done"
            )
        limit = _file_limit()
        if self._beside and limit - _open_files(limit) < _SPARE_FILES:
            raise ConfigError(
                f"init(handle=True): {len(self._beside)} handles, of 3 files each, and the program have almost all of"
                f" the {limit} open files that this process may have; raise that limit (`ulimit -n`), or call finish()"
                " on handles that are done"
            )

    # --- runs that adapters have named, and that begin with their first record --------------------

    def announce(self, run: AnnouncedRun) -> None:
        """Note *run*, which has not begun."""
        # By a weak reference: an adapter that the program has dropped begins no run.
        self._announced.append(weakref.ref(run))

    def withdraw(self, run: AnnouncedRun) -> None:
        """Forget *run*, which has begun, or whose names another run has."""
        self._announced = [
            reference for reference in self._announced if reference() not in {None, run}
        ]

    def take_announced(self) -> AnnouncedRun | None:
        """Return the run that was announced last, and forget it.

        ``None`` without one that the program still holds.
        """
        while self._announced:
            run = self._announced.pop()()
            if run is not None:
                return run
        return None

    # --- the end of a run, of the process, and of a fork's copy -----------------------------------

    def _release(self, run: Run) -> None:
        """Forget *run*, which ends, so that another may begin; keep its last steps.

        Variables for children go with the process's own run: the next ``init()`` must not take them
        for the user's.
        """
        with self._lock:
            self._beside.pop(id(run), None)
            # Inserted again below, so that the latest run is evicted last.
            self._last_steps.pop(_key_of(run), None)
            self._last_steps[_key_of(run)] = (
                {} if run.recorder is None else run.recorder.last_steps()
            )
            if len(self._last_steps) > _REMEMBERED_RUNS:
                del self._last_steps[next(iter(self._last_steps))]
            if self.current is run:
                set_current_run(None)
                self._child_env.restore()

    def _end_all(self, status: EndStatus) -> None:
        """End all runs when the process ends: record every end first, then wait for all, as long as for one.

        Those that have ended before, and those of a forked child, are not awaited.
        """
        open_runs = list(self._beside.values())
        if self.current is not None:
            open_runs.append(self.current)
        try:
            waits = [run.end_part(status) for run in open_runs]
            # One deadline for all, so that 256 handles do not wait 256 times.
            deadline = time.monotonic() + DEFAULT_FINISH_S
            for wait in filter(None, waits):
                wait(max(deadline - time.monotonic(), 0.0))
        except KeyboardInterrupt:
            # A person does not wait for delivery: all records are on the disk.
            notify(
                "interrupted; records that are not written yet are kept", always=True
            )

    def after_fork(self) -> None:
        """Begin the child's own part of each run in a forked child, which keeps its parent's variables."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._child_env.keep()
        if self.current is not None:
            self.current.after_fork()
        for run in self._beside.values():
            run.after_fork()


runs = ProcessRuns()
os.register_at_fork(after_in_child=runs.after_fork)


def _lines_of(current: Run, names: list[str], remark: str) -> list[str]:
    """Return a line on a second request of *current*, whose *remark* has a place for *names*.

    Nothing without them.
    """
    if not names:
        return []
    begun = f"init() of {current.project}/{current.name}, which has already begun: "
    return [begun + remark.replace("{}", ", ".join(names))]


def _key_of(run: Run) -> tuple[str, str]:
    """Return what identifies a run in this process.

    The same id in another directory is another run.
    """
    return run.id, run.facts.child_environment.get(DIR.name, "")


def _with_dir(env: Mapping[str, str], folder: object) -> dict[str, str]:
    """Return *env* with ``init(dir=)``.

    Raises:
        ConfigError: *folder* is not a path.
    """
    if folder is None:
        return dict(env)
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(f"dir={folder!r}: expected a path")
    return {**env, DIR.name: os.fsdecode(os.fspath(folder))}


@contextlib.contextmanager
def _config_errors() -> Generator[None]:
    """Raise an error of the operating system as a `ConfigError` that contains what to do.

    The only kinds of errors that ``init()`` may raise are those of `otel_bridge.errors`, which pass
    through here.
    """
    try:
        yield
    except OSError as exc:
        remedy = "raise that limit (`ulimit -n`), or close files and finish handles that are done"
        if exc.errno == errno.EMFILE:
            limit = f"; this process may have {_file_limit()} open files: {remedy}"
        else:
            limit = ""
        raise ConfigError(f"init() cannot begin a run: {exc}{limit}") from exc


def _file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft


def _open_files(limit: int) -> int:
    """Return how many files this process has open.

    *limit* when there is none left to count them with; 0 where the system has no list of them.
    """
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as exc:
        # Where open files cannot be counted, for another reason than their number, none is assumed.
        if exc.errno == errno.EMFILE:
            return limit
        return 0
