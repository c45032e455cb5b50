"""Texts of the tokens of rollouts -> what of them may leave the process.

Pure, but for the program's decoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy

from otel_bridge.emit.conversations.conversation import MessageLimits
from otel_bridge.emit.rollouts.columns import TokenDecoder
from otel_bridge.emit.tokens.streams import (
    OTHER_LENGTH,
    TOKENS,
    TokenRollout,
    first_within,
)
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.tokens.names import TOKEN_IDS

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun


def add_texts(run: EmitRun, rollouts: Sequence[TokenRollout], decode: Any) -> None:
    """Add to *rollouts* the texts that may leave, and remove ids of tokens whose texts may not.

    A rollout gets no text without texts and decoder, or without an id for each token. Texts that
    are more or fewer than its tokens are counted as ``token_length``, texts that hold what is
    redacted as ``token_text``. Then its ids go too, since anybody with the tokenizer can read them.

    Args:
        run: Its content policy applies; it counts what is left out.
        rollouts: Those whose texts are wanted.
        decode: The program's function from token ids to text, or ``None``.

    Raises:
        Exception: What the program's own objects raise; a failure of *decode* is counted instead.
    """
    limits = run.rollout_options.limits
    decoder = TokenDecoder(decode, run.count_drop)

    @cache  # most tokens of a call are not the first of their kind
    def text_of(token_id: float) -> str:
        return decoder.text([int(token_id)])

    for rollout in rollouts:
        ids = rollout.streams.get(TOKEN_IDS)
        if rollout.raw_texts is not None:
            texts = list(map(str, cast("Iterable[object]", rollout.raw_texts)))
        # A turn may lack ids, and then it has no text either.
        elif decode is None or ids is None or numpy.isnan(ids).any():
            continue
        else:
            texts = [text_of(token_id) for token_id in ids.tolist()]
        if len(texts) != rollout.length:
            run.count_drop(OTHER_LENGTH, 1, TOKENS)
        else:
            rollout.texts = _allowed(texts, limits)
            if rollout.texts is None:
                run.count_drop("token_text")
        if rollout.texts is None:
            rollout.streams.pop(TOKEN_IDS, None)


def _allowed(texts: list[str], limits: MessageLimits) -> Sequence[str] | None:
    """Return the first *texts* within the limit of characters; ``None`` if they hold what is redacted.

    A secret may lie in several tokens. So the whole text is redacted, and no token leaves if that
    changes it: a text with a part replaced could not be cut into its tokens again.
    """
    within: Sequence[str] = texts
    if limits.policy.limit is not None:
        within = first_within(texts, limits.policy.limit)
    whole = "".join(within)
    if ContentFilter(limits.policy, limits.rollout_bytes).text(whole) == whole:
        return within
    return None
