"""The process's run, and the functions of the package that act on it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_bridge.emit.handover import Handover
from otel_bridge.emit.identity import Asked, tags_of
from otel_bridge.emit.lines import say
from otel_bridge.emit.run import EndStatus, Run
from otel_bridge.emit.start import begin, nothing_recorded, with_dir
from otel_bridge.errors import ConfigError
from otel_bridge.settings import environment

if TYPE_CHECKING:
    from otel_bridge.emit.live import LiveRollout
    from otel_bridge.emit.rollout import Rollout


class _Process:
    """What this process has begun."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.run: Run | None = None
        self.no_run: Run | None = None
        self.handover = Handover()
        self.registered = False


_process = _Process()


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
) -> Run:
    """Begin this process's part of a run, or return the one begun.

    Args:
        project: Project (MLflow: experiment); default: environment, else the working folder's name.
        name: Run name, the same in every process of the job; default: environment, else made anew.
        role: Who speaks: ``trainer``, ``explorer``, …; its keys and its step axis are its own; default: environment.
        config: Hyperparameters, as for `Run.log_config`.
        exporters: Names, e.g. ``"trackio"`` or ``["wandb", "mlflow"]``; default: environment.
        id: Run id; default: environment, else made of project and name.
        group: Group of runs.
        tags: Tags of the run.
        notes: Notes on the run.
        entity: W&B entity.
        job_type: Kind of job.
        rank: Rank of this process; default: ``RANK``, else 0.
        dir: Where run folders are; default: ``OTEL_BRIDGE_DIR``, else ``.otel-bridge`` in the working folder, or in a
            folder of this machine where that is on a network file system.
        otel: Append what stock OpenTelemetry instruments and spans of this process make, too.
        system_metrics: Let the bridge measure this machine and its processes of the run, every 15 s
            (``OTEL_BRIDGE_SYSTEM_METRICS_S``), as long as this process lives.

    Raises:
        ConfigError: A setting or an argument cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    asked = Asked(project, name, role, id, group, tags_of(tags), notes, entity, job_type, rank, bool(system_metrics))
    with _process.lock:
        current = _process.run
        if current is not None and _same(current, asked, exporters):
            if config is not None:
                current.log_config(config)
            return current
        if current is not None:
            _leave(current)
        run = begin(asked, exporters, with_dir(environment(), dir), _working_folder(), _process.handover)
        _register()
        run.on_end = _forget
        _process.run = run
    if otel and run.recording:
        from otel_bridge.emit.otel_connect import connect  # noqa: PLC0415  # brings the OTel SDK

        connect(run)
    if config is not None:
        run.log_config(config)
    return run


def current_run() -> Run | None:
    """Return the run that ``init()`` began in this process, ``None`` before and after it."""
    return _process.run


def log(values: Mapping[str, object], step: int | None = None, *, role: str | None = None) -> None:
    """Record one row in the process's run; see `Run.log`."""
    (_process.run or _missing("log")).log(values, step, role=role)


def log_config(config: object) -> None:
    """Record hyperparameters in the process's run; see `Run.log_config`."""
    (_process.run or _missing("log_config")).log_config(config)


def rollout(**fields: object) -> AbstractContextManager[LiveRollout]:
    """Open a live rollout in the process's run; see `Run.rollout`."""
    return (_process.run or _missing("rollout")).rollout(**fields)


def log_rollouts(
    finished: Iterable[Rollout | Mapping[str, Any]] | None,
    *,
    step: int | None = None,
    split: str | None = None,
    role: str | None = None,
) -> None:
    """Record finished rollouts in the process's run; see `Run.log_rollouts`."""
    (_process.run or _missing("log_rollouts")).log_rollouts(finished, step=step, split=split, role=role)


def log_generations(**columns: Any) -> None:
    """Record parallel lists in the process's run; see `Run.log_generations`."""
    (_process.run or _missing("log_generations")).log_generations(**columns)


def log_reward(
    rollout_id: str,
    value: object,
    name: str = "reward",
    explanation: str | None = None,
    *,
    role: str | None = None,
    step: int | None = None,
) -> None:
    """Record a late reward in the process's run; see `Run.log_reward`."""
    run = _process.run or _missing("log_reward")
    run.log_reward(rollout_id, value, name, explanation, role=role, step=step)


def log_rewards(
    values: Mapping[str, object], name: str = "reward", *, role: str | None = None, step: int | None = None
) -> None:
    """Record late rewards in the process's run; see `Run.log_rewards`."""
    (_process.run or _missing("log_rewards")).log_rewards(values, name, role=role, step=step)


def env(role: str | None = None) -> dict[str, str]:
    """Return the variables that put a worker elsewhere into the process's run; see `Run.env`."""
    return (_process.run or _missing("env")).env(role)


def flush(timeout_s: float = 10.0) -> bool:
    """Wait until the process's run is written so far; see `Run.flush`."""
    return (_process.run or _missing("flush")).flush(timeout_s)


def finish(status: EndStatus = "finished", timeout_s: float = 30.0) -> None:
    """End the process's run; see `Run.finish`. Without one nothing happens."""
    run = _process.run
    if run is not None:
        run.finish(status, timeout_s)


def _same(current: Run, asked: Asked, exporters: object) -> bool:
    """Tell whether ``init()`` asks for the run that there is; what it leaves open is the same."""
    if not current.recording:
        return exporters is None and asked == Asked()
    pairs = (
        (asked.project, current.project),
        (asked.name, current.name),
        (asked.role, current.role),
        (asked.id, current.id),
    )
    return all(given is None or given == is_now for given, is_now in pairs)


def _leave(current: Run) -> None:
    if current.recording:
        say(f"init() of another run: {current.project}/{current.name} as {current.role or 'no role'} is finished")
    current.finish()


def _forget(run: Run) -> None:
    """Let go of *run*, which has ended: the next ``init()`` begins another."""
    if _process.run is run:
        _process.run = None
        _process.handover.take_back()


def _missing(what: str) -> Run:
    if _process.no_run is None:
        _process.no_run = nothing_recorded(environment(), Path())
        say(f"{what}() without a run, before init() or after finish(): nothing is recorded", always=True)
    return _process.no_run


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as exc:
        raise ConfigError(f"the working folder cannot be read: {exc.strerror}; change to one that exists") from exc


def _register() -> None:
    """Ask for the ends of this process and the beginnings of forked ones, once."""
    if not _process.registered:
        _process.registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    run = _process.run
    if run is not None:
        try:
            run.finish_at_exit()
        except KeyboardInterrupt:
            say("not waited for; what is not written yet is kept", always=True)


def _after_fork() -> None:
    _process.lock = threading.RLock()
    _process.handover.keep_for_children()
    if _process.run is not None:
        _process.run.after_fork()
