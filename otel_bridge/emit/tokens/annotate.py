"""Values of each sampled token of many rollouts -> spans ``rl.tokens``: sums over all, and the streams of a few.

The sums of all rollouts leave, a few numbers each. Whole streams leave for the rollouts that
trackers show, and where the other half of the mismatch comes from another process: the bridge joins
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_bridge.emit.emit_run import step_of
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.rollouts.identity import rollout_ids
from otel_bridge.emit.rollouts.kept import is_kept
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.emit.tokens import streams as reading
from otel_bridge.emit.tokens.batch import TokenBatch, rollouts_within
from otel_bridge.emit.tokens.streams import TokenColumn
from otel_bridge.emit.tokens.texts import TokenTexts
from otel_bridge.emit.tokens.token_spans import append_token_span
from otel_bridge.semconv import ROLE, STEP
from otel_bridge.tokens.names import ENGINE, TOKEN_IDS, TRAINER

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

TOKENS = "tokens"
"""Stream of the texts of the tokens."""
_REASON = "token"
_MAX_STREAMS = 12
_MAX_NAME_CHARS = 64
_MAX_TEXTS = 1 << 17
"""Most tokens of a call that are decoded, those of its first rollouts."""
_SENT_TOKENS = 1 << 24
"""Most tokens of a call whose streams leave whole, 64 MiB a stream."""


class TokensCall(NamedTuple):
    """Holds what a call states beside its rollouts and streams."""

    step: object = None
    role: str | None = None
    decode: Any = None


def annotate(
    run: EmitRun, rollouts: object, streams: Mapping[str, object], call: TokensCall
) -> None:
    """Record values of each token of *rollouts*. What cannot be read is counted.

    Args:
        run: The run.
        rollouts: One rollout or id, or many; or parallel lists as a mapping with ``ids``, and
            streams beside it.
        streams: Values by name: of one rollout, an array or list; of many, one of these each, or
            one array of all.
        call: Step, role and decoder.

    Raises:
        Exception: What the program's own objects raise.
    """
    named_streams: dict[str, object] = {}
    for name, stream in (*_columns(rollouts).items(), *streams.items()):
        if stream is not None and name != "ids":
            named_streams[name] = stream
    ids = rollout_ids(run, rollouts, _REASON)
    if not any(ids):
        return
    batch = _read(run, ids, named_streams, call)
    if batch is None:
        return
    pairs: list[tuple[str, Attribute]] = [(STEP, step_of(run, call.step, call.role))]
    if call.role is not None and call.role != run.role:
        pairs.append((ROLE, call.role))
    for part in batch.parts():
        append_token_span(run, part, pairs)


def _columns(rollouts: object) -> Mapping[str, object]:
    """Return *rollouts* as parallel lists, empty when they have another shape."""
    if isinstance(rollouts, Mapping) and "ids" in rollouts:
        return cast("Mapping[str, object]", rollouts)
    return {}


def _read(
    run: EmitRun, ids: list[str | None], streams: dict[str, object], call: TokensCall
) -> TokenBatch | None:
    """Return the rollouts with an id, each once, and their streams, in the order in which they leave.

    Returns:
        ``None`` without a rollout, or without a stream of numbers.
    """
    texts = streams.pop(TOKENS, None)
    columns = _token_columns(run, streams, len(ids))
    lengths = reading.lengths_of(
        columns, [rollout_id or "" for rollout_id in ids], run.count_drop
    )
    positions = _positions(run, ids)
    if not positions or not lengths:
        return None
    # Kept rollouts first: the limits of a call are spent on what trackers show.
    trace_ids = sorted(positions, key=is_kept, reverse=True)
    # Those of another process: it is not known here which of them trackers show.
    chosen = sum(map(is_kept, trace_ids)) or len(trace_ids)
    order = [positions[trace_id] for trace_id in trace_ids]
    ordered_lengths = [lengths[position] for position in order]
    halves = [name for name in (ENGINE, TRAINER) if name in columns]
    half = halves[0] if len(halves) == 1 else ""
    batch = TokenBatch(
        trace_ids,
        ordered_lengths,
        {name: column.of(order) for name, column in columns.items()},
        [None] * len(order),
        shown=_within_limit(run, ordered_lengths[:chosen]),
        joined=_within_limit(run, ordered_lengths) if half else 0,
        half=half,
    )
    filtered = TokenTexts(call.decode, run.rollout_options.limits, run.count_drop)
    _add_texts(batch, filtered, _text_rows(texts, order), run)
    return batch


def _token_columns(
    run: EmitRun, streams: Mapping[str, object], rollouts: int
) -> dict[str, TokenColumn]:
    """Return the streams by name, each with a row for each of the *rollouts*.

    Those beyond a limit are counted.
    """
    if len(streams) > _MAX_STREAMS:
        run.count_drop(
            "token_streams", len(streams) - _MAX_STREAMS, list(streams)[_MAX_STREAMS]
        )
    columns: dict[str, TokenColumn] = {}
    for raw_name, stream in list(streams.items())[:_MAX_STREAMS]:
        name = (coerce.name(raw_name) or "unknown")[:_MAX_NAME_CHARS]
        rows = _rows_of_one(stream) if rollouts == 1 else stream
        columns[name] = reading.column_of(name, rows, rollouts, run.count_drop)
    return columns


def _positions(run: EmitRun, ids: Sequence[str | None]) -> dict[bytes, int]:
    """Return the position of each rollout with an id, by trace id.

    One that is named again is counted.
    """
    positions: dict[bytes, int] = {}
    for position, rollout_id in enumerate(ids):
        if rollout_id is not None:
            positions.setdefault(trace_id_bytes(run.id, rollout_id), position)
    repeated = len(ids) - ids.count(None) - len(positions)
    if repeated:
        run.count_drop("token_twice", repeated)
    return positions


def _rows_of_one(stream: object) -> object:
    """Return *stream* as a list of one rollout: a call for one gives its values alone, or in a list of one."""
    shape = getattr(stream, "shape", None)
    is_nested = _is_nested(stream) if shape is None else len(shape) > 1
    if is_nested:
        return stream
    return [stream]


def _is_nested(stream: object) -> bool:
    """Return whether *stream* is a list of one array or list."""
    if not isinstance(stream, (list, tuple)):
        return False
    values = cast("Sequence[object]", stream)
    return len(values) == 1 and hasattr(values[0], "__len__")


def _within_limit(run: EmitRun, lengths: Sequence[int]) -> int:
    """Return how many of the rollouts' streams may leave whole; the others are counted."""
    rollouts = rollouts_within(lengths, _SENT_TOKENS)
    if rollouts < len(lengths):
        run.count_drop("token_limit", len(lengths) - rollouts)
    return rollouts


