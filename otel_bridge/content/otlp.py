"""The policy on OTLP: spans, log records, resources and metrics, in place.

Used before the segment, where a process appends records of its SDK, and at translation, for
producers that apply no policy themselves. Below ``full`` only names keep their text; numbers and
booleans stay. Each function returns the number of texts with unknown names of which less leaves.
Pure, except for the user's own function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ScopeMetrics,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.content.policy import ContentPolicy, TextKind, kind_of
from otel_bridge.content.truncation import NOT_TEXT, cut, is_identifier
from otel_bridge.conventions import is_name
from otel_bridge.conventions.general import RESOURCE_PREFIXES
from otel_bridge.conventions.registry import SPAN_WORDS
from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.text.secret_patterns import (
    REDACTED,
    names_of,
    scrubbed,
    secret_by_name,
)

Scope: TypeAlias = ScopeSpans | ScopeLogs | ScopeMetrics
_Point: TypeAlias = (
    NumberDataPoint
    | HistogramDataPoint
    | ExponentialHistogramDataPoint
    | SummaryDataPoint
)
_MAX_NAME_CHARS = 256
_NUMBERS = frozenset({"bool_value", "int_value", "double_value", None})
_NO_NAME = "span"
_CONTENT_FIELDS = frozenset({"arguments", "content", "response", "result"})
"""Fields of a message and its parts that hold content in any form."""


def apply_to_scope(scope: Scope, policy: ContentPolicy) -> int:
    """Apply *policy* to the attributes of *scope*, and to each span, log record or metric of it.

    Return the number of texts of which less leaves.
    """
    texts = apply_to_attributes(scope.scope.attributes, policy)
    if isinstance(scope, ScopeSpans):
        return texts + sum(apply_to_span(span, policy) for span in scope.spans)
    if isinstance(scope, ScopeLogs):
        return texts + sum(apply_to_log(record, policy) for record in scope.log_records)
    # Attributes of metrics distinguish series: they are hashed below a limit, never cut.
    if policy.limit is None:
        return texts
    return texts + sum(map(hash_texts, scope.metrics))


def apply_to_span(
    span: Span, policy: ContentPolicy, *, everything: bool = False
) -> int:
    """Apply *policy* to *span*: its name, attributes, events, links and status.

    Returns the number of texts with unknown names of which less leaves.

    Args:
        span: The span.
        policy: The policy.
        everything: Whether the limit also applies to names among the attributes.
    """
    span.name = policy.allowed(span.name, TextKind.NAME)
    if policy.limit is not None:
        _limit_name(span, policy.limit)
    span.status.message = policy.allowed(span.status.message, TextKind.FACT)
    for event in span.events:
        event.name = policy.allowed(event.name, TextKind.NAME)
        if policy.limit is not None and not is_identifier(event.name):
            event.name = cut(event.name, policy.limit) or "event"
    parts: list[Span | Span.Event | Span.Link] = [span, *span.events, *span.links]
    texts = 0
    for part in parts:
        texts += apply_to_attributes(part.attributes, policy, everything=everything)
    return texts


def apply_to_log(record: LogRecord, policy: ContentPolicy) -> int:
    """Apply *policy* to *record*.

    The body of an event is content. The text of a program's log line is redacted and stays whole:
    it is written for people, and a line cut at 0 characters says nothing. Returns the number of
    texts with unknown names of which less leaves.
    """
    event_name = record.event_name or _text_of(semconv.EVENT_NAME, record.attributes)
    is_line = not event_name or event_name.startswith("rl.")
    body = _Attribute(
        semconv.GEN_AI_INPUT_MESSAGES if event_name.startswith("gen_ai.") else "",
        TextKind.MESSAGE if event_name.startswith("gen_ai.") else TextKind.FACT,
        replace(policy, limit=None) if is_line else policy,
    )
    body.apply(record.body)
    unknown = apply_to_attributes(record.attributes, policy)
    if policy.off:
        for pair in record.attributes:
            # Emptied, not removed: an evaluation needs a number or a label.
            if pair.key == semconv.EVALUATION_LABEL:
                pair.value.string_value = ""
    return unknown


def apply_to_resource(resource: Resource, policy: ContentPolicy) -> int:
    """Apply *policy* to the attributes of *resource*.

    Those that describe a process and its place are names.
    """
    return apply_to_attributes(resource.attributes, policy, names=RESOURCE_PREFIXES)


def apply_to_attributes(
    attributes: Sequence[KeyValue],
    policy: ContentPolicy,
    *,
    names: tuple[str, ...] = (),
    everything: bool = False,
) -> int:
    """Apply *policy* to *attributes*, in place.

    Return the number of texts with unknown names of which less leaves. With the limit 0 content and
    unknown texts are removed, since an empty text would be a value.

    Args:
        attributes: The attributes, a repeated field.
        policy: The policy.
        names: Prefixes of keys whose texts are names too.
        everything: Whether the limit also applies to names.
    """
    unlimited = replace(policy, limit=None)
    removed: list[int] = []
    unknown = 0
    for index, pair in enumerate(attributes):
        kind = _kind(pair, names)
        if policy.limit is None or (_stays(pair, kind) and not everything):
            _Attribute(pair.key, kind, unlimited).apply(pair.value)
            continue
        unknown += kind is TextKind.UNKNOWN
        if policy.off:
            removed.append(index)
            continue
        _Attribute(pair.key, kind, policy).apply(pair.value)
        if not _is_plain(pair.key):
            pair.key = cut(pair.key, policy.limit)
    # From the end, so that the indices before stay right.
    for index in reversed(removed):
        del attributes[index]  # type: ignore[attr-defined]  # a repeated field, whose stub differs by version
    return unknown


def _kind(pair: KeyValue, names: tuple[str, ...]) -> TextKind:
    """Return what the texts of *pair* are.

    A value that does not look like a name is not one, whatever its key: instrumentations put
    prompts there.
    """
    if names and pair.key.startswith(names):
        kind = TextKind.NAME
    else:
        kind = kind_of(pair.key)
    if kind is TextKind.NAME and not _is_name_value(pair.value):
        return TextKind.UNKNOWN
    return kind


def _stays(pair: KeyValue, kind: TextKind) -> bool:
    """Return whether *pair* stays whole under any limit, as numbers and names do."""
    if kind is TextKind.NAME or pair.key == semconv.EVALUATION_LABEL:
        return True
    return (
        kind is not TextKind.MESSAGE
        and pair.value.WhichOneof("value") in _NUMBERS
        and _is_plain(pair.key)
    )


def _is_plain(key: str) -> bool:
    """Return whether *key* can be an attribute's name.

    Names of otel-bridge may hold a user's name of a reward.
    """
    return is_identifier(key) or (len(key) <= _MAX_NAME_CHARS and key.startswith("rl."))


def _is_name_value(value: AnyValue) -> bool:
    """Return whether a value looks like a name: one short line, a list of such, or a number."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return (
            len(value.string_value) <= _MAX_NAME_CHARS
            and "\n" not in value.string_value
        )
    if kind == "array_value":
        return all(map(_is_name_value, value.array_value.values))
    return kind in _NUMBERS


