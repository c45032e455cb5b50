"""Values of each sampled token of many rollouts -> spans ``rl.tokens``: sums over all, and the streams of a few.

The sums of all rollouts leave, a few numbers each. Whole streams leave for the rollouts that
trackers show, and where the other half of the mismatch comes from another process: the bridge joins
these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy
import orjson

from otel_bridge.emit.emit_run import EmitRun
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.lineage.train_on import append_linked_span, step_pairs
from otel_bridge.emit.rollouts.finished import is_kept
from otel_bridge.emit.rollouts.identity import rollout_ids
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.emit.tokens.streams import (
    OTHER_LENGTH,
    UNREADABLE,
    TokenRollout,
    add_texts,
    first_within,
    read_rollout,
    rows_of,
)
from otel_bridge.errors import any_error_but_signals
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
    ENGINE,
    LOSS_MASK,
    TOKEN_IDS,
    TRAINER,
    Figure,
    Numbers,
    figure_of_stream,
    figures_of,
    flat,
    parts_within,
    streams_of_figures,
)

_MAX_STREAMS = 12
_MAX_NAME_CHARS = 64
_MAX_TEXTS = 1 << 17
"""Most tokens of a call that are decoded, those of its first rollouts."""
_SENT_TOKENS = 1 << 24
"""Most tokens of a call whose streams leave whole, 64 MiB a stream."""
_SPAN_TOKENS = 1 << 20
"""Most tokens of one span, unless one rollout has more: so a span stays below the limit of a record."""


def annotate(
    run: EmitRun,
    rollouts: object,
    streams: Mapping[str, object],
    *,
    step: object = None,
    role: str | None = None,
    decode: Any = None,
) -> None:
    """Record values of each token of *rollouts*. What cannot be read is dropped, counted as ``token_…``.

    Nothing is recorded without a rollout that has an id, or without a stream of numbers. Rollouts
    need not be known here: the bridge joins them by id, in whatever order they arrive.

    Args:
        run: The run.
        rollouts: One rollout or id, or many; or parallel lists as a mapping with ``ids``, and
            streams beside it.
        streams: Values by name: of one rollout, an array or list; of many, one of these each, or
            one array of all.
        step: The training step; ``None``: that of the role's next row.
        role: Another role than the run's own.
        decode: The program's function from token ids to text.

    Raises:
        Exception: What the program's own objects raise; `Run.annotate` counts the call as lost.
    """
    ids = rollout_ids(run, rollouts, "token")
    if not any(ids):
        return
    batch = _read(run, ids, _named_streams(rollouts, streams))
    names = list(dict.fromkeys(name for rollout in batch for name in rollout.streams))
    if not names:
        return
    # Kept rollouts first: the limits of a call are spent on what trackers show.
    batch.sort(key=lambda rollout: is_kept(rollout.trace_id), reverse=True)
    shown_rollouts = _choose_sent(run, batch, names)
    policy = run.rollout_options.limits.policy
    if not policy.off:
        add_texts(run, first_within(shown_rollouts, _MAX_TEXTS), decode)
    # Anybody with the tokenizer can read ids as the whole text.
    if policy.limit is not None:
        for rollout in batch:
            rollout.streams.pop(TOKEN_IDS, None)
    pairs = step_pairs(run, step, role)
    for places in parts_within(list(map(len, batch)), _SPAN_TOKENS):
        append_token_span(run, batch[places], names, pairs)


def _named_streams(
    rollouts: object, streams: Mapping[str, object]
) -> Mapping[str, object]:
    """Return *streams*, with those that stand beside the ids of *rollouts* before them."""
    if not isinstance(rollouts, Mapping) or "ids" not in rollouts:
        return streams
    columns = dict(cast("Mapping[str, object]", rollouts))
    del columns["ids"]
    return {**columns, **streams}


def _choose_sent(
    run: EmitRun, batch: Sequence[TokenRollout], names: Sequence[str]
) -> Sequence[TokenRollout]:
    """Set which streams leave whole of each rollout, and return the rollouts of which all do.

    These are the kept ones of *batch*, which has them first: only they have a token view. All
    others leave as sums, because all streams of a step are many megabytes. Rollouts beyond
    `_SENT_TOKENS` are counted as ``token_limit``, and leave as sums too.
    """
    kept_rollouts = sum(is_kept(rollout.trace_id) for rollout in batch)
    # Those of another process: it is not known here which of them trackers show.
    shown_rollouts = batch[: kept_rollouts or len(batch)]
    sent_rollouts = shown_rollouts
    halves = [name for name in (ENGINE, TRAINER) if name in names]
    # Of all rollouts, since the bridge joins them with the other half.
    if len(halves) == 1:
        sent_rollouts = batch
    within_limit = first_within(sent_rollouts, _SENT_TOKENS)
    if len(within_limit) < len(sent_rollouts):
        run.count_drop("token_limit", len(sent_rollouts) - len(within_limit))
    for index, rollout in enumerate(within_limit):
        rollout.sent = names if index < len(shown_rollouts) else halves
    return within_limit[: len(shown_rollouts)]


def _read(
    run: EmitRun, ids: Sequence[str | None], streams: Mapping[str, object]
) -> list[TokenRollout]:
    """Return the rollouts with an id, each once, with their streams; empty without any.

    One without an id was counted before. One that is named again is counted as ``token_twice``, and
    its first values stay: a span links each rollout once, and the bridge refuses one that repeats.
    """
    batch: dict[bytes, TokenRollout] = {}
    for rollout_id, values in zip(ids, _rows(run, streams, len(ids)), strict=True):
        if rollout_id is None:
            continue
        trace_id = trace_id_bytes(run.id, rollout_id)
        if trace_id in batch:
            run.count_drop("token_twice")
            continue
        batch[trace_id] = read_rollout(trace_id, rollout_id, values, run.count_drop)
    return list(batch.values())


def _rows(
    run: EmitRun, streams: Mapping[str, object], rollouts: int
) -> list[dict[str, object]]:
    """Return what the streams have of each rollout, by name.

    A stream is left out and counted beyond `_MAX_STREAMS` (``token_streams``: each becomes keys of
    metrics), and if it cannot be iterated (``token_unreadable``). One with more or fewer rows than
    *rollouts* counts the difference (``token_length``); rows are taken in order, so that the
    rollouts at the end lack it.
    """
    rows_of_rollouts = [dict[str, object]() for _ in range(rollouts)]
    names: set[str] = set()
    for raw_name, stream in streams.items():
        if stream is None:
            continue
        if len(names) == _MAX_STREAMS:
            run.count_drop("token_streams", 1, raw_name)
            continue
        name = (coerce.name(raw_name) or "unknown")[:_MAX_NAME_CHARS]
        try:
            rows = rows_of(stream, rollouts)
        except any_error_but_signals():  # whatever the program put there
            run.count_drop(UNREADABLE, 1, name)
            continue
        names.add(name)
        for values, row in zip(rows_of_rollouts, rows, strict=False):
            values[name] = row
        if len(rows) != rollouts:
            run.count_drop(OTHER_LENGTH, abs(len(rows) - rollouts), name)
    return rows_of_rollouts


# --- spans ------------------------------------------------------------------------------------------
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
        # As bytes of little-endian numbers, which cost the caller less than an OTLP array of them.
        # The bridge reads both.
        attributes += [
            (f"{TOKENS_FIGURES}{name}", figure.rollouts.tobytes()),
            (f"{TOKENS_DECILES}{name}", figure.tenths.tobytes()),
        ]
        if len(figure.buckets):
            attributes.append((f"{TOKENS_BUCKETS}{name}", figure.buckets.tobytes()))
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
