"""One OTLP span -> `records.Span`, and what a rollout takes from it.

Times stay nanoseconds, ids become hex digits. Pure; absurd values are passed over, never an exception.
Source: opentelemetry-proto ``trace.proto``; OpenTelemetry GenAI conventions 1.41.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_bridge import records, semconv
from otel_bridge.json_text import parsed_json
from otel_bridge.otlp_content import is_content
from otel_bridge.records import Json, Message
from otel_bridge.translation.attributes import mapping_of, value_of
from otel_bridge.translation.messages import Chat, flattened_chat, read_chat, system_message

GENERATION: Final = "generation"
TOOL: Final = "tool"
SPAN: Final = "span"
_KINDS: Final[Mapping[str, str]] = {
    "chat": GENERATION, "text_completion": GENERATION, "generate_content": GENERATION, "completion": GENERATION,
    "llm": GENERATION, "execute_tool": TOOL, "tool": TOOL,
}  # fmt: skip
_KIND_KEYS: Final = (semconv.GEN_AI_OPERATION, "openinference.span.kind", "llm.request.type", "traceloop.span.kind")
_INPUTS: Final = ("gen_ai.prompt", "input.value", "traceloop.entity.input", "ai.prompt")
_OUTPUTS: Final = ("gen_ai.completion", "output.value", "traceloop.entity.output", "ai.response.text")
_FLAT: Final = (
    ("gen_ai.prompt.", "gen_ai.completion."), ("llm.input_messages.", "llm.output_messages."),
)  # fmt: skip
_INPUT_TOKENS: Final = (semconv.GEN_AI_INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT_TOKENS: Final = (semconv.GEN_AI_OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_MODELS: Final = (semconv.GEN_AI_RESPONSE_MODEL, semconv.GEN_AI_REQUEST_MODEL, "llm.model_name")
_MAX_INT: Final = 1 << 63
_NO_PARENT: Final = frozenset({b"", bytes(8)})


@dataclass(slots=True)
class SpanFacts:
    """A span read once.

    Attributes:
        otlp: The span itself.
        attributes: All of them, content included.
        kind: ``generation``, ``tool`` or ``span``.
        prompt: Input messages.
        answer: Output messages.
        finish_reason: As the span, else its last output message says.
        error: The error's text when its status is an error.
        skipped: Entries among the messages that are no message.
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
        """Return the record of this span."""
        span, attributes = self.otlp, self.attributes
        given: Json = [*self.prompt] if self.prompt else None
        made: Json = [*self.answer] if self.answer else None
        if self.kind == TOOL:
            given = parsed_json(attributes.get(semconv.GEN_AI_TOOL_ARGUMENTS, given))
            made = parsed_json(attributes.get(semconv.GEN_AI_TOOL_RESULT, made))
        return records.Span(
            id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex() if not is_root(span) else None,
            name=span.name,
            kind=self.kind,
            start_unix_ns=span.start_time_unix_nano,
            end_unix_ns=max(span.end_time_unix_nano, span.start_time_unix_nano),
            attributes={key: value for key, value in attributes.items() if not is_content(key)},
            input=given if given is not None else first_of(attributes, _INPUTS),
            output=made if made is not None else first_of(attributes, _OUTPUTS),
            model=as_name(first_of(attributes, _MODELS)),
            input_tokens=as_int(first_of(attributes, _INPUT_TOKENS)),
            output_tokens=as_int(first_of(attributes, _OUTPUT_TOKENS)),
            error=self.error,
            otlp=span.SerializeToString(),
        )


def read_span(span: Span) -> SpanFacts:
    """Read *span* once, its messages included."""
    # The empty text is falsy, as every value that is no text reads: only those take the longer way.
    attributes = {pair.key: pair.value.string_value or value_of(pair.value) for pair in span.attributes}
    kind = kind_of(span.name, attributes)
    prompt, answer = _chats(span, attributes, kind)
    messages = prompt.messages
    system = system_message(attributes.get(semconv.GEN_AI_SYSTEM_INSTRUCTIONS))
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
        skipped=prompt.skipped + answer.skipped,
    )


