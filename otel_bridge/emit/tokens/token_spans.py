"""Rollouts with their streams of tokens -> spans ``rl.tokens``: sums over all, and the streams of a few."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
import orjson

from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import span_attributes
from otel_bridge.emit.lineage.linked_span import append_linked_span
from otel_bridge.emit.tokens import streams as reading
from otel_bridge.emit.tokens.batch import TokenBatch
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
    run: EmitRun, batch: TokenBatch, pairs: Sequence[tuple[str, Attribute]]
) -> None:
    """Append one span of the rollouts of *batch*, with the attributes *pairs* first."""
    streams: dict[str, Numbers] = {}
    for name, column in batch.columns.items():
        # All tokens of a rollout without a mask were sampled.
        missing = 1.0 if name == LOSS_MASK else math.nan
        streams[name] = reading.flat(column, batch.lengths, missing)
    values = _sampled_values(streams)
    figures = figures_of(values, batch.lengths)
    _count_not_finite(
        run,
        batch,
        streams.get(LOSS_MASK),
        {name: figures[figure_of_stream(name)] for name in values},
    )
    attributes = list(pairs)
    for name, figure in figures.items():
        attributes += _figure_pairs(name, figure)
    attributes += _stream_pairs(batch, {**streams, **values})
    texts = {
        str(index): text for index, text in enumerate(batch.texts) if text is not None
    }
    if texts:
        attributes.append((TOKENS_TEXTS, orjson.dumps(texts).decode()))
    packed = span_attributes(attributes)
    append_linked_span(run, TOKENS_SPAN, packed, batch.trace_ids)


def _sampled_values(streams: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return the streams of which there are figures, NaN for tokens that the mask says were not sampled."""
    mask = streams.get(LOSS_MASK)
    values = {
        name: stream for name, stream in streams.items() if name not in REFERENCES
    }
    if mask is None:
        return values
    return {name: reading.masked(stream, mask) for name, stream in values.items()}


def _count_not_finite(
    run: EmitRun, batch: TokenBatch, mask: Numbers | None, figures: Mapping[str, Figure]
) -> None:
    """Count the tokens whose value is not finite: the figure of their stream lacks them without a statement of that."""
    if mask is None:
        sampled = sum(batch.lengths)
    else:
        sampled = int((mask > 0).sum())
    for name, figure in figures.items():
        not_finite = int(sampled - sum(figure.counts)) - batch.columns[name].missing(
            batch.lengths
        )
        if not_finite > 0:
            run.count_drop(reading.NOT_FINITE, not_finite, name)


def _figure_pairs(name: str, figure: Figure) -> Iterator[tuple[str, Attribute]]:
    sums = [*figure.counts, *figure.sums, *figure.maxima]
    deciles = [*figure.decile_counts, *figure.decile_sums]
    yield f"{TOKENS_FIGURES}{name}", numpy.array(sums, "<f8").tobytes()
    yield f"{TOKENS_DECILES}{name}", numpy.array(deciles, "<f8").tobytes()
    if figure.buckets:
        buckets = numpy.array(sorted(figure.buckets.items()), "<i8")
        yield f"{TOKENS_BUCKETS}{name}", buckets.tobytes()


def _stream_pairs(
    batch: TokenBatch, streams: Mapping[str, Numbers]
) -> Iterator[tuple[str, Attribute]]:
    """Yield the lengths of the rollouts whose streams leave, and these streams.

    Nothing if none leaves.
    """
    sent = max(batch.shown, batch.joined)
    if not sent:
        return
    yield TOKENS_LENGTHS, numpy.array(batch.lengths[:sent], "<i8").tobytes()
    for name, stream in streams.items():
        rollouts = sent if name == batch.half else batch.shown
        if any(row is not None for row in batch.columns[name].rows[:rollouts]):
            numbers = stream[: sum(batch.lengths[:rollouts])]
            yield f"{TOKENS_STREAM}{name}", numbers.astype("<f4", copy=False).tobytes()
