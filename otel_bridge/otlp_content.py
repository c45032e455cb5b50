"""What of a span or a log record may leave: secrets struck out, texts cut or left out. In place, on OTLP messages.

Used where a process appends what its SDK made, before the segment, and at translation for producers that apply nothing
themselves. Text is cut inside message parts and string values, never inside JSON, and a mark says how much is gone.
Pure but for `Rules.said`, which may be the user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.json_text import as_text, parsed_json
from otel_bridge.records import Json
from otel_bridge.redaction import (
    SECRETS_ONLY,
    STRUCK_OUT,
    Redaction,
    may_name_secret,
    names_of,
    scrubbed,
    secret_by_name,
)

Limit: TypeAlias = int | None
"""Characters a text may have; 0: no content at all; ``None``: no limit."""

_ERRORS: Final = frozenset({"exception.message", "exception.stacktrace"})
_CONTENT_KEYS: Final = frozenset({
    semconv.GEN_AI_INPUT_MESSAGES, semconv.GEN_AI_OUTPUT_MESSAGES, semconv.GEN_AI_SYSTEM_INSTRUCTIONS,
    semconv.GEN_AI_TOOL_ARGUMENTS, semconv.GEN_AI_TOOL_RESULT, "gen_ai.tool.definitions", "gen_ai.prompt",
    "gen_ai.completion", "input.value", "output.value", "traceloop.entity.input", "traceloop.entity.output",
    semconv.EVALUATION_EXPLANATION, *_ERRORS,
})  # fmt: skip
_CONTENT_PREFIXES: Final = (
    "gen_ai.prompt.", "gen_ai.completion.", "llm.input_messages.", "llm.output_messages.", "llm.prompts", "llm.tools.",
    "ai.prompt", "ai.response.text", "ai.toolCall.args", "ai.toolCall.result", "gen_ai.event.content",
)  # fmt: skip
_FREE: Final = (semconv.METADATA_PREFIX, semconv.TOOL_PREFIX)
_NAMES: Final = (
    "agentlightning.", "ai.", "code.", "exception.", "gen_ai.", "llm.", "network.", "openinference.", "otel.", "rl.",
    "server.", "service.", "telemetry.", "thread.", "traceloop.",
)  # fmt: skip
"""Below these stand names, ids and kinds, but for what is content."""
_NOT_TEXT: Final = frozenset({
    "type", "role", "id", "name", "mime_type", "modality", "finish_reason", "tool_call_id", "file_id",
})  # fmt: skip
_GEN_AI: Final = "gen_ai."
_MARK: Final = re.compile(r"… \[\+?([0-9]+) (?:more )?characters\]\Z")
"""Behind a text that was cut before."""
_MARK_CHARS: Final = 48


@dataclass(frozen=True, slots=True)
class Rules:
    """What may leave.

    Attributes:
        limit: Longest text of what a model read or wrote, of errors and of free facts.
        redaction: What is struck out of the other attributes, and of errors.
        said: Applied to each text of what a model read or wrote, and to other texts that are no names of a convention;
            ``None``: `redaction` alone.
    """

    limit: Limit = None
    redaction: Redaction = SECRETS_ONLY
    said: Callable[[str], str] | None = None

    def content(self, text: str) -> str:
        """Return one text of what a model read or wrote."""
        return self.redaction.text(text) if self.said is None else self.said(text)

    def fact(self, text: str, key: str = "") -> str:
        """Return the text of another attribute, an error's or a log line."""
        struck = self.redaction.value(text, key)
        if self.said is None or not isinstance(struck, str):
            return str(struck)
        return struck if key.startswith(_NAMES) and not _is_free(key) else self.said(struck)


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


@lru_cache(maxsize=4096)
def is_message(key: str) -> bool:
    """Return whether the attribute *key* holds content that is no error's text."""
    return is_content(key) and key not in _ERRORS


@lru_cache(maxsize=4096)
def _is_free(key: str) -> bool:
    return key in _ERRORS or key.startswith(_FREE)


# --- what is struck out -----------------------------------------------------------------------------------------------
def strike_span(span: Span, rules: Rules) -> bool:
    """Strike out of *span*, in place; JSON stays JSON. Return whether there was anything."""
    parts: list[Span | Span.Event | Span.Link] = [span, *span.events, *span.links]
    found = [strike_attributes(part.attributes, rules) for part in parts]
    titled: list[Span | Span.Event] = [span, *span.events]
    for named in titled:
        name = rules.redaction.text(named.name)
        if name != named.name:
            named.name = name
            found.append(True)
    message = rules.fact(span.status.message)
    if message != span.status.message:
        span.status.message = message
        found.append(True)
    return any(found)


def strike_log(record: LogRecord, rules: Rules) -> bool:
    """Strike out of *record*, in place; JSON stays JSON. Return whether there was anything."""
    key = semconv.GEN_AI_INPUT_MESSAGES if is_gen_ai(record) else ""
    found = _strike(record.body, key, rules) if record.HasField("body") else False
    return strike_attributes(record.attributes, rules) or found


def strike_attributes(attributes: Iterable[KeyValue], rules: Rules) -> bool:
    """Strike out of *attributes*, in place. Return whether there was anything."""
    return _any([_strike(pair.value, pair.key, rules) for pair in attributes])


