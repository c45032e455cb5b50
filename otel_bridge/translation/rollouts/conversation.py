"""Conversation of a rollout whose root holds no messages, from its chat spans.

Native chat spans carry the messages that are new since the last answer. Chat spans of other instrumentations usually
carry the whole history each time. Both are merged without doubling a message. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json, Message

Turn: TypeAlias = tuple[Sequence[Message], Sequence[Message]]
"""Input and output messages of one chat span."""

_Mark: TypeAlias = tuple[str, str, str]
_ASSISTANT: Final = "assistant"


def merged(turns: Sequence[Turn], tool_results: Mapping[str, str]) -> list[Message]:
    """Merge the turns of chat spans, in their order, to one conversation.

    Args:
        turns: Input and output of each chat span, by start time.
        tool_results: Tool call id to result, from tool spans; used for calls that no message answers.
    """
    messages: list[Message] = []
    marks: list[_Mark] = []
    for given, answered in turns:
        new = [*_unseen(marks, given), *answered]
        if answered and len(new) == len(answered) and _ends_with(marks, answered):
            continue  # the same call recorded twice, e.g. by two instrumentations
        messages.extend(new)
        marks.extend(_mark(message) for message in new)
    return _answered(messages, tool_results) if tool_results else messages


def in_order(given: Sequence[Message], answered: Sequence[Message], turns: Sequence[Turn]) -> list[Message]:
    """Return the messages with a root's output in its place; messages of tools or users may follow the last answer.

    Args:
        given: Input messages of the root: all messages but its output.
        answered: Output messages of the root, the last answer.
        turns: Turns of the root's chat spans. With native chat spans they show what preceded the last answer.
    """
    before = [message for turn in turns for side in turn for message in side]
    preceding = len(before) - len(answered)
    if 0 < preceding < len(given) and before == [*given[:preceding], *answered]:
        return [*before, *given[preceding:]]
    calls = [call for message in answered for call in _calls(message)]
    ids = [call.get("id") for call in calls if isinstance(call.get("id"), str)]
    behind = len(given)
    while behind and given[behind - 1].get("role") == "tool" and given[behind - 1].get("tool_call_id") in ids:
        behind -= 1
    return [*given[:behind], *answered, *given[behind:]]


def _calls(message: Message) -> list[dict[str, Json]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _unseen(known: list[_Mark], given: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of *given* that follow the *known* ones."""
    if not known or not given:
        return given
    marks = [_mark(message) for message in given]
    if marks[: len(known)] == known:
        return given[len(known) :]
    if known[: len(marks)] == marks:  # the same history again: a second sample, or a retry
        return ()
    overlap = next((n for n in range(min(len(known), len(marks)), 0, -1) if known[-n:] == marks[:n]), 0)
    if overlap:
        return given[overlap:]
    # A history that was trimmed in front or rewritten in between: the messages after the last answer are new.
    last = next((mark for mark in reversed(known) if mark[0] == _ASSISTANT), None)
    if last is not None and last in marks:
        return given[len(marks) - marks[::-1].index(last) :]
    return given


def _ends_with(known: list[_Mark], answered: Sequence[Message]) -> bool:
    marks = [_mark(message) for message in answered]
    return known[-len(marks) :] == marks


def _mark(message: Message) -> _Mark:
    """Return the identity of a message, without ids and reasoning, which many clients strip from the history."""
    content = message.get("content")
    calls = message.get("tool_calls")
    return (
        str(message.get("role")),
        (content if isinstance(content, str) else as_text(content)).strip(),
        as_text([_call_mark(call) for call in calls]) if isinstance(calls, list) else "",
    )


def _call_mark(call: Json) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [function.get("name"), parsed_json(function.get("arguments"))]


def _answered(messages: list[Message], tool_results: Mapping[str, str]) -> list[Message]:
    """Return *messages* with the results of tool spans after calls that no message answers."""
    given = {str(message.get("tool_call_id")) for message in messages if message.get("role") == "tool"}
    whole: list[Message] = []
    for message in messages:
        whole.append(message)
        for call in _calls(message):
            call_id = call.get("id")
            if isinstance(call_id, str) and call_id in tool_results and call_id not in given:
                whole.append({"role": "tool", "content": tool_results[call_id], "tool_call_id": call_id})
    return whole
