"""Texts of the tokens of one rollout -> what of them may leave the process.

Pure, but for the program's decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.messages.conversation import MessageLimits
from otel_bridge.emit.rollouts.columns import TokenDecoder

_MAX_CACHED = 200_000


class TokenTexts:
    """Decodes tokens one by one, each id once, and applies the content policy to the texts of a rollout.

    Args:
        decode: The program's function from token ids to text, or ``None``.
        limits: Content policy and size.
        count_drop: Notified of each failure.
    """

    def __init__(
        self,
        decode: Callable[[Any], Any] | None,
        limits: MessageLimits,
        count_drop: Callable[..., None],
    ) -> None:
        self._decoder = None if decode is None else TokenDecoder(decode, count_drop)
        self._limits = limits
        self._count_drop = count_drop
        self._texts: dict[int, str] = {}

    @property
    def is_off(self) -> bool:
        """Return whether neither texts nor ids, which stand for texts, leave."""
        return self._limits.policy.off

    def of_ids(self, token_ids: Sequence[float] | None) -> list[str] | None:
        """Return the text of each token; ``None`` without ids, or without a decoder."""
        if self._decoder is None or token_ids is None:
            return None
        ids = [int(token_id) for token_id in token_ids]
        if len(self._texts) > _MAX_CACHED:
            self._texts.clear()
        for token_id in set(ids).difference(self._texts):
            self._texts[token_id] = self._decoder.text([token_id])
        return [self._texts[token_id] for token_id in ids]

    def allowed(self, texts: Sequence[str]) -> list[str] | None:
        """Return the texts that may leave: those within the limit, all or none of them.

        A secret may lie in several tokens. So the whole text is redacted, and no token leaves if
        that changes it.
        """
        max_chars = self._limits.policy.limit
        within: list[str] = []
        chars = 0
        for text in texts:
            chars += len(text)
            if max_chars is not None and chars > max_chars:
                break
            within.append(text)
        content_filter = ContentFilter(self._limits.policy, self._limits.rollout_bytes)
        whole = "".join(within)
        if content_filter.text(whole) == whole:
            return within
        self._count_drop("token_text", 1, "")
        return None

    @property
    def ids_leave(self) -> bool:
        """Return whether token ids leave: anybody with the tokenizer can read them."""
        return not self.is_off and self._limits.policy.limit is None
