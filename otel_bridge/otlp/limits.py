"""Truncation of texts in spans, log records and resources, in place, on OTLP messages: in whole or beyond a limit.

Only values of *known* names keep their text (`conventions.is_name`), because a value of an unknown name may be a
prompt. Numbers and booleans stay. Text is cut inside message parts and string values, never inside JSON, and a mark
states how much was cut. Each function returns the number of cut texts with unknown names. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    SummaryDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.conventions import is_content, is_name
from otel_bridge.conventions.general import RESOURCE_PREFIXES
from otel_bridge.conventions.registry import FREE_PREFIXES
from otel_bridge.otlp.content import NOT_TEXT
from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json

_Point: TypeAlias = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint
_MARK: Final = re.compile(r"… \[\+?([0-9]+) (?:more )?characters\]\Z")
"""Mark at the end of a text that was cut before."""
_MARK_CHARS: Final = 48
_MAX_NAME_CHARS: Final = 256
_NUMBERS: Final = frozenset({"bool_value", "int_value", "double_value", None})
_IDENTIFIER: Final = re.compile(r"[\w.:/<>()\[\]{}#@+*-]{1,64}")
_SPAN_WORDS: Final = frozenset({
    "agent", "call", "chat", "completion", "create_agent", "DELETE", "embeddings", "execute_task", "execute_tool",
    "generate_content", "GET", "HTTP", "invoke_agent", "invoke_workflow", "model", "POST", "PUT", "retrieval", "run",
    "running", "step", "text_completion", "tool", "tools", "train",
})  # fmt: skip
"""Words of span names from conventions and instrumentations, not from a prompt."""
_NO_NAME: Final = "span"


def limit_span(span: Span, limit: int, *, everything: bool = False) -> int:
    """Cut the texts of *span* to *limit* characters each.

    Args:
        span: The span.
        limit: Most characters; 0: no text stays.
        everything: Whether values of known names are cut too.

    Returns:
        The number of cut texts with unknown names.
    """
    _limit_name(span, limit)
    unknown = limit_attributes(span.attributes, limit, everything=everything)
    parts: list[Span.Event | Span.Link] = [*span.events, *span.links]
    for part in parts:
        unknown += limit_attributes(part.attributes, limit, everything=everything)
    for event in span.events:
        if not _is_identifier(event.name):
            event.name = cut(event.name, limit) or "event"
    if len(span.status.message) > limit:
        span.status.message = cut(span.status.message, limit)
    return unknown


def limit_log(record: LogRecord, limit: int) -> int:
    """Cut the texts of *record* as `limit_span` does.

    The body of an event is content. The text of a program's log line is not and stays, but its attributes are cut.
    """
    unknown = limit_attributes(record.attributes, limit)
    if _is_event_of_others(record):
        limit_value(record.body, limit)
    if not limit:
        for pair in record.attributes:
            if pair.key == semconv.EVALUATION_LABEL:  # an evaluation needs a number or a label
                pair.value.string_value = ""
    return unknown


def _is_event_of_others(record: LogRecord) -> bool:
    named = (pair.value.string_value for pair in record.attributes if pair.key == semconv.EVENT_NAME)
    name = record.event_name or next(named, "")
    return bool(name) and not name.startswith("rl.")


def limit_metric(metric: Metric) -> int:
    """Replace each text among the attributes of a metric's points by a hash, so that the series stay distinct.

    Names of conventions and single words stay, because they distinguish the series.
    """
    kind = metric.WhichOneof("data")
    points: Iterable[_Point] = () if kind is None else getattr(metric, kind).data_points
    unknown = 0
    for point in points:
        for pair in point.attributes:
            text = pair.value.string_value
            nested = pair.value.WhichOneof("value") in {"array_value", "kvlist_value", "bytes_value"}
            named = is_name(pair.key) and _is_name_value(pair.value)
            if named or not (text or nested) or (not nested and _is_identifier(text)):
                continue
            pair.value.string_value = (
                f"text-{hashlib.blake2b(pair.value.SerializeToString(), digest_size=4).hexdigest()}"
            )
            unknown += 1
    return unknown


def limit_resource(attributes: Sequence[KeyValue], limit: int) -> int:
    """Cut the texts of a resource's *attributes*, except those that describe a process and its place."""
    if all(pair.key.startswith(RESOURCE_PREFIXES) for pair in attributes):
        return 0
    return limit_attributes(attributes, limit, known=RESOURCE_PREFIXES)