@dataclass(frozen=True, slots=True)
class _Attribute:
    """Applies a policy to all texts within one attribute.

    Attributes:
        key: Key of the attribute.
        kind: What its texts are.
        policy: The policy, without a limit where the attribute stays whole.
    """

    key: str
    kind: TextKind
    policy: ContentPolicy

    def apply(self, value: AnyValue, name: str = "", *, secret: bool = False) -> None:
        """Apply the policy to *value*, in place, and to all below it. Nothing raises.

        Args:
            value: The attribute's value, or a value within it.
            name: Name of *value* within the attribute.
            secret: Whether *value* is below the name of a secret.
        """
        value_kind = value.WhichOneof("value")
        if value_kind == "string_value":
            self._apply_to_text(value, name, secret=secret)
        elif value_kind == "bytes_value":
            self._apply_to_bytes(value, name, secret=secret)
        elif value_kind == "array_value":
            entries = value.array_value.values
            # In a list of arguments a `--flag` names the entry after it, which may be a secret.
            entry_names = names_of(
                [entry.string_value for entry in entries], name or self.key
            )
            for entry, entry_name in zip(entries, entry_names, strict=True):
                self.apply(entry, entry_name, secret=secret)
        elif value_kind == "kvlist_value":
            # The name alone decides, with any text: that of a secret covers all below it.
            secret = secret or self._is_secret(name, "x")
            for pair in value.kvlist_value.values:
                self._apply_to_field(pair, secret=secret)
                pair.key = self._allowed_key(pair.key)

    def _apply_to_field(self, pair: KeyValue, *, secret: bool) -> None:
        """Apply the policy to a field; without content, what a model reads or writes goes whole.

        Numbers and names within it, such as those among the arguments of a tool, are content too.
        """
        is_message = self.kind is TextKind.MESSAGE
        if is_message and self.policy.off and pair.key in _CONTENT_FIELDS:
            pair.value.string_value = ""
        else:
            self.apply(pair.value, pair.key, secret=secret)

    def _apply_to_text(self, value: AnyValue, name: str, *, secret: bool) -> None:
        text = value.string_value
        allowed = REDACTED if secret and text else self._allowed(text, name)
        if allowed != text:
            value.string_value = allowed

    def _apply_to_bytes(self, value: AnyValue, name: str, *, secret: bool) -> None:
        """Redact or cut bytes. A secret becomes text, since the mark in its place is one."""
        if secret or self._is_secret(name, value.bytes_value.hex()):
            value.string_value = REDACTED
        elif self.policy.limit is not None:
            value.bytes_value = value.bytes_value[: self.policy.limit]

    def _is_secret(self, name: str, text: str) -> bool:
        return self.policy.secrets and secret_by_name(name or self.key, text)

    def _allowed_key(self, key: str) -> str:
        """Return a key as far as it may leave.

        Under a limit, one that is not an identifier counts as text of a model.
        """
        is_name = self.policy.limit is None or is_identifier(key)
        if is_name:
            return self.policy.allowed(key, TextKind.NAME)
        return cut(key, self.policy.limit or 0)

    def _allowed(self, text: str, name: str) -> str:
        """Return the part of *text* that may leave; JSON in a message stays JSON.

        Texts below the name of a secret are redacted, whatever they look like.
        """
        policy = self.policy
        # Types, roles and ids stay, so that a message is readable under any limit.
        if name in NOT_TEXT and is_identifier(text):
            return policy.allowed(text, TextKind.NAME)
        if self.kind is not TextKind.MESSAGE:
            return policy.allowed(text, self.kind, name or self.key)
        if policy.off:
            return ""
        if name and self._is_secret(name, text):
            return REDACTED
        parsed = parsed_json(text)
        redacted = scrubbed(parsed, text=self._redacted, names=policy.secrets)
        if redacted != parsed:
            text = as_text(redacted)
        if policy.limit is None:
            return text
        return cut(text, policy.limit)

    def _redacted(self, text: str, name: str) -> str:
        """Return a text within a message without secrets: types, roles, ids and names of fields as a fact."""
        if name in NOT_TEXT:
            return self.policy.redact_fact(text)
        return self.policy.redact(text)


