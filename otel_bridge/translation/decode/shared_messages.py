"""Spans made of their root's messages -> the same spans with the texts of these messages.

Our emitter writes every text of a rollout once, into the root. A span made of a message names the
message by an index. Spans with messages of their own (of live rollouts, of third-party producers)
stay unchanged. Pure. An index that names no message is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.otlp.json_text import as_text, parsed_text
from otel_bridge.records import Json
from otel_bridge.translation.decode.attributes import keys_of, mapping_of, value_of

_ASSISTANT = "assistant"
_P = TypeVar("_P")
_Entry: TypeAlias = "dict[str, Json]"
_NOTHING: _Entry = {}


def with_messages(
    spans: Sequence[tuple[_P, Span]], root: Span
) -> list[tuple[_P, Span]]:
    """Return *spans* with their producers; those that stand for a message of *root* become copies with its text.

    Unchanged are spans without an index, with one that names no message, and all spans of a root
    whose texts were cut off. The output of the root stands where its last answer was.
    """
    stand_ins: dict[int, _Entry] = {}
    answers: list[int] = []
    for place, (_, span) in enumerate(spans):
        # Most spans stand for no message, and may hold long texts of their own.
        if semconv.MESSAGE_INDEX not in keys_of(span.attributes):
            continue
        attributes = mapping_of(span.attributes)
        index = attributes[semconv.MESSAGE_INDEX]
        if type(index) is not int:
            continue
        stand_ins[place] = attributes
        if attributes.get(semconv.GEN_AI_OPERATION) == semconv.OPERATION_CHAT:
            answers.append(index)
    if not stand_ins:
        return list(spans)
    messages = _conversation(root, max(answers, default=None))
    whole = list(spans)
    for place, attributes in stand_ins.items():
        index = cast("int", attributes[semconv.MESSAGE_INDEX])
        # A cut root has fewer messages: the span then stays without a text.
        if 0 <= index < len(messages):
            producer, span = spans[place]
            whole[place] = producer, _with_texts(span, attributes, index, messages)
    return whole


def _conversation(root: Span, last_answer: int | None) -> list[_Entry]:
    """Return the messages of *root* in the order of the conversation.

    The output of *root* is the last answer. Where no span names its place, it comes last. The
    indexes of spans count the messages in this order.
    """
    inputs = _messages(root, semconv.GEN_AI_INPUT_MESSAGES)
    outputs = _messages(root, semconv.GEN_AI_OUTPUT_MESSAGES)
    index = last_answer
    if last_answer is None or not 0 <= last_answer <= len(inputs):
        index = len(inputs)
    return [*inputs[:index], *outputs, *inputs[index:]]


def _messages(root: Span, key: str) -> list[_Entry]:
    for pair in root.attributes:
        if pair.key == key:
            parsed = parsed_text(value_of(pair.value))
            if isinstance(parsed, list):
                return [entry for entry in parsed if isinstance(entry, dict)]
            break
    return []


def _with_texts(
    span: Span, attributes: _Entry, index: int, messages: Sequence[_Entry]
) -> Span:
    """Return a copy of a span with the content of its message, without the index.

    A text that the span has itself stays.
    """
    if attributes.get(semconv.GEN_AI_OPERATION) == semconv.OPERATION_CHAT:
        texts = _turn(index, messages)
    else:
        call_id = attributes.get(semconv.GEN_AI_TOOL_CALL_ID) or ""
        texts = _call(index, call_id, messages)
    # A copy: the received span is stored as it came.
    copy = Span()
    copy.CopyFrom(span)
    del copy.attributes[:]
    copy.attributes.extend(
        pair for pair in span.attributes if pair.key != semconv.MESSAGE_INDEX
    )
    for key, text in texts.items():
        # Short arguments and results are in the span itself, and may be all that is left.
        if key not in attributes:
            copy.attributes.add(key=key).value.string_value = text
    return copy


def _turn(index: int, messages: Sequence[_Entry]) -> Mapping[str, str]:
    """Return the input of a model since its last answer, and its next answer."""
    first = index
    while first and messages[first - 1].get("role") != _ASSISTANT:
        first -= 1
    return {
        semconv.GEN_AI_INPUT_MESSAGES: as_text([*messages[first:index]]),
        semconv.GEN_AI_OUTPUT_MESSAGES: as_text([messages[index]]),
    }


def _call(index: int, call_id: Json, messages: Sequence[_Entry]) -> Mapping[str, str]:
    """Return the arguments of the span's call in the nearest answer, and the tool's answer; empty without both.

    Of several parts with one id the first counts, as in the emitter that numbered them.
    """
    texts: dict[str, str] = {}
    preceding = reversed(messages[:index])
    request: _Entry = next(
        (entry for entry in preceding if entry.get("role") == _ASSISTANT), _NOTHING
    )
    for part in _parts(request, "tool_call"):
        if part.get("id") == call_id and part.get("arguments") is not None:
            texts.setdefault(semconv.GEN_AI_TOOL_ARGUMENTS, as_text(part["arguments"]))
    for part in _parts(messages[index], "tool_call_response"):
        texts.setdefault(semconv.GEN_AI_TOOL_RESULT, as_text(part.get("response")))
    return texts


def _parts(entry: Mapping[str, Json], kind: str) -> list[_Entry]:
    parts = entry.get("parts")
    if not isinstance(parts, list):
        return []
    return [
        part for part in parts if isinstance(part, dict) and part.get("type") == kind
    ]