def limit_attributes(
    attributes: Sequence[KeyValue], limit: int, *, everything: bool = False, known: tuple[str, ...] = ()
) -> int:
    """Cut *attributes* as `limit_span` does; names that begin with one of *known* are known too."""
    texts = [pair for pair in attributes if not _stays(pair, known)]
    if limit:
        for pair in attributes if everything else texts:
            limit_value(pair.value, limit)
            if not _is_plain(pair.key):
                pair.key = cut(pair.key, limit)
    elif texts:
        _replace(attributes, [pair for pair in attributes if _stays(pair, known)])
    return sum(1 for pair in texts if not is_content(pair.key) and not pair.key.startswith(FREE_PREFIXES))


def _stays(pair: KeyValue, known: tuple[str, ...]) -> bool:
    """Return whether an attribute stays without a limit, as numbers and names do."""
    key, value = pair.key, pair.value
    kind = value.WhichOneof("value")
    if key == semconv.EVALUATION_LABEL:
        return True
    if is_content(key):
        return False
    if kind in _NUMBERS:
        return _is_plain(key)
    return (is_name(key) or key.startswith(known or ("\0",))) and _is_name_value(value)


def _is_plain(key: str) -> bool:
    """Return whether *key* can be an attribute's name; names of otel-bridge may hold a user's name of a reward."""
    return _is_identifier(key) or (len(key) <= _MAX_NAME_CHARS and key.startswith("rl."))


def _is_name_value(value: AnyValue) -> bool:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return len(value.string_value) <= _MAX_NAME_CHARS and "\n" not in value.string_value
    if kind == "array_value":
        return all(_is_name_value(entry) for entry in value.array_value.values)
    return kind in _NUMBERS


def _is_identifier(text: str) -> bool:
    return _IDENTIFIER.fullmatch(text) is not None


def _limit_name(span: Span, limit: int) -> None:
    """Keep a span's name only when it is an identifier, or has words of conventions and of its attributes."""
    if _is_identifier(span.name) or len(span.name) <= limit:
        return
    named = {
        word
        for pair in span.attributes
        if is_name(pair.key) and _is_name_value(pair.value)
        for word in pair.value.string_value.strip('"').split()
    }
    first, *others = span.name.split() or [""]
    if len(others) == 1 and first in _SPAN_WORDS and _is_identifier(others[0]):
        return  # ``chat gpt-x``, ``execute_tool search``
    if len(span.name) <= _MAX_NAME_CHARS and all(word in _SPAN_WORDS or word in named for word in (first, *others)):
        return
    span.name = cut(span.name, limit) or _operation(span.attributes) or _NO_NAME


def _operation(attributes: Iterable[KeyValue]) -> str:
    operations = (pair.value.string_value for pair in attributes if pair.key == semconv.GEN_AI_OPERATION)
    operation = next(operations, "")
    return operation if _is_identifier(operation) else ""


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
            if not _is_identifier(pair.key):
                pair.key = cut(pair.key, limit)
            if pair.key not in NOT_TEXT or not _is_identifier(pair.value.string_value):
                limit_value(pair.value, limit)


# --- one text ---------------------------------------------------------------------------------------------------------
def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters and a mark; JSON stays JSON, its strings are cut.

    For a text that was cut before, the mark counts all missing characters.
    """
    if len(text) <= limit:
        return text
    if not limit:
        return ""
    parsed = parsed_json(text)
    if isinstance(parsed, (list, dict)):
        return as_text(cut_json(parsed, limit))
    if text.startswith("data:"):  # half an image is useless
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
            key if _is_identifier(key) else cut(key, limit): _cut_field(key, entry, limit, blob=blob)
            for key, entry in value.items()
        }
    return value


def _cut_field(key: str, value: Json, limit: int, *, blob: bool) -> Json:
    if key in NOT_TEXT and isinstance(value, str) and _is_identifier(value):
        return value
    return _cut_blob(value, limit) if blob else cut_json(value, limit)


def _cut_blob(value: Json, limit: int) -> Json:
    return f"[{len(value)} characters left out]" if isinstance(value, str) and len(value) > limit else value
