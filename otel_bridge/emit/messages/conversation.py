"""Messages of a conversation -> GenAI messages as JSON text, each encoded once.

Nothing raises but a generator of the program, and its signal handlers (`any_error_but_signals`). What is not a
message is kept as text, and counted.
Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.messages import shapes
from otel_bridge.emit.messages.attachments import UNREAD, attached, parts_of
from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.messages.fields import (
    ReadFields,
    fields_of,
    first,
    plain,
    text_or_none,
)
from otel_bridge.emit.messages.parts import EMPTY, Parts, ToolAnswer, ToolCall
from otel_bridge.emit.messages.reader import Message, is_item, messages_of, read
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.values.plain import CLIPPED, Losses, dumps
from otel_bridge.values.scalars import any_text

_MAX_FACTS = 100
_RESERVED = ("role", shapes.PARTS_KEY)
_NO_FACTS: Mapping[str, Json] = {}


class EncodedMessage(NamedTuple):
    """Holds one encoded message.

    Attributes:
        role: Role, as given.
        json: The message as UTF-8 JSON.
        calls: Tool calls in the message.
        answers: Answers of tools in the message.
    """

    role: str
    json: bytes
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()


_USER = "user"
_TOOL = "tool"
_GENERATED_LATE = ("content", "tool_calls", shapes.PARTS_KEY)
"""Fields that a program may give as a generator, which can be read once only."""


@dataclass(slots=True)
class Content:
    """Holds the encoded messages of one conversation, and the filter that counted what they lack."""

    messages: list[EncodedMessage]
    content_filter: ContentFilter

    @property
    def size_bytes(self) -> int:
        """Size of all messages in bytes."""
        return sum(len(message.json) for message in self.messages)


def replayable(entry: object) -> object:
    """Return *entry* with its generators as lists: a message that is cut is encoded again.

    The fields in which programs give generators are few; another field's generator is read once, as
    a fact. What a generator raises is raised.
    """
    if type(entry) is not dict:
        if isinstance(entry, Iterator):
            return list(cast("Iterator[object]", entry))
        return entry
    message = cast("dict[str, object]", entry)
    for key in _GENERATED_LATE:
        value = message.get(key)
        if isinstance(value, Iterator):
            message = {**message, key: list(cast("Iterator[object]", value))}
    return message


def encode(entries: Sequence[object], content_filter: ContentFilter) -> Content:
    """Encode *entries*, each of which may hold several messages.

    An entry that raises leaves its type as a text, and is counted as ``rollout_message``; the
    others are encoded.
    """
    content = Content([], content_filter)
    for entry in entries:
        try:
            messages = [
                _encoded(message, content_filter)
                for message in read(entry, content_filter.items)
            ]
        except any_error_but_signals():  # code of the user's own objects
            messages = [_unread(entry, content_filter)]
        content.messages += messages
    return content


def _unread(entry: object, content_filter: ContentFilter) -> EncodedMessage:
    """Keep the type of an entry that raises when it is read."""
    parts = Parts(content_filter)
    parts.add_unread(f"[{type(entry).__name__}]")
    return _of_parts(_USER, parts, None)


def _encoded(message: Message, content_filter: ContentFilter) -> EncodedMessage:
    """Return one message as JSON.

    What is in no known shape is its text, and counted as ``rollout_message``. A message of GenAI's
    parts is read by these alone, an item of OpenAI's Responses API as its one part. What the
    program's own objects raise is raised.
    """
    parts = Parts(content_filter)
    if message.fields is None:
        parts.add_unread(message.value)
        return _of_parts(_USER, parts, None)
    role = message.role or _USER
    fields = ReadFields(message.fields)
    given_parts = plain(message.fields.get(shapes.PARTS_KEY))
    if isinstance(given_parts, (list, tuple)):
        parts.add_content(cast("object", given_parts))
        _add_media(parts, fields)
        fields.skip(shapes.PARTS_KEY)
        # A message of its own.
        if isinstance(message.fields.get(shapes.INSTRUCTIONS_KEY), str):
            fields.skip(shapes.INSTRUCTIONS_KEY)
    elif is_item(first(message.fields, shapes.KIND_KEYS)):
        parts.add_part(message.fields)
        return _of_parts(role, parts, None)
    elif role == _TOOL:
        _add_answer(parts, fields)
    else:
        _add_message(parts, fields)
    first(fields, shapes.ROLE_KEYS)  # read before, for the role of the message
    name = text_or_none(fields.get("name"))
    return _of_parts(role, parts, name, _facts_of(fields, parts))


def _facts_of(fields: ReadFields, parts: Parts) -> dict[str, Json]:
    """Return what a message holds beside what was read: weights, masks, times, ….

    Those beyond 100 are counted as ``clipped``. A role or parts that were not read cannot be a fact
    beside the role and the parts of the message, and become a text.
    """
    other_fields: dict[str, Any] = {}
    for key, value in fields.unread():
        if not _says_nothing(key, value):
            other_fields[key] = value
    for key in _RESERVED:  # has no place as a fact
        if key in other_fields:
            parts.add_unread({key: other_fields.pop(key)})
    if not other_fields:
        return {}
    beyond = list(other_fields)[_MAX_FACTS:]
    if beyond:
        parts.content_filter.losses.add(CLIPPED, len(beyond), any_text(beyond[0]))
    for key in beyond:
        del other_fields[key]
    facts = parts.content_filter.facts(other_fields, "message")
    return {key: fact for key, fact in facts.items() if fact not in EMPTY}


def _says_nothing(key: str, value: object) -> bool:
    """Return whether a field is a type, which the role says, or a default of LangChain's messages."""
    return (
        value is None
        or (key in shapes.TYPE_KEYS and isinstance(value, str))
        or (key == "example" and value is False)
    )