def _strike(value: AnyValue, key: str, rules: Rules, *, inner: str = "", whole: bool = False) -> bool:
    """Strike out of one value.

    Args:
        value: The value.
        key: The attribute it belongs to.
        rules: What may leave.
        inner: Its own name within that.
        whole: It stands below the name of a secret.
    """
    kind, name = value.WhichOneof("value"), inner or key
    if kind == "string_value":
        before = value.string_value
        after = STRUCK_OUT if whole and before else _struck_text(before, key, inner, rules)
        if after != before:
            value.string_value = after
        return after != before
    if kind == "array_value":
        entries = value.array_value.values
        names = names_of([entry.string_value for entry in entries], name)
        pairs = zip(entries, names, strict=True)
        return _any([_strike(entry, key, rules, inner=own, whole=whole) for entry, own in pairs])
    if kind == "kvlist_value":
        secret = whole or (rules.redaction.secrets and secret_by_name(name, "x"))
        return _any([_strike_pair(pair, key, rules, whole=secret) for pair in value.kvlist_value.values])
    if kind == "bytes_value" and (whole or (rules.redaction.secrets and secret_by_name(name, value.bytes_value.hex()))):
        value.string_value = STRUCK_OUT
        return True
    return False


def _any(found: list[bool]) -> bool:
    """Tell whether any is true; each was made, which a generator would not do."""
    return any(found)


def _strike_pair(pair: KeyValue, key: str, rules: Rules, *, whole: bool) -> bool:
    found = _strike(pair.value, key, rules, inner=pair.key, whole=whole)
    name = rules.redaction.text(pair.key)
    if name != pair.key:
        pair.key = name
        return True
    return found


def _struck_text(text: str, key: str, inner: str, rules: Rules) -> str:
    if not is_message(key):
        return rules.fact(text, inner or key)
    if inner in _NOT_TEXT:
        return rules.redaction.text(text)
    if rules.redaction.secrets and inner and secret_by_name(inner, text):
        return STRUCK_OUT
    if rules.said is None and rules.content(text) == text and not _may_name(text, rules):
        return text
    parsed = parsed_json(text)
    if not isinstance(parsed, (list, dict)):
        return rules.content(text)
    said = _said_json(parsed, rules)
    struck = scrubbed(said, shapes=False) if rules.redaction.secrets else said
    return text if struck == parsed else as_text(struck)


def _may_name(text: str, rules: Rules) -> bool:
    return rules.redaction.secrets and may_name_secret(text.encode("utf-8", "replace"))


def _said_json(value: Json, rules: Rules) -> Json:
    """Return *value* with each of its texts as it may leave; names, ids and types stay but for secrets."""
    if isinstance(value, str):
        return rules.content(value)
    if isinstance(value, list):
        return [_said_json(entry, rules) for entry in value]
    if isinstance(value, dict):
        return {
            rules.redaction.text(key): rules.redaction.text(entry)
            if key in _NOT_TEXT and isinstance(entry, str)
            else _said_json(entry, rules)
            for key, entry in value.items()
        }
    return value


# --- what is cut ------------------------------------------------------------------------------------------------------
def limit_span(span: Span, limit: int, *, everything: bool = False) -> None:
    """Cut the content of *span* to *limit* characters a text, in place; 0: none stays.

    Args:
        span: The span.
        limit: Characters.
        everything: Also texts that are no content.
    """
    limit_attributes(span.attributes, limit, everything=everything)
    for event in span.events:
        limit_attributes(event.attributes, limit, everything=everything)
    if everything:
        for link in span.links:
            limit_attributes(link.attributes, limit, everything=True)
    if len(span.status.message) > limit:
        span.status.message = cut(span.status.message, limit)


def limit_log(record: LogRecord, limit: int) -> None:
    """Cut the content of *record* as `limit_span` does; the body of an event of the GenAI conventions is content."""
    limit_attributes(record.attributes, limit)
    if is_gen_ai(record):
        limit_value(record.body, limit)
    if not limit:
        for pair in record.attributes:
            if pair.key == semconv.EVALUATION_LABEL:  # a value without number and label would be none
                pair.value.string_value = ""


def is_gen_ai(record: LogRecord) -> bool:
    """Tell whether *record* is an event of the GenAI conventions."""
    if record.event_name:
        return record.event_name.startswith(_GEN_AI)
    named = (pair.value.string_value for pair in record.attributes if pair.key == "event.name")
    return next(named, "").startswith(_GEN_AI)


def limit_attributes(attributes: Sequence[KeyValue], limit: int, *, everything: bool = False) -> None:
    """Cut *attributes* in place, as `limit_span` does."""
    if not limit:
        kept = [pair for pair in attributes if not is_content(pair.key) and _is_number_or_name(pair)]
        if len(kept) < len(attributes):
            _replace(attributes, kept)
        return
    for pair in attributes:
        if everything or is_content(pair.key) or pair.key.startswith(_FREE):
            limit_value(pair.value, limit)


def _is_number_or_name(pair: KeyValue) -> bool:
    numbers = {"bool_value", "int_value", "double_value"}
    return not pair.key.startswith(_FREE) or pair.value.WhichOneof("value") in numbers


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
    """Return *text* with at most *limit* characters and a mark; JSON stays JSON, its strings are cut.

    What was cut before is cut as the whole that it was.
    """
    if len(text) <= limit:
        return text
    if not limit:
        return ""
    parsed = parsed_json(text)
    if isinstance(parsed, (list, dict)):
        return as_text(cut_json(parsed, limit))
    if text.startswith("data:"):  # half an image is none
        return f"[{len(text)} characters left out]"
    mark = _MARK.search(text, max(len(text) - _MARK_CHARS, 0))
    size = len(text) if mark is None else mark.start()
    if size <= limit:
        return text
    return f"{text[:limit]}… [+{size - limit + (int(mark[1]) if mark else 0)} characters]"


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
