"""Records the trials of Ray Tune, each as a run of its own, by a logger callback.

.. code-block:: python

    tuner = tune.Tuner(train, run_config=tune.RunConfig(callbacks=[OtelBridgeLoggerCallback()]))

Tune calls it in the driver, which holds the runs of all trials. Waiting for delivery would stop the
other trials, so it waits at the end of the experiment only.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import (
    checked_arguments,
    guarded,
)
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.settings import PROJECT

if TYPE_CHECKING:
    from otel_bridge.emit.arguments import EndStatus
    from otel_bridge.emit.run import Run

    class LoggerCallback:
        """Declares the members of ``ray.tune.logger.LoggerCallback`` that this adapter uses."""

else:
    LoggerCallback = framework_class("ray.tune.logger:LoggerCallback", "ray[tune]>=2.7")

MAX_OPEN_TRIALS = 200
"""Most trials whose runs are open at a time, below the number of handles that a process may have."""
_OF_TUNE = frozenset({"id", "handle", "otel", "rank"})
"""Arguments of ``init()`` that are Tune's to choose."""
_PLACE = ("hostname", "node_ip", "pid")
"""Entries of a result that say where the trial runs: config, recorded when they change."""
_BOOKKEEPING = frozenset({
    *_PLACE, "training_iteration", "config", "date", "timestamp", "trial_id", "experiment_id", "experiment_tag", "done",
    "should_checkpoint", "checkpoint_dir_name", "iterations_since_restore", "time_since_restore",
    "timesteps_since_restore", "__duplicate__", "__trial_info__",
})  # fmt: skip
"""Entries that Tune adds to the metrics of a trial's result."""
_CALLBACKS = "callbacks"


