"""Texts of tokens are decoded once each, whatever the number of ids that a job has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.messages.conversation import MessageLimits
from otel_bridge.emit.tokens import texts


def test_a_token_beyond_the_size_of_the_cache_has_its_text_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "_MAX_CACHED", 2)
    decoded: list[Sequence[int]] = []

    def decode(token_ids: Sequence[int]) -> str:
        decoded.append(token_ids)
        return f"<{token_ids[0]}>"

    tokens = texts.TokenTexts(
        decode, MessageLimits(ContentPolicy(), 1000), lambda *_: None
    )

    assert tokens.of_ids([1, 2, 3, 1]) == ["<1>", "<2>", "<3>", "<1>"]
    assert decoded == [[1], [2], [3]]
    assert tokens.of_ids([4, 1]) == ["<4>", "<1>"]
