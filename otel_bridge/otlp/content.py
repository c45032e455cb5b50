"""Redaction of secrets in spans and log records, in place, on OTLP messages. `otlp.limits` truncates texts.

Used before the segment, where a process appends records of its SDK, and at translation, for producers that apply no
policy themselves. What counts as a secret is in `otel_bridge.text.secret_patterns`. Pure, except for
`ContentRules.text_filter`, which may be the user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.conventions import is_content
from otel_bridge.conventions.registry import FREE_PREFIXES
from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import (
    REDACTED,
    SECRETS_ONLY,
    Redaction,
    may_name_secret,
    names_of,
    scrubbed,
    secret_by_name,
)

Limit: TypeAlias = int | None
"""Most characters of a text; 0: no content at all; ``None``: no limit."""

_ERRORS: Final = frozenset({"exception.message", "exception.stacktrace"})
_NAMES: Final = (
    "agentlightning.", "ai.", "code.", "exception.", "gen_ai.", "llm.", "network.", "openinference.", "otel.", "rl.",
    "server.", "service.", "telemetry.", "thread.", "traceloop.",
)  # fmt: skip
"""Prefixes of attributes that hold names, ids and kinds, except for attributes that are content."""
NOT_TEXT: Final = frozenset({
    "type", "role", "id", "name", "mime_type", "modality", "finish_reason", "tool_call_id", "file_id",
})  # fmt: skip
"""Fields of a message and its parts that hold names, not text."""
_GEN_AI: Final = "gen_ai."


@dataclass(frozen=True, slots=True)
class ContentRules:
    """Holds rules for texts that leave.

    Attributes:
        limit: Longest text of a model's input or output, of errors and of free facts.
        redaction: Redaction of errors and of all other attributes.
        text_filter: Function for each text of a model's input or output, and for other texts that no convention names;
            ``None``: `redaction` alone.
    """

    limit: Limit = None
    redaction: Redaction = SECRETS_ONLY
    text_filter: Callable[[str], str] | None = None

    def content(self, text: str) -> str:
        """Return *text*, a text of a model's input or output, after the rules."""
        return self.redaction.text(text) if self.text_filter is None else self.text_filter(text)

    def fact(self, text: str, key: str = "") -> str:
        """Return *text*, of another attribute, an error or a log line, after the rules."""
        redacted = self.redaction.value(text, key)
        if self.text_filter is None or not isinstance(redacted, str):
            return str(redacted)
        return redacted if key.startswith(_NAMES) and not _is_free(key) else self.text_filter(redacted)


def limit_of(message_content: str) -> Limit:
    """Return the limit that ``full``, ``off`` or ``truncate:N`` means."""
    if message_content == "off":
        return 0
    _, _, number = message_content.partition(":")
    return int(number) if number.isdigit() else None


@lru_cache(maxsize=4096)
def is_message(key: str) -> bool:
    """Return whether the attribute *key* holds content that is not an error's text."""
    return is_content(key) and key not in _ERRORS


@lru_cache(maxsize=4096)
def _is_free(key: str) -> bool:
    return key in _ERRORS or key.startswith(FREE_PREFIXES)


# --- redaction --------------------------------------------------------------------------------------------------------
def redact_span(span: Span, rules: ContentRules) -> bool:
    """Redact *span* in place; JSON stays JSON. Return whether anything was redacted."""
    parts: list[Span | Span.Event | Span.Link] = [span, *span.events, *span.links]
    found = [redact_attributes(part.attributes, rules) for part in parts]
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


def redact_log(record: LogRecord, rules: ContentRules) -> bool:
    """Redact *record* in place; JSON stays JSON. Return whether anything was redacted."""
    key = semconv.GEN_AI_INPUT_MESSAGES if is_gen_ai(record) else ""
    found = _redact_value(record.body, key, rules) if record.HasField("body") else False
    return redact_attributes(record.attributes, rules) or found


def redact_attributes(attributes: Iterable[KeyValue], rules: ContentRules) -> bool:
    """Redact *attributes* in place. Return whether anything was redacted."""
    return _any([_redact_value(pair.value, pair.key, rules) for pair in attributes])


def _redact_value(value: AnyValue, key: str, rules: ContentRules, *, inner: str = "", whole: bool = False) -> bool:
    """Redact one value in place; return whether anything was redacted.

    Args:
        value: The value.
        key: The attribute that holds the value.
        rules: Rules for texts.
        inner: Name of the value within the attribute.
        whole: Whether the value is below the name of a secret.
    """
    kind, name = value.WhichOneof("value"), inner or key
    if kind == "string_value":
        before = value.string_value
        after = REDACTED if whole and before else _redacted_text(before, key, inner, rules)
        if after != before:
            value.string_value = after
        return after != before
    if kind == "array_value":
        entries = value.array_value.values
        names = names_of([entry.string_value for entry in entries], name)
        pairs = zip(entries, names, strict=True)
        return _any([_redact_value(entry, key, rules, inner=own, whole=whole) for entry, own in pairs])
    if kind == "kvlist_value":
        secret = whole or (rules.redaction.secrets and secret_by_name(name, "x"))
        return _any([_redact_pair(pair, key, rules, whole=secret) for pair in value.kvlist_value.values])
    if kind == "bytes_value" and (whole or (rules.redaction.secrets and secret_by_name(name, value.bytes_value.hex()))):
        value.string_value = REDACTED
        return True
    return False


def _any(found: list[bool]) -> bool:
    """Return whether any result is true; the list ensures that every result was computed."""
    return any(found)


def _redact_pair(pair: KeyValue, key: str, rules: ContentRules, *, whole: bool) -> bool:
    found = _redact_value(pair.value, key, rules, inner=pair.key, whole=whole)
    name = rules.redaction.text(pair.key)
    if name != pair.key:
        pair.key = name
        return True
    return found


def _redacted_text(text: str, key: str, inner: str, rules: ContentRules) -> str:
    if not is_message(key):
        return rules.fact(text, inner or key)
    if inner in NOT_TEXT:
        return rules.redaction.text(text)
    if rules.redaction.secrets and inner and secret_by_name(inner, text):
        return REDACTED
    if rules.text_filter is None and rules.content(text) == text and not _may_name(text, rules):
        return text
    parsed = parsed_json(text)
    if not isinstance(parsed, (list, dict)):
        return rules.content(text)
    filtered = _filtered_json(parsed, rules)
    redacted = scrubbed(filtered, shapes=False) if rules.redaction.secrets else filtered
    return text if redacted == parsed else as_text(redacted)


def _may_name(text: str, rules: ContentRules) -> bool:
    return rules.redaction.secrets and may_name_secret(text.encode("utf-8", "replace"))


def _filtered_json(value: Json, rules: ContentRules) -> Json:
    """Return *value* with the rules applied to each text; names, ids and types stay, except for secrets."""
    if isinstance(value, str):
        return rules.content(value)
    if isinstance(value, list):
        return [_filtered_json(entry, rules) for entry in value]
    if isinstance(value, dict):
        return {
            rules.redaction.text(key): rules.redaction.text(entry)
            if key in NOT_TEXT and isinstance(entry, str)
            else _filtered_json(entry, rules)
            for key, entry in value.items()
        }
    return value


def is_gen_ai(record: LogRecord) -> bool:
    """Return whether *record* is an event of the GenAI conventions."""
    if record.event_name:
        return record.event_name.startswith(_GEN_AI)
    named = (pair.value.string_value for pair in record.attributes if pair.key == "event.name")
    return next(named, "").startswith(_GEN_AI)
