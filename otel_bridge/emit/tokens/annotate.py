"""Values of each sampled token of many rollouts -> spans ``rl.tokens``: sums over all, and the streams of a few.

The sums of all rollouts leave, a few numbers each. Whole streams leave for the rollouts that trackers show, and where
the other half of the mismatch comes from another process: the bridge joins these.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from otel_bridge.emit.emit_run import step_of
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import rollout_link, scope_spans, span, span_attributes
from otel_bridge.emit.rollouts.identity import rollout_ids
from otel_bridge.emit.rollouts.kept import is_kept
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.emit.tokens import streams as reading
from otel_bridge.emit.tokens.streams import TokenColumn
from otel_bridge.emit.tokens.texts import TokenTexts
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import (
    ROLE,
    STEP,
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
)

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

TOKENS: Final = "tokens"
"""Stream of the texts of the tokens."""
_REASON: Final = "token"
_MAX_STREAMS: Final = 12
_MAX_NAME_CHARS: Final = 64
_MAX_TEXTS: Final = 1 << 17
"""Most tokens of a call that are decoded, those of its first rollouts."""
_SPAN_TOKENS: Final = 1 << 20
"""Most tokens of one span, unless one rollout has more: so a span stays below the limit of a record."""
_SENT_TOKENS: Final = 1 << 24
"""Most tokens of a call whose streams leave whole, 64 MiB a stream."""


class TokensCall(NamedTuple):
    """Holds what a call states beside its rollouts and streams."""

    step: object = None
    role: str | None = None
    decode: Any = None


@dataclass(slots=True)
class _Batch:
    """Holds the rollouts of a call, those first whose streams leave.

    Attributes:
        shown: Number of rollouts whose streams all leave.
        joined: Number of rollouts of which the one half of the log-probabilities leaves that the call has.
    """

    trace_ids: list[bytes]
    lengths: list[int]
    columns: dict[str, TokenColumn]
    texts: list[list[str] | None]
    shown: int = 0
    joined: int = 0
    halves: tuple[str, ...] = field(default=())

    def cut(self, start: int, end: int) -> _Batch:
        """Return the rollouts from *start* to *end*."""
        return _Batch(
            self.trace_ids[start:end],
            self.lengths[start:end],
            {name: column.of(range(start, end)) for name, column in self.columns.items()},
            self.texts[start:end],
            min(max(self.shown - start, 0), end - start),
            min(max(self.joined - start, 0), end - start),
            self.halves,
        )


def annotate(run: EmitRun, rollouts: object, streams: Mapping[str, object], call: TokensCall) -> None:
    """Record values of each token of *rollouts*. What cannot be read is counted.

    Args:
        run: The run.
        rollouts: One rollout or id, or many; or parallel lists as a mapping with ``ids``, and streams beside it.
        streams: Values by name: of one rollout, an array or list; of many, one of these each, or one array of all.
        call: Step, role and decoder.

    Raises:
        Exception: What the program's own objects raise.
    """
    columns = _columns(rollouts)
    if columns is not None:
        streams = {**{name: column for name, column in columns.items() if name != "ids"}, **streams}
    ids = rollout_ids(run, rollouts, _REASON)
    if not any(ids):
        return
    batch = _read(run, ids, {name: stream for name, stream in streams.items() if stream is not None}, call)
    if batch is None:
        return
    pairs: list[tuple[str, Attribute]] = [(STEP, step_of(run, call.step, call.role))]
    if call.role is not None and call.role != run.role:
        pairs.append((ROLE, call.role))
    for part in _parts(batch):
        _append(run, part, pairs)


def _columns(rollouts: object) -> Mapping[str, object] | None:
    """Return *rollouts* as parallel lists, ``None`` when they have another shape."""
    is_columns = isinstance(rollouts, Mapping) and "ids" in rollouts
    return cast("Mapping[str, object]", rollouts) if is_columns else None


def _read(run: EmitRun, ids: list[str | None], given: dict[str, object], call: TokensCall) -> _Batch | None:
    """Return the rollouts with an id, each once, and their streams, in the order in which they leave."""
    single = len(ids) == 1
    texts = given.pop(TOKENS, None)
    if len(given) > _MAX_STREAMS:
        run.count_drop("token_streams", len(given) - _MAX_STREAMS, list(given)[_MAX_STREAMS])
    columns: dict[str, TokenColumn] = {}
    for raw_name, stream in list(given.items())[:_MAX_STREAMS]:
        name = (coerce.name(raw_name) or "unknown")[:_MAX_NAME_CHARS]
        columns[name] = reading.column_of(
            name, _one(stream, single=single), len(ids), single=False, count_drop=run.count_drop
        )
    lengths = reading.lengths_of(columns, [rollout_id or "" for rollout_id in ids], run.count_drop)
    trace_ids: dict[bytes, int] = {}
    for index, rollout_id in enumerate(ids):
        if rollout_id is not None:
            trace_ids.setdefault(trace_id_bytes(run.id, rollout_id), index)
    if twice := sum(rollout_id is not None for rollout_id in ids) - len(trace_ids):
        run.count_drop("token_twice", twice)
    if not trace_ids or not lengths:
        return None
    halves = tuple(name for name in (ENGINE, TRAINER) if name in columns)
    kept = [trace_id for trace_id in trace_ids if is_kept(trace_id)]
    chosen = kept or list(trace_ids)  # of another process: it is not known here which rollouts trackers show
    ordered = [*kept, *(trace_id for trace_id in trace_ids if not is_kept(trace_id))]
    order = [trace_ids[trace_id] for trace_id in ordered]
    ordered_columns = {name: column.of(order) for name, column in columns.items()}
    batch = _Batch(
        ordered, [lengths[index] for index in order], ordered_columns, [], halves=halves if len(halves) == 1 else ()
    )
    batch.shown = _within_limit(run, batch.lengths[: len(chosen)])
    batch.joined = _within_limit(run, batch.lengths) if batch.halves else 0
    batch.texts = _texts(run, batch, texts, order, call)
    return batch


def _one(stream: object, *, single: bool) -> object:
    """Return *stream* as a list of rollouts: a call for one rollout gives its values alone, or in a list of one."""
    if not single:
        return stream
    shape = getattr(stream, "shape", None)
    if shape is not None:
        return stream if len(shape) > 1 else [stream]
    return stream if _is_nested(stream) else [stream]


def _is_nested(stream: object) -> bool:
    """Return whether *stream* is a list of one array or list."""
    if not isinstance(stream, (list, tuple)):
        return False
    values = cast("Sequence[object]", stream)
    return len(values) == 1 and hasattr(values[0], "__len__")


def _within_limit(run: EmitRun, lengths: Sequence[int]) -> int:
    """Return how many of the rollouts' streams may leave whole; the others are counted."""
    tokens = 0
    for index, length in enumerate(lengths):
        tokens += length
        if tokens > _SENT_TOKENS:
            run.count_drop("token_limit", len(lengths) - index)
            return index
    return len(lengths)


