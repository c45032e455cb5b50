"""Rollouts of one call with their streams of tokens, and how many of them leave whole. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from otel_bridge.emit.tokens.streams import TokenColumn

_SPAN_TOKENS = 1 << 20
"""Most tokens of one span, unless one rollout has more: so a span stays below the limit of a record."""


@dataclass(slots=True)
class TokenBatch:
    """Holds the rollouts of a call, those first whose streams leave.

    Attributes:
        lengths: Number of tokens of each rollout.
        columns: Streams by name.
        texts: Texts of the tokens of each rollout that may leave; ``None``: none.
        shown: Number of rollouts whose streams all leave.
        joined: Number of rollouts of which the one half of the log-probabilities leaves that the
            call has.
        half: Name of that half; empty when the call has both, or none.
    """

    trace_ids: list[bytes]
    lengths: list[int]
    columns: dict[str, TokenColumn]
    texts: list[list[str] | None]
    shown: int
    joined: int
    half: str

    def parts(self) -> Iterator[TokenBatch]:
        """Yield the rollouts in parts of a bounded number of tokens."""
        start = 0
        tokens = 0
        for index, length in enumerate(self.lengths):
            if tokens and tokens + length > _SPAN_TOKENS:
                yield self._cut(start, index)
                start = index
                tokens = 0
            tokens += length
        yield self._cut(start, len(self.lengths))

    def _cut(self, start: int, end: int) -> TokenBatch:
        """Return the rollouts from *start* to *end*."""
        return TokenBatch(
            self.trace_ids[start:end],
            self.lengths[start:end],
            {
                name: column.of(range(start, end))
                for name, column in self.columns.items()
            },
            self.texts[start:end],
            min(max(self.shown - start, 0), end - start),
            min(max(self.joined - start, 0), end - start),
            self.half,
        )


def rollouts_within(lengths: Sequence[int], limit: int) -> int:
    """Return how many of the first rollouts have at most *limit* tokens together."""
    return bisect_right(list(accumulate(lengths)), limit)
