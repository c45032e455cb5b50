"""The conversation of one `Rollout` -> a span for each answer and each tool's answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from otel_bridge import semconv
from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.content import Cutter
from otel_bridge.emit.conversation import Content
from otel_bridge.emit.fast_messages import EncodedMessage
from otel_bridge.emit.message_parts import ToolAnswer, ToolCall
from otel_bridge.emit.rollout import Rollout
from otel_bridge.emit.rollout_root import ASSISTANT, Pairs, json_array
from otel_bridge.emit.span_encoding import Pieces, Utf8


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
    calls: list[ToolCall] = []
    heard: list[EncodedMessage] = []
    answers = sum(message.role == ASSISTANT for message in content.messages)
    turn = 0
    for message in content.messages:
        children += [_tool_child(answer, _call_of(answer, calls), content.cutter) for answer in message.answers]
        if message.role != ASSISTANT:
            heard.append(message)
            continue
        pairs = _chat_pairs(rollout, turn, answers)
        if not content.cutter.off:
            pairs.append((semconv.GEN_AI_INPUT_MESSAGES, json_array(heard)))
            pairs.append((semconv.GEN_AI_OUTPUT_MESSAGES, json_array((message,))))
        model = facts.name(rollout.model)
        name = f"{semconv.OPERATION_CHAT} {model}" if model else semconv.OPERATION_CHAT
        children.append(_Child(name, span_encoding.KIND_CLIENT, pairs))
        calls = list(message.calls)
        heard = []
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


def _tool_child(answer: ToolAnswer, call: ToolCall | None, cutter: Cutter) -> _Child:
    name = answer.name or (call.name if call else "") or "tool"
    pairs: Pairs = [
        (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
        (semconv.GEN_AI_TOOL_NAME, name),
    ]
    call_id = answer.call_id or (call.id if call else None)
    if call_id is not None:
        pairs.append((semconv.GEN_AI_TOOL_CALL_ID, call_id))
    if not cutter.off:
        if call is not None and call.arguments:
            pairs.append((semconv.GEN_AI_TOOL_ARGUMENTS, Utf8((call.arguments,))))
        pairs.append((semconv.GEN_AI_TOOL_RESULT, Utf8((answer.text,))))
    return _Child(f"{semconv.OPERATION_TOOL} {name}", span_encoding.KIND_INTERNAL, pairs)
