"""Records what trainers of transformers and TRL log, and completions of GRPO and RLOO as rollouts, by a callback.

.. code-block:: python

    trainer = GRPOTrainer(…, callbacks=[OtelBridgeCallback()])

After `register`, ``report_to="otel_bridge"`` does the same. A failure in a `guarded` method is
counted as ``adapter_failed``, and the training goes on.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.adapters.parts.calling_object import calling_object
from otel_bridge.adapters.parts.captured_reports import CapturedReports, trackers_of
from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import (
    FrameworkRun,
    RunNames,
    checked_arguments,
    chosen_names,
    guarded,
    process_runs,
)
from otel_bridge.adapters.parts.search_trials import SearchTrials
from otel_bridge.adapters.parts.timers import time_trl
from otel_bridge.adapters.parts.trl_completions import (
    CompletionReader,
    consumes_whole_batch,
    has_streams,
    keep_streams,
    streams_of,
)
from otel_bridge.errors import any_error_but_signals
from otel_bridge.values.mappings import without

_REQUIREMENT = "transformers>=4.50"

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts.rollout import Rollout
    from otel_bridge.emit.run import Run

    class TrainerCallback:
        """Declares the members of ``transformers.TrainerCallback`` that this adapter uses."""

    class ExportableState:
        """Declares the members of ``transformers.trainer_callback.ExportableState`` that this adapter uses."""

else:
    TrainerCallback = framework_class("transformers:TrainerCallback", _REQUIREMENT)
    ExportableState = framework_class(
        "transformers.trainer_callback:ExportableState", _REQUIREMENT
    )

DEFAULT_PROJECT = "huggingface"
"""Project of ``TrainingArguments`` when its user names none."""
_DEFAULT_NOTE = (
    f"the run is in the project {DEFAULT_PROJECT}, the default of transformers, as those of all other jobs; choose one"
    " with OTEL_BRIDGE_PROJECT or TrainingArguments(project=…)"
)
_LAST_VALUES = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"
)  # fmt: skip
"""What transformers logs once, at the end of a training."""
_PREFIXES = (("eval_", "eval/"), ("test_", "test/"))
_TRACKERS = {
    "WandbCallback": "wandb",
    "TrackioCallback": "trackio",
    "TensorBoardCallback": "tensorboard",
}
"""Class of a callback of transformers to the tracker that it reports to."""
_NAMES_RUN_BY_FOLDER = 4
"""Last major version of transformers whose ``run_name`` is ``output_dir`` unless the user gives one."""


class OtelBridgeCallback(TrainerCallback, ExportableState):
    """Records what a ``Trainer`` logs, on the main process.

    Args:
        trainer: The trainer, for a callback that is added after the trainer was made; else the callback finds it.
        project: Project; default: ``TrainingArguments.project``.
        name: Name of the run; default: ``TrainingArguments.run_name``, and on resume that of the checkpoint.
        config: Hyperparameters in addition to ``TrainingArguments`` and the model's config.
        arguments: Further arguments of ``otel_bridge.init()``, e.g. ``group`` or ``tags``.

    Raises:
        ConfigError: ``otel_bridge.init()`` does not have an argument.
    """

    def __init__(
        self,
        trainer: object = None,
        project: str | None = None,
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self._trainer = _weak(trainer)
        self._project = project
        self._name = name
        self._config = config or {}
        self._arguments = checked_arguments(arguments)
        self._recording: FrameworkRun | None = None
        # Weak keys: the callback must keep neither a trainer nor its model in memory.
        self._completions: weakref.WeakKeyDictionary[Any, CompletionReader] = (
            weakref.WeakKeyDictionary()
        )
        self._trials = SearchTrials()
        self._args: Any = None
        self._in_training = False
        if (args := getattr(trainer, "args", None)) is not None:
            self._announce(args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy in another process begin anew: Ray's hyperparameter search pickles the trainer."""
        begin = functools.partial(
            type(self), None, self._project, self._name, config=self._config
        )
        return functools.partial(begin, **self._arguments), ()

    # --- where the callback belongs -----------------------------------------------------------------------------------

    @guarded
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Find the trainer, which calls this from its constructor.

        A captured callback may begin the run before.
        """
        self._find_trainer(state)
        if state.is_world_process_zero and self._recording is None:
            self._announce(args)

    def _announce(self, args: Any) -> None:
        """Announce the run to the process's runs: a captured tracker that records first takes its names."""
        self._args = args
        process_runs().announce(self)

    @guarded
    def begin(self) -> Run | None:
        """Begin the run for a captured callback that records first; ``None`` where this callback cannot.

        It cannot without its trainer, in a trial of a search, on ranks above 0, and in a second
        callback.
        """
        trainer = self._trainer()
        if trainer is None or _is_trial(trainer.state):
            return None
        recording = self._begin(self._args, trainer.state, None)
        if recording is None:
            return None
        return recording.begin()

    def chosen_names(self) -> tuple[str | None, str | None]:
        """Return project and name that the user gave, for a captured callback that begins the run.

        ``None`` for both where `_chosen_names` knows none, or fails.
        """
        return self._chosen_names() or (None, None)

    @guarded
    def _chosen_names(self) -> tuple[str | None, str | None] | None:
        """Return project and name that the user gave, for `chosen_names`.

        ``None`` without the trainer, and for a trial of a search, whose name comes later.
        """
        trainer = self._trainer()
        if trainer is None or _is_trial(trainer.state):
            return None
        return chosen_names(self._names(self._args, trainer.state))

    def state(self) -> dict[str, Any]:
        """Return the callback's arguments and the run's names for the checkpoint.

        transformers builds the callback from the arguments if
        ``restore_callback_states_from_checkpoint`` is set. A resumed training joins the run by its
        names. The run of a search's trial is not joined. Before the run begins there are no names.
        """
        run = None if self._recording is None else self._recording.run
        names: dict[str, str] = {}
        if (
            self._recording is not None
            and run is not None
            and self._recording.names.arguments.get("id") == self._arguments.get("id")
        ):
            names = {"project": run.project, "name": run.name}
        all_arguments = {
            "project": self._project,
            "name": self._name,
            "config": self._config or None,
            **self._arguments,
        }
        arguments = {
            name: value
            for name, value in all_arguments.items()
            if value is not None and _is_json(value)
        }
        return {"args": arguments, "attributes": {"resumed_names": names}}

    # --- what is logged -----------------------------------------------------------------------------------------------

    @guarded
    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        model: Any = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Begin the run with its config, or continue it; each trial of a search has a run of its own.

        Where no run can begin, that is printed once. Tokens of each rank are recorded, so TRL's
        method is wrapped on all.
        """
        self._find_trainer(state)
        # By now TRL has imported its timers.
        time_trl()
        keep_streams(self._trainer())
        # transformers 5.23 calls the callbacks of every rank.
        if not state.is_world_process_zero or not self._is_first():
            return
        if _is_trial(state):
            self._trials.next()
        recording = self._select(args, state, model)
        self._in_training = True
        if not self._captured().begins_the_run:  # else the first record joins that run
            recording.begin()

    @guarded
    def on_log(
        self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **kwargs: Any  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Record one row, and the totals of a training as last values.

        A row that a captured tracker records is left out but for what that leaves out. Totals are
        last values, because they come once, and have no curve.
        """
        self._find_trainer(state)
        recording = self._begin(args, state, model)
        if recording is None or not logs:
            return
        run = recording.begin()
        if (tracker := self._captured().tracker_of(run)) is not None:
            logs = _left_out_by(tracker, logs)
        last: dict[str, Any] = {}
        # A user's own `train_loss` comes with each step, without it.
        if "train_runtime" in logs:
            last = {key: logs[key] for key in _LAST_VALUES if key in logs}
            flos = getattr(state, "total_flos", None)
            # PrinterCallback takes it out of the shared dict.
            if flos is not None:
                last.setdefault("total_flos", flos)
            run.summary(last)
        if row := renamed(without(logs, last)):
            run.log(row, state.global_step)

    @guarded
    def on_substep_end(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Record completions that were generated for the current step; nothing without new ones.

        The step counts up only after it.
        """
        self._record_completions(args, state, state.global_step + 1, "train")

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Record completions that were generated for the step that has ended, and that it has consumed them."""
        self._record_completions(args, state, state.global_step, "train")
        self._record_consumed(state)

    @guarded
    def on_prediction_step(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Record completions of an evaluation, at the step of the training that it interrupts."""
        self._record_completions(args, state, state.global_step, "eval")

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Flush the records, 2 s at most. The run stays open, because ``train()`` or ``evaluate()`` may follow."""
        self._in_training = False
        if self._recording is not None:
            self._recording.flush()

    def _record_completions(self, args: Any, state: Any, step: int, split: str) -> None:
        """Record the new completions of all ranks on the main process, and on each rank the streams of its own.

        Nothing happens without a trainer of TRL, or new completions. Where TRL gives a captured
        tracker a table of them, that becomes the rollouts, with other ids, so that neither tokens
        nor lineage are recorded here.
        """
        self._find_trainer(state)
        trainer = self._trainer()
        if trainer is None or not (
            state.is_world_process_zero or self._adds_streams(trainer)
        ):
            return
        # One callback may serve several trainers, each with batches of its own.
        reader = self._completions.setdefault(trainer, CompletionReader())
        rollouts = reader.new(trainer, step, split)
        if (
            not rollouts
            or (recording := self._begin_in_rank(args, state, None)) is None
        ):
            return
        run = recording.begin()
        if getattr(
            args, "log_completions", False
        ) and self._captured().records_tables_and_config(run):
            reader.forget_training()
            return  # TRL gives the tracker a table of them
        if state.is_world_process_zero:
            run.log_rollouts(rollouts, step=step, split=split)
        if split == "train":
            _annotate(run, trainer, rollouts, step)

    def _adds_streams(self, trainer: Any) -> bool:
        """Return whether a rank above 0 has streams, and the run that they go to is that of the main process."""
        if not has_streams(trainer):
            return False
        if process_runs().current is not None:
            return True
        from otel_bridge.emit.config.identity import node_rank  # noqa: PLC0415  # ranks above 0 alone need it

        # On another machine its folder, and so its bridge, would be a second one.
        is_same_machine = node_rank(process_runs().environment_of_user()) == 0
        return is_same_machine and not self._captured().begins_the_run

    def _record_consumed(self, state: Any) -> None:
        """Record the last batch as consumed by the step, unless a step consumes an unknown part of it.

        Nothing happens either before the first batch, and on ranks above 0, whose batch is part of
        the main process's.
        """
        trainer = self._trainer()
        reader = None if trainer is None else self._completions.get(trainer)
        recording = self._recording
        if (
            reader is None
            or recording is None
            or not state.is_world_process_zero
            or not reader.training_ids
            or not consumes_whole_batch(trainer)
        ):
            return
        recording.begin().train_on(state.global_step, reader.training_ids)

    def _begin(self, args: Any, state: Any, model: Any) -> FrameworkRun | None:
        """Return the run's recording on the main process.

        ``None`` on others, and in a second callback.
        """
        if state.is_world_process_zero:
            return self._begin_in_rank(args, state, model)
        return None

    def _begin_in_rank(self, args: Any, state: Any, model: Any) -> FrameworkRun | None:
        """Return the run's recording in this process; ``None`` in a second callback."""
        if not self._is_first():
            return None
        self._set_up_captured(args, state)
        # Another trainer has the same callback.
        if self._recording is None or args is not self._args:
            self._select(args, state, model)
        return self._recording

    def _select(self, args: Any, state: Any, model: Any) -> FrameworkRun:
        """Return the recording for a training with *args*; end another run that this callback has recorded.

        Another training in this process may be of another run: of other names, or a trial. The end
        waits for delivery as `Run.finish` does. Raises as `_names`.
        """
        process_runs().withdraw(self)
        names = self._names(args, state)
        config = {**config_of(args, model), **self._config}
        recording = self._recording
        if recording is not None and not recording.is_of(names):
            # A training that another one replaces has not reached its end.
            recording.finish("failed" if self._in_training else "finished")
            recording = None
        if recording is None:
            recording = FrameworkRun("transformers", names, config=config)
        else:
            # Arguments may have changed since the last training of this run.
            recording.change_config(config)
        self._recording = recording
        self._args = args
        return recording

    def _names(self, args: Any, state: Any) -> RunNames:
        """Return the names of the run for *args*: those of the callback, of the arguments, then of the checkpoint.

        The project that transformers fills in counts as none. A trial does not continue the run of
        a checkpoint. Raises as `resumed_names`; the callers are `guarded`.
        """
        trial = _is_trial(state)
        earlier_names = {} if trial else resumed_names(state)
        configured_project = getattr(args, "project", None)
        project = self._project or (
            configured_project if configured_project != DEFAULT_PROJECT else None
        )
        name = self._name or _run_name(args)
        resumed = earlier_names.get("project")
        default, note = (resumed, "") if resumed else (DEFAULT_PROJECT, _DEFAULT_NOTE)
        names = RunNames(
            project,
            name or earlier_names.get("name"),
            None,
            default,
            self._arguments,
            note,
        )
        if trial:
            return self._trials.names(names, args, state)
        return names

    @guarded
    def _set_up_captured(self, args: Any, state: Any) -> None:
        """Let a captured callback begin the run, as it does with its first record, so that there is one run.

        Such a callback begins it in ``on_train_begin`` or with its first row, whichever comes
        first; an evaluation before the training comes to this callback first. What its ``setup()``
        raises is counted as ``adapter_failed``, and this callback begins the run.
        """
        for callback in self._callbacks():
            begins = CapturedReports(
                "transformers", trackers_of([callback], _TRACKERS)
            ).begins_the_run
            if begins and not getattr(callback, "_initialized", True):
                callback.setup(args, state, getattr(self._trainer(), "model", None))

    def _captured(self) -> CapturedReports:
        """Return what is captured of the trackers whose callbacks the trainer has."""
        return CapturedReports(
            "transformers", trackers_of(self._callbacks(), _TRACKERS)
        )

    def _callbacks(self) -> list[Any]:
        """Return the callbacks of the trainer; none without one."""
        return list(
            getattr(getattr(self._trainer(), "callback_handler", None), "callbacks", ())
        )

    def _find_trainer(self, state: Any) -> None:
        """Find the trainer of *state* in the calling frames: transformers does not pass it to its callbacks.

        Where no caller is the trainer of *state*, the last one stays.
        """
        # The search of the calling frames is a cost, so only for another trainer.
        if getattr(self._trainer(), "state", None) is not state:
            trainer = calling_object(
                lambda caller: (
                    hasattr(caller, "callback_handler")
                    and getattr(caller, "state", None) is state
                )
            )
            if trainer is not None:
                self._trainer = _weak(trainer)

    def _is_first(self) -> bool:
        """Return whether no other callback of this kind is before this one, e.g. one by ``report_to``.

        Else each row would be recorded twice.
        """
        bridge_callbacks = [
            callback
            for callback in self._callbacks()
            if isinstance(callback, OtelBridgeCallback)
        ]
        return not bridge_callbacks or bridge_callbacks[0] is self


def _annotate(run: Run, trainer: Any, rollouts: list[Rollout], step: int) -> None:
    """Record log-probabilities of vLLM and of the trainer for the completions that this process generated.

    Nothing happens without streams of this batch. A trainer without a processing class raises
    `AttributeError`, which the caller counts; the rollouts are recorded by then.
    """
    local, streams = streams_of(trainer, len(rollouts))
    if streams:
        decode = trainer.processing_class.decode
        run.annotate(rollouts[local], step=step, decode=decode, **streams)


def register() -> None:
    """Make ``report_to="otel_bridge"`` known to transformers, and so to TRL.

    A second call changes nothing.

    Raises:
        MissingExtraError: transformers is not installed, or too old.
    """
    # `report_to` is not checked: transformers 5.23 looks each name up here.
    callbacks: dict[str, Any] = framework_class(
        "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK",
        _REQUIREMENT,
    )
    callbacks["otel_bridge"] = OtelBridgeCallback


def _left_out_by(tracker: str, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tracker's callback leaves out of *logs*: that of TensorBoard all but numbers and texts.

    Empty for any other tracker.
    """
    if tracker != "tensorboard":
        return {}
    return {
        key: value
        for key, value in logs.items()
        if not isinstance(value, (int, float, str))
    }


def _weak(trainer: Any) -> Callable[[], Any]:
    """Return what returns *trainer* while its user keeps it: the callback must not keep the model in memory."""
    try:
        return weakref.ref(trainer)
    except TypeError:  # None, or an object that cannot be referred to
        return lambda: trainer


def _run_name(args: Any) -> str | None:
    """Return the name that the user gave the run; transformers 4 sets ``output_dir`` for a user who gives none.

    ``None`` for that default: jobs of one folder are not one run.
    """
    name: str | None = getattr(args, "run_name", None)
    version = str(getattr(sys.modules.get("transformers"), "__version__", ""))
    major = version.partition(".")[0]
    is_default = (
        major.isdecimal()
        and int(major) <= _NAMES_RUN_BY_FOLDER
        and name == getattr(args, "output_dir", None)
    )
    if is_default:
        return None
    return name


def _is_trial(state: Any) -> bool:
    """Return whether a training is a trial of a search.

    All trials have the same arguments, whose names would join them in one run.
    """
    return bool(getattr(state, "is_hyper_param_search", False))


def _is_json(value: object) -> bool:
    """Return whether a checkpoint can hold *value*.

    Else transformers could not write the checkpoint, and the training would end.
    """
    try:
        # With sorted keys, as transformers writes it (4.50 to 5.23): Python cannot sort keys of
        # several types.
        json.dumps(value, sort_keys=True)
    except any_error_but_signals():  # an object of the user's
        return False
    return True


def renamed(logs: dict[str, Any]) -> dict[str, Any]:
    """Return *logs* with the keys that transformers gives every tracker, without values that are ``None``."""
    row: dict[str, Any] = {}
    for key, value in logs.items():
        if value is not None:  # TRL: no sample had a valid value
            prefix, new_prefix = next(
                (pair for pair in _PREFIXES if key.startswith(pair[0])), ("", "train/")
            )
            row[new_prefix + key.removeprefix(prefix)] = value
    return row


def config_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the training arguments, with the model's config below ``model``, without unreadable entries."""
    config: dict[str, Any] = {**(_arguments_of(args) or {})}
    model_config = _config_of_model(model)
    if model_config:
        return {**config, "model": model_config}
    return config


@guarded
def _arguments_of(args: Any) -> dict[str, Any]:
    """Return the training arguments; ``None``, counted, where they cannot be read."""
    arguments: dict[str, Any] = args.to_dict()
    return arguments


@guarded
def _config_of_model(model: Any) -> dict[str, Any]:
    """Return the config of a model with its number of parameters.

    ``None``, counted, where it cannot be read.
    """
    model_config: Any = getattr(model, "config", None)
    if model_config is None:
        return {}
    config: dict[str, Any] = {**_entries(model_config)}
    if callable(count := getattr(model, "num_parameters", None)):
        config["num_parameters"] = count()
    return config


def _entries(config: Any) -> Any:
    """Return the entries of a model's config: a mapping, a config of transformers, or an object of the user's own."""
    if isinstance(config, Mapping):
        return cast("Mapping[str, Any]", config)
    to_dict: Callable[[], Any] = getattr(config, "to_dict", config.__dict__.copy)
    return to_dict()


def resumed_names(state: Any) -> dict[str, str]:
    """Return project and name of the run that wrote the checkpoint; empty without a checkpoint of this callback.

    Raises what a damaged checkpoint raises; the callers count it.
    """
    stored: dict[str, Any] = getattr(state, "stateful_callbacks", None) or {}
    entries: Any = stored.get(OtelBridgeCallback.__name__) or {}
    # Several callbacks of one class are a list.
    first: Any = entries if hasattr(entries, "get") else entries[0]
    attributes: dict[str, dict[str, str]] = first.get("attributes", {})
    return attributes.get("resumed_names", {})
