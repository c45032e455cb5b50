"""Values that came after their rollout -> the metadata of its trace in Trackio's database.

Trackio has no call that changes a trace. A trace of its own for each value, which a server and an
inbox get, would put three entries into the list of traces for a rollout that was trained on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import orjson

from otel_bridge.otlp.json_text import number_or_name
from otel_bridge.records import Evaluation, Json
from otel_bridge_trackio.names import LOCK_WAIT_S
from otel_bridge_trackio.payload import LATE_VALUES, Payload, status_text

_OF_THE_ROLLOUT = frozenset({"reward", "advantage"})
"""Names that are facts of a rollout; any other is a part of its rewards."""


def add_late_values(
    path: Path, run_id: str, values: Sequence[Evaluation]
) -> list[Evaluation]:
    """Add *values* to the traces of their rollouts, in one transaction.

    A repeated call changes nothing.

    Args:
        path: Trackio's database of the project.
        run_id: Id of the run.
        values: Values by position; of two with one name the last one stays.

    Returns:
        Values whose rollout has no trace here, which therefore need one of their own.

    Raises:
        sqlite3.Error: The database cannot be read or written; nothing was changed.
    """
    without_trace: list[Evaluation] = []
    # "with database" alone would commit and leave the connection open.
    with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database, database:
        # Trackio keeps traces in a table of their own from 0.26 on.
        if not database.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'traces'"
        ).fetchone():
            return [*values]
        for value in values:
            # As Trackio makes it (SQLiteStorage._split_trace_metrics in 0.43).
            trace_id = f"{run_id}:{value.rollout_id}:{value.rollout_key}:0"
            stored = database.execute(
                "SELECT metadata, search_text FROM traces WHERE id = ?", [trace_id]
            ).fetchone()
            if stored is None:
                without_trace.append(value)
                continue
            metadata: Payload = orjson.loads(stored[0])
            _add(metadata, value)
            texts = [value.name, value.label or "", value.explanation or ""]
            database.execute(
                "UPDATE traces SET metadata = ?, search_text = ? WHERE id = ?",
                [orjson.dumps(metadata), _with_texts(stored[1], texts), trace_id],
            )
    return without_trace


def _add(metadata: Payload, value: Evaluation) -> None:
    """Put *value* where it stands when it comes before the trace is written.

    A value without a number changes only label and explanation. Its name is noted in any case, so
    that a reader sees what came late.
    """
    number: float | str | None = None
    if value.value is not None:
        # Trackio stores infinities and NaN as these texts (`serialize_values` in 0.43).
        number = number_or_name(value.value)
    if number is not None and value.name in _OF_THE_ROLLOUT:
        former_status = _status(metadata)
        metadata[value.name] = number
        # A status that the user gave stays.
        if metadata.get("status") == former_status:
            metadata["status"] = _status(metadata)
    elif number is not None:
        rewards = cast("dict[str, Json]", metadata.get("rewards") or {})
        metadata["rewards"] = {**rewards, value.name: number}
    if value.label:
        metadata[f"{value.name}.label"] = value.label
    if value.explanation:
        metadata[f"{value.name}.explanation"] = value.explanation
    names = cast("list[str]", metadata.get(LATE_VALUES) or [])
    metadata[LATE_VALUES] = [*sorted({*names, value.name})]


def _status(metadata: Payload) -> str | None:
    """Return the text of the column of states as `rollout_trace` makes it of these facts."""
    reward = metadata.get("reward")
    return status_text(
        bool(metadata.get("error")),
        cast("str | None", metadata.get("role")),
        reward if isinstance(reward, (int, float)) else None,
    )


def _with_texts(search_text: str, texts: Sequence[str]) -> str:
    """Return the text in which the dashboard searches, with the words of a value, once."""
    words = " ".join(filter(None, texts)).lower()
    if words in search_text:
        return search_text
    return f"{search_text} {words}"
