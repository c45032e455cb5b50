"""The process's run: `init()`, and the functions of the package that act on that run."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from otel_bridge.emit import emit_run
from otel_bridge.emit.arguments import DEFAULT_FINISH_S, DEFAULT_FLUSH_S, EndStatus
from otel_bridge.emit.config.child_env import ChildEnvironment
from otel_bridge.emit.config.hyperparameters import config_snapshot, replaced_entries
from otel_bridge.emit.config.identity import InitArguments, tags_of
from otel_bridge.emit.console import notify
from otel_bridge.emit.handles import Handles, config_errors, end_at_exit, environment_of_handle
from otel_bridge.emit.process_end import watch_process_end
from otel_bridge.emit.run import Run
from otel_bridge.emit.startup import begin, ignored_arguments, ignored_note, nothing_recorded, replaced_note
from otel_bridge.errors import ConfigError
from otel_bridge.settings import DIR, NEW_RUN, environment

if TYPE_CHECKING:
    from otel_bridge.emit.encode.protobuf import Attribute
    from otel_bridge.emit.rollouts.live import LiveRollout
    from otel_bridge.emit.rollouts.rollout import Rollout

_P = ParamSpec("_P")
_T = TypeVar("_T")
_REMEMBERED_RUNS: Final = 64
"""Number of runs whose last steps are kept, for a later ``init()`` of the same run."""


class _CurrentRun:
    """Holds the run that this process has begun, and its state across runs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.no_run: Run | None = None
        self.connected: Run | None = None
        self.config: dict[str, Attribute] = {}  # what every init() of the run gave so far
        self.steps: dict[tuple[str, str], dict[str | None, int]] = {}
        self.child_env = ChildEnvironment()
        self.handles = Handles()
        self.registered = False

    @property
    def run(self) -> Run | None:
        """Return the process's run, which its spans look up too."""
        return cast("Run | None", emit_run.current_run())


_process = _CurrentRun()


def init(
    project: str | None = None,
    name: str | None = None,
    *,
    role: str | None = None,
    config: object = None,
    exporters: str | Sequence[str] | None = None,
    id: str | None = None,  # noqa: A002  # the word of every tracker
    group: str | None = None,
    tags: Sequence[str] = (),
    notes: str | None = None,
    entity: str | None = None,
    job_type: str | None = None,
    rank: int | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002
    otel: bool = False,
    system_metrics: bool = False,
    handle: bool = False,
) -> Run:
    """Begin this process's part of a run, or return the run that it has already begun.

    Args:
        project: Project (MLflow: experiment); default: environment, else the working folder's name.
        name: Run name, the same in every process of the job; default: environment, else generated.
        role: Role of this process: ``trainer``, ``explorer``, …; each role has its own keys and step axis; default:
            environment.
        config: Hyperparameters, as for `Run.log_config`.
        exporters: Names, e.g. ``"trackio"`` or ``["wandb", "mlflow"]``; default: environment.
        id: Run id; default: environment, else derived from project and name.
        group: Group of runs.
        tags: Tags of the run.
        notes: Notes on the run.
        entity: W&B entity.
        job_type: Kind of job.
        rank: Rank of this process; default: ``RANK``, else 0.
        dir: Directory of run folders; default: ``OTEL_BRIDGE_DIR``, else ``.otel-bridge`` in the working folder. If
            that is on a network file system, a folder of this machine is used instead.
        otel: Also record the metrics and spans of this process's stock OpenTelemetry instruments.
        system_metrics: Let the bridge measure this machine and its processes of the run every 15 s
            (``OTEL_BRIDGE_SYSTEM_METRICS_S``), as long as this process runs.
        handle: Return a further run, which is not the process's own: `current_run` and the functions of the package
            stay with that one, children do not join this one, and variables that name a run do not apply to it. Call
            its own methods, also `Run.finish`. A process may have 256 open handles.

    Raises:
        ConfigError: A setting or an argument cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    arguments = InitArguments(
        project=project,
        name=name,
        role=role,
        id=id,
        group=group,
        tags=tags_of(tags),
        notes=notes,
        entity=entity,
        job_type=job_type,
        rank=rank,
        system_metrics=bool(system_metrics),
    )
    try:
        return begin_run(arguments, exporters, dir, config=config, otel=otel, handle=handle)
    except ConfigError as exc:
        # The message says what to do. The frames below and the cause would only bury it.
        raise exc.with_traceback(None) from None


def begin_run(
    arguments: InitArguments,
    exporters: Any = None,
    dir: Any = None,  # noqa: A002
    *,
    config: object = None,
    otel: bool = False,
    handle: bool = False,
) -> Run:
    """Begin the process's run, or return it; see `init`. For `init` and for captures."""
    if handle:
        return _handle(arguments, exporters, dir, config=config, otel=otel)
    with _process.lock:
        current = _process.run
        if (
            current is not None
            and _same(current, arguments, exporters)
            and not _begins_another(current, arguments, exporters, dir, config=config)
        ):
            if otel and current.recording:
                _connect(current)
            _log_config_of_init(current, config)
            return current
        if current is not None:
            _leave(current)
        with config_errors():
            run = begin(arguments, exporters, _with_dir(environment(), dir), _working_folder(), _process.child_env)
        _go_on(run)
        _register()
        run.call_before_end(_forget)
        emit_run.set_current_run(run)
        _process.config = {}
    if otel and run.recording:
        _connect(run)
    _log_config_of_init(run, config)
    return run


