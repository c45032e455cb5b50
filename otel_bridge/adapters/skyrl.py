"""Records an experiment of SkyRL, by one more base class of it.

.. code-block:: python

    class Exp(OtelBridgeExp, BasePPOExp):
        ...

SkyRL's own tracker (``trainer.logger``) and its own trajectory logger continue to work.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.captured_reports import CapturedReports
from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, guarded
from otel_bridge.adapters.parts.timers import time_skyrl
from otel_bridge.adapters.parts.training_batch import new_rollout_id, token_streams
from otel_bridge.settings import RUN_NAME, environment

if TYPE_CHECKING:
    from otel_bridge.capture.rows import MergedRows
    from otel_bridge.emit.run import Run

    class BasePPOExp:
        """Declares the members of ``skyrl.train.entrypoints.main_base.BasePPOExp`` that this adapter uses."""

        cfg: Any

        def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
            """Return SkyRL's trainer."""

        def get_tracker(self) -> Any:
            """Return SkyRL's tracker."""

        def get_trajectory_logger(self) -> Any:
            """Return SkyRL's trajectory logger."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            """Train, or evaluate."""
else:
    BasePPOExp = object

DEFAULT_PROJECT = "skyrl"
"""``trainer.project_name`` of a user who names none."""
DEFAULT_RUN_NAME = "test_run"
"""``trainer.run_name`` of a user who names none; it would join all such jobs in one run."""
_MAX_TRACEBACK_CHARS = 10_000
"""Most characters of a traceback in an alert: its end, which names the error."""


class OtelBridgeExp(BasePPOExp):
    """Records metrics, config and trajectories of an experiment, as a base class before SkyRL's own."""

    @functools.cached_property
    def otel_bridge(self) -> ExperimentRecorder:
        """Return the recorder of this experiment."""
        return ExperimentRecorder(self.cfg)

    def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
        """Return SkyRL's trainer, with a callback that records the tokens of each step."""
        trainer = super().get_trainer(*args, **kwargs)
        _add_callback(trainer, self.otel_bridge)
        return trainer

    def get_tracker(self) -> Any:
        """Return SkyRL's tracker, wrapped so that it also records metrics."""
        # By now SkyRL has imported its timers.
        time_skyrl()
        return OtelBridgeTracking(super().get_tracker(), self.otel_bridge)

    def get_trajectory_logger(self) -> Any:
        """Return SkyRL's trajectory logger, wrapped so that it also records trajectories."""
        return OtelBridgeTrajectoryLogger(
            super().get_trajectory_logger(), self.otel_bridge
        )

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the experiment, and end the run of otel-bridge with its outcome.

        Whatever SkyRL raises passes. `BaseException`: an interrupted job has failed too.
        """
        try:
            outcome = super().run(*args, **kwargs)
        except BaseException as exc:
            self._log_failure(exc)
            raise
        if inspect.isawaitable(outcome):  # the entry point that only evaluates
            return self._awaited(outcome)
        self.otel_bridge.finish()
        return outcome

    async def _awaited(self, outcome: Awaitable[Any]) -> Any:
        """Await the outcome of the entry point that only evaluates, and end the run with it.

        A run that ended before the evaluation would be reported as finished. What it raises passes.
        """
        try:
            result = await outcome
        except BaseException as exc:
            self._log_failure(exc)
            raise
        self.otel_bridge.finish()
        return result

    def _log_failure(self, error: BaseException) -> None:
        # Else SkyRL failed before it had a tracker: no run has begun.
        if "otel_bridge" in self.__dict__:
            self.otel_bridge.log_failure(error)


@guarded
def _add_callback(trainer: Any, recorder: ExperimentRecorder) -> None:
    """Add a callback that records the tokens of each step.

    Where SkyRL has no callbacks of this form (before 0.3) that is counted as ``adapter_failed``,
    and no tokens are recorded.
    """
    base: Any = framework_class(
        "skyrl.train.utils.callbacks:TrainingCallback", "skyrl>=0.3"
    )

    def on_step_end(_: Any, _trainer: Any, callback_input: Any, _control: Any) -> None:
        recorder.log_tokens(callback_input.batch, callback_input.global_step)

    # Its class is made here, because SkyRL is imported only where it trains.
    callback = type("TokensCallback", (base,), {"on_step_end": on_step_end})
    trainer.add_callback(callback())


class ExperimentRecorder:
    """Records one experiment. Thread-safe; no method raises.

    Args:
        cfg: SkyRL's configuration.
    """

    def __init__(self, cfg: Any) -> None:
        trainer_config = getattr(cfg, "trainer", None)
        project = getattr(trainer_config, "project_name", None)
        names = RunNames(
            None if project == DEFAULT_PROJECT else project,
            _run_name(getattr(trainer_config, "run_name", None)),
            default_project=DEFAULT_PROJECT,
            arguments={"tags": list(getattr(trainer_config, "tags", None) or ())},
        )
        self._recording = FrameworkRun("SkyRL", names, cfg)
        self._lock = threading.Lock()
        self._failed = False
        self._captured = CapturedReports("SkyRL", ())
        self._rows: tuple[Run, MergedRows] | None = None
        self._trained_ids: list[str] = []
        self._decode: Callable[[Any], Any] | None = None
        self._resamples = getattr(
            getattr(
                getattr(trainer_config, "algorithm", None), "dynamic_sampling", None
            ),
            "type",
            None,
        )

    @guarded
    def begin(self, backends: str | Collection[str]) -> None:
        """Begin the run with its config.

        Where none can begin, that is printed once, and nothing is recorded.

        Args:
            backends: Backends of SkyRL's own tracker, which gets the same rows.
        """
        self._captured = CapturedReports("SkyRL", backends)
        self._recording.begin()

    @guarded
    def log(self, data: Mapping[str, Any], step: int | None, commit: bool) -> None:
        """Record values of one step, unless a captured backend records them.

        Without a commit, further values of the step belong to the same row.

        A row is complete with the next step, or before the end of the run.
        """
        run = self._recording.begin()
        if self._captured.tracker_of(run) is None:
            self._rows_of(run).log(data, step, commit)

    @guarded
    def log_trajectories(
        self,
        prompts: Sequence[Any],
        output: Mapping[str, Any],
        *,
        tokenizer: Any,
        step: int,
        split: str,
        num_turns: Sequence[int] | None = None,
    ) -> None:
        """Record all trajectories of a generation; the settings of otel-bridge limit how many a step keeps.

        Without responses nothing is recorded; other failures are counted as ``adapter_failed``.

        Args:
            prompts: Prompts: one for each response, or for each trajectory of several responses.
            output: SkyRL's ``GeneratorOutput``.
            tokenizer: Tokenizer of the policy.
            step: Global step.
            split: ``train`` or ``eval``.
            num_turns: Number of turns of each trajectory, of which *output* has the last one only.
        """
        run = self._recording.begin()
        if not output.get("response_ids"):
            return
        columns = _columns(output)
        if num_turns is not None:
            prompts = _prompts_of_single_turns(prompts, num_turns)
            columns["metadata"] = _with_turns(columns.get("metadata"), num_turns)
        is_of_several_batches = self._resamples and split == "train"
        # Prompts are those of the last batch.
        if prompts and not is_of_several_batches:
            columns["prompts"] = list(prompts)
        decode = functools.partial(tokenizer.decode, skip_special_tokens=True)
        # With dynamic sampling the output is of several batches, of which the step consumes an
        # unknown part.
        is_consumed = split == "train" and not self._resamples
        if is_consumed:
            columns["ids"] = _ids(
                columns.get("trajectory_ids"), len(output["response_ids"])
            )
        run.log_generations(**columns, decode=decode, step=step, split=split)
        if is_consumed:
            run.train_on(step, columns["ids"])
            self._trained_ids = columns["ids"]
            self._decode = decode

    @guarded
    def log_tokens(self, batch: Any, step: int) -> None:
        """Record log-probabilities of the step's trajectories: of the engine, and of the policy before the step.

        Nothing happens without the engine's log-probabilities, and after a generation that the step
        consumes in an unknown part.

        Args:
            batch: SkyRL's ``TrainingInputBatch``, in the order of the responses, with padding at its end.
            step: Global step.
        """
        ids = self._trained_ids
        # Taken once: a step without trajectories must not get those of the step before.
        self._trained_ids = []
        run = self._recording.begin()
        if not ids or batch.get("rollout_logprobs") is None:
            return
        mask = batch["loss_mask"]
        streams = token_streams(
            mask,
            logprobs=batch["rollout_logprobs"],
            trainer_logprobs=batch.get("action_log_probs"),
            advantages=batch.get("advantages"),
            token_ids=batch["sequences"][:, -mask.shape[1] :],
        )
        run.annotate(
            list(dict.fromkeys(ids)),
            step=step,
            decode=self._decode,
            **{name: _of_trajectories(ids, rows) for name, rows in streams.items()},
        )

    @guarded
    def log_failure(self, error: BaseException) -> None:
        """Record one alert with the traceback of the propagating exception, and end the run as failed.

        Once: `OtelBridgeExp.run` and SkyRL's own tracker report the same exception.
        """
        if not self._failed:
            self._failed = True
            trace = traceback.format_exc()[-_MAX_TRACEBACK_CHARS:]
            title = f"Training failed: {type(error).__name__}"
            self._recording.begin().alert(title, trace, "error")
            self._recording.finish("failed")

    def finish(self) -> None:
        """End the run.

        A later record begins it again. It waits for delivery as `Run.finish` does.
        """
        self._recording.finish("failed" if self._failed else "finished")

    def _rows_of(self, run: Run) -> MergedRows:
        """Return the rows of *run* by W&B's rules.

        The pending one is completed before the run ends.
        """
        from otel_bridge.capture.rows import MergedRows  # noqa: PLC0415  # only programs that record pay for it

        with self._lock:
            # Another run has rows of its own; the lock keeps two threads from making two.
            if self._rows is None or self._rows[0] is not run:
                rows = MergedRows(run)
                run.call_before_end(lambda _: rows.end())
                self._rows = run, rows
            return self._rows[1]


class _Beside:
    """Wraps an object of SkyRL: it has all its attributes, and some of its methods also record."""

    def __init__(self, wrapped: Any, recorder: ExperimentRecorder) -> None:
        self._wrapped = wrapped
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # not set yet, e.g. in a copy
            raise AttributeError(name)
        return getattr(self._wrapped, name)


class OtelBridgeTracking(_Beside):
    """Wraps SkyRL's ``Tracking``, and records metrics and failures too."""

    def __init__(self, wrapped: Any, recorder: ExperimentRecorder) -> None:
        super().__init__(wrapped, recorder)
        backend: str | Collection[str] = getattr(wrapped, "backend", ())
        recorder.begin(backend)

    def log(self, data: Any, step: Any, commit: bool = False) -> None:
        """Record values of a step, then log them as SkyRL does.

        What SkyRL's own tracker raises passes; the row is recorded before.
        """
        self._recorder.log(data, step, commit)
        self._wrapped.log(data, step=step, commit=commit)

    def log_exception(self, e: BaseException, step: int = 0) -> None:
        """Record the failure, once, then log it as SkyRL does."""
        self._recorder.log_failure(e)
        self._wrapped.log_exception(e, step=step)

    def finish(self) -> None:
        """End the run, then SkyRL's own tracking.

        The run first: a backend of SkyRL's that raises must not keep it open.
        """
        self._recorder.finish()
        self._wrapped.finish()