def _add_answer(parts: Parts, fields: ReadFields) -> None:
    """Add the message of a tool, or the answers that its content itself holds (Vercel, Bedrock).

    These name their calls. Then the ids of the message are not needed, and stay as its facts.
    """
    content: object = first(fields, shapes.CONTENT_KEYS)
    if _holds_answers(content):
        parts.add_content(content)
    else:
        call_id = text_or_none(first(fields, shapes.ANSWER_CALL_KEYS))
        parts.add_answer(call_id, content, text_or_none(fields.get("name")))
    _add_media(parts, fields)


def _add_media(parts: Parts, fields: ReadFields) -> None:
    """Add the media beside a message's content."""
    # None of them in nearly every message.
    if shapes.MEDIA_KEYS.keys().isdisjoint(fields.whole):
        return
    for key, modality in shapes.MEDIA_KEYS.items():
        if fields.get(key) is not None:
            parts.add_media(modality, fields[key])


def _holds_answers(content: object) -> bool:
    """Return whether *content* is a list with a part that is a tool's answer by its type."""
    if not isinstance(content, list):
        return False
    for part in cast("list[object]", content):
        kind = first(fields_of(part) or {}, shapes.KIND_KEYS)
        if isinstance(kind, str) and shapes.KINDS.get(kind) == shapes.ANSWER:
            return True
    return False


def _add_message(parts: Parts, fields: ReadFields) -> None:
    """Add the content of a message that is not a tool's: reasoning, content, media, refusal, calls.

    It is the order in which models generate. LangChain keeps reasoning and calls of older models in
    its extras, which count as read when they hold nothing else.
    """
    extras = fields_of(fields.whole.get(shapes.EXTRAS)) or {}
    thought = first(fields, shapes.REASONING_KEYS) or first(
        extras, shapes.REASONING_KEYS
    )
    if thought:
        parts.add_reasoning(thought)
        for key in shapes.REASONING_KEYS:
            if _is_same(fields.whole.get(key), thought):
                fields.skip(key)
    parts.add_content(first(fields, shapes.CONTENT_KEYS))
    _add_media(parts, fields)
    refusal = fields.whole.get("refusal")
    if isinstance(refusal, str):
        fields.skip("refusal")
        if refusal:
            parts.add_text("refusal", refusal)
    for key in shapes.CALL_KEYS:
        parts.add_calls(fields.get(key))
    if not parts.calls:  # LangChain repeats the calls of its own fields
        for key in shapes.CALL_KEYS:
            parts.add_calls(extras.get(key))
    if _are_read(extras, thought):
        fields.skip(shapes.EXTRAS)


