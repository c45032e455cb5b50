"""Turn a ``trackio.Trace`` (messages, metadata, spans) into a rollout.

verl logs a trace for each call of a loop: its tools, its generations, and at last the loop itself
(verl 0.9.1, ``rollout_trace.py``). Those of one rollout share sample, step and number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from otel_bridge.capture.tables import is_missing, names_evaluation
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.messages.fields import entries_of
from otel_bridge.messages.reader import first_role, messages_of
from otel_bridge.values.scalars import any_text

_FIELDS = (
    "advantage",
    "finish_reason",
    "group",
    "sample",
    "policy_version",
    "id",
    "model",
)
_REWARDS = ("reward", "score")
_USAGE = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}
"""Facts of a turn to their names in the usage of a generation: Trackio 0.43 reads both."""
_ANSWER = "assistant"
_SAMPLE = {"sample_index": "group", "rollout_n": "sample"}
"""Names of verl to those of a rollout."""
_CALL_INPUTS = frozenset({"parameters", "prompt_ids", "responses_ids"})
"""Inputs of calls inside a loop of verl: of a tool, of a generation, of the parser of tool calls."""
_LOOP = "run"
_MAX_CALLS = 10_000
"""Most calls that wait for their loop, which may never be logged."""
_RolloutKey: TypeAlias = "tuple[object, ...]"


class TraceReader:
    """Turns traces into rollouts, those of verl's tools into tool calls of the rollout of their loop."""

    def __init__(self) -> None:
        self._calls: dict[_RolloutKey, list[Mapping[str, Any]]] = {}
        self._count = 0

    def rollout(self, trace: Any, key: str) -> Rollout | None:
        """Return the rollout of a trace.

        ``None`` for a call inside a loop, which belongs to the rollout that follows.

        Raises what a damaged trace raises, e.g. `TypeError` without messages; the caller counts it
        as ``rollout_unreadable``. Beyond 10,000 waiting calls a further one is a rollout by itself.

        Args:
            trace: A ``trackio.Trace``.
            key: The key under which it was logged.
        """
        metadata: Mapping[str, Any] = trace.metadata or {}
        # A trace that is not verl's is a rollout by itself.
        if metadata.get("sample_index") is None or "op" not in metadata:
            return rollout_of_trace(trace, key)
        rollout_key = tuple(
            any_text(metadata.get(name))
            for name in ("sample_index", "rollout_n", "step", "validate")
        )
        # Bounded, since the loop of a call may never be logged.
        if _is_inner(metadata) and self._count < _MAX_CALLS:
            self._calls.setdefault(rollout_key, []).append(metadata)
            self._count += 1
            return None
        calls = self._calls.pop(rollout_key, [])
        self._count -= len(calls)
        return _with_calls(rollout_of_trace(trace, key), calls)

    def unfinished(self) -> int:
        """Return the number of calls whose loop has not been logged, and forget them."""
        count = self._count
        self._calls = {}
        self._count = 0
        return count


def _is_inner(metadata: Mapping[str, Any]) -> bool:
    """Return whether a trace of verl is of a call inside a loop.

    verl's trace of the loop itself comes last (0.9.1), and is the rollout. Any other operation,
    e.g. one that a user traces, is a rollout too, since nothing says that a loop follows.
    """
    inputs = metadata.get("inputs")
    is_loop = any_text(metadata["op"]).rpartition(".")[2] == _LOOP
    return (
        not is_loop
        and isinstance(inputs, Mapping)
        and not _CALL_INPUTS.isdisjoint(cast("Mapping[str, Any]", inputs))
    )


def _with_calls(rollout: Rollout, calls: list[Mapping[str, Any]]) -> Rollout:
    """Add calls of tools to a rollout, ahead of its last message; other calls are facts of it.

    A loop's trace in verl has the first prompt and the last answer only, so the calls belong
    between them. Each call has inputs that are a mapping, or `_is_inner` would not have kept it.
    """
    messages: list[object] = []
    other_calls: list[object] = []
    for number, call in enumerate(calls):
        inputs: Mapping[str, Any] = call["inputs"]
        if "parameters" not in inputs:
            other_calls.append(
                {
                    name: call.get(name)
                    for name in ("op", "inputs", "output", "exception_type")
                    if name in call
                }
            )
            continue
        # verl's op is ``<class>.<method>``, and each tool is a class.
        name = any_text(call["op"]).rpartition(".")[0] or any_text(call["op"])
        call_id = f"call_{number}"
        function = {"name": name, "arguments": inputs["parameters"]}
        messages.append(
            {
                "role": _ANSWER,
                "content": None,
                "tool_calls": [{"id": call_id, "function": function}],
            }
        )
        messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": _result_of(call)}
        )
    rollout.messages = [*rollout.messages[:-1], *messages, *rollout.messages[-1:]]
    if other_calls:
        rollout.metadata["calls"] = other_calls
    return rollout


