"""Rollouts with their streams of tokens -> spans ``rl.tokens``: sums over all, and the streams of a few."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
import orjson

from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.lineage.linked_span import append_linked_span
from otel_bridge.emit.tokens.streams import TokenRollout
from otel_bridge.semconv import (
    TOKENS_BUCKETS,
    TOKENS_DECILES,
    TOKENS_FIGURES,
    TOKENS_LENGTHS,
    TOKENS_SPAN,
    TOKENS_STREAM,
    TOKENS_TEXTS,
)
from otel_bridge.tokens.names import LOSS_MASK, REFERENCES, figure_of_stream
from otel_bridge.tokens.statistics import Figure, Numbers, figures_of

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun


def append_token_span(
    run: EmitRun,
    rollouts: Sequence[TokenRollout],
    names: Sequence[str],
    pairs: Sequence[tuple[str, Attribute]],
) -> None:
    """Append one span of *rollouts*, those first whose streams leave.

    Values that are not finite are in no sum and counted as ``token_not_finite``; ``None`` and
    tokens that were not sampled are not, because the program itself says that they have no value.

    Args:
        run: The run.
        rollouts: At least one.
        names: Streams of the call.
        pairs: Further attributes.
    """
    streams = {name: _flat(name, rollouts) for name in names}
    values = _values(streams)
    figures = figures_of(values, list(map(len, rollouts)))
    mask = streams.get(LOSS_MASK)
    sampled = sum(map(len, rollouts)) if mask is None else int((mask > 0).sum())
    for name in values:
        not_finite = sampled - int(sum(figures[figure_of_stream(name)].counts))
        if not_finite > 0:
            not_finite -= sum(rollout.missing(name) for rollout in rollouts)
        if not_finite > 0:
            run.count_drop("token_not_finite", not_finite, name)
    attributes = list(pairs)
    for name, figure in figures.items():
        attributes += _figure_pairs(name, figure)
    attributes += _stream_pairs(rollouts, {**streams, **values})
    texts: dict[str, Sequence[str]] = {}
    for index, rollout in enumerate(rollouts):
        if rollout.texts is not None:
            texts[str(index)] = rollout.texts
    if texts:
        attributes.append((TOKENS_TEXTS, orjson.dumps(texts).decode()))
    trace_ids = [rollout.trace_id for rollout in rollouts]
    append_linked_span(run, TOKENS_SPAN, attributes, trace_ids)


def _flat(name: str, rollouts: Sequence[TokenRollout]) -> Numbers:
    """Return the numbers of all rollouts, one after the other, NaN for those without the stream.

    All in one array, so that a figure is one vectorised pass however many rollouts there are.
    """
    # All tokens of a rollout without a mask were sampled.
    missing = 1.0 if name == LOSS_MASK else math.nan
    arrays: list[Numbers] = []
    for rollout in rollouts:
        numbers = rollout.streams.get(name)
        if numbers is None:
            numbers = numpy.full(rollout.length, missing, "f4")
        arrays.append(numbers)
    return numpy.concatenate(arrays)


def _values(streams: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return the streams of which there are figures, NaN for tokens that were not sampled, such as those of a tool."""
    mask = streams.get(LOSS_MASK)
    values: dict[str, Numbers] = {}
    for name, stream in streams.items():
        if name in REFERENCES:
            continue
        values[name] = stream
        if mask is not None:
            values[name] = numpy.where(mask > 0, stream, stream.dtype.type(math.nan))
    return values


def _figure_pairs(name: str, figure: Figure) -> Iterator[tuple[str, Attribute]]:
    """Yield the sums of a figure as attributes.

    As bytes of little-endian numbers, which cost the caller less than an OTLP array of them. The
    bridge reads both.
    """
    sums = [*figure.counts, *figure.sums, *figure.maxima]
    deciles = [*figure.decile_counts, *figure.decile_sums]
    yield f"{TOKENS_FIGURES}{name}", numpy.array(sums, "<f8").tobytes()
    yield f"{TOKENS_DECILES}{name}", numpy.array(deciles, "<f8").tobytes()
    if figure.buckets:
        buckets = numpy.array(sorted(figure.buckets.items()), "<i8")
        yield f"{TOKENS_BUCKETS}{name}", buckets.tobytes()


def _stream_pairs(
    rollouts: Sequence[TokenRollout], streams: Mapping[str, Numbers]
) -> Iterator[tuple[str, Attribute]]:
    """Yield the lengths of the rollouts whose streams leave, and these streams; nothing if none leaves.

    A stream covers the first rollouts of the span: by the lengths a receiver cuts it, and sees
    where it ends. So a stream that a rollout lacks is NaN in its place.
    """
    sent = [rollout for rollout in rollouts if rollout.sent]
    if not sent:
        return
    yield TOKENS_LENGTHS, numpy.array(list(map(len, sent)), "<i8").tobytes()
    for name, stream in streams.items():
        members = [rollout for rollout in sent if name in rollout.sent]
        if any(name in rollout.streams for rollout in members):
            numbers = stream[: sum(map(len, members))]
            yield f"{TOKENS_STREAM}{name}", numbers.astype("<f4", copy=False).tobytes()