class OtelBridgeTrajectoryLogger(_Beside):
    """Wraps SkyRL's ``TrajectoryLogger``, and records trajectories too."""

    def log(self, *, wandb_key: str, global_step: int | None, **keywords: Any) -> None:
        """Record all trajectories, then log some of them as SkyRL does.

        SkyRL may have no logger of its own. What it raises passes; its limit of samples is for W&B
        only.
        """
        self._record(wandb_key, global_step, keywords)
        if self._wrapped is not None:
            self._wrapped.log(wandb_key=wandb_key, global_step=global_step, **keywords)

    @guarded
    def _record(
        self, wandb_key: str, global_step: int | None, keywords: Mapping[str, Any]
    ) -> None:
        """Record all trajectories of a call.

        One without the keywords of SkyRL 0.3 is counted as ``adapter_failed``; SkyRL goes on.
        """
        from otel_bridge.capture.tables import split_of  # noqa: PLC0415  # only programs that record pay for it

        self._recorder.log_trajectories(
            keywords["prompts"],
            keywords["generator_output"],
            tokenizer=keywords["tokenizer"],
            step=global_step or 0,
            split=split_of(wandb_key),
            num_turns=keywords.get("num_turns_list"),
        )


def _prompts_of_single_turns(
    prompts: Sequence[Any], num_turns: Sequence[int]
) -> list[Any]:
    """Return the prompts, ``None`` for a trajectory of several turns: its prompt has all turns but the last."""
    return [
        None if turns > 1 else prompt
        for prompt, turns in zip(prompts, num_turns, strict=False)
    ]