def _limit_name(span: Span, limit: int) -> None:
    """Keep the name of *span* if it is one word, or of words that a convention or its names declare.

    Any other may be a prompt: it is cut, and with the limit 0 becomes its operation, its first
    declared word, or ``span``.
    """
    if is_identifier(span.name) or len(span.name) <= limit:
        return
    declared = SPAN_WORDS.union(*map(_words_of, span.attributes))
    words = span.name.split()
    if len(span.name) <= _MAX_NAME_CHARS and declared.issuperset(words):
        return
    operation = _text_of(semconv.GEN_AI_OPERATION, span.attributes)
    name = _NO_NAME
    for candidate in (*words[:1], operation):
        if candidate in declared and is_identifier(candidate):
            name = candidate
    span.name = cut(span.name, limit) or name


def _text_of(key: str, attributes: Iterable[KeyValue]) -> str:
    """Return the text of the attribute *key*; empty without it."""
    for pair in attributes:
        if pair.key == key:
            return pair.value.string_value
    return ""


def _words_of(pair: KeyValue) -> list[str]:
    """Return the words of *pair* when it is a name, else none."""
    if _kind(pair, ()) is TextKind.NAME:
        return pair.value.string_value.strip('"').split()
    return []


def hash_texts(metric: Metric) -> int:
    """Replace each text among the attributes of a metric's points and of their exemplars by a hash.

    The series stay distinct, where cut texts would make one of two. Names of conventions and single
    words stay, because they distinguish the series. Returns the number of texts replaced.
    """
    kind = metric.WhichOneof("data")
    points: Iterable[_Point] = () if kind is None else getattr(metric, kind).data_points
    unknown = 0
    for point in points:
        unknown += _hash_attributes(point.attributes)
        if not isinstance(point, SummaryDataPoint):
            # A view that drops an attribute leaves it here.
            for exemplar in point.exemplars:
                unknown += _hash_attributes(exemplar.filtered_attributes)
    return unknown


def _hash_attributes(attributes: Iterable[KeyValue]) -> int:
    unknown = 0
    for pair in attributes:
        text = pair.value.string_value
        nested = pair.value.WhichOneof("value") in {
            "array_value",
            "kvlist_value",
            "bytes_value",
        }
        if not _is_plain(pair.key):
            pair.key = _hashed(pair.key.encode("utf-8", "replace"))
            unknown += 1
        is_named = is_name(pair.key) and _is_name_value(pair.value)
        if is_named or not (text or nested) or (not nested and is_identifier(text)):
            continue
        pair.value.string_value = _hashed(pair.value.SerializeToString())
        unknown += 1
    return unknown


def _hashed(data: bytes) -> str:
    return f"text-{hashlib.blake2b(data, digest_size=4).hexdigest()}"
