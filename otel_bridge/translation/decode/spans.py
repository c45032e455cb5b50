"""OTLP span -> `records.Span`, and the facts of a rollout that the span holds.

Times stay nanoseconds, ids become hex digits. Pure. Absurd values are ignored and never raise.
Source: opentelemetry-proto ``trace.proto``; OpenTelemetry GenAI conventions 1.41.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_bridge import records, semconv
from otel_bridge.conventions import (
    CONVENTIONS,
    GENERATION,
    SPAN,
    TOOL,
    Convention,
    is_content,
)
from otel_bridge.otlp.json_text import parsed_json
from otel_bridge.records import Json, Message
from otel_bridge.translation.decode.attributes import (
    as_int,
    as_name,
    keys_of,
    mapping_of,
)
from otel_bridge.translation.decode.content_events import (
    chats_of_events,
    chats_of_listed,
)
from otel_bridge.translation.decode.messages import (
    Chat,
    flattened_chat,
    read_chat,
    system_message,
)

_T = TypeVar("_T")
_KINDS: list[tuple[str, Mapping[str, str]]] = []
_ROLLOUTS: dict[str, frozenset[str]] = {}
for _convention in CONVENTIONS:
    _KINDS.extend(_convention.kinds.items())
    if _convention.rollouts:
        _ROLLOUTS.update(dict.fromkeys(_convention.kinds, _convention.rollouts))
_KIND_KEYS = frozenset(dict(_KINDS))
_ALWAYS = frozenset({semconv.GEN_AI_OPERATION, semconv.ROLLOUT_ID})


def _of_all(part: Callable[[Convention], Iterable[_T]]) -> tuple[_T, ...]:
    """Return a *part* of all conventions, in their order."""
    return tuple(chain.from_iterable(map(part, CONVENTIONS)))


_FLAT = _of_all(lambda convention: convention.flat)
_INPUTS = _of_all(lambda convention: convention.inputs)
_OUTPUTS = _of_all(lambda convention: convention.outputs)
_CALLS = _of_all(lambda convention: convention.calls)
_REASONING = _of_all(lambda convention: convention.reasoning)
_FILES = _of_all(lambda convention: convention.files)
_ARGUMENTS = _of_all(lambda convention: convention.arguments)
_RESULTS = _of_all(lambda convention: convention.results)
_CALL_IDS = (semconv.GEN_AI_TOOL_CALL_ID, "tool_call.id", "tool.id", "ai.toolCall.id")
_INPUT_TOKENS = _of_all(lambda convention: convention.input_tokens)
_OUTPUT_TOKENS = _of_all(lambda convention: convention.output_tokens)
_MODELS = _of_all(lambda convention: convention.models)
_FINISH_REASONS = _of_all(lambda convention: convention.finish_reasons)
FINISH_KEYS = frozenset(_FINISH_REASONS)
"""Names of the attributes that hold a finish reason."""
_NO_PARENT = frozenset({b"", bytes(8)})


@dataclass(slots=True)
class SpanFacts:
    """Holds what a rollout uses of one span.

    Attributes:
        otlp: The span itself.
        attributes: All attributes, content included.
        kind: ``generation``, ``tool`` or ``span``.
        prompt: Input messages.
        answer: Output messages.
        finish_reason: Finish reason of the span, else of its last output message.
        error: Text of the error when the span's status is an error.
        skipped: Entries beside the messages that are not messages. Where an input or output has no
            message at all, it is shown as it came, and nothing is skipped.
    """

    otlp: Span
    attributes: dict[str, Json]
    kind: str
    prompt: list[Message]
    answer: list[Message]
    finish_reason: str | None
    error: str | None
    skipped: int

    def record(self) -> records.Span:
        """Return the record of this span.

        Inputs and outputs are messages, or arguments and result of a tool, else whatever the span
        calls its input and output; ``None`` without any. The span itself goes along as bytes, for
        trackers that take OTLP.
        """
        span = self.otlp
        attributes = self.attributes
        inputs: Json = None
        if self.prompt:
            inputs = [*self.prompt]
        outputs: Json = None
        if self.answer:
            outputs = [*self.answer]
        if self.kind == TOOL:
            inputs = parsed_json(_else(first_of(attributes, _ARGUMENTS), inputs))
            outputs = parsed_json(_else(first_of(attributes, _RESULTS), outputs))
        return records.Span(
            id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex() if not is_root(span) else None,
            name=span.name,
            kind=self.kind,
            start_unix_ns=span.start_time_unix_nano,
            end_unix_ns=end_of(span),
            attributes={
                key: value for key, value in attributes.items() if not is_content(key)
            },
            input=inputs if inputs is not None else first_of(attributes, _INPUTS),
            output=outputs if outputs is not None else first_of(attributes, _OUTPUTS),
            model=as_name(first_of(attributes, _MODELS)),
            input_tokens=as_int(first_of(attributes, _INPUT_TOKENS)),
            output_tokens=as_int(first_of(attributes, _OUTPUT_TOKENS)),
            error=self.error,
            otlp=span.SerializeToString(),
        )


def read_span(span: Span) -> SpanFacts:
    """Return the facts of *span*, its messages included.

    Never raises: a kind, message or number of another form is left out. Entries among the messages
    that are not messages are counted in `SpanFacts.skipped`.
    """
    attributes = mapping_of(span.attributes)
    kind = kind_of(span.name, attributes)
    prompt, answer = _chats(span, attributes, kind)
    messages = prompt.messages
    skipped = 0
    for chat in (prompt, answer):
        if chat.messages:
            skipped += chat.skipped
    system = system_message(attributes.get(semconv.GEN_AI_SYSTEM_INSTRUCTIONS))
    # The messages may begin with the instructions already.
    if system is not None and not (messages and messages[0].get("role") == "system"):
        messages = [system, *messages]
    return SpanFacts(
        otlp=span,
        attributes=attributes,
        kind=kind,
        prompt=messages,
        answer=answer.messages,
        finish_reason=finish_reason_of(attributes) or answer.finish_reason,
        error=error_of(span),
        skipped=skipped,
    )


def is_rollout(span: Span) -> bool:
    """Return whether *span* makes its trace a rollout.

    A call of a model or an agent by any convention, a span named ``rollout``, or one with a
    rollout's id. Tools and embeddings alone do not make one.
    """
    if span.name == semconv.ROLLOUT_SPAN:
        return True
    for pair in span.attributes:
        kinds = _ROLLOUTS.get(pair.key, ())
        if pair.key in _ALWAYS or pair.value.string_value.strip('"').lower() in kinds:
            return True
    return False


def is_bare(span: Span) -> bool:
    """Return whether *span* is an instrumentation's call of a named model, without any message.

    Such a rollout waits longer for log records, and `status` names the setting that records
    messages.
    """
    keys = keys_of(span.attributes)
    if (
        not keys.intersection(_KIND_KEYS)
        or keys.isdisjoint(_MODELS)
        or any(map(is_content, keys))
    ):
        return False
    attributes = {
        pair.key: pair.value.string_value or None
        for pair in span.attributes
        if pair.key in _KIND_KEYS
    }
    holds_messages = any(event.name.startswith("gen_ai.") for event in span.events)
    return kind_of(span.name, attributes) == GENERATION and not holds_messages


def end_of(span: Span) -> int:
    """Return the end of *span*, its start if it never ended: trackers refuse a negative duration."""
    return max(span.end_time_unix_nano, span.start_time_unix_nano)


def is_root(span: Span) -> bool:
    """Return whether *span* has no parent."""
    return span.parent_span_id in _NO_PARENT


def is_marked(span: Span) -> bool:
    """Return whether *span* is marked as a rollout, not merely as a call of a model."""
    if span.name == semconv.ROLLOUT_SPAN:
        return True
    return semconv.ROLLOUT_ID in keys_of(span.attributes)


def kind_of(name: str, attributes: Mapping[str, Json]) -> str:
    """Return ``generation``, ``tool`` or ``span``, by the operation, else by *name*.

    MLflow writes texts as JSON, in quotes. Names begin with the operation, as in ``chat <model>``,
    and a name of one word may be any function's.
    """
    for key, kinds in _KINDS:
        kind_name = attributes.get(key)
        if isinstance(kind_name, str):
            return kinds.get(kind_name.strip('"').lower(), SPAN)
    if " " in name:
        return _NAMED_KINDS.get(name.partition(" ")[0], SPAN)
    return SPAN


_NAMED_KINDS: Mapping[str, str] = {
    **dict(_KINDS)[semconv.GEN_AI_OPERATION],
    "llm": GENERATION,
    "tool": TOOL,
}
"""First word of a span's name to its kind, for spans that state no kind."""


