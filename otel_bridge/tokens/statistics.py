"""Per-token streams of rollouts -> sums that can be added over calls, processes and ranks. Pure; shared by both sides.

A stream is flat: the tokens of all rollouts, one after the other, NaN where a token has no value.
Each figure is one vectorised pass.

numpy is imported where it computes: most bridges see no tokens, and it takes 0.1 s of their start
and 20 MB.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any, TypeAlias

from otel_bridge.tokens.names import (
    ABSOLUTE,
    ENGINE,
    MISMATCH,
    TRAINER,
    figure_of_stream,
)

Numbers: TypeAlias = Any
"""A numpy array of floats, shape (tokens,)."""

BOUND = 0.5
"""A token counts as beyond when its two log-probabilities differ by more than this."""
DECILES = 10
# 256 KiB of 32-bit floats, which fit into a cache of the processor.
_CHUNK_TOKENS = 1 << 16
# A bucket is the upper 15 bits of a 32-bit float without its sign: 64 for each power of two, each
# 1.1 to 1.6 % wide.
_NO_SIGN = 0x7FFF
BUCKETS = 0x7F80 >> 1
"""Number of buckets; the next one would be of infinity and NaN."""


@dataclass(slots=True)
class Figure:
    """Holds the sums of one quantity.

    Attributes:
        counts: Number of tokens with a value, of each rollout.
        sums: Sum of their values, of each rollout.
        maxima: Their maximum, of each rollout, 0 without a value; only of the absolute mismatch.
        decile_counts: Number of tokens in each tenth of their rollout, over all rollouts.
        decile_sums: Sum of their values.
        buckets: For log-probabilities: bucket of ``-value`` to number of tokens; see `quantile`.
    """

    counts: list[float] = field(default_factory=list[float])
    sums: list[float] = field(default_factory=list[float])
    maxima: list[float] = field(default_factory=list[float])
    decile_counts: list[float] = field(default_factory=lambda: [0.0] * DECILES)
    decile_sums: list[float] = field(default_factory=lambda: [0.0] * DECILES)
    buckets: Counter[int] = field(default_factory=Counter[int])

    def extend(self, further: Figure) -> None:
        """Add the figure of further rollouts, without buckets."""
        self.counts += further.counts
        self.sums += further.sums
        self.maxima += further.maxima
        self.decile_counts = list(map(add, self.decile_counts, further.decile_counts))
        self.decile_sums = list(map(add, self.decile_sums, further.decile_sums))


def floats_of(data: bytes) -> Numbers:
    """Return little-endian 32-bit floats as numbers."""
    import numpy  # noqa: PLC0415

    return numpy.frombuffer(data, "<f4")


def figures_of(
    streams: Mapping[str, Numbers],
    lengths: Sequence[int],
    *,
    only_mismatch: bool = False,
) -> dict[str, Figure]:
    """Return the figures of flat *streams* by name, with the mismatch when both log-probabilities are among them.

    Tokens without a finite value count in no figure of theirs. Nothing without rollouts.

    Args:
        streams: Stream by name, each with the tokens of all rollouts; without ids and masks of tokens.
        lengths: Number of tokens of each rollout.
        only_mismatch: Whether the figures of the streams themselves are left out.
    """
    figures: dict[str, Figure] = {}
    start = 0
    for sizes in _chunks(lengths):
        end = start + sum(sizes)
        chunk = {name: stream[start:end] for name, stream in streams.items()}
        values: dict[str, Numbers] = {}
        if not only_mismatch:
            values = {figure_of_stream(name): part for name, part in chunk.items()}
        if ENGINE in chunk and TRAINER in chunk:
            values |= _mismatch(chunk[ENGINE], chunk[TRAINER])
        edges = _edges(sizes)
        for name, numbers in values.items():
            figure = _figure(numbers, edges, with_maxima=name == ABSOLUTE)
            figures.setdefault(name, Figure()).extend(figure)
        start = end
    for name in (ENGINE, TRAINER):
        if figure_of_stream(name) in figures:
            figures[figure_of_stream(name)].buckets = _buckets(streams[name])
    return figures


def _chunks(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the lengths in groups whose tokens fit into a cache of the processor: this halves the time."""
    sizes: list[int] = []
    tokens = 0
    for length in lengths:
        sizes.append(length)
        tokens += length
        if tokens >= _CHUNK_TOKENS:
            yield sizes
            sizes = []
            tokens = 0
    if sizes:
        yield sizes