def _result_of(call: Mapping[str, Any]) -> Any:
    """Return what a tool returned, the text of verl's ``ToolResponse``, or the type of what it raised.

    An output of another form is returned as it is, ``None`` for an empty one.
    """
    if "exception_type" in call:
        return call["exception_type"]
    output = call.get("output")
    entries = entries_of(output)
    answer: Any = entries[0] if entries else None
    text: Any = (
        cast("Mapping[str, Any]", answer).get("text")
        if isinstance(answer, Mapping)
        else None
    )
    if text is None:
        return cast("object", answer)
    return text


def rollout_of_trace(trace: Any, key: str) -> Rollout:
    """Return the rollout of one trace.

    Names that verl and users give in metadata become fields; everything else stays metadata, also
    the spans, which have more than the fields take. A reward that is not a number stays metadata.
    Raises what a damaged trace raises, such as `TypeError` where its messages are not a list.

    Args:
        trace: A ``trackio.Trace``.
        key: The key under which it was logged, which may name the split.
    """
    metadata: dict[str, Any] = dict(trace.metadata or {})
    spans: list[Mapping[str, Any]] = list(
        getattr(trace, "spans", None) or []
    )  # since Trackio 0.37
    reward = next(
        (metadata.pop(name) for name in _REWARDS if _is_reward(metadata.get(name))),
        None,
    )
    for name, field in _SAMPLE.items():
        if metadata.get(name) is not None and metadata.get(field) is None:
            metadata[field] = metadata.pop(name)
    fields = {
        name: metadata.pop(name) for name in _FIELDS if metadata.get(name) is not None
    }
    split = _split_of(metadata.pop("split", None), key, metadata)
    messages: list[Any] = list(trace.messages) or _messages_of(spans)
    if spans:
        metadata["spans"] = spans
    return Rollout(
        messages,
        reward=reward,
        split=split,
        metadata={**metadata, "trackio_key": key},
        turns=_turns(messages, spans),
        error=_error_of(spans),
        **fields,
    )


def _split_of(split: object, key: str, metadata: Mapping[str, Any]) -> str:
    """Return the split of a trace: as its metadata name it, else by verl's flag or the key."""
    if isinstance(split, str):
        return split
    is_eval = metadata.get("validate") is True or names_evaluation(key)
    if is_eval:
        return "eval"
    return "train"


def _error_of(spans: list[Mapping[str, Any]]) -> str | None:
    """Return the first error of the spans of a trace; ``None`` without one."""
    errors = [span["error"] for span in spans if not is_missing(span.get("error"))]
    if errors:
        return any_text(errors[0])
    return None


def _is_reward(value: object) -> bool:
    """Return whether a value can be a reward: a number, or a list or mapping of numbers as in a table.

    A bool is not one, because metadata hold flags under any name; a text of digits is not either.
    """
    return not isinstance(value, bool) and coerce.number(value) is not None


def _messages_of(spans: list[Mapping[str, Any]]) -> list[object]:
    """Return the conversation of a trace that has spans only: the first input and the last output.

    Empty where no span has an input or an output.
    """
    question = next((span["input"] for span in spans if span.get("input")), None)
    answer = next(
        (span["output"] for span in reversed(spans) if span.get("output")), None
    )
    return messages_of(question) + messages_of(answer, _ANSWER)


def _turns(
    messages: list[Any], spans: list[Mapping[str, Any]]
) -> list[dict[str, object]]:
    """Return the tokens of each assistant message, when there is one generation for each."""
    generations = [span for span in spans if span.get("kind") == "generation"]
    answers = sum(first_role(message) == _ANSWER for message in messages)
    # Else it is not known which generation made which message.
    if not generations or len(generations) != answers:
        return []
    return [_tokens(span.get("usage")) for span in generations]


def _tokens(usage: object) -> dict[str, object]:
    """Return the numbers of tokens of a generation; ``None`` for a missing one."""
    counts = coerce.mapping(usage)
    tokens: dict[str, object] = {}
    for fact, names in _USAGE.items():
        values = [counts[name] for name in names if counts.get(name) is not None]
        tokens[fact] = values[0] if values else None
    return tokens
