"""Messages in events of a span, or in log records that name the span: one event per message, or one for all.

A log record first becomes a span of its own below the span it names, so that the record waits with
its trace, in any order. When the rollout is assembled, the record becomes an event of the named
span. Pure. Source: OpenTelemetry GenAI conventions 1.27 (span events ``gen_ai.content.prompt``),
1.28 to 1.36 (one event a message), 1.37 and later (``gen_ai.client.inference.operation.details``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.otlp.json_text import parsed_json
from otel_bridge.records import Json
from otel_bridge.translation.decode.attributes import (
    is_span_id,
    is_trace_id,
    mapping_of,
    text_in,
)
from otel_bridge.translation.decode.messages import (
    Chat,
    content_of,
    read_chat,
    system_message,
)

_ROLES: Mapping[str, str] = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}  # fmt: skip
_CHOICE = "gen_ai.choice"
_DETAILS = "gen_ai.client.inference.operation.details"
_PROMPT = "gen_ai.content.prompt"
_COMPLETION = "gen_ai.content.completion"
NAMES = frozenset({*_ROLES, _CHOICE, _DETAILS, _PROMPT, _COMPLETION})
"""Names of events that hold messages."""
_BODY = "event.body"
_MESSAGE_KEYS = frozenset({"role", "content", "parts", "tool_calls"})
"""Fields of which a message has at least one."""
CONTENT_SPAN = "gen_ai.content.event"
"""Name of a span that stands for a log record."""
_P = TypeVar("_P")


def content_span(record: LogRecord) -> Span | None:
    """Return the span that stands for a log record with messages.

    ``None`` when the record names no span.

    The caller counts such a record (``event/no_span``).
    """
    if not (is_trace_id(record.trace_id) and is_span_id(record.span_id)):
        return None
    # The id is made of the content, so that a redelivered record is the same span.
    digest = hashlib.blake2b(
        record.SerializeToString(deterministic=True), digest_size=8
    ).digest()
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    span = Span(
        name=CONTENT_SPAN, trace_id=record.trace_id, span_id=digest, parent_span_id=record.span_id,
        start_time_unix_nano=time_ns, end_time_unix_nano=time_ns,
    )  # fmt: skip
    event = span.events.add(name=event_name(record), time_unix_nano=time_ns)
    event.attributes.extend(record.attributes)
    if record.HasField("body"):
        event.attributes.add(key=_BODY).value.CopyFrom(record.body)
    return span


def event_name(record: LogRecord) -> str:
    """Return the name of a log record's event; empty when the record is not an event."""
    return record.event_name or text_in(
        mapping_of(record.attributes), semconv.EVENT_NAME
    )


def is_content_span(span: Span) -> bool:
    """Return whether *span* stands for a log record."""
    return span.name == CONTENT_SPAN


def folded(spans: Sequence[tuple[_P, Span]]) -> tuple[list[tuple[_P, Span]], int]:
    """Return *spans* with log records as events of the spans they name, and the number of records of missing spans.

    These are left out, so that no span remains of records alone. A record that came twice counts
    once, by its id.
    """
    content_spans: dict[bytes, dict[bytes, Span]] = {}
    for _, span in spans:
        if is_content_span(span):
            content_spans.setdefault(span.parent_span_id, {}).setdefault(
                span.span_id, span
            )
    if not content_spans:
        return list(spans), 0
    whole: list[tuple[_P, Span]] = []
    for origin, span in spans:
        if is_content_span(span):
            continue
        contents = content_spans.pop(span.span_id, None)
        if contents is not None:
            # A copy: the received span is stored as it came.
            copy = Span.FromString(span.SerializeToString())
            # By time: log records arrive in any order.
            for content in sorted(
                contents.values(), key=lambda content: content.start_time_unix_nano
            ):
                copy.events.extend(content.events)
            span = copy  # noqa: PLW2901  # the same span, whole
        whole.append((origin, span))
    return whole, sum(map(len, content_spans.values()))


def chats_of_events(events: Iterable[Span.Event]) -> tuple[Chat, Chat]:
    """Return the input and output messages that the events of a span hold.

    Both are empty when no event has any. Names of three generations of the conventions are read.

    One event a message, or one for all, depending on the version of the instrumentation.
    """
    prompt = Chat()
    answer = Chat()
    for event in events:
        _add(prompt, answer, event.name, mapping_of(event.attributes))
    return prompt, answer


