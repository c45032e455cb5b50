"""Tokens that the turns of rollouts carry -> what `annotate` takes: the tokens of a rollout, turn after turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.emit.rollouts.columns import token_ids
from otel_bridge.tokens.names import ENGINE, LOSS_MASK, TOKEN_IDS

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

_NO_VALUE = {TOKEN_IDS: math.nan, ENGINE: None, LOSS_MASK: 1}
"""What stands for a token of a turn that lacks the stream."""


def annotate_turns(
    run: EmitRun,
    rollouts: Sequence[tuple[object, Sequence[object]]],
    *call: Any,
) -> None:
    """Record the tokens of the turns of *rollouts*, each an id and its turns, as `annotate` does.

    A turn of another type than a mapping has no tokens; the rollout's own reader counts it.

    Args:
        run: The run.
        rollouts: Id and turns of each rollout.
        call: Fields of `TokensCall`.
    """
    ids: list[object] = []
    streams: dict[str, list[object]] = {name: [] for name in _NO_VALUE}
    for rollout_id, turns in rollouts:
        joined = _joined(turns)
        if joined[ENGINE] is None and joined[TOKEN_IDS] is None:
            continue
        ids.append(rollout_id)
        for name, values in joined.items():
            streams[name].append(values)
    sent = {
        name: rows
        for name, rows in streams.items()
        if any(row is not None for row in rows)
    }
    if sent:
        # It imports numpy, which starts threads: turns without tokens must not.
        from otel_bridge.emit.tokens.annotate import TokensCall, annotate  # noqa: PLC0415

        annotate(run, ids, sent, TokensCall(*call))


def _joined(turns: Sequence[object]) -> dict[str, list[object] | None]:
    """Return the streams of one rollout, turn after turn; ``None`` for one that no turn has."""
    readable = [
        cast("Mapping[str, Any]", turn) for turn in turns if isinstance(turn, Mapping)
    ]
    rows = [
        {name: token_ids(turn.get(name)) or [] for name in _NO_VALUE}
        for turn in readable
    ]
    joined: dict[str, list[object] | None] = {}
    for name, missing in _NO_VALUE.items():
        values: list[object] = []
        for row in rows:
            length = max(map(len, row.values()))
            values += row[name] or [missing] * length
        joined[name] = values if any(row[name] for row in rows) else None
    return joined