def error_of(span: Span) -> str | None:
    """Return the text of a span's error, ``None`` when the status is not an error.

    Without a message in the status the last exception's type and text, else ``error``.
    """
    if span.status.code != Status.STATUS_CODE_ERROR:
        return None
    if span.status.message:
        return span.status.message
    for event in reversed(span.events):
        if event.name == "exception":
            details = mapping_of(event.attributes)
            kind = details.get("exception.type")
            message = details.get("exception.message")
            texts = [str(text) for text in (kind, message) if text]
            if texts:
                return ": ".join(texts)
    return "error"


def finish_reason_of(attributes: Mapping[str, Json]) -> str | None:
    """Return the last finish reason among *attributes*.

    ``None`` without one, or for an empty list.
    """
    reasons = parsed_json(first_of(attributes, _FINISH_REASONS))
    # The convention has one for each choice.
    if isinstance(reasons, list):
        reasons = reasons[-1] if reasons else None
    return as_name(reasons)


def first_of(attributes: Mapping[str, Json], keys: Iterable[str]) -> Json:
    """Return the value of the first of *keys* that is present.

    ``key#field`` is a field of a JSON object, absent when the object lacks it.

    ``None`` when none is present.
    """
    for key in keys:
        name, _, inner = key.partition("#")
        value = attributes.get(name)
        if inner:
            parsed = parsed_json(value)
            value = None
            if isinstance(parsed, dict):
                value = parsed.get(inner)
        if value is not None:
            return unquoted(value)
    return None


