"""Conversation of a `Rollout` -> a span for each answer and each tool's answer. Pure.

Every long text leaves once, in the root: a child names its message by `semconv.MESSAGE_INDEX`.
Spans of tool calls also hold short texts, so that other viewers show them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.conversations.conversation import Content
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.encode.span import Utf8
from otel_bridge.emit.rollouts.rollout import Rollout, turns_of
from otel_bridge.emit.rollouts.spans import ASSISTANT, BAD_FIELD, Pairs
from otel_bridge.messages.parts import ToolAnswer, ToolCall
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import Losses

_TOKEN_FIELDS = {
    "input_tokens": semconv.GEN_AI_INPUT_TOKENS,
    "output_tokens": semconv.GEN_AI_OUTPUT_TOKENS,
}
_TURN_FIELDS = frozenset(
    {"reward", "finish_reason", *_TOKEN_FIELDS, "token_ids", "logprobs", "loss_mask"}
)
_SHORT_BYTES = 1024
"""Largest arguments and results that are also in the tool's span."""


class SpanParent(NamedTuple):
    """Locates a rollout's children: its trace, its root, and the root's start and end."""

    trace_id: bytes
    root_id: bytes
    start_unix_ns: int
    end_unix_ns: int


@dataclass(slots=True)
class _Child:
    name: str
    kind: int
    pairs: Pairs


def child_spans(rollout: Rollout, content: Content, parent: SpanParent) -> list[bytes]:
    """Make a ``chat`` span of each answer and an ``execute_tool`` span of each tool's answer.

    Their times divide the time of the root evenly, at least a nanosecond each, so that their order
    shows: the messages have none. What cannot be used of turns is counted as ``rollout_field``.
    """
    children = _children(rollout, content)
    start = parent.start_unix_ns
    slot = max((parent.end_unix_ns - start) // max(len(children), 1), 1)
    # One call for all ids of the rollout.
    random = os.urandom(8 * len(children))
    spans: list[bytes] = []
    for index, child in enumerate(children):
        ids = (parent.trace_id, random[8 * index : 8 * index + 8], parent.root_id)
        times = (start, start + slot)
        attributes = span_encoding.span_attributes(child.pairs)
        spans.append(
            span_encoding.span(ids, child.name, times, attributes, kind=child.kind)
        )
        start += slot
    return spans


def _children(rollout: Rollout, content: Content) -> list[_Child]:
    """Return a child for each answer of the policy and of a tool, in the order of the conversation.

    A child names its message by index instead of repeating the text, except where a bridge could
    not find the arguments by it. Facts of turns beyond the answers are counted as
    ``rollout_field``.
    """
    children: list[_Child] = []
    earlier_calls: tuple[ToolCall, ...] = ()
    calls: list[ToolCall] = []
    answers = sum(message.role == ASSISTANT for message in content.messages)
    model = coerce.name(rollout.model)
    if model:
        name = f"{semconv.OPERATION_CHAT} {model}"
    else:
        name = semconv.OPERATION_CHAT
    with_content = not content.content_filter.off
    turns = turns_of(rollout.turns)
    turn = 0
    for index, message in enumerate(content.messages):
        for answer in message.answers:
            call = _call_of(answer, calls)
            pairs = _tool_pairs(answer, call)
            if with_content:
                is_findable = len(message.answers) == 1 and _is_found(
                    call, answer, earlier_calls
                )
                pairs += _tool_texts(answer, call, index if is_findable else None)
            children.append(
                _Child(
                    f"{semconv.OPERATION_TOOL} {pairs[1][1]}",
                    span_encoding.KIND_INTERNAL,
                    pairs,
                )
            )
        if message.role == ASSISTANT:
            pairs = _chat_pairs(
                rollout, turns, turn, answers, content.content_filter.losses
            )
            if with_content:
                pairs.append((semconv.MESSAGE_INDEX, index))
            children.append(_Child(name, span_encoding.KIND_CLIENT, pairs))
            earlier_calls = message.calls
            calls = list(message.calls)
            turn += 1
    if len(turns) > answers:
        content.content_filter.losses.add(BAD_FIELD, len(turns) - answers, "turns")
    return children


def token_counts(values: Mapping[str, object], losses: Losses, key: str = "") -> Pairs:
    """Return the numbers of tokens among *values*.

    Those that are not numbers are left out, and counted as ``rollout_field`` below *key*.
    """
    pairs: Pairs = []
    for field, attribute in _TOKEN_FIELDS.items():
        number = coerce.integer(values.get(field))
        if number is not None:
            pairs.append((attribute, number))
        elif values.get(field) is not None:
            losses.add(BAD_FIELD, 1, f"{key}{field}")
    return pairs


def _facts_of_turn(turn: object, losses: Losses) -> Mapping[str, object]:
    """Return the facts of a turn, empty for what is not a mapping.

    That but ``None``, and keys that a turn does not have, are counted as ``rollout_field``: a misspelt one would
    vanish otherwise.
    """
    facts = coerce.mapping(turn)
    if turn is not None and not isinstance(turn, Mapping):
        losses.add(BAD_FIELD, 1, "turns")
    for key in facts.keys() - _TURN_FIELDS:
        losses.add(BAD_FIELD, 1, f"turns.{key}")
    return facts


def _chat_pairs(
    rollout: Rollout, turns: Sequence[object], turn: int, answers: int, losses: Losses
) -> Pairs:
    """Return the attributes of the span of an answer.

    Facts of its turn that cannot be used are counted as ``rollout_field``. The last answer ends the
    rollout, so that it has the rollout's reason; an only answer also has the rollout's numbers of
    tokens.

    Args:
        rollout: The rollout.
        turns: Facts of its turns.
        turn: Index of the answer among the *answers* of the rollout.
        answers: Number of the answers.
        losses: Counts facts.
    """
    pairs: Pairs = [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT),
        (semconv.GEN_AI_REQUEST_MODEL, coerce.name(rollout.model)),
    ]
    is_last = turn == answers - 1
    if not turns and not is_last:
        return pairs
    facts = _facts_of_turn(turns[turn] if turn < len(turns) else None, losses)
    # The reason of the rollout is that of its last answer.
    reason = coerce.name(
        facts.get("finish_reason") or (rollout.finish_reason if is_last else None)
    )
    if reason is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
    pairs += token_counts(facts, losses, "turns.")
    if answers == 1:
        # Of the only turn the numbers of the rollout hold, whose bad ones its root counts.
        pairs += token_counts(without(vars(rollout), facts), Losses())
    if turns:
        pairs += [(semconv.TURN_INDEX, turn), (semconv.TURN_LAST, is_last)]
        pairs += _turn_reward(facts.get("reward"), losses)
    return pairs


