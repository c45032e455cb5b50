"""Conversation of a rollout whose root holds no messages, from its chat spans.

Native chat spans carry the messages that are new since the last answer. Chat spans of other
instrumentations usually carry the whole history each time. Both are merged without doubling a
message. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json, Message

Turn: TypeAlias = tuple[Sequence[Message], Sequence[Message]]
"""Input and output messages of one chat span."""

_Mark: TypeAlias = tuple[str, str, str]
_ASSISTANT = "assistant"


def merged(turns: Sequence[Turn], tool_results: Mapping[str, str]) -> list[Message]:
    """Merge the turns of chat spans, in their order, to one conversation.

    Empty without turns. A turn that was recorded twice is left out.

    Two instrumentations of one call each record it, and most clients send the history again.

    Args:
        turns: Input and output of each chat span, by start time.
        tool_results: Tool call id to result, from tool spans; used for calls that no message
            answers.
    """
    messages: list[Message] = []
    marks: list[_Mark] = []
    for prompt, answer in turns:
        new = [*_new_messages(marks, prompt), *answer]
        if answer and len(new) == len(answer) and _ends_with(marks, answer):
            continue  # the same call recorded twice, e.g. by two instrumentations
        messages.extend(new)
        marks.extend(_mark(message) for message in new)
    if tool_results:
        return _with_results(messages, tool_results)
    return messages


def in_order(
    prompt: Sequence[Message], answer: Sequence[Message], turns: Sequence[Turn]
) -> list[Message]:
    """Return the messages with a root's output in its place.

    Messages of tools or users may follow the last answer.

    A conversation that ends with the result of a tool would else show it before the call.

    Args:
        prompt: Input messages of the root: all messages but its output.
        answer: Output messages of the root, the last answer.
        turns: Turns of the root's chat spans. With native chat spans they show what preceded the
            last answer.
    """
    history: list[Message] = []
    for turn_prompt, turn_answer in turns:
        history += [*turn_prompt, *turn_answer]
    preceding = len(history) - len(answer)
    # Only if the spans agree with the root: then they show where the answer stood.
    if 0 < preceding < len(prompt) and history == [*prompt[:preceding], *answer]:
        return [*history, *prompt[preceding:]]
    call_ids = _call_ids(answer)
    end = len(prompt)
    while (
        end
        and prompt[end - 1].get("role") == "tool"
        and prompt[end - 1].get("tool_call_id") in call_ids
    ):
        end -= 1
    return [*prompt[:end], *answer, *prompt[end:]]


def is_same(messages: Sequence[Message], other_messages: Sequence[Message]) -> bool:
    """Return whether two lists hold the same messages, by what two instrumentations have alike."""
    return list(map(_mark, messages)) == list(map(_mark, other_messages))


def _call_ids(messages: Sequence[Message]) -> list[str]:
    ids: list[str] = []
    for message in messages:
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            continue
        for call in calls:
            call_id = None
            if isinstance(call, dict):
                call_id = call.get("id")
            if isinstance(call_id, str):
                ids.append(call_id)
    return ids


def _new_messages(history: list[_Mark], prompt: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of *prompt* that follow the *history*.

    All of them if the two have nothing in common.

    Nothing when *prompt* repeats the history, as a second sample or a retry does. Clients send the
    whole history, its end, or one that they trimmed or rewrote: each must not be doubled.
    """
    if not history or not prompt:
        return prompt
    marks = [_mark(message) for message in prompt]
    # The usual case: a client sends the whole history each time.
    if marks[: len(history)] == history:
        return prompt[len(history) :]
    # The same history again: a second sample, or a retry.
    if history[: len(marks)] == marks:
        return ()
    # The longest overlap first: a shorter one may be a phrase that was said twice.
    for overlap in range(min(len(history), len(marks)), 0, -1):
        if history[-overlap:] == marks[:overlap]:
            return prompt[overlap:]
    # A history that was trimmed in front or rewritten in between: the messages after the last
    # answer are new.
    last_answer = next(
        (mark for mark in reversed(history) if mark[0] == _ASSISTANT), None
    )
    if last_answer is not None and last_answer in marks:
        return prompt[len(marks) - marks[::-1].index(last_answer) :]
    return prompt


def _ends_with(history: list[_Mark], answer: Sequence[Message]) -> bool:
    marks = [_mark(message) for message in answer]
    return history[-len(marks) :] == marks


def _mark(message: Message) -> _Mark:
    """Return the identity of a message, without ids and reasoning, which many clients strip from the history.

    Arguments of tool calls are compared as JSON, since clients write them with other spaces.
    """
    calls = message.get("tool_calls")
    return (
        str(message.get("role")),
        _text_of(message.get("content")).strip(),
        as_text([_call_mark(call) for call in calls])
        if isinstance(calls, list)
        else "",
    )


def _text_of(content: Json) -> str:
    """Return the text of content, also of a list of parts that are all texts.

    Anthropic's answers are such lists, which programs repeat as one text, or with another field beside it.
    """
    if not isinstance(content, list):
        return as_text(content)
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return as_text(content)
        texts.append(as_text(part.get("text")))
    return "\n".join(texts)


def _call_mark(call: Json) -> Json:
    function = None
    if isinstance(call, dict):
        function = call.get("function")
    if not isinstance(function, dict):
        return call
    return [function.get("name"), parsed_json(function.get("arguments"))]


def _with_results(
    messages: list[Message], tool_results: Mapping[str, str]
) -> list[Message]:
    """Return *messages* with the results of tool spans after calls that no message answers.

    A call without a known result stays open.

    Some instrumentations record a tool's result in its own span only, so that no message has it.
    """
    answered_ids: set[Json] = set()
    for message in messages:
        if message.get("role") == "tool":
            answered_ids.add(str(message.get("tool_call_id")))
    with_results: list[Message] = []
    for message in messages:
        with_results.append(message)
        for call_id in _call_ids([message]):
            result = tool_results.get(call_id)
            if result is not None and call_id not in answered_ids:
                with_results.append(
                    {"role": "tool", "content": result, "tool_call_id": call_id}
                )
    return with_results