def _text_rows(texts: object, order: Sequence[int]) -> list[Sequence[object] | None]:
    """Return the texts that a call has of each rollout, in *order*; ``None`` where it has none.

    Raises:
        Exception: What the program's own objects raise.
    """
    if texts is None:
        return [None] * len(order)
    rows = list(cast("Sequence[Sequence[object]]", texts))
    if len(order) == 1 and rows and isinstance(rows[0], str):
        rows = [rows]
    return [rows[position] if position < len(rows) else None for position in order]


def _add_texts(
    batch: TokenBatch,
    filtered: TokenTexts,
    rows: Sequence[Sequence[object] | None],
    run: EmitRun,
) -> None:
    """Add the texts of the tokens of shown rollouts.

    Remove ids that may not leave, since they stand for texts.
    """
    ids = batch.columns.get(TOKEN_IDS)
    if filtered.is_off:
        decoded = 0
    else:
        decoded = min(batch.shown, rollouts_within(batch.lengths, _MAX_TEXTS))
    for index in range(decoded):
        row = rows[index]
        token_ids = None if ids is None else ids.rows[index]
        if row is None:
            texts = filtered.of_ids(token_ids)
        else:
            texts = list(map(str, row))
        if texts is None:
            continue
        if len(texts) == batch.lengths[index]:
            batch.texts[index] = filtered.allowed(texts)
        else:
            run.count_drop(reading.OTHER_LENGTH, 1, TOKENS)
        if ids is not None and batch.texts[index] is None:
            ids.remove(index)
    if ids is not None and not filtered.ids_leave:
        for index in range(len(batch.lengths)):
            ids.remove(index)
