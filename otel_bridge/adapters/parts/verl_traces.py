"""Rollout traces of verl (``rollout.trace.backend=otel_bridge``) -> live rollouts with a span for each traced call.

A failure in a `guarded` function is counted as ``adapter_failed``, and verl goes on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, guarded
from otel_bridge.messages.reader import messages_of

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts.live import LiveRollout

_BACKEND = "otel_bridge"
_MODULE = "verl.utils.rollout_trace"
_live: ContextVar[LiveRollout | None] = ContextVar(
    "otel_bridge_verl_rollout", default=None
)
_outermost: ContextVar[bool] = ContextVar("otel_bridge_verl_outermost", default=True)


def install_traces() -> None:
    """Replace verl's decorator and context manager, before the modules that use them are imported.

    Modules that verl imported before keep its own, and make no traces of this backend.

    Raises:
        MissingExtraError: verl is not installed, or too old.
    """
    config: Any = framework_class(f"{_MODULE}:RolloutTraceConfig", "verl>=0.9.1")
    real_op: Any = framework_class(f"{_MODULE}:rollout_trace_op", "verl>=0.9.1")
    real_attr: Any = framework_class(f"{_MODULE}:rollout_trace_attr", "verl>=0.9.1")
    module = inspect.getmodule(config)
    # In their module: the decorators run later, when verl imports the agent loops (0.9.1).
    setattr(module, "rollout_trace_op", _op(config, real_op))  # noqa: B010  # no attribute that a type checker knows
    setattr(module, "rollout_trace_attr", _attr(config, real_attr))  # noqa: B010


@functools.cache
def rollouter_run(
    project_name: str | None, experiment_name: str | None
) -> FrameworkRun:
    """Return the run of a process that produces rollouts and has no ``Tracking``."""
    return FrameworkRun("verl", RunNames(project_name, experiment_name, "rollouter"))


def _attr(config: Any, real_attr: Callable[..., Any]) -> Callable[..., Any]:
    """Return verl's context manager of a rollout, which opens a live rollout for this backend.

    Another backend, and a rollout that verl does not trace, is verl's own. An exception of the
    block passes, and the rollout has it as its error.
    """

    @functools.wraps(real_attr)
    @contextlib.contextmanager
    def rollout_trace_attr(  # noqa: PLR0917  # verl's signature
        sample_index: Any = None,
        step: Any = None,
        rollout_n: Any = None,
        name: str = "rollout_trace",
        validate: bool = False,
        trace: bool = True,
    ) -> Generator[None]:
        # For a backend that it does not know, verl 0.9.1 sets attributes and calls through.
        with real_attr(sample_index, step, rollout_n, name, validate, trace):
            if not trace or config.get_backend() != _BACKEND:
                yield
                return
            attributes = {
                "group": sample_index,
                "sample": rollout_n,
                "step": step,
                "split": "eval" if validate else "train",
            }
            fields = {key: _plain(value) for key, value in attributes.items()}
            # Not at import: verl sets project and name of the run later.
            instance = config.get_instance()
            run = rollouter_run(instance.project_name, instance.experiment_name).begin()
            with run.rollout(**fields) as live:
                live_token = _live.set(live)
                outermost_token = _outermost.set(True)
                try:
                    yield
                finally:
                    _live.reset(live_token)
                    _outermost.reset(outermost_token)

    return rollout_trace_attr


def _op(config: Any, real_op: Callable[..., Any]) -> Callable[..., Any]:
    """Return verl's decorator of traced calls, which records them in the live rollout for this backend.

    The call's result and exceptions pass; what cannot be read of it is counted as
    ``adapter_failed``.
    """

    def rollout_trace_op(func: Callable[..., Any]) -> Callable[..., Any]:
        """Return *func* recorded: an ``async def`` stays one."""
        traced = real_op(func)

        @functools.wraps(func)
        async def later(self: Any, *arguments: Any, **keywords: Any) -> Any:
            """Await the call, whose exceptions pass, and record it in the live rollout, if there is one."""
            live = _live.get()
            # Another backend, or a rollout that verl does not trace: its own decorator goes on.
            if live is None or config.get_backend() != _BACKEND:
                return await traced(self, *arguments, **keywords)
            with _call(live, func, self, arguments, keywords) as done:
                result = await func(self, *arguments, **keywords)
                done(result)
                return result

        @functools.wraps(func)
        def now(self: Any, *arguments: Any, **keywords: Any) -> Any:
            """Make the call, whose exceptions pass, and record it in the live rollout, if there is one."""
            live = _live.get()
            if live is None or config.get_backend() != _BACKEND:
                return traced(self, *arguments, **keywords)
            with _call(live, func, self, arguments, keywords) as done:
                result = func(self, *arguments, **keywords)
                done(result)
                return result

        if inspect.iscoroutinefunction(func):
            return later
        return now

    return rollout_trace_op


@contextlib.contextmanager
def _call(
    live: LiveRollout,
    func: Callable[..., Any],
    owner: Any,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Generator[Callable[[Any], object]]:
    """Record one traced call: the outermost one is the rollout, the others are spans inside it.

    An exception of the call is that of its span, and passes. verl does not name the kind of a call,
    so its inputs decide; a call whose inputs cannot be read counts as one of a tool.
    """
    inputs = _inputs(func, owner, arguments, keywords) or {}
    if _outermost.get():
        token = _outermost.set(False)
        try:
            yield lambda result: _conversation(live, owner, inputs, result)
        finally:
            _outermost.reset(token)
    elif "prompt_ids" in inputs:
        # A generation has token ids among its inputs, a tool `parameters` (verl 0.9.1).
        with live.chat() as chat:
            _count_prompt(chat, inputs["prompt_ids"])
            yield lambda result: _generated(chat, owner, result)
    else:
        name = getattr(owner, "name", None)
        with live.tool(name if isinstance(name, str) else func.__qualname__) as tool:
            tool.arguments = inputs.get("parameters", {})
            yield lambda result: _answered(tool, result)


@guarded
def _inputs(
    func: Callable[..., Any],
    owner: Any,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a call by name.

    ``None``, counted, where they do not fit its signature.
    """
    bound = inspect.signature(func).bind(owner, *arguments, **keywords)
    inputs = dict(bound.arguments)
    inputs.update(inputs.pop("kwargs", {}))
    inputs.pop("self", None)
    return inputs


