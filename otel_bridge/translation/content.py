"""The content policy for producers that do not apply one, and the size limit of a rollout.

Text is cut inside message parts and string values, never inside JSON, and a mark says how much is gone. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.redaction import STRUCK_OUT, Redaction
from otel_bridge.translation.attributes import value_of
from otel_bridge.translation.messages import as_text, parsed_json

Limit: TypeAlias = int | None
"""Characters a text may have; 0: no content at all; ``None``: no limit."""

_CONTENT_KEYS: Final = frozenset({
    semconv.GEN_AI_INPUT_MESSAGES, semconv.GEN_AI_OUTPUT_MESSAGES, semconv.GEN_AI_SYSTEM_INSTRUCTIONS,
    semconv.GEN_AI_TOOL_ARGUMENTS, semconv.GEN_AI_TOOL_RESULT, "gen_ai.tool.definitions", "gen_ai.prompt",
    "gen_ai.completion", "input.value", "output.value", "traceloop.entity.input", "traceloop.entity.output",
    "exception.message", "exception.stacktrace", semconv.EVALUATION_EXPLANATION,
})  # fmt: skip
_CONTENT_PREFIXES: Final = (
    "gen_ai.prompt.", "gen_ai.completion.", "llm.input_messages.", "llm.output_messages.", "llm.prompts", "llm.tools.",
    "ai.prompt", "ai.response.text", "ai.toolCall.args", "ai.toolCall.result", "gen_ai.event.content",
)  # fmt: skip
_NOT_TEXT: Final = frozenset({
    "type", "role", "id", "name", "mime_type", "modality", "finish_reason", "tool_call_id", "file_id",
})  # fmt: skip
_SIZES: Final = (1 << 16, 1 << 14, 1 << 12, 1 << 10, 256, 64)


def limit_of(message_content: str) -> Limit:
    """Return the limit that ``full``, ``off`` or ``truncate:N`` stands for."""
    if message_content == "off":
        return 0
    _, _, number = message_content.partition(":")
    return int(number) if number.isdigit() else None


@lru_cache(maxsize=4096)
def is_content(key: str) -> bool:
    """Return whether the attribute *key* holds what a model read or wrote."""
    return key in _CONTENT_KEYS or key.startswith(_CONTENT_PREFIXES)


def limited(span: Span, limit: int) -> Span:
    """Return a copy of *span* whose content has at most *limit* characters a text; 0: none."""
    copy = Span.FromString(span.SerializeToString())
    _limit_fields(copy, limit, everything=False)
    return copy


def redacted(span: Span, redaction: Redaction) -> Span:
    """Return *span* without what *redaction* strikes out, or itself when it has none of it; JSON stays JSON."""
    copy = Span.FromString(span.SerializeToString())
    parts: list[Span | Span.Event | Span.Link] = [copy, *copy.events, *copy.links]
    found = [_redact_pair(pair, redaction) for part in parts for pair in part.attributes]
    message = redaction.text(copy.status.message)
    if message != copy.status.message:
        copy.status.message = message
        found.append(True)
    return copy if any(found) else span


def _redact_pair(pair: KeyValue, redaction: Redaction) -> bool:
    """Strike out of one attribute; say whether there was anything."""
    before = value_of(pair.value)
    after = _struck_text(pair.key, before, redaction) if isinstance(before, str) else redaction.value(before, pair.key)
    if after == before:
        return False
    _put(pair.value, after, redaction)
    return True


def _struck_text(key: str, text: str, redaction: Redaction) -> str:
    struck = redaction.value(text, "" if is_content(key) else key)
    if struck == text:
        return text
    parsed = parsed_json(text)
    return as_text(redaction.value(parsed)) if isinstance(parsed, (list, dict)) else str(struck)


def _put(value: AnyValue, given: Json, redaction: Redaction) -> None:
    """Give *value* the texts of *given*, which has the same shape."""
    if isinstance(given, str):
        if value.WhichOneof("value") == "string_value" or given == STRUCK_OUT:  # bytes are shown as hex digits
            value.string_value = given
    elif isinstance(given, list):
        for entry, item in zip(value.array_value.values, given, strict=True):
            _put(entry, item, redaction)
    elif isinstance(given, dict):
        for pair in value.kvlist_value.values:
            _put(pair.value, given.get(redaction.text(pair.key)), redaction)


def shrunk(spans: Sequence[Span], limit_bytes: int) -> tuple[list[Span], int]:
    """Cut a rollout to about *limit_bytes*: first long texts, then all content, then its last spans.

    Returns:
        The spans as they stay, and how many bytes were cut; as they came and 0 when they are small enough.
    """
    sizes = [span.ByteSize() for span in spans]
    total = sum(sizes)
    if total <= limit_bytes:
        return list(spans), 0
    kept = [Span.FromString(span.SerializeToString()) for span in spans]
    for limit in _SIZES:
        for index, span in enumerate(kept):
            if sizes[index] > limit:
                _limit_fields(span, limit, everything=True)
        if sum(span.ByteSize() for span in kept) <= limit_bytes:
            break
    else:
        room = limit_bytes
        for index, span in enumerate(kept):
            room -= span.ByteSize()
            if room < 0 and index:
                del kept[index:]
                break
    return kept, total - sum(span.ByteSize() for span in kept)


def _limit_fields(span: Span, limit: int, *, everything: bool) -> None:
    _limit_attributes(span.attributes, limit, everything)
    for event in span.events:
        _limit_attributes(event.attributes, limit, everything)
    if everything:
        for link in span.links:
            _limit_attributes(link.attributes, limit, everything)
    if len(span.status.message) > limit:
        span.status.message = cut(span.status.message, limit)


def _limit_attributes(attributes: Sequence[KeyValue], limit: int, everything: bool) -> None:
    if not limit:
        kept = [pair for pair in attributes if not is_content(pair.key)]
        if len(kept) < len(attributes):
            _replace(attributes, kept)
        return
    for pair in attributes:
        if everything or is_content(pair.key):
            limit_value(pair.value, limit)


def _replace(attributes: Sequence[KeyValue], kept: list[KeyValue]) -> None:
    copies = [KeyValue.FromString(pair.SerializeToString()) for pair in kept]
    del attributes[:]  # type: ignore[attr-defined]  # a repeated field, whose stub differs between protobuf versions
    attributes.extend(copies)  # type: ignore[attr-defined]  # as above


def limit_value(value: AnyValue, limit: int) -> None:
    """Cut the texts in *value* to *limit* characters, in place."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        if len(value.string_value) > limit:
            value.string_value = cut(value.string_value, limit)
    elif kind == "bytes_value":
        value.bytes_value = value.bytes_value[:limit]
    elif kind == "array_value":
        for entry in value.array_value.values:
            limit_value(entry, limit)
    elif kind == "kvlist_value":
        for pair in value.kvlist_value.values:
            if pair.key not in _NOT_TEXT:
                limit_value(pair.value, limit)


def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters and a mark; JSON stays JSON, its strings are cut."""
    if len(text) <= limit:
        return text
    if not limit:
        return ""
    parsed = parsed_json(text)
    if isinstance(parsed, (list, dict)):
        return as_text(cut_json(parsed, limit))
    if text.startswith("data:"):  # half an image is none
        return f"[{len(text)} characters left out]"
    return f"{text[:limit]}… [+{len(text) - limit} characters]"


def cut_json(value: Json, limit: int) -> Json:
    """Return *value* with each of its texts cut to *limit* characters; names, ids and types stay."""
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, list):
        return [cut_json(entry, limit) for entry in value]
    if isinstance(value, dict):
        blob = value.get("type") == "blob"
        return {
            key: entry if key in _NOT_TEXT else _cut_blob(entry, limit) if blob else cut_json(entry, limit)
            for key, entry in value.items()
        }
    return value


def _cut_blob(value: Json, limit: int) -> Json:
    return f"[{len(value)} characters left out]" if isinstance(value, str) and len(value) > limit else value
