"""Rollouts with their streams of tokens -> spans ``rl.tokens``: sums over all, and the streams of a few."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
import orjson

from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.lineage.train_on import append_linked_span
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
from otel_bridge.tokens.statistics import (
    LOSS_MASK,
    Figure,
    Numbers,
    figure_of_stream,
    figures_of,
    flat,
    streams_of_figures,
)

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

_MISSING = {LOSS_MASK: 1.0}
"""What a token of a rollout without a stream has instead of NaN: without a mask all tokens were sampled."""


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
    lengths = list(map(len, rollouts))
    rows = [rollout.streams for rollout in rollouts]
    streams = {
        name: flat(rows, name, lengths, _MISSING.get(name, math.nan)) for name in names
    }
    values = _values(streams)
    figures = figures_of(values, lengths)
    _count_not_finite(run, rollouts, figures, streams)
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


def _count_not_finite(
    run: EmitRun,
    rollouts: Sequence[TokenRollout],
    figures: Mapping[str, Figure],
    streams: Mapping[str, Numbers],
) -> None:
    """Count the sampled tokens of *rollouts* that are in no sum, without those that the program left out itself.

    Nothing of a rollout that lacks a stream counts.
    """
    sampled = sum(map(len, rollouts))
    if LOSS_MASK in streams:
        sampled = int((streams[LOSS_MASK] > 0).sum())
    for name in streams_of_figures(streams):
        not_finite = sampled - int(figures[figure_of_stream(name)].rollouts[0].sum())
        if not_finite > 0:
            not_finite -= sum(rollout.left_out(name) for rollout in rollouts)
        if not_finite > 0:
            run.count_drop("token_not_finite", not_finite, name)


def _values(streams: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Return the streams of which there are figures, NaN for tokens that were not sampled, such as those of a tool."""
    values = streams_of_figures(streams)
    mask = streams.get(LOSS_MASK)
    if mask is not None:
        for name, stream in values.items():
            values[name] = numpy.where(mask > 0, stream, stream.dtype.type(math.nan))
    return values


def _figure_pairs(name: str, figure: Figure) -> Iterator[tuple[str, Attribute]]:
    """Yield the sums of a figure as attributes.

    As bytes of little-endian numbers, which cost the caller less than an OTLP array of them. The
    bridge reads both.
    """
    yield f"{TOKENS_FIGURES}{name}", figure.rollouts.tobytes()
    yield f"{TOKENS_DECILES}{name}", figure.tenths.tobytes()
    if len(figure.buckets):
        yield f"{TOKENS_BUCKETS}{name}", figure.buckets.tobytes()


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
            # The program may have numpy raise for a double that 32 bits cannot hold.
            with numpy.errstate(all="ignore"):
                floats = numbers.astype("<f4", copy=False)
            yield f"{TOKENS_STREAM}{name}", floats.tobytes()
