"""Per-token streams of rollouts -> sums that can be added over calls, processes and ranks. Pure; shared by both sides.

A stream is flat: the tokens of all rollouts, one after the other, NaN where a token has no value.
Each figure is one vectorised pass.

numpy is imported where it computes: most bridges see no tokens, and it takes 0.1 s of their start
and 20 MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from otel_bridge.records import Distribution
from otel_bridge.values.mappings import without

T = TypeVar("T")
ENGINE = "logprobs"
TRAINER = "trainer_logprobs"
TOKEN_IDS = "token_ids"  # noqa: S105  # tokens of a model
LOSS_MASK = "loss_mask"
REFERENCES = (TOKEN_IDS, LOSS_MASK)
"""Streams that say which tokens there are, and have no figure."""
FIGURES: Mapping[str, str] = {
    ENGINE: "logprob/engine",
    TRAINER: "logprob/trainer",
    "entropies": "entropy",
    "advantages": "advantage",
    "is_masked": "masked",
    "is_clipped": "clipped",
}
"""Stream to the name of its figure; any other stream has the figure of its own name."""
ABSOLUTE = "mismatch/mean"
MISMATCH = ("mismatch/k1", "mismatch/k3", ABSOLUTE, "mismatch/beyond")


def figure_of_stream(name: str) -> str:
    """Return the name of the figure of a stream."""
    return FIGURES.get(name, name)


def streams_of_figures(streams: Mapping[str, T]) -> dict[str, T]:
    """Return the streams that have a figure, by name."""
    return without(streams, REFERENCES)


Numbers: TypeAlias = Any
"""A numpy array of floats, shape (tokens,)."""

BOUND = 0.5
"""A token counts as beyond when its two log-probabilities differ by more than this."""
TENTHS = 10
# 256 KiB of 32-bit floats, which fit into a cache of the processor.
_CHUNK_TOKENS = 1 << 16
# A bucket is the upper 15 bits of a 32-bit float without its sign: 64 for each power of two, each
# 1.1 to 1.6 % wide.
_NO_SIGN = 0x7FFF
BUCKETS = 0x7F80 >> 1
"""Number of buckets; the next one would be of infinity and NaN."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Holds the sums of one quantity.

    Attributes:
        rollouts: Number of tokens with a value, and their sum, of each rollout, shape (2, rollouts).
            Of the absolute mismatch, a third row has their maximum, 0 without a value.
        tenths: Number and sum in each tenth of all rollouts, shape (2, `TENTHS`).
        buckets: For log-probabilities: bucket of ``-value``, and number of tokens, shape (n, 2); see
            `distribution_of`.
    """

    rollouts: Numbers
    tenths: Numbers
    buckets: Numbers


def floats_of(data: bytes) -> Numbers:
    """Return little-endian 32-bit floats as numbers."""
    import numpy  # noqa: PLC0415

    return numpy.frombuffer(data, "<f4")


def flat(
    rows: Sequence[Mapping[str, Numbers]],
    name: str,
    lengths: Sequence[int],
    missing: float = math.nan,
) -> Numbers:
    """Return a stream of rollouts, one after the other, *missing* for each token of those that lack it.

    All in one array, so that a figure is one vectorised pass however many rollouts there are.

    Args:
        rows: Streams of each rollout by name.
        name: Name of the stream.
        lengths: Number of tokens of each rollout.
        missing: Value of the tokens of rollouts without the stream.
    """
    import numpy  # noqa: PLC0415

    arrays: list[Numbers] = []
    for row, length in zip(rows, lengths, strict=True):
        numbers = row.get(name)
        if numbers is None:
            numbers = numpy.full(length, missing, "f4")
        arrays.append(numbers)
    return numpy.concatenate(arrays)


def figures_of_rollouts(rollouts: Iterable[Mapping[str, bytes]]) -> dict[str, Figure]:
    """Return the figures of the streams of rollouts, in their order, each with 32-bit floats by name.

    A rollout that lacks a stream has NaN there, which counts as no value. All streams of a rollout
    have one length. A mask is the sender's to apply.
    """
    rows: list[dict[str, Numbers]] = []
    for streams in rollouts:
        values = streams_of_figures(streams)
        rows.append({name: floats_of(data) for name, data in values.items()})
    lengths = [max(map(len, row.values()), default=0) for row in rows]
    names = sorted(set[str]().union(*rows))
    return figures_of({name: flat(rows, name, lengths) for name in names}, lengths)


def figures_of(
    streams: Mapping[str, Numbers], lengths: Sequence[int]
) -> dict[str, Figure]:
    """Return the figures of flat *streams* by name, with the mismatch when both log-probabilities are among them.

    Tokens without a finite value count in no figure of theirs. Nothing without rollouts.

    Args:
        streams: Stream by name, each with the tokens of all rollouts; without ids and masks of tokens.
        lengths: Number of tokens of each rollout.
    """
    import numpy  # noqa: PLC0415

    # Infinities and values beyond 32 bits are expected. The program may have numpy raise for them.
    with numpy.errstate(all="ignore"):
        parts: dict[str, list[Numbers]] = {}
        start = 0
        # In parts that fit into a cache of the processor: this halves the time.
        for places in parts_within(lengths, _CHUNK_TOKENS):
            end = start + sum(lengths[places])
            edges = _edges(lengths[places])
            chunk = {name: stream[start:end] for name, stream in streams.items()}
            for name, numbers in _quantities(chunk).items():
                parts.setdefault(name, []).append(_sums(name, numbers, edges))
            start = end
        figures: dict[str, Figure] = {}
        for name, sums in parts.items():
            of_tenths = numpy.concatenate(sums, axis=1)
            rollouts = of_tenths.sum(axis=2)
            rollouts[2:] = of_tenths[2:].max(axis=2)
            buckets = numpy.zeros((0, 2), "<i8")
            for stream in (ENGINE, TRAINER):
                if name == figure_of_stream(stream):
                    buckets = _buckets(streams[stream])
            figures[name] = Figure(rollouts, of_tenths[:2].sum(axis=1), buckets)
        return figures


def parts_within(lengths: Sequence[int], limit: int) -> Iterator[slice]:
    """Yield the places of rollouts in parts of at most *limit* tokens, in order.

    Each part has at least one rollout.
    """
    first = 0
    tokens = 0
    for index, length in enumerate(lengths):
        if tokens + length > limit and index > first:
            yield slice(first, index)
            first = index
            tokens = 0
        tokens += length
    if lengths:
        yield slice(first, len(lengths))


def _edges(lengths: Sequence[int]) -> Numbers:
    """Return where each tenth of each rollout begins, and the end: token *i* of *n* is in tenth ``10 * i // n``."""
    import numpy  # noqa: PLC0415

    sizes = numpy.asarray(lengths, dtype="i8")
    ends = numpy.cumsum(sizes)
    tenths = -(-numpy.arange(TENTHS)[None, :] * sizes[:, None] // TENTHS)
    return numpy.append(((ends - sizes)[:, None] + tenths).ravel(), ends[-1])


def _quantities(streams: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return what each figure is of: the streams, and those of `MISMATCH`, not finite where one side has no value."""
    quantities: dict[str, Numbers] = {}
    for name, stream in streams.items():
        quantities[figure_of_stream(name)] = stream
    if ENGINE not in streams or TRAINER not in streams:
        return quantities
    import numpy  # noqa: PLC0415

    # In doubles: the third estimator is a difference of nearly equal numbers.
    ratio = numpy.subtract(streams[TRAINER], streams[ENGINE], dtype="f8")
    absolute = numpy.abs(ratio)
    k3 = numpy.exp(ratio) - 1.0 - ratio
    # A comparison with NaN is false, which would count the token as one within the bound.
    beyond = numpy.where(numpy.isfinite(absolute), absolute > BOUND, numpy.nan)
    quantities.update(zip(MISMATCH, (-ratio, k3, absolute, beyond), strict=True))
    return quantities


def _sums(name: str, values: Numbers, edges: Numbers) -> Numbers:
    """Return number, sum and, of the absolute mismatch alone, maximum of each tenth of each rollout.

    Args:
        name: Name of the figure. A maximum is a further pass over all tokens.
        values: The tokens of all rollouts; what is not finite is left out.
        edges: Result of `_edges`.

    Returns:
        Shape (2 or 3, rollouts, `TENTHS`).
    """
    import numpy  # noqa: PLC0415

    counts = numpy.diff(edges).astype("f8")
    sums = _reduced(numpy.add, values, edges)
    # Checked on the sums: one pass less where every token has a value.
    if not numpy.isfinite(sums.sum()):
        is_number = numpy.isfinite(values)
        values = numpy.where(is_number, values, 0.0)
        counts = _reduced(numpy.add, is_number, edges)
        sums = _reduced(numpy.add, values, edges)
    rows = [counts, sums]
    if name == ABSOLUTE:
        rows.append(_reduced(numpy.maximum, values, edges))
    return numpy.reshape(rows, (len(rows), -1, TENTHS))


def _reduced(operation: Any, values: Numbers, edges: Numbers) -> Numbers:
    """Return *operation* over each segment of *values* between *edges*, 0 for an empty one."""
    import numpy  # noqa: PLC0415

    starts = edges[:-1]
    # One more value, which changes no sum: empty segments at the end begin there.
    numbers = operation.reduceat(numpy.append(values, 0.0), starts, dtype="f8")
    # Of an empty segment it gives the element at its start.
    numbers[starts == edges[1:]] = 0.0
    return numbers


# --- quantiles --------------------------------------------------------------------------------------------------------
def _buckets(values: Numbers) -> Numbers:
    """Return each bucket, by the size of the value, with its number of tokens.

    Not finite ones are left out.
    """
    import numpy  # noqa: PLC0415

    # The upper half of a 32-bit float: sign, exponent and seven bits of its fraction.
    halves = values.astype("<f4", copy=False).view("<u2")[1::2]
    counts = numpy.bincount((halves & _NO_SIGN) >> 1)[:BUCKETS]
    (buckets,) = numpy.nonzero(counts)
    return numpy.stack([buckets, counts[buckets]], axis=1).astype("<i8", copy=False)


def distribution_of(buckets: Mapping[int, int]) -> Distribution:
    """Return the log-probabilities that are counted in *buckets*, of which there is at least one."""
    import numpy  # noqa: PLC0415

    numbers = range(min(buckets), max(buckets) + 2)
    bits: Numbers = numpy.array(numbers, "<u4") << 17
    lows = bits.view("<f4").astype("f8")
    # Below the smallest normal number are the tokens that were certain.
    lows[lows < numpy.finfo("f4").tiny] = 0.0
    # From the other end, since buckets are of the negative values. A difference has no -0.0.
    edges = (0.0 - lows[::-1]).tolist()
    counts = [buckets.get(bucket, 0) for bucket in reversed(numbers[:-1])]
    return Distribution(
        sum(counts), math.nan, math.nan, math.nan, tuple(edges), tuple(counts)
    )
