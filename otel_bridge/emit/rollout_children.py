"""The conversation of one `Rollout` -> a span for each answer and each tool's answer. Pure.

Every long text leaves once, in the root: a child says by `semconv.MESSAGE_INDEX` which message it was made of. Tool
calls with short texts hold them too, so that viewers which know nothing of us show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.conversation import Content
from otel_bridge.emit.fast_messages import EncodedMessage
from otel_bridge.emit.message_parts import ToolAnswer, ToolCall
from otel_bridge.emit.rollout import Rollout
from otel_bridge.emit.rollout_root import ASSISTANT, Pairs
from otel_bridge.emit.span_encoding import Pieces, Utf8

_SHORT_BYTES: Final = 1024
"""Arguments and results up to here stand in the tool's span as well."""


class Place(NamedTuple):
    """Where a rollout's children belong: its trace, its root, and the root's start and end."""

    trace_id: bytes
    root_id: bytes
    start_unix_ns: int
    end_unix_ns: int


@dataclass(slots=True)
class _Child:
    name: str
    kind: int
    pairs: Pairs


def child_spans(rollout: Rollout, content: Content, place: Place, ids: Iterable[bytes]) -> list[Pieces]:
    """Make a ``chat`` span of each answer and an ``execute_tool`` span of each tool's answer.

    Their times part that of the root evenly, at least a nanosecond each, so that their order shows.
    """
    children = _children(rollout, content)
    start = place.start_unix_ns
    slot = max((place.end_unix_ns - start) // max(len(children), 1), 1)
    return [
        span_encoding.span(
            (place.trace_id, span_id, place.root_id),
            child.name,
            (start + slot * index, start + slot * (index + 1)),
            span_encoding.span_attributes(child.pairs),
            kind=child.kind,
        )
        for index, (child, span_id) in enumerate(zip(children, ids, strict=False))
    ]


def child_count(messages: Iterable[EncodedMessage]) -> int:
    """Return how many spans `child_spans` makes."""
    return sum((message.role == ASSISTANT) + len(message.answers) for message in messages)


def _children(rollout: Rollout, content: Content) -> list[_Child]:
    children: list[_Child] = []
    asked: tuple[ToolCall, ...] = ()
    calls: list[ToolCall] = []
    answers = sum(message.role == ASSISTANT for message in content.messages)
    model = facts.name(rollout.model)
    name = f"{semconv.OPERATION_CHAT} {model}" if model else semconv.OPERATION_CHAT
    shown = not content.cutter.off
    turn = 0
    for index, message in enumerate(content.messages):
        for answer in message.answers:
            call = _call_of(answer, calls)
            pairs = _tool_pairs(answer, call)
            if shown:
                told = len(message.answers) == 1 and _is_found(call, answer, asked)
                pairs += _tool_texts(answer, call, index if told else None)
            children.append(_Child(f"{semconv.OPERATION_TOOL} {pairs[1][1]}", span_encoding.KIND_INTERNAL, pairs))
        if message.role == ASSISTANT:
            pairs = _chat_pairs(rollout, turn, answers)
            if shown:
                pairs.append((semconv.MESSAGE_INDEX, index))
            children.append(_Child(name, span_encoding.KIND_CLIENT, pairs))
            asked, calls = message.calls, list(message.calls)
            turn += 1
    return children


def _chat_pairs(rollout: Rollout, turn: int, answers: int) -> Pairs:
    pairs: Pairs = [(semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT)]
    if (model := facts.name(rollout.model)) is not None:
        pairs.append((semconv.GEN_AI_REQUEST_MODEL, model))
    turns = rollout.turns or ()
    if not turns and turn < answers - 1:
        return pairs
    told = facts.mapping(turns[turn] if turn < len(turns) else None)
    only = facts.mapping(vars(rollout) if answers == 1 else None)
    reason: object = told.get("finish_reason") or (rollout.finish_reason if turn == answers - 1 else None)
    if (named := facts.name(reason)) is not None:
        pairs.append((semconv.GEN_AI_FINISH_REASONS, [named]))
    for key, field in ((semconv.GEN_AI_INPUT_TOKENS, "input_tokens"), (semconv.GEN_AI_OUTPUT_TOKENS, "output_tokens")):
        if (tokens := facts.integer(told.get(field, only.get(field)))) is not None:
            pairs.append((key, tokens))
    if turns:
        pairs += [(semconv.TURN_INDEX, turn), (semconv.TURN_LAST, turn == answers - 1)]
        if (reward := facts.number(told.get("reward"))) is not None:
            pairs.append((semconv.REWARD, reward))
    return pairs


def _call_of(answer: ToolAnswer, calls: list[ToolCall]) -> ToolCall | None:
    """Return the call that *answer* belongs to, by id, else the next one in order, and take it off the list."""
    for index, call in enumerate(calls):
        if answer.call_id is None or call.id is None or call.id == answer.call_id:
            return calls.pop(index)
    return None


def _tool_pairs(answer: ToolAnswer, call: ToolCall | None) -> Pairs:
    name = answer.name or (call.name if call else "") or "tool"
    pairs: Pairs = [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
        (semconv.GEN_AI_TOOL_NAME, name),
    ]
    call_id = answer.call_id or (call.id if call else None)
    if call_id is not None:
        pairs.append((semconv.GEN_AI_TOOL_CALL_ID, call_id))
    return pairs


def _is_found(call: ToolCall | None, answer: ToolAnswer, asked: Sequence[ToolCall]) -> bool:
    """Tell whether a reader who looks for the arguments by the call's id finds those of *call*, or rightly none."""
    call_id = answer.call_id or (call.id if call else None)
    found = next((one for one in asked if one.id is not None and one.id == call_id and one.arguments), None)
    return found is call or (found is None and (call is None or not call.arguments))


def _tool_texts(answer: ToolAnswer, call: ToolCall | None, index: int | None) -> Pairs:
    """Return arguments and result, long ones by the *index* of their message where that names them."""
    pairs: Pairs = []
    left = False
    arguments = b"" if call is None else call.arguments
    if len(arguments) > _SHORT_BYTES and index is not None:
        left = True
    elif arguments:
        pairs.append((semconv.GEN_AI_TOOL_ARGUMENTS, Utf8((arguments,))))
    if len(answer.text) > _SHORT_BYTES and index is not None:
        left = True
    else:
        pairs.append((semconv.GEN_AI_TOOL_RESULT, Utf8((answer.text,))))
    if left and index is not None:
        pairs.append((semconv.MESSAGE_INDEX, index))
    return pairs