def unquoted(value: Json) -> Json:
    """Return the text of a JSON string, as MLflow writes every text.

    Return any other value unchanged.
    """
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return cast("Json", orjson.loads(value))
        except ValueError:
            return value
    return value


def tool_answer(span: SpanFacts) -> tuple[str, Json] | None:
    """Return the id of the call that a tool's span answers, and the result.

    ``None`` when the span names no call, for other kinds of spans, and without a result.
    """
    if span.kind != TOOL:
        return None
    call_id = as_name(first_of(span.attributes, _CALL_IDS))
    result = first_of(span.attributes, _RESULTS)
    if call_id is not None and result is not None:
        return (call_id, result)
    return None


def _else(value: Json, default: Json) -> Json:
    if value is None:
        return default
    return value


def _chats(span: Span, attributes: dict[str, Json], kind: str) -> tuple[Chat, Chat]:
    """Return input and output messages, from attributes, else from events, else by older conventions.

    Both are empty when the span has none. The first that has some is taken alone: a span may follow
    several conventions, with the same messages.
    """
    input_messages = attributes.get(semconv.GEN_AI_INPUT_MESSAGES)
    output_messages = attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES)
    if input_messages is not None or output_messages is not None:
        return read_chat(input_messages, "user"), read_chat(
            output_messages, "assistant"
        )
    if span.events:
        prompt, answer = chats_of_events(span.events)
        if prompt.messages or answer.messages:
            return prompt, answer
    # Older conventions use the same names for inputs of any span.
    if kind != GENERATION:
        return Chat(), Chat()
    for inputs, outputs in _FLAT:
        prompt = flattened_chat(attributes, inputs, "user")
        answer = flattened_chat(attributes, outputs, "assistant")
        if prompt.messages or answer.messages:
            return prompt, answer
    input_value = first_of(attributes, _INPUTS)
    listed = chats_of_listed(input_value)
    if listed is not None:
        return listed
    return read_chat(input_value, "user"), _answer_in(attributes)


def _answer_in(attributes: Mapping[str, Json]) -> Chat:
    """Return the messages of a span's output.

    Vercel's AI SDK puts reasoning, calls and files of the last message into attributes of their own.
    """
    answer = read_chat(first_of(attributes, _OUTPUTS), "assistant")
    beside: Message = {}
    reasoning = parsed_json(first_of(attributes, _REASONING))
    if reasoning:
        beside["reasoning"] = reasoning
    calls = parsed_json(first_of(attributes, _CALLS))
    if isinstance(calls, list) and calls:
        beside["tool_calls"] = calls
    files = parsed_json(first_of(attributes, _FILES))
    has_files = isinstance(files, list) and bool(files)
    if beside or has_files:
        message: Message = {"role": "assistant"}
        if answer.messages:
            message = answer.messages.pop()
        if has_files:
            text = message.get("content")
            beside["content"] = [*([text] if text else []), *cast("list[Json]", files)]
        answer.add({**message, **beside}, "assistant")
    return answer