def _turn_reward(value: object, losses: Losses) -> Pairs:
    """Return the reward of a turn as an attribute; nothing without one.

    What is not a number is counted as ``rollout_field``.
    """
    reward = coerce.number(value)
    if reward is not None:
        return [(semconv.REWARD, reward)]
    if value is not None:
        losses.add(BAD_FIELD, 1, "turns.reward")
    return []


def _call_of(answer: ToolAnswer, calls: list[ToolCall]) -> ToolCall | None:
    """Remove and return the call that *answer* belongs to, by id, else the next call in order.

    ``None`` if none is left. Libraries without ids answer in the order of the calls.
    """
    for index, call in enumerate(calls):
        if answer.call_id is None or call.id is None or call.id == answer.call_id:
            return calls.pop(index)
    return None


def _tool_pairs(answer: ToolAnswer, call: ToolCall | None) -> Pairs:
    """Return name and id of the tool, from the answer, else from its call.

    A tool without a name is ``tool``.
    """
    name = answer.name or (call.name if call else "") or "tool"
    return [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
        (semconv.GEN_AI_TOOL_NAME, name),
        (semconv.GEN_AI_TOOL_CALL_ID, answer.call_id or (call.id if call else None)),
    ]


def _is_found(
    call: ToolCall | None, answer: ToolAnswer, earlier_calls: Sequence[ToolCall]
) -> bool:
    """Return whether a lookup of the arguments by the call's id finds those of *call*, or rightly none.

    A bridge looks for the first call of that id in the answer before; models repeat ids, or leave
    them out.
    """
    call_id = answer.call_id or (call.id if call else None)
    for earlier_call in earlier_calls:
        if (
            call_id is not None
            and earlier_call.id == call_id
            and earlier_call.arguments
        ):
            return earlier_call is call
    return call is None or not call.arguments


def _tool_texts(answer: ToolAnswer, call: ToolCall | None, index: int | None) -> Pairs:
    """Return arguments and result.

    Texts above 1 KB are replaced by the *index* of their message, from which a bridge restores
    them: they leave once. Without an index (``None``) they stay.
    """
    pairs: Pairs = []
    is_left_out = False
    arguments = b"" if call is None else call.arguments
    if len(arguments) > _SHORT_BYTES and index is not None:
        is_left_out = True
    elif arguments:
        pairs.append((semconv.GEN_AI_TOOL_ARGUMENTS, Utf8(arguments)))
    if len(answer.text) > _SHORT_BYTES and index is not None:
        is_left_out = True
    else:
        pairs.append((semconv.GEN_AI_TOOL_RESULT, Utf8(answer.text)))
    if is_left_out and index is not None:
        pairs.append((semconv.MESSAGE_INDEX, index))
    return pairs
