"""Turn a ``trackio.Trace`` (messages, metadata, spans) into a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from otel_bridge.emit.messages.reader import messages_of, role_of
from otel_bridge.emit.rollouts.rollout import Rollout

_FIELDS: Final = ("advantage", "finish_reason", "group", "sample", "policy_version", "id", "model")
_REWARDS: Final = ("reward", "score")
_EVAL: Final = ("val", "eval", "test")
_ANSWER: Final = "assistant"


def rollout_of_trace(trace: Any, key: str) -> Rollout:
    """Return the rollout of one trace.

    Args:
        trace: A ``trackio.Trace``.
        key: The key under which it was logged; one that begins with ``val`` or ``eval`` means the split ``eval``.
    """
    metadata: dict[str, Any] = dict(trace.metadata or {})
    spans: list[Mapping[str, Any]] = list(getattr(trace, "spans", None) or [])  # since Trackio 0.30
    reward = next((metadata.pop(name) for name in _REWARDS if _is_number(metadata.get(name))), None)
    fields = {name: metadata.pop(name) for name in _FIELDS if metadata.get(name) is not None}
    split = metadata.pop("split", None)
    validate = metadata.get("validate") is True
    if not isinstance(split, str):
        split = "eval" if validate or key.lower().startswith(_EVAL) else "train"
    messages: list[Any] = list(trace.messages) or _messages_of(spans)
    if spans:
        metadata["spans"] = spans
    return Rollout(
        messages,
        reward=reward,
        split=split,
        metadata={**metadata, "trackio_key": key},
        turns=_turns(messages, spans),
        error=next((str(span["error"]) for span in spans if span.get("error")), None),
        **fields,
    )


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str | bool)


def _messages_of(spans: list[Mapping[str, Any]]) -> list[object]:
    """Return the conversation of a trace that has spans only: the first input and the last output."""
    given = next((span["input"] for span in spans if span.get("input")), None)
    answer = next((span["output"] for span in reversed(spans) if span.get("output")), None)
    return messages_of(given) + messages_of(answer, _ANSWER)


def _turns(messages: list[Any], spans: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tokens of each assistant message, when there is one generation for each."""
    generations = [span for span in spans if span.get("kind") == "generation"]
    answers = sum(role_of(message) == _ANSWER for message in messages)
    if not generations or len(generations) != answers:
        return []
    return [_tokens(span.get("usage")) for span in generations]


def _tokens(usage: object) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        return {}
    given = cast("Mapping[str, Any]", usage)
    found = {
        "input_tokens": given.get("input_tokens", given.get("prompt_tokens")),
        "output_tokens": given.get("output_tokens", given.get("completion_tokens")),
    }
    return {name: value for name, value in found.items() if isinstance(value, int)}
