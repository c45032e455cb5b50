"""Per-token streams of rollouts -> sums that can be added over calls, processes and ranks. Pure; shared by both sides.

A stream is flat: the tokens of all rollouts, one after the other, NaN where a token has no value. With numpy, which is
used only where the program has imported it, each figure is one vectorised pass; without it, plain loops.
"""

from __future__ import annotations

import math
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from operator import add
from typing import Any, TypeAlias, cast

Numbers: TypeAlias = Any
"""A numpy array of doubles, or a list of floats; of one kind within a call."""

ENGINE = "logprobs"
TRAINER = "trainer_logprobs"
TOKEN_IDS = "token_ids"  # noqa: S105  # tokens of a model
LOSS_MASK = "loss_mask"
REFERENCES = (TOKEN_IDS, LOSS_MASK)
"""Streams that say what a token is, and have no figure."""
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
BOUND = 0.5
"""A token counts as beyond when its two log-probabilities differ by more than this."""
DECILES = 10
# 256 KiB of 32-bit floats, which fit into a cache of the processor.
_CHUNK_TOKENS = 1 << 16
# math.exp overflows beyond 709.
_MAX_EXPONENT = 700
# A bucket is the upper 15 bits of a 32-bit float without its sign: 64 for each power of two, each 1.1 to 1.6 % wide.
_NO_SIGN = 0x7FFF
_NOT_FINITE = 0x7F80 >> 1


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


def numpy_module() -> Any:
    """Return numpy if the process has imported it, else ``None``."""
    # Not imported here: a training process pays for no import that it did not ask for.
    return sys.modules.get("numpy")


def floats_of(data: bytes) -> Numbers:
    """Return little-endian 32-bit floats as numbers."""
    numpy = numpy_module()
    if numpy is not None:
        return numpy.frombuffer(data, "<f4")
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def figure_of_stream(name: str) -> str:
    """Return the name of the figure of a stream."""
    return FIGURES.get(name, name)