def _edges(lengths: Sequence[int]) -> Numbers:
    """Return where each tenth of each rollout begins, and the end: token *i* of *n* is in tenth ``10 * i // n``."""
    import numpy  # noqa: PLC0415

    sizes = numpy.asarray(lengths, dtype="i8")
    ends = numpy.cumsum(sizes)
    tenths = -(-numpy.arange(DECILES)[None, :] * sizes[:, None] // DECILES)
    return numpy.append(((ends - sizes)[:, None] + tenths).ravel(), ends[-1])


def _mismatch(engine: Numbers, trainer: Numbers) -> dict[str, Numbers]:
    """Return the quantities of `MISMATCH` of each token, not finite where one side has no value."""
    import numpy  # noqa: PLC0415

    with numpy.errstate(all="ignore"):
        # In doubles: the third estimator is a difference of nearly equal numbers.
        ratio = numpy.subtract(trainer, engine, dtype="f8")
        absolute = numpy.abs(ratio)
        k3 = numpy.exp(ratio) - 1.0 - ratio
        beyond = (absolute > BOUND).astype("f4")
        # A comparison with NaN is false, which would count the token as one within the bound.
        if not numpy.isfinite(absolute.sum()):
            beyond[~numpy.isfinite(absolute)] = numpy.nan
    return dict(zip(MISMATCH, (-ratio, k3, absolute, beyond), strict=True))


def _figure(values: Numbers, edges: Numbers, *, with_maxima: bool) -> Figure:
    """Return the figure of one quantity, without buckets.

    Args:
        values: The tokens of all rollouts; what is not finite is left out.
        edges: Result of `_edges`.
        with_maxima: Whether the maximum of each rollout is of use: a further pass over all tokens.
    """
    import numpy  # noqa: PLC0415

    shape = (-1, DECILES)
    counts = numpy.diff(edges).astype("f8")
    with numpy.errstate(all="ignore"):
        sums = _reduced(numpy.add, values, edges)
    # Checked on the sums: one pass less where every token has a value.
    if not numpy.isfinite(sums.sum()):
        is_number = numpy.isfinite(values)
        values = numpy.where(is_number, values, 0.0)
        counts = _reduced(numpy.add, is_number, edges)
        sums = _reduced(numpy.add, values, edges)
    maxima: list[float] = []
    if with_maxima:
        of_tenths = _reduced(numpy.maximum, values, edges)
        maxima = of_tenths.reshape(shape).max(axis=1).tolist()
    counts = counts.reshape(shape)
    sums = sums.reshape(shape)
    return Figure(
        counts.sum(axis=1).tolist(),
        sums.sum(axis=1).tolist(),
        maxima,
        counts.sum(axis=0).tolist(),
        sums.sum(axis=0).tolist(),
    )


def _reduced(operation: Any, values: Numbers, edges: Numbers) -> Numbers:
    """Return *operation* over each segment of *values* between *edges*, 0 for an empty one."""
    import numpy  # noqa: PLC0415

    starts = edges[:-1]
    numbers = numpy.zeros(len(starts))
    # Segments after the last value are empty, and begin where `reduceat` finds no element.
    inside = int(numpy.count_nonzero(starts < len(values)))
    numbers[:inside] = operation.reduceat(values, starts[:inside], dtype="f8")
    # Of another empty segment it gives the element at its start.
    numbers[starts == edges[1:]] = 0.0
    return numbers


# --- quantiles --------------------------------------------------------------------------------------------------------
def _buckets(values: Numbers) -> Counter[int]:
    """Return the number of tokens in each bucket, by the size of the value; not finite ones are left out."""
    import numpy  # noqa: PLC0415

    # The upper half of a 32-bit float: sign, exponent and seven bits of its fraction.
    halves = values.astype("<f4", copy=False).view("<u2")[1::2]
    counts = numpy.bincount((halves & _NO_SIGN) >> 1)[:BUCKETS]
    (buckets,) = numpy.nonzero(counts)
    return Counter(dict(zip(buckets.tolist(), counts[buckets].tolist(), strict=True)))


def _bucket_edges(bucket: int) -> tuple[float, float]:
    """Return the lowest number of *bucket*, and that of the next one."""
    bits = struct.pack("<2I", bucket << 17, (bucket + 1) << 17)
    return struct.unpack("<2f", bits)


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """Return the value below which *share* of the log-probabilities lie, linear within its bucket; NaN without any."""
    total = sum(buckets.values())
    if not total:
        return math.nan
    rank = (1.0 - share) * total  # buckets are of the negative values
    ordered = sorted(buckets)
    for bucket, reached in zip(
        ordered, accumulate(buckets[bucket] for bucket in ordered), strict=True
    ):
        if reached >= rank:
            if not bucket:  # tokens that were certain
                return 0.0
            low, high = _bucket_edges(bucket)
            inside = (rank - (reached - buckets[bucket])) / buckets[bucket]
            return -(low + (high - low) * inside)
    return math.nan
