"""A conversation -> encoded messages within the limits of one rollout.

One that is larger than allowed is clipped fairly: its longest texts are cut to one length, and it is known how much is
gone. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from otel_bridge.emit.content import ContentPolicy, Cutter, hooked, may_have_shape
from otel_bridge.emit.fast_messages import EncodedMessage
from otel_bridge.emit.messages import Conversation, encode, raw_messages

_COPIES: Final = 2
"""Each message stands in the root's span and in a child's, as trackers get them."""
_MAX_MESSAGES: Final = 10_000
_MIN_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a rollout may leave: the content policy and the largest size of all its spans."""

    policy: ContentPolicy
    rollout_bytes: int


@dataclass(slots=True)
class Content:
    """The encoded content of one rollout."""

    conversation: Conversation
    cutter: Cutter

    @property
    def messages(self) -> list[EncodedMessage]:
        """Its messages."""
        return self.conversation.messages


def content_of(messages: object, limits: Limits, role: str = "user") -> Content:
    """Encode a conversation within *limits*."""
    entries = raw_messages(messages, role)
    budget = limits.rollout_bytes // _COPIES
    max_chars = _fair_length(entries, budget)
    content = _encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    while content.conversation.size_bytes > budget and max_chars > _MIN_CHARS:
        # Characters beyond ASCII and escapes take several bytes, and not all text is plain content.
        longest = max(len(message.json) for message in content.messages)
        max_chars = max(min(max_chars, longest) * budget // content.conversation.size_bytes * 9 // 10, _MIN_CHARS)
        content = _encoded(entries[:_MAX_MESSAGES], limits, max_chars)
    content.conversation.skipped += max(len(entries) - _MAX_MESSAGES, 0)
    while content.conversation.size_bytes > budget:
        kept = len(content.messages) // 2
        content.cutter.clipped_bytes += sum(len(message.json) for message in content.messages[kept:])
        del content.messages[kept:]
    return content


def _encoded(entries: Sequence[object], limits: Limits, max_chars: int) -> Content:
    policy = limits.policy
    cutter = Cutter(policy, max_chars)
    if policy.secrets and not policy.off and not hooked():
        # Nearly always there is none: one look at all texts costs less than one at each.
        cutter.secrets = False
        conversation = encode(entries, cutter)
        cutter.secrets = True
        if not cutter.named and not may_have_shape(b"".join([message.json for message in conversation.messages])):
            return Content(conversation, cutter)
        cutter = Cutter(policy, max_chars)
    return Content(encode(entries, cutter), cutter)


def _fair_length(entries: Sequence[object], budget: int) -> int:
    """Return the length to which texts are cut so that together they fit."""
    # Plain messages only: what else is long is found when it is encoded.
    dicts = [cast("dict[str, object]", entry) for entry in entries if type(entry) is dict]
    sizes = [len(text) for message in dicts if type(text := message.get("content")) is str]
    if sum(sizes) <= budget:
        return budget
    left = budget
    for count, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - count)
        if size > share:
            return max(share, _MIN_CHARS)
        left -= size
    return budget