def figures_of(
    streams: Mapping[str, Numbers],
    lengths: Sequence[int],
    *,
    only_mismatch: bool = False,
) -> dict[str, Figure]:
    """Return the figures of flat *streams* by name, with the mismatch when both log-probabilities are among them.

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
        for name, figure in _figures(chunk, sizes, only_mismatch=only_mismatch).items():
            if name in figures:
                figures[name].extend(figure)
            else:
                figures[name] = figure
        start = end
    for name in (ENGINE, TRAINER):
        if name in streams and figure_of_stream(name) in figures:
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


def _figures(
    streams: Mapping[str, Numbers], lengths: Sequence[int], *, only_mismatch: bool
) -> dict[str, Figure]:
    numpy = numpy_module()
    is_array = numpy is not None and any(
        isinstance(stream, numpy.ndarray) for stream in streams.values()
    )
    values: dict[str, Numbers] = {}
    if not only_mismatch:
        values |= {figure_of_stream(name): stream for name, stream in streams.items()}
    if ENGINE in streams and TRAINER in streams:
        mismatch = _mismatch_of_arrays if is_array else _mismatch_of_lists
        values |= mismatch(streams[ENGINE], streams[TRAINER])
    figures: dict[str, Figure] = {}
    if is_array:
        edges = _edges_of(numpy, lengths)
    else:
        edges = list(_edges(lengths))
    for name, numbers in values.items():
        fold = _fold_array if is_array else _fold_list
        figures[name] = fold(numbers, edges, with_maxima=name == ABSOLUTE)
    return figures


def _edges(lengths: Iterable[int]) -> Iterator[int]:
    """Yield where each tenth of each rollout begins, and the end: token *i* of *n* is in tenth ``10 * i // n``."""
    start = 0
    for length in lengths:
        for tenth in range(DECILES):
            yield start - (-tenth * length // DECILES)
        start += length
    yield start


def _edges_of(numpy: Any, lengths: Sequence[int]) -> Numbers:
    """Return `_edges` as an array."""
    sizes = numpy.asarray(lengths, dtype="i8")
    ends = numpy.cumsum(sizes)
    tenths = -(-numpy.arange(DECILES)[None, :] * sizes[:, None] // DECILES)
    return numpy.append(((ends - sizes)[:, None] + tenths).ravel(), ends[-1])


def _mismatch_of_arrays(engine: Numbers, trainer: Numbers) -> dict[str, Numbers]:
    numpy = numpy_module()
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


def _mismatch_of_lists(engine: Numbers, trainer: Numbers) -> dict[str, Numbers]:
    ratios = [after - before for before, after in zip(engine, trainer, strict=True)]
    absolute = [abs(ratio) for ratio in ratios]
    k3 = [
        math.exp(ratio) - 1.0 - ratio if abs(ratio) < _MAX_EXPONENT else math.nan
        for ratio in ratios
    ]
    beyond = [
        float(value > BOUND) if math.isfinite(value) else math.nan for value in absolute
    ]
    return dict(
        zip(MISMATCH, ([-ratio for ratio in ratios], k3, absolute, beyond), strict=True)
    )


def _fold_array(values: Numbers, edges: Numbers, *, with_maxima: bool) -> Figure:
    numpy = numpy_module()
    if not len(values):
        return _fold_list([], edges.tolist(), with_maxima=with_maxima)
    counts = numpy.diff(edges).astype("f8")
    with numpy.errstate(all="ignore"):
        sums = _reduced(numpy.add, values, edges)
    # Checked on the sums: one pass less where every token has a value.
    if not numpy.isfinite(sums.sum()):
        is_number = numpy.isfinite(values)
        values = numpy.where(is_number, values, 0.0)
        counts = _reduced(numpy.add, is_number, edges)
        sums = _reduced(numpy.add, values, edges)
    shape = (-1, DECILES)
    if with_maxima:
        maxima = _maxima(_reduced(numpy.maximum, values, edges))
    else:
        maxima = []
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
    numpy = numpy_module()
    starts = edges[:-1]
    numbers = numpy.zeros(len(starts))
    # Segments after the last value are empty, and begin where `reduceat` finds no element.
    inside = int(numpy.count_nonzero(starts < len(values)))
    numbers[:inside] = operation.reduceat(values, starts[:inside], dtype="f8")
    # Of another empty segment it gives the element at its start.
    numbers[starts == edges[1:]] = 0.0
    return numbers


def _maxima(of_tenths: Numbers) -> list[float]:
    return cast("list[float]", of_tenths.reshape(-1, DECILES).max(axis=1).tolist())


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _fold_list(values: Numbers, edges: Sequence[int], *, with_maxima: bool) -> Figure:
    figure = Figure()
    segments = list(pairwise(edges))
    for first in range(0, len(segments), DECILES):
        tenths = [
            _finite(values[start:end])
            for start, end in segments[first : first + DECILES]
        ]
        counts = [float(len(numbers)) for numbers in tenths]
        sums = [math.fsum(numbers) for numbers in tenths]
        maxima = [max([0.0, *chain(*tenths)])] if with_maxima else []
        figure.extend(Figure([sum(counts)], [sum(sums)], maxima, counts, sums))
    return figure


# --- quantiles --------------------------------------------------------------------------------------------------------
def _buckets(values: Numbers) -> Counter[int]:
    numpy = numpy_module()
    is_array = numpy is not None and isinstance(values, numpy.ndarray)
    if is_array:
        return _buckets_of_array(values)
    return _buckets_of_list(values)


def _buckets_of_array(values: Numbers) -> Counter[int]:
    numpy = numpy_module()
    # The upper half of a 32-bit float: sign, exponent and seven bits of its fraction.
    halves = numpy.ascontiguousarray(values, dtype="<f4").view("<u2")[1::2]
    counts = numpy.bincount((halves & _NO_SIGN) >> 1)[:_NOT_FINITE]
    (buckets,) = numpy.nonzero(counts)
    return Counter(dict(zip(buckets.tolist(), counts[buckets].tolist(), strict=True)))


def _buckets_of_list(values: Numbers) -> Counter[int]:
    numbers = _finite(values)
    halves = struct.unpack(
        f"<{2 * len(numbers)}H", struct.pack(f"<{len(numbers)}f", *numbers)
    )[1::2]
    return Counter((half & _NO_SIGN) >> 1 for half in halves)


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