def chats_of_listed(value: Json) -> tuple[Chat, Chat] | None:
    """Return the input and output messages of a list of events, each a map with the name of its event.

    ``None`` for any other value. pydantic-ai's format 1 has its events in one attribute.
    """
    entries = parsed_json(value)
    if not isinstance(entries, list):
        return None
    prompt = Chat()
    answer = Chat()
    for entry in entries:
        if not isinstance(entry, dict):
            return None
        # As text: a producer may send a list, which no set can look up.
        name = text_in(entry, semconv.EVENT_NAME)
        if name not in NAMES:
            return None
        _add(prompt, answer, name, entry)
    return prompt, answer


def _add(prompt: Chat, answer: Chat, name: str, attributes: Mapping[str, Json]) -> None:
    """Add what one event holds to the *prompt* or the *answer*.

    Nothing of an event without messages.
    """
    inputs = attributes.get(semconv.GEN_AI_INPUT_MESSAGES)
    outputs = attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES)
    if inputs is not None or outputs is not None:
        system = system_message(attributes.get(semconv.GEN_AI_SYSTEM_INSTRUCTIONS))
        if system is not None:
            prompt.messages.append(system)
        _merge(prompt, read_chat(inputs, "user"))
        _merge(answer, read_chat(outputs, "assistant"))
    elif name == _PROMPT:
        _merge(prompt, read_chat(attributes.get("gen_ai.prompt"), "user"))
    elif name == _COMPLETION:
        _merge(answer, read_chat(attributes.get("gen_ai.completion"), "assistant"))
    elif name in _ROLES:
        prompt.add(_message(_body(attributes), _ROLES[name]), "user")
    elif name == _CHOICE:
        answer.add(_choice(_body(attributes)), "assistant")


def _merge(chat: Chat, addition: Chat) -> None:
    chat.messages.extend(addition.messages)
    chat.skipped += addition.skipped
    chat.finish_reason = addition.finish_reason or chat.finish_reason


def _body(attributes: Mapping[str, Json]) -> dict[str, Json]:
    """Return the body of a log record's event, or the attributes of a span's event."""
    body = parsed_json(attributes.get(_BODY, attributes.get("gen_ai.event.content")))
    if isinstance(body, dict):
        return body
    if isinstance(body, str):
        return {"content": body}
    # Names with a dot are attributes of the event, the others keys of the message.
    return {key: value for key, value in attributes.items() if "." not in key}


def _message(body: Mapping[str, Json], role: str) -> dict[str, Json]:
    """Return the message of an event of one message, in OpenAI's form.

    Texts that are JSON are parsed. Older instrumentations name the call that a tool answers by
    ``id``.
    """
    message: dict[str, Json] = {
        "role": role,
        **{key: parsed_json(value) for key, value in body.items()},
    }
    # Events of the older convention name the call by ``id``.
    if (
        role == "tool"
        and "tool_call_id" not in message
        and isinstance(body.get("id"), str)
    ):
        message["tool_call_id"] = body["id"]
    if "content" in body:
        message["content"] = content_of(body["content"])
    return message


def _choice(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer of an event ``gen_ai.choice``, with its tool calls and finish reason where they have one.

    Some instrumentations put the calls beside the message, others into it; those in it count.
    """
    text = body.get("message", body.get("content"))
    inner = parsed_json(text)
    message: dict[str, Json] = {"role": "assistant"}
    # An answer may itself be JSON: only a map with fields of a message is one.
    if isinstance(inner, dict) and not _MESSAGE_KEYS.isdisjoint(inner):
        message.update(inner)
        if "content" in inner:
            message["content"] = content_of(inner["content"])
    else:
        message["content"] = content_of(text)
    calls = parsed_json(body.get("tool_calls"))
    # Clients write every field of their schema, so that a message without calls may have the key.
    if isinstance(calls, list) and not message.get("tool_calls"):
        message["tool_calls"] = calls
    if isinstance(body.get("finish_reason"), str):
        message["finish_reason"] = body["finish_reason"]
    return message
