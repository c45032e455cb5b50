"""Records what verl tracks: the backend ``otel_bridge``, validation generations and training batches.

verl has no registry, so its classes are wrapped. No run begins before the backend is named:
``trainer.logger=[console,otel_bridge]``. A failure in a `guarded` function is counted as
``adapter_failed``, and verl goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.adapters.parts.calling_object import (
    ReturnPlace,
    calling_object,
    return_place_of,
)
from otel_bridge.adapters.parts.captured_reports import CapturedReports
from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, guarded
from otel_bridge.adapters.parts.timers import time_verl
from otel_bridge.adapters.parts.training_batch import (
    is_number,
    log_training_batch,
    row_of,
    token_streams,
)
from otel_bridge.adapters.parts.verl_traces import install_traces, rollouter_run
from otel_bridge.messages.reader import messages_of

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

BACKEND = "otel_bridge"
_REQUIREMENT = "verl>=0.9.1"
_TRAINERS = {
    "verl.trainer.ppo.ray_trainer": "RayPPOTrainer",
    "verl.trainer.ppo.v1.trainer_base": "PPOTrainer",
}
_WRAPPED = "otel_bridge_wrapped"
_DUMPS = frozenset({"_log_rollout_data", "_dump_generations"})
_TENSORS = (
    "response_mask", "rollout_log_probs", "old_log_probs", "advantages", "entropy", "responses"
)  # fmt: skip
_VERSION = "min_global_steps"
"""Version of the weights with which a response began."""
_batch: ContextVar[Any] = ContextVar("otel_bridge_verl_batch", default=None)


class VerlLogger:
    """Implements the backend ``otel_bridge`` of one ``Tracking``.

    Args:
        project_name: Project.
        experiment_name: Name of the run.
        config: Hyperparameters.
        backends: Names of all backends of the ``Tracking``.
    """

    current: VerlLogger | None = None
    """The last one of this process, which validation generations and training batches belong to."""

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        config: object,
        backends: str | Sequence[str] = (),
    ) -> None:
        names = RunNames(project_name, experiment_name, "trainer")
        self.recording = FrameworkRun("verl", names, config)
        self.recording.begin()
        VerlLogger.current = self
        self._finished = False
        self._captured = CapturedReports("verl", backends)
        self._fit: ReturnPlace | None = None
        self._is_kept: Callable[[], bool] | None = None

    @guarded
    def log(self, data: Mapping[str, object], step: int) -> None:
        """Record one row, unless it is that of another backend, which is captured.

        Where no run can begin nothing happens; a failure is counted as ``adapter_failed``.

        The first call comes when the constructor of `Tracking` has returned: only then is it known
        whether the trainer keeps it, so that question is asked here, once.
        """
        if self._is_kept is not None:
            if self._is_kept():
                self._fit = None
            self._is_kept = None
        run = self.recording.begin()
        if self._captured.tracker_of(run) is None:
            run.log(data, step)

    def local_of_fit(self, tracking: Any) -> None:
        """Note where ``fit()`` returns to, if *tracking* is made in it: verl's older trainers have it as a local.

        Nothing is noted outside of ``fit()``: then the end of `Tracking` says nothing of an
        exception.
        """
        trainer, self._fit = return_place_of("fit")
        if self._fit is not None:
            owner = weakref.ref(trainer)
            tracking_reference = weakref.ref(tracking)
            # Known only after the constructor: fit() may also keep it as an attribute, to be freed
            # with the trainer.
            self._is_kept = lambda: any(
                value is tracking_reference()
                for value in getattr(owner(), "__dict__", {}).values()
            )

    def is_cut_off(self, frame: Any) -> bool:
        """Return whether an exception ended the ``fit()`` whose local is freed in *frame*.

        ``False`` where `local_of_fit` noted nothing, or the trainer keeps the `Tracking`.
        """
        return self._fit is not None and not self._fit.frees_in(frame)

    def finish(self, exit_code: int = 0) -> None:
        """End the run, once.

        Twice is usual: the trainer finishes its `Tracking`, which ends once more when it is freed.
        It waits for delivery as `Run.finish` does.
        """
        if not self._finished:
            self._finished = True
            self.recording.finish("failed" if exit_code else "finished")


def install() -> None:
    """Make the backend ``otel_bridge`` known to verl in this process; a second call changes nothing.

    Raises:
        MissingExtraError: verl is not installed, or too old: verl refuses the backend then.
    """
    tracking: Any = framework_class("verl.utils.tracking:Tracking", _REQUIREMENT)
    generations: Any = framework_class(
        "verl.utils.tracking:ValidationGenerationsLogger", _REQUIREMENT
    )
    if BACKEND not in tracking.supported_backend:
        # First, since it imports: a failed import leaves nothing wrapped.
        install_traces()
        _wrap_tracking(tracking)
        _wrap_generations(generations)
        # Last: verl 0.9.1 has no registry, its assert takes every name in this list.
        tracking.supported_backend.append(BACKEND)


def _wrap_tracking(tracking: Any) -> None:
    """Wrap the class ``Tracking``: it gets the backend when it is made, and ends the run when it is finished.

    What verl's own methods raise passes; a failure of the adapter in them is counted.
    """
    real_init = tracking.__init__
    real_finish = tracking.finish

    @functools.wraps(real_init)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        real_init(self, *arguments, **keywords)
        _add_backend(self, inspect.signature(real_init), arguments, keywords)

    @functools.wraps(real_finish)
    def finish(self: Any, exit_code: int = 0) -> None:
        """Finish verl's own backends, whose exceptions pass, and end the run in any case."""
        try:
            # Backends of verl may raise: the run ends all the same.
            real_finish(self, exit_code)
        finally:
            # finish() of verl 0.9.1 names its own backends, and so ends no other.
            logger = getattr(self, "logger", {}).get(BACKEND)
            if logger is not None:
                # From ``__del__()`` the code is 0, also after an exception.
                logger.finish(exit_code or _code_of_deletion(logger))

    tracking.__init__ = init
    tracking.finish = finish


