"""Messages of a conversation -> GenAI messages as JSON text, each encoded once.

Nothing raises but a generator of the program, and its signal handlers (`any_error_but_signals`). What is not a
message is kept as text, and counted.
Source: OpenTelemetry GenAI conventions 1.41, ``gen-ai-input-messages.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.attachments import attached, parts_of
from otel_bridge.emit.conversations.program_parts import ProgramParts
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages import shapes
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.messages.parts import UNREAD, ToolAnswer, ToolCall
from otel_bridge.messages.parts_form import parts_form
from otel_bridge.messages.reader import Message, messages_of, read
from otel_bridge.values.plain import Losses, dumps


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
    return _encoded(Message("", None, f"[{type(entry).__name__}]"), content_filter)


def _encoded(message: Message, content_filter: ContentFilter) -> EncodedMessage:
    """Return one message as JSON; what the program's own objects raise is raised."""
    parts = ProgramParts(content_filter)
    form = parts_form(message.unwrapped(), parts)
    return EncodedMessage(
        message.role or _USER, dumps(form), tuple(parts.calls), tuple(parts.answers)
    )


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