def _handle(arguments: InitArguments, exporters: Any, folder: object, *, config: object, otel: bool) -> Run:
    if otel:
        raise ConfigError("init(handle=True, otel=True): a handle takes no spans or metrics of the process; drop otel")
    with _process.lock:
        _process.handles.require_room()
        env = environment_of_handle(_process.child_env.before(environment()))
        env = _with_dir(env, folder)
        with config_errors():
            run = begin(arguments, exporters, env, _working_folder(), None, shared=_process.handles.bridges)
        _go_on(run)
        _register()
        run.call_before_end(_remember_steps)
        _process.handles.add(run)
    if config is not None:
        run.log_config(config)
    return run


def current_run() -> Run | None:
    """Return the run that ``init()`` began in this process, ``None`` before and after it."""
    return _process.run


def has_begun_run() -> bool:
    """Return whether ``init()`` has begun a run in this process, which may have ended since."""
    return bool(_process.steps) or _process.run is not None


def _in_run(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return the function that calls the method of the process's run with the name of *call*.

    *call* is its signature and its text; its body is never run. The method counts what it does not know.
    """
    name = call.__name__

    @wraps(call)
    def forwarded(*arguments: _P.args, **named: _P.kwargs) -> _T:
        method: Any = getattr(_process.run or _missing(name), name)
        return cast("_T", method(*arguments, **named))

    return forwarded


@_in_run
def log(
    values: Mapping[str, object] | None = None,
    step: int | None = None,
    commit: bool | None = True,
    *,
    role: str | None = None,
    time_unix_ns: int | None = None,
) -> None:
    """Record one row in the process's run; see `Run.log`."""


@_in_run
def log_config(config: object = None, **entries: object) -> None:
    """Record hyperparameters in the process's run; see `Run.log_config`."""


@_in_run
def summary(values: Mapping[str, object] | None = None, *, role: str | None = None, **entries: object) -> None:
    """Record last values in the process's run; see `Run.summary`."""


@_in_run
def alert(
    title: str | None = None, text: str | None = None, level: str | None = "warn", *, role: str | None = None
) -> None:
    """Record an alert in the process's run; see `Run.alert`."""


@_in_run
def rollout(**fields: object) -> AbstractContextManager[LiveRollout]:
    """Open a live rollout in the process's run; see `Run.rollout`."""
    raise NotImplementedError


@_in_run
def log_rollouts(
    finished: Iterable[Rollout | Mapping[str, Any]] | None = None,
    step: int | None = None,
    *,
    split: str | None = None,
    role: str | None = None,
    state: str | None = None,
) -> None:
    """Record finished rollouts in the process's run; see `Run.log_rollouts`."""


@_in_run
def log_generations(prompts: Any = None, responses: Any = None, rewards: Any = None, **columns: Any) -> None:
    """Record parallel lists in the process's run; see `Run.log_generations`."""


@_in_run
def log_reward(
    rollout_id: str | None = None,
    value: object = None,
    name: str = "reward",
    explanation: str | None = None,
    *,
    role: str | None = None,
    step: int | None = None,
) -> None:
    """Record an evaluation of a rollout in the process's run; see `Run.log_reward`."""


@_in_run
def log_rewards(
    values: Mapping[str, object] | None = None,
    name: str = "reward",
    *,
    role: str | None = None,
    step: int | None = None,
) -> None:
    """Record evaluations of rollouts in the process's run; see `Run.log_rewards`."""


@_in_run
def env(role: str | None = None) -> dict[str, str]:
    """Return the environment variables that let a worker on another machine join the process's run; see `Run.env`."""
    raise NotImplementedError


@_in_run
def flush(timeout_s: float = DEFAULT_FLUSH_S) -> bool:
    """Wait until everything logged so far in the process's run is written; see `Run.flush`."""
    raise NotImplementedError


@_in_run
def finish(
    status: EndStatus | str | int | None = None,
    timeout_s: float = DEFAULT_FINISH_S,
    *,
    exit_code: int | None = None,
) -> None:
    """End the process's run; see `Run.finish`. Without a run nothing happens."""


def _same(current: Run, arguments: InitArguments, exporters: object) -> bool:
    """Return whether the arguments of ``init()`` name the current run; arguments that are not given match."""
    if not current.recording:
        return exporters is None and arguments == InitArguments()
    return current.facts.identity.is_named(arguments.project, arguments.name, arguments.role, arguments.id)


def _begins_another(current: Run, arguments: InitArguments, exporters: Any, folder: Any, *, config: object) -> bool:
    """Return whether an ``init()`` of the current run begins another run, because it differs and new runs are set.

    Otherwise print how it differs. A captured tracker decides itself when its ``init()`` begins another run.

    Raises:
        ConfigError: *exporters* cannot be read.
    """
    if not current.recording:
        return False
    ignored = ignored_arguments(current, arguments, exporters, folder)
    replaced: list[str] = []
    if arguments.captured is None and config is not None:
        replaced = replaced_entries(_process.config, config_snapshot(config))
    # The current run has removed the variable for its children.
    new_runs = arguments.captured is None and NEW_RUN.read(environment_of_user())
    if new_runs and (ignored or replaced):
        return True
    if ignored:
        notify(ignored_note(current, ignored), always=True)
    if replaced:
        notify(replaced_note(current, replaced), always=True)
    return False


def _log_config_of_init(run: Run, config: object) -> None:
    if config is None:
        return
    if run is _process.run:
        _process.config.update(config_snapshot(config))
    run.log_config(config)


def _connect(run: Run) -> None:
    """Connect the process's OpenTelemetry SDK, once for each run."""
    if _process.connected is not run:
        _process.connected = run
        from otel_bridge.emit.sdk.connect import connect  # noqa: PLC0415  # brings the OTel SDK

        connect(run)


def _leave(current: Run) -> None:
    if current.recording:
        notify(f"init() of another run: {current.project}/{current.name} as {current.role or 'no role'} is finished")
    current.finish()


def _forget(run: Run) -> None:
    """Release *run*, which has ended, so that the next ``init()`` begins another run."""
    if _process.run is run:
        _remember_steps(run)
        emit_run.set_current_run(None)
        _process.child_env.restore()


def _remember_steps(run: Run) -> None:
    with _process.lock:
        _process.steps.pop(_run_key(run), None)  # inserted again below, so that the latest run is evicted last
        _process.steps[_run_key(run)] = {} if run.recorder is None else run.recorder.last_steps()
        if len(_process.steps) > _REMEMBERED_RUNS:
            del _process.steps[next(iter(_process.steps))]


def _go_on(run: Run) -> None:
    """Continue the steps of *run*, if this process was in it before."""
    if run.recorder is not None:
        run.recorder.go_on_from(_process.steps.get(_run_key(run), {}))


def _run_key(run: Run) -> tuple[str, str]:
    return run.id, run.facts.child_environment.get(DIR.name, "")


def _missing(what: str) -> Run:
    """Return the run that records nothing, for a call without a run; the first such call is reported."""
    if what == finish.__name__:  # ending twice is allowed
        return nothing_recorded(environment(), Path())
    if _process.no_run is None:
        _process.no_run = nothing_recorded(environment(), Path())
        notify(f"{what}() without a run, before init() or after finish(): nothing is recorded", always=True)
    return _process.no_run


def environment_of_user() -> dict[str, str]:
    """Return the environment without what a run of this process has set in it for children."""
    return _process.child_env.before(environment())


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as exc:
        raise ConfigError(f"the working folder cannot be read: {exc.strerror}; change to one that exists") from exc


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


def _register() -> None:
    """Register the handlers for the exit of this process and for forked children, once."""
    if not _process.registered:
        _process.registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)
    watch_process_end(_at_exit)


def _at_exit() -> None:
    own = _process.run
    try:
        end_at_exit([*_process.handles.all(), *([] if own is None else [own])])
    except KeyboardInterrupt:
        notify("interrupted; records that are not written yet are kept", always=True)


def _after_fork() -> None:
    _process.lock = threading.RLock()
    _process.child_env.keep()
    if _process.run is not None:
        _process.run.after_fork()
    _process.handles.after_fork()