class OtelBridgeLoggerCallback(LoggerCallback):
    """Records what trials report. No method raises; all are called by the thread that tunes.

    Args:
        project: Project; default: as in ``otel_bridge.init()``.
        group: Group of the trials; default: the name of the experiment.
        arguments: Further arguments of ``otel_bridge.init()`` for each trial, e.g. ``exporters`` or ``tags``.

    Raises:
        ConfigError: ``otel_bridge.init()`` does not have an argument, or Tune chooses it.
    """

    def __init__(
        self, project: str | None = None, group: str | None = None, **arguments: Any
    ) -> None:
        super().__init__()
        for name in sorted(_OF_TUNE & arguments.keys()):
            raise ConfigError(
                f"{name}= of a trial's run follows from the trial; remove it"
            )
        self._project = project
        self._group = group
        self._arguments = checked_arguments(arguments)
        self._open: dict[str, _TrialRun | None] = {}
        # Bounded: an experiment has any number of trials; the first ones are delivered anyway.
        self._waits: deque[Callable[[float], None]] = deque(maxlen=MAX_OPEN_TRIALS)
        self._reported: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy begin anew: Tune stores its callbacks with the experiment, and the runs are found by id."""
        begin = functools.partial(type(self), self._project, self._group)
        return functools.partial(begin, **self._arguments), ()

    @guarded
    def log_trial_start(self, trial: Any) -> None:
        """Begin the run of *trial*, or continue it.

        One that cannot begin is printed, once for each reason, and Tune continues.
        """
        self._run_of(trial)

    @guarded
    def log_trial_result(
        self,
        iteration: int,  # noqa: ARG002  Tune's
        trial: Any,
        result: dict[str, Any],
    ) -> None:
        """Record one row; its step is the training iteration of the trial.

        Nothing happens for a trial whose run cannot begin.
        """
        if (run := self._run_of(trial)) is not None:
            run.log_result(result)

    @guarded
    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """End the run of *trial*, without waiting for its delivery.

        A later result begins it again.
        """
        self._end(trial.trial_id, "failed" if failed else "finished")

    @guarded
    def on_experiment_end(self, trials: Any, **info: Any) -> None:  # noqa: ARG002  # Tune's signature
        """End the runs that are still open, those of interrupted trials, and wait until all records are delivered.

        All trials wait for one time, 30 s; what is not delivered by then stays in the run folders.
        """
        from otel_bridge.emit.arguments import DEFAULT_FINISH_S  # noqa: PLC0415

        for trial_id in list(self._open):
            self._end(trial_id, "killed")
        deadline = time.monotonic() + DEFAULT_FINISH_S
        while self._waits:
            self._waits.popleft()(max(deadline - time.monotonic(), 0.0))

    def _run_of(self, trial: Any) -> _TrialRun | None:
        """Return the run of *trial*, and begin it if it is not open; ``None`` when it cannot begin.

        A trial that cannot begin is remembered, and not tried with each of its results.
        """
        trial_id = str(trial.trial_id)
        if trial_id in self._open:
            run = self._open.pop(trial_id)
        else:
            # E.g. paused trials: the one that was silent the longest.
            if len(self._open) >= MAX_OPEN_TRIALS:
                self._end(next(iter(self._open)), "finished")
            run = self._begin(trial, trial_id)
        self._open[trial_id] = run  # the last one, since it is at work
        return run

    def _begin(self, trial: Any, trial_id: str) -> _TrialRun | None:
        """Begin the run of *trial*, as one beside others; ``None``, printed, when it cannot begin.

        Its id comes from experiment and trial, so that a retry or ``Tuner.restore()`` continues it.
        """
        from otel_bridge.emit.config.run_request import RunRequest, is_chosen  # noqa: PLC0415
        from otel_bridge.emit.console import notify  # noqa: PLC0415
        from otel_bridge.emit.process_runs import runs  # noqa: PLC0415
        from otel_bridge.records import run_id_of  # noqa: PLC0415

        experiment = str(trial.experiment_dir_name)
        try:
            is_chosen_elsewhere = is_chosen(PROJECT, runs.environment_of_user())
            run = runs.begin(
                RunRequest(
                    project=None if is_chosen_elsewhere else self._project,
                    name=str(trial),
                    # Names of trials may be equal, e.g. those of a trial_name_creator.
                    id=run_id_of(experiment, trial_id),
                    group=self._group or experiment,
                    handle=True,
                    **self._arguments,
                )
            )
        except OtelBridgeError as exc:
            if str(exc) not in self._reported:
                self._reported.add(str(exc))
                notify(
                    f"Ray Tune continues, and trials are not recorded: {exc}",
                    always=True,
                )
            return None
        self._leave_out_event_files(trial)
        return _TrialRun(run, trial, experiment)

    def _leave_out_event_files(self, trial: Any) -> None:
        """Leave the trial's own event files of Tune out of a capture, which would record its scalars again.

        Nothing happens for a trial without a local folder, or without a capture of TensorBoard.
        """
        from otel_bridge.capture.hook import captured  # noqa: PLC0415

        folder = getattr(trial, "local_path", None)
        if folder and "tensorboard" in captured():
            from otel_bridge.capture.tensorboard import leave_out  # noqa: PLC0415

            leave_out(folder)

    def _end(self, trial_id: str, status: EndStatus) -> None:
        """End the run of a trial, if it is open.

        What waits for its delivery is kept for the end of the experiment.
        """
        ended = self._open.pop(str(trial_id), None)
        if ended is not None and (wait := ended.run.end_part(status)) is not None:
            # Not awaited here, where the other trials would stop meanwhile.
            self._waits.append(wait)


class _TrialRun:
    """Records the results of one trial in its open run.

    Args:
        run: The run, a handle.
        trial: The trial.
        experiment: Name of its experiment.
    """

    def __init__(self, run: Run, trial: Any, experiment: str) -> None:
        self.run = run
        self._config: object = None
        self._place: dict[str, Any] = {}
        self._log_config(trial.config)
        tag = getattr(trial, "experiment_tag", None)
        run.log_config(
            {
                "tune": {
                    "experiment": experiment,
                    "trial_id": str(trial.trial_id),
                    "experiment_tag": tag,
                }
            }
        )

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Record a result: a row, and the changed part of the config.

        What Tune adds for itself is not a metric. Texts are dropped and counted by the run.
        """
        self._log_config(result.get("config"))
        place: dict[str, Any] = {}
        row: dict[str, Any] = {}
        for name, value in result.items():
            if value is None:
                continue
            if name in _PLACE:
                place[name] = value
            elif name not in _BOOKKEEPING:
                row[name] = value
        if place != self._place:
            self._place = place
            self.run.log_config({"tune": place})
        # The `iteration` of Ray 2.60 counts Tune's own loop, not the steps of the trial.
        self.run.log(row, result.get("training_iteration"))

    @guarded
    def _log_config(self, config: Mapping[str, Any] | None) -> None:
        """Record the hyperparameters, again when a scheduler has changed them.

        Nothing happens without parameters. The entry ``callbacks`` is left out. A parameter whose
        ``repr()`` raises costs the config, not the trial.
        """
        parameters = {
            name: value for name, value in (config or {}).items() if name != _CALLBACKS
        }
        # Arrays have no truth value, and a scheduler may change a dict in place.
        text = repr(parameters)
        if parameters and text != self._config:
            self._config = text
            self.run.log_config(parameters)