def is_rollout(span: Span) -> bool:
    """Return whether *span* makes its trace a rollout."""
    if span.name == semconv.ROLLOUT_SPAN:
        return True
    return any(pair.key in {semconv.GEN_AI_OPERATION, semconv.ROLLOUT_ID} for pair in span.attributes)


def is_root(span: Span) -> bool:
    """Return whether *span* has no parent."""
    return span.parent_span_id in _NO_PARENT


def is_marked(span: Span) -> bool:
    """Return whether *span* says itself that it is a rollout, not merely a call of a model."""
    return span.name == semconv.ROLLOUT_SPAN or any(pair.key == semconv.ROLLOUT_ID for pair in span.attributes)


def kind_of(name: str, attributes: Mapping[str, Json]) -> str:
    """Return ``generation``, ``tool`` or ``span``, by the operation, else by the span's name."""
    for key in _KIND_KEYS:
        said = attributes.get(key)
        if isinstance(said, str):
            return _KINDS.get(said.lower(), SPAN)
    return _KINDS.get(name.partition(" ")[0], SPAN) if " " in name else SPAN


def error_of(span: Span) -> str | None:
    """Return the text of a span's error, ``None`` when its status is none."""
    if span.status.code != Status.STATUS_CODE_ERROR:
        return None
    if span.status.message:
        return span.status.message
    for event in reversed(span.events):
        if event.name == "exception":
            found = mapping_of(event.attributes)
            texts = [str(found[key]) for key in ("exception.type", "exception.message") if found.get(key)]
            if texts:
                return ": ".join(texts)
    return "error"


def finish_reason_of(attributes: Mapping[str, Json]) -> str | None:
    """Return the last finish reason that the attributes name."""
    reasons = parsed_json(attributes.get(semconv.GEN_AI_FINISH_REASONS))
    if isinstance(reasons, list):
        reasons = reasons[-1] if reasons else None
    return as_name(reasons)


def first_of(attributes: Mapping[str, Json], keys: Iterable[str]) -> Json:
    """Return the value of the first of *keys* that there is."""
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            return value
    return None


def as_int(value: Json) -> int | None:
    """Return a whole number of at most 64 bits, also from its text; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else None
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < _MAX_INT else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_MAX_INT <= value < _MAX_INT else None


def as_float(value: Json) -> float | None:
    """Return a number, also from its text; ``None`` for anything else. Non-finite ones stay."""
    if isinstance(value, (bool, int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    try:
        return float(value) if isinstance(value, str) and len(value) < 64 else None
    except ValueError:
        return None


def as_name(value: Json) -> str | None:
    """Return a text or a number as text; ``None`` for anything else, the empty text included."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _chats(span: Span, attributes: dict[str, Json], kind: str) -> tuple[Chat, Chat]:
    """Return input and output messages, from attributes, else from the events of older conventions."""
    given = attributes.get(semconv.GEN_AI_INPUT_MESSAGES)
    made = attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES)
    if given is None and made is None:
        for event in span.events:
            said = mapping_of(event.attributes)
            given = said.get(semconv.GEN_AI_INPUT_MESSAGES, given)
            made = said.get(semconv.GEN_AI_OUTPUT_MESSAGES, made)
    if given is not None or made is not None:
        return read_chat(given, "user"), read_chat(made, "assistant")
    if kind == GENERATION:
        for inputs, outputs in _FLAT:
            prompt, answer = (
                flattened_chat(attributes, inputs, "user"),
                flattened_chat(attributes, outputs, "assistant"),
            )
            if prompt.messages or answer.messages:
                return prompt, answer
        return (
            read_chat(first_of(attributes, _INPUTS), "user"),
            read_chat(first_of(attributes, _OUTPUTS), "assistant"),
        )
    return Chat(), Chat()