def _with_turns(
    metadata: Sequence[Mapping[str, Any] | None] | None, num_turns: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the facts of each trajectory with its number of turns.

    Those without a number are left out.
    """
    facts = metadata or [None] * len(num_turns)
    return [
        {**(of_trajectory or {}), "num_turns": turns}
        for of_trajectory, turns in zip(facts, num_turns, strict=False)
    ]


def _columns(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of `Run.log_generations` that a ``GeneratorOutput`` has.

    A column without entries is left out. Without trajectory ids equal prompts are one group.
    """
    ids: Sequence[Any] = output.get("trajectory_ids") or ()
    columns = {
        "response_token_ids": output["response_ids"],
        "prompt_token_ids": output.get("prompt_token_ids"),
        "rewards": output.get("rewards"),
        "loss_masks": output.get("loss_masks"),
        "finish_reasons": output.get("stop_reasons"),
        "metadata": output.get("env_metrics"),
        "groups": [entry.instance_id for entry in ids]
        or [_group(entry) for entry in output.get("prompt_token_ids") or ()],
        "trajectory_ids": [entry.to_string() for entry in ids],
    }
    return {
        name: values
        for name, values in columns.items()
        if values is not None and len(values)
    }


def _ids(trajectory_ids: Sequence[str] | None, responses: int) -> list[str]:
    """Return an id of the rollout of each response; responses of one trajectory are one rollout.

    Steps of a trajectory are responses of their own in step-wise training.
    """
    if trajectory_ids is None:
        return [new_rollout_id() for _ in range(responses)]
    ids = {trajectory_id: new_rollout_id() for trajectory_id in trajectory_ids}
    return [ids[trajectory_id] for trajectory_id in trajectory_ids]


def _of_trajectories(ids: Sequence[str], rows: Sequence[Any]) -> Any:
    """Return the values of each trajectory; of several responses of one, one after the other."""
    values: dict[str, list[Any]] = {}
    # Rows beyond the ids are padding at the end of the batch.
    for trajectory_id, row in zip(ids, rows, strict=False):
        values.setdefault(trajectory_id, []).extend(row)
    return list(values.values())


def _group(prompt: Sequence[int]) -> str:
    """Return a name for a prompt; equal prompts have the same one."""
    return hashlib.md5(repr(list(prompt)).encode(), usedforsecurity=False).hexdigest()[
        :12
    ]


def _run_name(configured_name: str | None) -> str | None:
    """Return the name of the run: SkyRL's default would join all jobs of users who name none.

    ``None``: a variable names the run.
    """
    from otel_bridge.emit.config.identity import new_end  # noqa: PLC0415

    if configured_name != DEFAULT_RUN_NAME:
        return configured_name
    # In a worker of Ray the script, of which a name is made otherwise, is Ray's own.
    env = environment()
    if RUN_NAME.read(env) or env.get("WANDB_NAME"):
        return None
    return f"skyrl-{new_end()}"