def _are_read(extras: Mapping[str, Any], thought: object) -> bool:
    """Return whether the extras of a message hold calls and its reasoning only.

    Then they need not stay as a fact of the message. False without any: what stands in their place
    may have no fields.
    """
    for key, value in extras.items():
        if not (
            key in shapes.CALL_KEYS or _is_empty(value) or _is_same(value, thought)
        ):
            return False
    return bool(extras)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _is_same(value: object, thought: object) -> bool:
    """Return whether *value* is the reasoning that was added: servers give it under several names.

    Only texts are compared: arrays have no truth value.
    """
    return value is thought or (
        isinstance(value, str) and isinstance(thought, str) and value == thought
    )


def _of_parts(
    role: str, parts: Parts, name: str | None, facts: Mapping[str, Json] = _NO_FACTS
) -> EncodedMessage:
    """Return the encoded message of *parts*; a long name is cut, and counted as ``clipped``."""
    value: dict[str, Json] = {
        "role": role,
        "parts": cast("list[Json]", parts.parts),
        **facts,
    }
    if name is not None:
        value["name"] = parts.name(name)
    return EncodedMessage(role, dumps(value), tuple(parts.calls), tuple(parts.answers))


# A conversation -> encoded messages within the limits of one rollout: above the limit its longest
# texts are cut to one length, and the cut bytes are counted.

_COPIES = 2
"""Copies of each message in a tracker: in the root's span and in a child's."""
_MAX_MESSAGES = 10_000
_MIN_CHARS = 16


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Holds the limits of a rollout's content: the content policy and the largest size of all its spans."""

    policy: ContentPolicy
    rollout_bytes: int


def content_of(
    messages: object,
    limits: MessageLimits,
    role: str = "user",
    media: Sequence[object] = (),
) -> Content:
    """Encode a conversation within *limits*.

    Texts are cut to one length until all fit, then the last messages go, by halves: the beginning
    shows the task. Entries beyond 10,000 are counted as ``rollout_message``, cut bytes are added
    to `clipped_bytes`. What a generator of the program raises is raised, since what it has given is
    lost; the caller counts its rollout or span.

    Args:
        messages: The conversation.
        limits: Content policy and size.
        role: Role of bare texts.
        media: Media beside the messages: parts of the first one of the user, else of one in front.
    """
    entries = list(map(replayable, messages_of(messages, role)))
    losses = Losses()
    media_parts = parts_of(media, losses)
    if media_parts:
        entries = attached(entries, media_parts)
    if len(entries) > _MAX_MESSAGES:
        losses.add(UNREAD, len(entries) - _MAX_MESSAGES, "")
        del entries[_MAX_MESSAGES:]
    budget = limits.rollout_bytes // _COPIES
    max_chars = _fair_length(entries, budget)
    content = encode(entries, ContentFilter(limits.policy, max_chars))
    while content.size_bytes > budget and max_chars > _MIN_CHARS:
        # Escapes and characters beyond ASCII take several bytes, and not all text is plain content.
        longest = max(len(message.json) for message in content.messages)
        max_chars = max(
            min(max_chars, longest) * budget // content.size_bytes * 9 // 10,
            _MIN_CHARS,
        )
        content = encode(entries, ContentFilter(limits.policy, max_chars))
    content.content_filter.losses.merge(losses)
    while content.size_bytes > budget:
        # Texts are at their shortest, and still too large: later messages go, by halves.
        size_before = content.size_bytes
        del content.messages[len(content.messages) // 2 :]
        content.content_filter.clipped_bytes += size_before - content.size_bytes
    return content


def _fair_length(entries: Sequence[object], budget: int) -> int:
    """Return the length of texts at which all texts together fit, at least 16 characters.

    The longest are cut first: short ones (questions, rewards of a judge) stay whole.
    """
    # Plain messages only: other long texts are found when they are encoded.
    sizes: list[int] = []
    for entry in entries:
        if type(entry) is dict:
            text = cast("dict[str, object]", entry).get("content")
        else:
            text = None
        if type(text) is str:
            sizes.append(len(text))
    # Nearly every rollout: nothing is cut.
    if sum(sizes) <= budget:
        return budget
    remaining = budget
    for count, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - count)
        if size > share:
            return max(share, _MIN_CHARS)
        remaining -= size
    return budget
