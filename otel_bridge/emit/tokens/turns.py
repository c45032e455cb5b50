"""Tokens that the turns of rollouts carry -> what `annotate` takes: the tokens of a rollout, turn after turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from otel_bridge.emit.emit_run import EmitRun
from otel_bridge.emit.rollouts.columns import token_ids
from otel_bridge.tokens.statistics import ENGINE, LOSS_MASK, TOKEN_IDS

_NO_VALUE = {TOKEN_IDS: math.nan, ENGINE: None, LOSS_MASK: 1}
"""What stands for a token of a turn that lacks the stream."""


def annotate_turns(
    run: EmitRun,
    rollouts: Sequence[tuple[object, Sequence[object]]],
    **call: Any,
) -> None:
    """Record the tokens of the turns of *rollouts*, each an id and its turns, as `annotate` does.

    A turn of another type than a mapping has no tokens; the rollout's own reader counts it.
    Rollouts whose turns have neither ids nor log-probabilities are left out, without a count: most
    have none.

    Args:
        run: The run.
        rollouts: Id and turns of each rollout.
        call: Keyword arguments of `annotate`.
    """
    ids: list[object] = []
    streams: dict[str, list[object]] = {name: [] for name in _NO_VALUE}
    for rollout_id, turns in rollouts:
        joined = _joined(turns)
        if ENGINE in joined or TOKEN_IDS in joined:
            ids.append(rollout_id)
            for name, rows in streams.items():
                rows.append(joined.get(name))
    if not ids:
        return
    # It imports numpy, which starts threads: turns without tokens must not.
    from otel_bridge.emit.tokens.annotate import annotate  # noqa: PLC0415

    # A stream that no turn has: of one rollout it would be read as that of one token.
    sent = {name: rows for name, rows in streams.items() if any(rows)}
    annotate(run, ids, sent, **call)


def _joined(turns: Sequence[object]) -> dict[str, list[object]]:
    """Return the streams of one rollout that any of its turns has, turn after turn; empty without any.

    A turn that lacks a stream is filled by `_NO_VALUE`, so that the values of later turns stay with
    their tokens: an unknown id, no log-probability, a token that was sampled.
    """
    joined: dict[str, list[object]] = {}
    length = 0
    for turn in turns:
        if not isinstance(turn, Mapping):
            continue
        fields = cast("Mapping[str, Any]", turn)
        rows = {name: token_ids(fields.get(name)) or [] for name in _NO_VALUE}
        size = max(map(len, rows.values()))
        for name, row in rows.items():
            if row or name in joined:
                stream = joined.setdefault(name, [_NO_VALUE[name]] * length)
                stream += row or [_NO_VALUE[name]] * size
        length += size
    return joined