def _texts(
    run: EmitRun, batch: _Batch, given: object, order: Sequence[int], call: TokensCall
) -> list[list[str] | None]:
    """Return the texts of the tokens of each shown rollout, ``None`` without; ids that may not leave are removed."""
    filtered = TokenTexts(call.decode, run.rollout_options.limits, run.count_drop)
    rows = None if given is None else list(cast("Sequence[Sequence[object]]", given))
    if rows is not None and len(order) == 1 and rows and isinstance(rows[0], str):
        rows = [rows]
    ids = batch.columns.get(TOKEN_IDS)
    texts: list[list[str] | None] = [None] * len(order)
    decoded = 0
    for index in range(len(order)):
        token_ids = None if ids is None else ids.rows[index]
        whole: list[str] | None = None
        decoded += batch.lengths[index]
        if index < batch.shown and decoded <= _MAX_TEXTS and not filtered.is_off:
            if rows is not None and order[index] < len(rows):
                whole = [str(text) for text in rows[order[index]]]
            elif token_ids is not None:
                whole = filtered.of_ids(token_ids)
        if whole is not None and len(whole) == batch.lengths[index]:
            texts[index] = filtered.allowed(whole)
        elif whole is not None:
            run.count_drop(reading.OTHER_LENGTH, 1, TOKENS)
        if ids is not None and (not filtered.ids_leave or (whole is not None and texts[index] is None)):
            ids.rows[index] = None
    return texts


