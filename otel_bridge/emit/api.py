"""The process's run: `init()`, and the functions of the package that act on that run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.emit_run import report_missing_run
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from otel_bridge.emit.startup import nothing_recorded
from otel_bridge.errors import ConfigError
from otel_bridge.settings import environment

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _NoRun:
    """Holds the run that records nothing, for calls without a run."""

    run: Run | None = None


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

    With the names of another run the present one is finished first. Where nothing is to be
    recorded (exporter ``none``), or nothing can be and no exporter is chosen, the run that is
    returned records nothing.

    Args:
        project: Project (MLflow: experiment); default: environment, else the working folder's name.
        name: Run name, the same in every process of the job; default: environment, else generated.
        role: Role of this process: ``trainer``, ``explorer``, …; each role has its own keys and
            step axis; default: environment.
        config: Hyperparameters, as for `Run.log_config`.
        exporters: Names, e.g. ``"trackio"`` or ``["wandb", "mlflow"]``; default: environment.
        id: Run id; default: environment, else derived from project and name.
        group: Group of runs.
        tags: Tags of the run.
        notes: Notes on the run.
        entity: W&B entity.
        job_type: Kind of job.
        rank: Rank of this process; default: ``RANK``, else 0.
        dir: Directory of run folders; default: ``OTEL_BRIDGE_DIR``, else ``.otel-bridge`` in the
            working folder. If that is on a network file system, a folder of this machine is used
            instead.
        otel: Also record the metrics and spans of this process's stock OpenTelemetry instruments.
        system_metrics: Let the bridge measure this machine and its processes of the run every 15 s
            (``OTEL_BRIDGE_SYSTEM_METRICS_S``), as long as this process runs.
        handle: Return a further run, which is not the process's own: `current_run` and the
            functions of the package stay with that one, children do not join this one, and
            variables that name a run do not apply to it. Call its own methods, also `Run.finish`. A
            process may have 256 open handles.

    Raises:
        ConfigError: A setting or an argument cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    try:
        return runs.begin(
            RunRequest(
                project=project,
                name=name,
                role=role,
                id=id,
                group=group,
                tags=tags,
                notes=notes,
                entity=entity,
                job_type=job_type,
                rank=rank,
                system_metrics=system_metrics,
                exporters=exporters,
                dir=dir,
                config=config,
                otel=otel,
                handle=handle,
            )
        )
    except ConfigError as exc:
        # The message says what to do. The frames below and the cause would only bury it.
        raise exc.with_traceback(None) from None


def current_run() -> Run | None:
    """Return the run that ``init()`` began in this process, ``None`` before and after it."""
    return runs.current


def _in_run(method: Callable[Concatenate[Run, _P], _T]) -> Callable[_P, _T]:
    """Return the function that calls *method* of the process's run, with its arguments and its text.

    Without a run it calls that of a run that records nothing. It is found under its own name in
    this module, so that it can be pickled.
    """
    name = method.__name__

    # As of a bound method: the signature is that of *method* without `self`.
    @wraps(MethodType(method, Run))
    def forwarded(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        # By name: a run that records has a `log` of its own.
        run_method: Any = getattr(runs.current or _missing(name), name)
        return cast("_T", run_method(*arguments, **keywords))

    # Another process finds it under these names when it is pickled.
    forwarded.__module__ = __name__
    forwarded.__qualname__ = name
    return forwarded


log = _in_run(Run.log)
"""Record one row in the process's run; see `Run.log`."""
log_config = _in_run(Run.log_config)
"""Record hyperparameters in the process's run; see `Run.log_config`."""
summary = _in_run(Run.summary)
"""Record last values in the process's run; see `Run.summary`."""
alert = _in_run(Run.alert)
"""Record an alert in the process's run; see `Run.alert`."""
rollout = _in_run(Run.rollout)
"""Open a live rollout in the process's run; see `Run.rollout`."""
log_rollouts = _in_run(Run.log_rollouts)
"""Record finished rollouts in the process's run; see `Run.log_rollouts`."""
log_generations = _in_run(Run.log_generations)
"""Record parallel lists in the process's run; see `Run.log_generations`."""
log_reward = _in_run(Run.log_reward)
"""Record an evaluation of a rollout in the process's run; see `Run.log_reward`."""
log_rewards = _in_run(Run.log_rewards)
"""Record evaluations of rollouts in the process's run; see `Run.log_rewards`."""
env = _in_run(Run.env)
"""Return the environment variables that let a worker on another machine join the process's run; see `Run.env`."""
flush = _in_run(Run.flush)
"""Wait until everything logged so far in the process's run is written; see `Run.flush`."""
finish = _in_run(Run.finish)
"""End the process's run; see `Run.finish`. Without a run nothing happens."""


def _missing(call_name: str) -> Run:
    """Return the run that records nothing, for a call without a run.

    Never raises for a missing run. The first such call is reported. ``finish()`` is none: ending
    twice is allowed.
    """
    if call_name == "finish":
        return nothing_recorded(environment(), Path())
    report_missing_run(call_name)
    if _NoRun.run is None:
        _NoRun.run = nothing_recorded(environment(), Path())
    return _NoRun.run