@guarded
def _conversation(
    live: LiveRollout, owner: Any, inputs: Mapping[str, Any], result: Any
) -> None:
    """Record prompt, response and reward of an agent loop.

    Where an agent loop returns token ids only, its tokenizer decodes them. Without a tokenizer
    the text is empty.
    """
    prompt: Any = inputs.get("raw_prompt")
    prompt = inputs.get("messages") if prompt is None else prompt
    prompt_ids = _field(result, "prompt_ids")
    response_ids = _field(result, "response_ids")
    messages = messages_of(prompt)
    if not messages and prompt_ids is not None:
        messages = messages_of(_text(owner, prompt_ids))
    answer: Any = _field(result, "response_text")
    if answer is None and response_ids is not None:
        answer = _text(owner, response_ids)
    live.messages = messages + messages_of(answer, "assistant")
    if prompt_ids is not None and response_ids is not None:
        live.input_tokens = len(prompt_ids)
        live.output_tokens = len(response_ids)
    live.reward = _field(result, "reward_score")
    turns = _field(result, "num_turns")
    if turns is not None:
        live.metadata["num_turns"] = turns


@guarded
def _count_prompt(chat: Any, tokens: Any) -> None:
    """Note how many tokens the prompt of a generation has."""
    if tokens is not None:
        chat.input_tokens = len(tokens)


@guarded
def _generated(chat: Any, owner: Any, result: Any) -> None:
    """Note tokens, text and the reason of the stop of a generation.

    A result in another form leaves them out.
    """
    tokens = _field(result, "token_ids")
    if tokens is not None:
        chat.output_tokens = len(tokens)
        text = _text(owner, tokens)
        if text:
            chat.output = text
    chat.finish_reason = _field(result, "stop_reason")


@guarded
def _answered(tool: Any, result: Any) -> None:
    """Note what a tool returned: verl's tools return ``(response, reward, metrics)`` or the response alone (0.9.1)."""
    answer: Any = result[0] if isinstance(result, tuple) and result else result  # pyright: ignore[reportUnknownVariableType]  # any tuple
    text: Any = _field(answer, "text")
    tool.result = answer if text is None else text


def _text(owner: Any, tokens: Any) -> str | None:
    """Return tokens as text; ``None`` if the traced object has no tokenizer.

    Raises what the tokenizer raises; the callers are `guarded`.
    """
    decode = getattr(getattr(owner, "tokenizer", None), "decode", None)
    if callable(decode):
        return str(decode(tokens))
    return None


def _field(value: Any, name: str) -> Any:
    """Return an entry of a mapping, or an attribute; ``None`` without it."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name)
    return getattr(value, name, None)


@guarded
def _plain(value: Any) -> Any:
    """Return a number of numpy as a number of Python; ``None`` for an array of several.

    ``None`` too, counted, for what cannot be read; a rollout without that field is recorded all the
    same.
    """
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    return value