def _parts(batch: _Batch) -> Iterator[_Batch]:
    """Yield the rollouts in parts of a bounded number of tokens."""
    start = 0
    tokens = 0
    for index, length in enumerate(batch.lengths):
        if tokens and tokens + length > _SPAN_TOKENS:
            yield batch.cut(start, index)
            start = index
            tokens = 0
        tokens += length
    yield batch.cut(start, len(batch.lengths))


def _append(run: EmitRun, part: _Batch, pairs: Sequence[tuple[str, Attribute]]) -> None:
    streams = {name: reading.flat(column, part.lengths) for name, column in part.columns.items()}
    mask = streams.get(LOSS_MASK)
    values: dict[str, Numbers] = {}
    for name, stream in streams.items():
        if name in {TOKEN_IDS, LOSS_MASK}:
            continue
        values[name] = stream if mask is None else reading.masked(stream, mask)
    attributes = list(pairs)
    figures = figures_of(values, part.lengths)
    for name, figure in figures.items():
        attributes += _figure_pairs(name, figure)
    sampled = sum(part.lengths) if mask is None else reading.sampled(mask)
    for name in values:
        counted = sum(figures[figure_of_stream(name)].counts)
        bad = int(sampled - counted) - part.columns[name].missing(part.lengths)
        if bad > 0:
            run.count_drop(reading.NOT_FINITE, bad, name)
    sent = max(part.shown, part.joined)
    if sent:
        attributes.append((TOKENS_LENGTHS, struct.pack(f"<{sent}q", *part.lengths[:sent])))
        for name, stream in {**streams, **values}.items():
            rollouts = max(part.joined if name in part.halves else 0, part.shown)
            if any(row is not None for row in part.columns[name].rows[:rollouts]):
                attributes.append((f"{TOKENS_STREAM}{name}", _floats(stream[: sum(part.lengths[:rollouts])])))
        texts = {str(index): text for index, text in enumerate(part.texts) if text is not None}
        if texts:
            attributes.append((TOKENS_TEXTS, orjson.dumps(texts).decode()))
    now = time.time_ns()
    random = os.urandom(24)
    links = b"".join(map(rollout_link, part.trace_ids))
    packed = span((random[8:], random[:8], None), TOKENS_SPAN, (now, now), span_attributes(attributes), links=links)
    run.append(Signal.TRACES, scope_spans((packed,)), time_unix_ns=now)


def _figure_pairs(name: str, figure: Figure) -> Iterator[tuple[str, Attribute]]:
    yield f"{TOKENS_FIGURES}{name}", _doubles([*figure.counts, *figure.sums, *figure.maxima])
    yield f"{TOKENS_DECILES}{name}", _doubles([*figure.decile_counts, *figure.decile_sums])
    if figure.buckets:
        flattened = [number for pair in sorted(figure.buckets.items()) for number in pair]
        yield f"{TOKENS_BUCKETS}{name}", struct.pack(f"<{len(flattened)}q", *flattened)


def _doubles(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _floats(numbers: Numbers) -> bytes:
    """Return *numbers* as little-endian 32-bit floats."""
    if hasattr(numbers, "astype"):
        return cast("bytes", numbers.astype("<f4", copy=False).tobytes())
    return struct.pack(f"<{len(numbers)}f", *numbers)
