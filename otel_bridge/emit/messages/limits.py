"""A conversation -> encoded messages within the limits of one rollout.

A conversation above the limit is truncated fairly: its longest texts are cut to one length, and the
cut bytes are counted. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.messages.attachments import UNREAD, attached, parts_of
from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.messages.conversation import (
    Content,
    encode,
    replayable,
)
from otel_bridge.emit.messages.reader import messages_of
from otel_bridge.emit.values.plain import Losses

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

    Args:
        messages: The conversation.
        limits: Content policy and size.
        role: Role of bare texts.
        media: Media beside the messages, which become parts of the first one.
    """
    entries = [replayable(entry) for entry in messages_of(messages, role)]
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
        first_half = len(content.messages) // 2
        content.content_filter.clipped_bytes += sum(
            len(message.json) for message in content.messages[first_half:]
        )
        del content.messages[first_half:]
    return content


def _fair_length(entries: Sequence[object], budget: int) -> int:
    """Return the length of texts at which all texts together fit."""
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
