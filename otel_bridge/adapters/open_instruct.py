"""Records the training rollouts of open-instruct's GRPO, which its data preparation actor would write to disk.

.. code-block:: sh

    otel-bridge run --capture wandb,open_instruct -- python open_instruct/grpo_fast.py --with_tracking …

Metrics arrive by the capture of W&B. The capture of ``open_instruct`` extends ``save_rollouts_to_disk``, and lets the
actor call it also without ``--save_traces``. Its own files are written only with that option.
Source: open-instruct e6c3044, ``rl_utils.py`` and ``data_loader.py``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.adapters.parts.calling_object import calling_object
from otel_bridge.adapters.parts.framework_run import guarded
from otel_bridge.adapters.parts.training_batch import log_training_batch
from otel_bridge.capture.counts import counts
from otel_bridge.messages.reader import messages_of
from otel_bridge.values.mappings import present

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

ROLE = "rollout"
"""Role of the rollouts: the actor prepares them for the trainer, whose rows have no role."""
_FRAMEWORK = "open_instruct"
_MARK = "otel_bridge_capture"
_SAVE = "save_rollouts_to_disk"
_SAVE_METADATA = "save_rollout_metadata"
_CONFIG = "StreamingDataLoaderConfig"
_NO_FILES = "otel-bridge: no files were asked for"
"""Folder of the files in a config without ``--save_traces``."""
_BESIDE = 1
"""Rank of the actor: ``ray.kill`` ends it with the job, which must not decide how the run ended."""
_TOOL_FACTS = {
    "num_calls": "calls", "timeouts": "timeouts", "tool_errors": "errors", "tool_runtimes": "runtimes",
}  # fmt: skip
"""Facts of ``request_info``, and their names in `Rollout.tools`; the others become metadata."""
_lock = threading.Lock()
_runs: list[Run] = []


def install(module: ModuleType, mode: str) -> None:
    """Extend *module*, ``rl_utils`` or ``data_loader``; a second call changes nothing, and the mode has no effect.

    A module without these names is left as it is: then no training rollouts are recorded.

    Args:
        module: One of the two, wholly loaded.
        mode: Of the capture.
    """
    del mode
    for name, extended in ((_SAVE, _recorded), (_SAVE_METADATA, _written_if_asked)):
        real: Callable[..., None] | None = getattr(module, name, None)
        if real is not None and not getattr(real, _MARK, False):
            setattr(module, name, extended(real))
    config: Any = getattr(module, _CONFIG, None)
    if config is not None:
        # Ray pickles the config on its way to the actor, which decides there what it saves.
        config.__setstate__ = _set_state


def _recorded(real: Callable[..., None]) -> Callable[..., None]:
    """Return *real*, which records the rollouts too, and writes files only where they were asked for.

    Recording goes first, since the job changes the lists after the call, and a failure in it costs
    the files nothing. What *real* raises passes.
    """
    shape = inspect.signature(real)

    @functools.wraps(real)
    def save(*positional: Any, **keywords: Any) -> None:
        """Record the rollouts, where a failure is counted, then save them as before."""
        # The function does not get the tokenizer, which the actor has whose method calls it.
        actor = calling_object(lambda caller: hasattr(caller, "tokenizer"))
        _record(
            functools.partial(shape.bind, *positional, **keywords),
            getattr(actor, "tokenizer", None),
        )
        write(*positional, **keywords)

    write = _written_if_asked(real)
    save.__dict__[_MARK] = True
    return save


def _written_if_asked(real: Callable[..., None]) -> Callable[..., None]:
    """Return *real*, which does nothing where no files were asked for."""

    @functools.wraps(real)
    def save(save_path: Any, *positional: Any, **keywords: Any) -> None:
        if save_path != _NO_FILES:
            real(save_path, *positional, **keywords)

    save.__dict__[_MARK] = True
    return save


def _set_state(config: Any, state: Mapping[str, Any]) -> None:
    """Restore a config that Ray sent to an actor.

    Without ``--save_traces`` its rollouts are saved to no files.
    """
    config.__dict__.update(state)
    if not state.get("save_traces"):
        config.__dict__.update(save_traces=True, rollouts_save_path=_NO_FILES)


@guarded
def _record(bind: Callable[[], inspect.BoundArguments], tokenizer: Any) -> None:
    """Record the rollouts of one call, before the job goes on to change their lists.

    The count in the launcher's table is of samples that could be read; a failure of the whole call
    is counted as ``adapter_failed``.
    """
    arguments = bind().arguments
    batch = arguments["batch"]
    result = arguments["result"]
    run = _run(arguments["run_name"])
    texts = _Texts(batch, result, tokenizer)
    samples = [_sample(arguments, place, texts) for place in range(len(batch.queries))]
    # A sample that cannot be read costs only itself, and is counted.
    readable = [sample for sample in samples if sample is not None]
    counts.captured("open_instruct: rollouts", len(readable))
    log_training_batch(run, readable, int(arguments["step"]), run.role or ROLE)


def _run(name: str) -> Run:
    """Return the run of this process: that of the variables that the captured ``wandb.init`` of the job has set.

    Their id or name then names the run. One that has ended is begun again.

    Raises:
        ConfigError: A setting of otel-bridge cannot be used; the caller counts it.
    """
    from otel_bridge.emit.config.run_request import RunRequest  # noqa: PLC0415  # only the process that has rollouts
    from otel_bridge.emit.process_runs import runs  # noqa: PLC0415
    from otel_bridge.settings import RUN_ID, RUN_NAME  # noqa: PLC0415

    with _lock:
        if not _runs or not _runs[0].recording:
            env = runs.environment_of_user()
            is_named = bool(RUN_ID.read(env) or RUN_NAME.read(env))
            request = RunRequest(
                captured=_FRAMEWORK, name=None if is_named else name, rank=_BESIDE
            )
            _runs[:] = [runs.begin(request)]
        return _runs[0]


class _Texts:
    """Returns the texts of a batch: those that the job has, else its tokens, decoded by its tokenizer.

    The tokenizer may be missing, because the function that is extended does not get it. Methods
    raise `IndexError` where the job's lists are too short; the caller counts the sample.
    """

    def __init__(self, batch: Any, result: Any, tokenizer: Any) -> None:
        self._batch = batch
        self._result = result
        self._tokenizer = tokenizer

    def prompt(self, place: int) -> Any:
        """Return the prompt of a sample; without a tokenizer its tokens, as a text."""
        if self._batch.raw_queries is not None:
            return self._batch.raw_queries[place]
        return self._decoded(self._batch.queries[place])

    def response(self, place: int) -> str:
        """Return the response of a sample; without a tokenizer its tokens, as a text."""
        if self._batch.decoded_responses is not None:
            return str(self._batch.decoded_responses[place])
        return self._decoded(self._result.responses[place])

    def _decoded(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None:
            return str(tokens)
        return str(self._tokenizer.decode(tokens))


@guarded
def _sample(arguments: Mapping[str, Any], place: int, texts: _Texts) -> dict[str, Any]:
    """Return the fields of one rollout; what its lists lack is left out.

    ``None``, counted, for a sample whose tokens, score or advantage cannot be read.
    """
    batch = arguments["batch"]
    result = arguments["result"]
    samples_per_prompt = int(arguments["num_samples_per_prompt"])
    prompt_index = place // samples_per_prompt
    tools, facts = _tool_facts(result.request_info, place)
    metadata = {
        "ground_truth": _at(batch.ground_truths, place),
        "logprobs": _at(result.logprobs, place),
        "active_tools": _at(batch.active_tools, place),
        **facts,
    }
    return {
        "messages": messages_of(texts.prompt(place))
        + messages_of(texts.response(place), "assistant"),
        "reward": float(batch.scores[place]),
        "advantage": float(arguments["advantages"][place]),
        "finish_reason": _at(result.finish_reasons, place),
        "group": prompt_index,
        "sample": place % samples_per_prompt,
        "prompt_index": prompt_index,
        "batch_index": place,
        "dataset": _dataset(_at(batch.datasets, place)),
        "dataset_index": _at(batch.indices, place),
        "policy_version": _at(batch.model_steps, place),
        "input_tokens": len(batch.queries[place]),
        "output_tokens": len(result.responses[place]),
        "tools": tools,
        "metadata": present(metadata),
    }


def _tool_facts(info: Any, place: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of tool use of a sample, and the other entries of its ``request_info`` that say something.

    Both are empty without a ``request_info``.
    """
    if info is None:
        return {}, {}

    tools: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for name, values in cast("dict[str, Any]", info.__dict__).items():
        value = _plain(_at(values, place))
        if name not in _TOOL_FACTS:
            if value:
                facts[name] = value
        elif value is not None:
            tools[_TOOL_FACTS[name]] = value
    return tools, facts


def _plain(value: Any) -> Any:
    """Return dataclasses in a list, such as ``ToolCallStats``, as dicts.

    Anything but a list is returned as it is.
    """
    if not isinstance(value, list):
        return value
    entries = cast("list[object]", value)
    return [vars(entry) if hasattr(entry, "__dict__") else entry for entry in entries]


def _dataset(names: Any) -> str | None:
    """Return the name of the dataset.

    Open-instruct has a list of one where a prompt has several verifiers.
    """
    if names is None or isinstance(names, str):
        return names
    return ",".join(map(str, names))


def _at(values: Any, place: int) -> Any:
    """Return the value of a sample, ``None`` where the list is missing or too short."""
    if values is not None and place < len(values):
        return values[place]
    return None
