"""Records what trainers of transformers and TRL log, and completions of GRPO and RLOO as rollouts, by a callback.

.. code-block:: python

    trainer = GRPOTrainer(…, callbacks=[OtelBridgeCallback()])

After `register`, ``report_to="otel_bridge"`` does the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, checked_arguments, guarded
from otel_bridge.adapters.parts.trl_completions import CompletionReader

_REQUIREMENT: Final = "transformers>=4.50"

if TYPE_CHECKING:

    class TrainerCallback:
        """Declares the members of ``transformers.TrainerCallback`` that this adapter uses."""

    class ExportableState:
        """Declares the members of ``transformers.trainer_callback.ExportableState`` that this adapter uses."""

else:
    TrainerCallback = framework_class("transformers:TrainerCallback", _REQUIREMENT)
    ExportableState = framework_class("transformers.trainer_callback:ExportableState", _REQUIREMENT)

DEFAULT_PROJECT: Final = "huggingface"
"""Project of ``TrainingArguments`` when its user names none."""
_DEFAULT_NOTE: Final = (
    f"the run is in the project {DEFAULT_PROJECT}, the default of transformers, as those of all other jobs; choose one"
    " with OTEL_BRIDGE_PROJECT or TrainingArguments(project=…)"
)
_LAST_VALUES: Final = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"
)  # fmt: skip
"""What transformers logs once, at the end of a training."""
_PREFIXES: Final = (("eval_", "eval/"), ("test_", "test/"))
_SEARCHED_FRAMES: Final = 12


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
        self._trainer, self._project, self._name, self._config = trainer, project, name, config or {}
        self._arguments = checked_arguments(arguments)
        self._recording: FrameworkRun | None = None
        self._completions = CompletionReader()

    # --- where the callback belongs -----------------------------------------------------------------------------------

    @guarded
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Find the trainer, which calls this from its constructor."""
        self._find_trainer()

    def state(self) -> dict[str, Any]:
        """Return the run's name for the checkpoint, so that a resumed training joins the run."""
        run = None if self._recording is None else self._recording.begin()
        names = {} if run is None else {"project": run.project, "name": run.name}
        return {"args": {}, "attributes": {"resumed_names": names}}

    # --- what is logged -----------------------------------------------------------------------------------------------

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin the run with its config."""
        self._find_trainer()
        self._begin(args, state, model)

    @guarded
    def on_log(
        self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **kwargs: Any  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Record one row, and the totals of a training as last values."""
        if (recording := self._begin(args, state, model)) is not None and logs:
            if last := {key: logs[key] for key in _LAST_VALUES if key in logs}:
                flos = getattr(state, "total_flos", None)
                if "train_runtime" in last and flos is not None:  # PrinterCallback takes it out of the shared dict
                    last.setdefault("total_flos", flos)
                recording.summary(last)
            if row := renamed({key: value for key, value in logs.items() if key not in last}):
                recording.log(row, state.global_step)

    @guarded
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Record completions that were generated for the current step."""
        self._record_completions(args, state, state.global_step + 1, "train")

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Record completions that were generated for the step that has ended."""
        self._record_completions(args, state, state.global_step, "train")

    @guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Record completions of an evaluation."""
        self._record_completions(args, state, state.global_step, "eval")

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Flush the records. The run stays open, because ``train()`` or ``evaluate()`` may follow."""
        if self._recording is not None:
            self._recording.flush()

    def _record_completions(self, args: Any, state: Any, step: int, split: str) -> None:
        if self._trainer is None or not state.is_world_process_zero:
            return
        rollouts = self._completions.new(self._trainer, step, split)
        if rollouts and (recording := self._begin(args, state, None)) is not None:
            recording.log_rollouts(rollouts, step=step, split=split)

    def _begin(self, args: Any, state: Any, model: Any) -> FrameworkRun | None:
        """Return the run's recording on the main process; ``None`` on others, and in a second callback."""
        if not state.is_world_process_zero or not self._is_first():
            return None
        if self._recording is None:
            self._recording = FrameworkRun(
                "transformers", self._names(args, state), config={**config_of(args, model), **self._config}
            )
            self._recording.begin()
        return self._recording

    def _names(self, args: Any, state: Any) -> RunNames:
        before = resumed_names(state)
        asked = getattr(args, "project", None)
        project = self._project or (asked if asked != DEFAULT_PROJECT else None)
        name: str | None = self._name or getattr(args, "run_name", None)
        if name == getattr(args, "output_dir", None):  # the default of transformers 4
            name = None
        resumed = before.get("project")
        default, note = (resumed, "") if resumed else (DEFAULT_PROJECT, _DEFAULT_NOTE)
        return RunNames(project, name or before.get("name"), None, default, self._arguments, note)

    def _find_trainer(self) -> None:
        """Find the trainer in the calling frames, because transformers does not pass it to its callbacks."""
        frame = inspect.currentframe()
        for _ in range(_SEARCHED_FRAMES):
            if self._trainer is not None or frame is None:
                return
            found = frame.f_locals.get("self")
            if hasattr(found, "callback_handler") and hasattr(found, "state"):
                self._trainer = found
            frame = frame.f_back

    def _is_first(self) -> bool:
        """Return whether no other callback of this kind is before this one, e.g. one by ``report_to``."""
        handler = getattr(self._trainer, "callback_handler", None)
        same = [one for one in getattr(handler, "callbacks", ()) if isinstance(one, OtelBridgeCallback)]
        return not same or same[0] is self


def register() -> None:
    """Make ``report_to="otel_bridge"`` known to transformers, and so to TRL."""
    known: dict[str, Any] = framework_class(
        "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK", _REQUIREMENT
    )
    known["otel_bridge"] = OtelBridgeCallback


def renamed(logs: dict[str, Any]) -> dict[str, Any]:
    """Return *logs* with the keys that transformers gives every tracker, without values that are ``None``."""
    row: dict[str, Any] = {}
    for key, value in logs.items():
        if value is not None:  # TRL: no sample had a valid value
            prefix, shown = next((pair for pair in _PREFIXES if key.startswith(pair[0])), ("", "train/"))
            row[shown + key.removeprefix(prefix)] = value
    return row


def config_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the training arguments, with the model's config below ``model``, without unreadable entries."""
    config: dict[str, Any] = {**(_arguments_of(args) or {})}
    found = _config_of_model(model)
    return {**config, "model": found} if found else config


@guarded
def _arguments_of(args: Any) -> dict[str, Any]:
    found: dict[str, Any] = args.to_dict()
    return found


@guarded
def _config_of_model(model: Any) -> dict[str, Any]:
    found: Any = getattr(model, "config", None)
    if found is None:
        return {}
    config: dict[str, Any] = {**_entries(found)}
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
    """Return project and name of the run that wrote the checkpoint; empty without a checkpoint of this callback."""
    stored: dict[str, Any] = getattr(state, "stateful_callbacks", None) or {}
    found: Any = stored.get(OtelBridgeCallback.__name__) or {}
    first: Any = found if hasattr(found, "get") else found[0]  # several callbacks of one class are a list
    attributes: dict[str, dict[str, str]] = first.get("attributes", {})
    return attributes.get("resumed_names", {})