def _code_of_deletion(logger: VerlLogger) -> int:
    """Return 1 where ``Tracking.__del__()`` ends what an exception has cut off in ``fit()``, else 0.

    Only the wrapped ``finish()`` may call this, and directly: the frames above are counted.
    """
    frame = inspect.currentframe()
    finish = None if frame is None else frame.f_back
    deletion = None if finish is None else finish.f_back
    try:
        if deletion is None or deletion.f_code.co_name != "__del__":
            return 0
        return int(logger.is_cut_off(deletion.f_back))
    finally:
        # A frame that a local variable keeps would keep the variables of its callers.
        del frame, finish, deletion


@guarded
def _add_backend(
    tracking: Any,
    signature: inspect.Signature,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> None:
    """Add the backend to a new ``Tracking``, if its arguments name the backend.

    A failure is counted as ``adapter_failed``, and verl continues without the backend.
    """
    bound = signature.bind(tracking, *arguments, **keywords).arguments
    backends = bound.get("default_backend", ())
    if _is_named(backends):
        logger = VerlLogger(
            bound["project_name"],
            bound["experiment_name"],
            bound.get("config"),
            backends,
        )
        tracking.logger[BACKEND] = logger
        logger.local_of_fit(tracking)
        # Only where the backend is named: elsewhere verl stays as it is.
        wrap_trainers()
        time_verl()
        if (trainer := _calling_trainer()) is not None:
            _wrap_class_of(trainer, logger)


def _wrap_generations(generations: Any) -> None:
    """Wrap the class ``ValidationGenerationsLogger``: what it has logged is recorded afterwards.

    What verl's own method raises passes, and nothing is recorded then.
    """
    real_log = generations.log
    # Here, where an adapter may fail: the call below is the trainer's.
    signature = inspect.signature(real_log)

    @functools.wraps(real_log)
    def log(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = real_log(self, *arguments, **keywords)
        _log_validation(self, signature, arguments, keywords)
        return result

    generations.log = log


@guarded
def _log_validation(
    generations: Any,
    signature: inspect.Signature,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> None:
    """Record validation samples, if the arguments name the backend.

    They are those of verl's own choice (``trainer.log_val_generations``). Samples in another form
    are counted as ``adapter_failed``.
    """
    bound = signature.bind(generations, *arguments, **keywords).arguments
    if not _is_named(bound["loggers"]):
        return
    if VerlLogger.current is not None:
        recording = VerlLogger.current.recording
    else:
        # The fully async mode of verl 0.9.1 validates in the rollouter, which has no Tracking.
        recording = rollouter_run(generations.project_name, generations.experiment_name)
    run = recording.begin()  # what fails below is counted in the run
    if CapturedReports("verl", bound["loggers"]).records_tables_and_config(run):
        return  # verl gives the tracker a table of them
    samples: Sequence[Sequence[Any]] = bound["samples"]
    inputs, outputs, scores = zip(*samples, strict=True) if samples else ((), (), ())
    run.log_generations(
        prompts=list(inputs),
        responses=list(outputs),
        rewards=list(scores),
        step=bound["step"],
        split="eval",
    )


# --- training batches -------------------------------------------------------------------------------------------------


def wrap_trainers() -> None:
    """Wrap the trainers of this process to record the batches that they dump (``trainer.rollout_data_dir``).

    Those that verl has imported by now; a second call wraps only others. Raises `AttributeError` for
    a trainer without the two methods; the caller counts it.
    """
    for module, name in _TRAINERS.items():
        trainer: Any = getattr(sys.modules.get(module), name, None)
        if trainer is not None and _is_first_time(trainer):
            _wrap_trainer(trainer)


def _wrap_class_of(trainer: Any, logger: VerlLogger) -> None:
    """Wrap the class of a trainer that is a Ray actor (fully async): Ray gave the class copies of all methods.

    Its base class, which `wrap_trainers` has wrapped, is not asked for them any more. Only such a
    trainer has the step of ``fit()`` as a coroutine.
    """
    cls: Any = trainer.__class__
    attributes: Mapping[str, object] = cls.__dict__
    if attributes.keys() >= _DUMPS and _is_first_time(cls):
        _wrap_trainer(cls)
        if inspect.iscoroutinefunction(getattr(cls, "fit_step", None)):
            _end_with_fit(cls, logger)


def _is_first_time(cls: Any) -> bool:
    """Return whether *cls* itself is not wrapped yet, and mark it as wrapped.

    Its base classes do not count.
    """
    first = _WRAPPED not in vars(cls)
    setattr(cls, _WRAPPED, True)
    return first


def _calling_trainer() -> Any:
    """Return the trainer whose constructor or ``fit()`` makes the ``Tracking``; verl does not pass it."""
    return calling_object(lambda caller: all(hasattr(caller, name) for name in _DUMPS))


def _end_with_fit(trainer: Any, logger: VerlLogger) -> None:
    """End the run with the task of ``fit()``: verl lets Ray kill this trainer, so that nothing calls ``finish()``.

    The task is that of Ray's call of ``fit()``: a cancelled one has failed too.
    """
    real_step = trainer.fit_step
    # A failed task keeps the frames of its exception.
    awaited = weakref.WeakSet[Any]()

    @functools.wraps(real_step)
    async def fit_step(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """Take verl's step, whose exceptions pass.

        At the first one, watch the task that awaits it.
        """
        task = asyncio.current_task()  # Ray awaits fit(), which awaits this
        if task is not None and task not in awaited:
            awaited.add(task)
            task.add_done_callback(end)
        return await real_step(self, *arguments, **keywords)

    def end(task: Any) -> None:
        logger.finish(1 if task.cancelled() or task.exception() is not None else 0)

    trainer.fit_step = fit_step


def _wrap_trainer(trainer: Any) -> None:
    """Wrap the class of a trainer: while it logs the rollouts of a batch, their dump is recorded too.

    Only the first of the two methods is given the batch, and only the second the decoded texts.

    A dump outside of the logging of a batch is that of a validation, which `_log_validation`
    records. What verl's own methods raise passes; a failure of the recording is counted, and costs
    them nothing.
    """
    real_log = trainer._log_rollout_data
    real_dump = trainer._dump_generations

    @functools.wraps(real_log)
    def log_rollout_data(
        self: Any, batch: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        with _batch_of_step(batch):
            return real_log(self, batch, *arguments, **keywords)

    @functools.wraps(real_dump)
    def dump_generations(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if (batch := _batch.get()) is not None:  # else a validation
            _log_dump(self, batch, real_dump, arguments, keywords)
        with _batch_of_step(None):  # the method of a base class may be wrapped too
            return real_dump(self, *arguments, **keywords)

    trainer._log_rollout_data = log_rollout_data
    trainer._dump_generations = dump_generations


@contextlib.contextmanager
def _batch_of_step(batch: Any) -> Generator[None]:
    """Make *batch* the one that a dump inside belongs to.

    ``None``: a dump inside is not recorded.
    """
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


@guarded
def _log_dump(
    trainer: Any,
    batch: Any,
    dump: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> None:
    """Record a training batch: groups by ``uid``, numbers of the reward function as parts of the reward.

    Columns of another length than the samples are left out. The rest of the batch is recorded
    without what it lacks. A failure is counted as ``adapter_failed``, and verl's own dump goes on.
    """
    dumped = inspect.signature(dump).bind(trainer, *arguments, **keywords).arguments
    inputs = dumped["inputs"]
    outputs = dumped["outputs"]
    truths = dumped["gts"]
    number = len(outputs)
    keys: Sequence[str] | None = None
    parts: dict[str, Sequence[Any]] = {}
    facts: dict[str, Sequence[Any]] = {}
    extra: Mapping[str, Sequence[Any]] = dumped["reward_extra_infos_dict"]
    for name, values in extra.items():
        if len(values) != number:
            continue
        if name == "uid":
            keys = values
        elif all(map(is_number, values)):
            parts[name] = values
        else:
            facts[name] = values
    facts["ground_truth"] = truths
    batch = _with_data(batch, keys)
    uids = _of_samples(batch, "uid", number, str)
    advantages = _advantages(batch, number)
    # Only the fully async mode has versions.
    versions = _of_samples(batch, _VERSION, number, int)
    rollouts: list[dict[str, Any]] = []
    for place in range(number):
        rollouts.append(
            {
                "messages": messages_of(inputs[place])
                + messages_of(outputs[place], "assistant"),
                "reward": dumped["scores"][place],
                "rewards": {
                    name: float(values[place]) for name, values in parts.items()
                },
                "advantage": advantages[place],
                "group": uids[place],
                "batch_index": place,
                "policy_version": versions[place],
                "metadata": row_of(facts, place),
            }
        )
    logger = VerlLogger.current
    if logger is not None:
        run = logger.recording.begin()
        step = _step_of(trainer)
        ids = log_training_batch(run, rollouts, step)
        _annotate(run, trainer, batch, ids, step)


def _annotate(
    run: Run, trainer: Any, batch: Any, ids: Sequence[str], step: int
) -> None:
    """Record log-probabilities of engine and trainer, where the batch has those of the engine.

    Nothing happens without them, e.g. where verl does not ask the engine. In the bypass mode the
    trainer's are those of the engine, so they are left out: their mismatch would be 0.
    """
    tensors: Any = getattr(batch, "batch", None)
    if tensors is None or not {"rollout_log_probs", "response_mask"} <= set(
        tensors.keys()
    ):
        return
    streams = token_streams(
        tensors["response_mask"],
        logprobs=tensors["rollout_log_probs"],
        trainer_logprobs=None
        if _is_bypassed(trainer)
        else tensors.get("old_log_probs", None),
        entropies=tensors.get("entropy", None),
        advantages=tensors.get("advantages", None),
        token_ids=tensors.get("responses", None),
    )
    run.annotate(ids, step=step, decode=trainer.tokenizer.decode, **streams)


def _is_bypassed(trainer: Any) -> bool:
    """Return whether verl recomputes no log-probabilities: ``old_log_probs`` are then those of the engine.

    ``False`` where the configuration has no such entry.
    """
    algorithm: Any = getattr(getattr(trainer, "config", None), "algorithm", None) or {}
    correction: Any = algorithm.get("rollout_correction") or {}
    return bool(correction.get("bypass_mode"))


def _step_of(trainer: Any) -> int:
    """Return the step of the row that the batch is part of: in the fully async mode the next version of the weights.

    Raises `AttributeError` for a trainer without steps; the caller counts it.
    """
    version = getattr(trainer, "current_param_version", None)
    if version is None:
        return int(trainer.global_steps)
    counted = bool(
        trainer.local_trigger_step == 1
    )  # the batch was the last one of its version
    return int(version) + (not counted)


def _with_data(batch: Any, keys: Sequence[str] | None) -> Any:
    """Return *batch*, with its data where it is the metadata of one that verl's new trainer has in TransferQueue.

    Any other batch is returned as it is. Metadata without a key of each
    sample cannot be read from the queue.

    Args:
        batch: The batch, with a tag for each key if it is metadata.
        keys: ``<uid>_<rollout>_<output>`` of each sample, in the order of the result.
    """
    if keys is None or not hasattr(batch, "partition_id"):
        return batch
    tags: dict[str, Any] = dict(zip(batch.keys, batch.tags, strict=True))
    columns = {
        "uid": [key.rsplit("_", 2)[0] for key in keys],
        _VERSION: [tags[key].get(_VERSION) for key in keys],
    }
    return SimpleNamespace(
        batch=_tensors_in_queue(batch, keys), non_tensor_batch=columns
    )


@guarded
def _tensors_in_queue(batch: Any, keys: Sequence[str]) -> Any:
    """Return the padded tensors of a batch in TransferQueue; verl deletes them there after the dump.

    ``None``, counted, where they are gone or in another form: the rollouts are recorded without
    tokens.
    """
    queue: Any = sys.modules["transfer_queue"]
    data = queue.kv_batch_get(
        keys=list(keys), partition_id=batch.partition_id, select_fields=list(_TENSORS)
    )
    return data.to_padded_tensor()


def _of_samples(
    batch: Any, name: str, number: int, convert: Callable[[Any], Any]
) -> Sequence[Any]:
    """Return a column of a batch, converted; ``None`` for each sample where the batch lacks it.

    It lacks it too where the column has another length than the samples.
    """
    values: Any = getattr(batch, "non_tensor_batch", {}).get(name)
    if values is None or len(values) != number:
        return [None] * number
    return [None if value is None else convert(value) for value in values]


def _advantages(batch: Any, number: int) -> Sequence[float | None]:
    """Return the mean advantage over the tokens of each response, where the batch has advantages.

    A rollout has one advantage in every tracker, and verl has one a token. A response without
    tokens has 0.
    """
    tensors: Any = getattr(batch, "batch", None)
    if tensors is None or not {"advantages", "response_mask"} <= set(tensors.keys()):
        return [None] * number
    mask = tensors["response_mask"]
    means: Any = (tensors["advantages"] * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return cast("list[float]", means.tolist())


def _is_named(backends: Any) -> bool:
    """Return whether *backends*, one name or several, has the backend ``otel_bridge``."""
    return backends == BACKEND or (
        not isinstance(backends, str) and BACKEND in backends
    )
