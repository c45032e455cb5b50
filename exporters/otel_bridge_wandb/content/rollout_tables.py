"""Rollouts -> incremental tables, one per key.

Evaluations -> a second table per key that names the trace.

An increment uploads its own rows only, but its history line repeats the paths of all earlier
increments. So a table is closed after `INCREMENTS` increments and the next one begins
(``<key>_2``). Growth stays linear, and W&B's page shows only the last hundred increments anyway.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from otel_bridge.exporter import WriterMemory
from otel_bridge.otlp.json_text import utf8
from otel_bridge.records import Evaluation, Json, Message, RolloutRecord
from otel_bridge.text.message_parts import part_text
from otel_bridge.values.mappings import present, without

COLUMNS = (
    "step", "split", "group", "sample", "prompt", "answer", "reward", "advantage", "finish_reason", "policy_version",
    "turns", "messages", "tools", "duration_s", "trace", "rewards", "metadata", "error", "staleness", "trajectory",
    "dataset", "facts",
)  # fmt: skip
EVALUATION_COLUMNS = ("trace", "name", "value", "label", "explanation", "step")
EVALUATIONS_SUFFIX = (
    "_late"  # what a user sees: rewards that arrived after the table of their rollouts
)
INCREMENTS = 100
MAX_TABLE_BYTES = 64 << 20
"""Size at which a table is closed; until then its rows stay in this process (wandb keeps them in
``Table.data``)."""
CellValue: TypeAlias = int | float | str | None


@dataclass(slots=True)
class _Open:
    """Holds the table that is being filled.

    Attributes:
        table: ``wandb.Table``.
        part: 1, 2, … of its key.
        increments: Number of times that the table was logged.
        size_bytes: Size of its text.
    """

    table: Any
    part: int
    increments: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Increment:
    """Holds the next line of a table.

    Attributes:
        key: Key under which it is logged.
        add: Adds the rows to the table and returns the table, to be logged.
        undo: Removes the rows from the table again, because they were not logged.
    """

    key: str
    add: Callable[[], Any]
    undo: Callable[[], None]


class Tables:
    """Manages the incremental tables of one open run.

    Args:
        make: Returns a new ``wandb.Table`` in incremental mode with the given columns.
        memory: Keeps the number of increments of each key over restarts; ``None`` when the run is
            written again.
        cell_chars: Longest text of a cell.
        suffix: End of the keys of this writer's tables, so that no two writers of a run log to one
            table.
    """

    def __init__(
        self,
        make: Callable[[list[str]], Any],
        memory: WriterMemory | None,
        cell_chars: int,
        *,
        suffix: str = "",
    ) -> None:
        self._suffix = suffix
        self._make = make
        self._memory = memory
        self._cell_chars = cell_chars
        self._open: dict[str, _Open] = {}

    def rollouts(self, key: str, rollouts: Sequence[RolloutRecord]) -> Increment:
        """Return the increment of *rollouts*, all of *key*; nothing is in the table yet.

        Raises wandb's own exceptions when a new table cannot be made.
        """
        rows = [rollout_cells(rollout, self._cell_chars) for rollout in rollouts]
        return self._increment(key, COLUMNS, rows)

    def evaluations(self, key: str, values: Sequence[Evaluation]) -> Increment:
        """Return the increment of *values* of rollouts of *key*, in the table beside it."""
        rows = [_cells(_evaluation_values(value), self._cell_chars) for value in values]
        return self._increment(f"{key}{EVALUATIONS_SUFFIX}", EVALUATION_COLUMNS, rows)

    def forget(self) -> None:
        """Drop all tables after the run was closed, because they cannot be logged to another run."""
        self._open.clear()

    def _increment(
        self, key: str, columns: Sequence[str], rows: Sequence[list[CellValue]]
    ) -> Increment:
        """Return the increment of *rows*; its closures add them once there is room for the line.

        A table that was not logged yet is made here, without a memory of its rows: wandb uploads
        only what is added to this object.
        """
        key += self._suffix
        opened = self._current(key, columns)
        row_count = len(opened.table.data)

        def add() -> Any:
            """Add the rows; raises wandb's own exceptions, after which the caller removes them."""
            for row in rows:
                opened.table.add_data(*row)
            opened.increments += 1
            opened.size_bytes += sum(map(_text_chars, rows))
            # Before the line is logged: a kill in between costs one number of an increment, and no
            # row.
            self._remember(key, opened)
            return opened.table

        table_key = key
        if opened.part != 1:
            table_key = f"{key}_{opened.part}"
        return Increment(table_key, add, undo=lambda: _undo(opened, row_count))

    def _current(self, key: str, columns: Sequence[str]) -> _Open:
        """Return the table of *key* that takes rows; after `INCREMENTS` increments or `MAX_TABLE_BYTES` a new part.

        Raises wandb's own exceptions when a table cannot be made.
        """
        opened = self._open.get(key) or self._remembered(key, columns)
        if opened.increments >= INCREMENTS or opened.size_bytes >= MAX_TABLE_BYTES:
            opened = _Open(self._make(list(columns)), opened.part + 1)
        self._open[key] = opened
        return opened

    def _remembered(self, key: str, columns: Sequence[str]) -> _Open:
        """Return an empty table that continues the part of the writer before: wandb numbers its increments on.

        The first part where no writer was before, or the run is written again.
        """
        stored = None
        if self._memory is not None:
            stored = self._memory.get(f"table/{key}")
        part, increments = json.loads(stored) if stored else (1, 0)
        return _Open(self._make(list(columns)), int(part), int(increments))

    def _remember(self, key: str, opened: _Open) -> None:
        if self._memory is not None:
            self._memory.put(
                f"table/{key}", json.dumps([opened.part, opened.increments]).encode()
            )


def _undo(opened: _Open, row_count: int) -> None:
    """Remove the rows behind the first *row_count*, which were not logged, so that a later try adds them once.

    If wandb has noted them as logged, the table is closed instead: the next rows get a new one.
    """
    # After `_last_logged_idx` wandb uploads only later rows: removing these would shift the rest.
    logged: object = getattr(opened.table, "_last_logged_idx", None)
    if isinstance(logged, int) and logged >= row_count:
        # So that the next rows get a table of their own.
        opened.increments = INCREMENTS
    else:
        del opened.table.data[row_count:]


def _text_chars(row: Sequence[CellValue]) -> int:
    chars = 0
    for cell in row:
        if isinstance(cell, str):
            chars += len(cell)
    return chars


_IN_TEXT = frozenset({"role", "content", "tool_calls"})
"""Keys of a message that its text shows."""


def rollout_cells(rollout: RolloutRecord, cell_chars: int) -> list[CellValue]:
    """Return one row of `COLUMNS`.

    The answer is the last message of the assistant and all after it; the prompt is all before it.
    Turns are its messages, or the calls of a model when the content policy left no message. A value
    that is unknown is ``None``: an empty cell.
    """
    last = len(rollout.messages)
    answers = 0
    answer = ""
    for index, message in enumerate(rollout.messages):
        if message.get("role") == "assistant":
            last = index
            answers += 1
    if answers:
        later_turns = map(_turn, rollout.messages[last + 1 :])
        answer = "\n\n".join([_content(rollout.messages[last]), *later_turns])
    span_kinds = Counter(span.kind for span in rollout.spans)
    # Without spans, the number that the producer gave.
    tools = span_kinds["tool"] or rollout.tools.get("calls")
    # Without content there are no messages; the spans of the model still show the number of turns.
    turns = answers or span_kinds["generation"]
    values: list[object] = [
        rollout.step, rollout.split, rollout.group, rollout.sample, _transcript(rollout.messages[:last]), answer,
        rollout.reward, rollout.advantage, rollout.finish_reason, rollout.policy_version, turns,
        len(rollout.messages), tools if isinstance(tools, int) else None,
        (rollout.end_unix_ns - rollout.start_unix_ns) / 1e9 if rollout.timed else None, rollout.id,
        _json(rollout.rewards),
        _json(rollout.metadata), rollout.error, rollout.staleness, rollout.trajectory_id, rollout.dataset,
        _json(_facts(rollout)),
    ]  # fmt: skip
    return _cells(values, cell_chars)


def _facts(rollout: RolloutRecord) -> dict[str, Json]:
    """Return rarely sorted facts as one column: indices, cut or missing content, and the tools.

    Facts without a value are left out; a column for each would be empty in most tables.
    """
    facts: dict[str, Json] = {
        "dataset_index": rollout.dataset_index,
        "prompt_index": rollout.prompt_index,
        "batch_index": rollout.batch_index,
        "incomplete": rollout.incomplete or None,
        "clipped_bytes": rollout.clipped_bytes or None,
        "tools": dict(rollout.tools) or None,
        "messages": _message_facts(rollout.messages) or None,
    }
    return present(facts)


def _evaluation_values(value: Evaluation) -> tuple[object, ...]:
    """Return one row of `EVALUATION_COLUMNS`, its texts not cut."""
    return (
        value.rollout_id, value.name, value.value, value.label, value.explanation, value.step
    )  # fmt: skip


def _cells(values: Iterable[object], cell_chars: int) -> list[CellValue]:
    return [_cell(value, cell_chars) for value in values]


def _cell(value: object, cell_chars: int) -> CellValue:
    """Return a number unchanged and anything else as text of at most *cell_chars*, with how many were cut off."""
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value)
    if len(text) > cell_chars:
        text = f"{text[:cell_chars]}… ({len(text) - cell_chars} more characters)"
    # A lone surrogate cannot be put into the UTF-8 of the file.
    return utf8(text)


def _transcript(messages: Sequence[Message]) -> str:
    """Return the conversation before the last answer; return a single question unchanged."""
    if len(messages) == 1:
        return _content(messages[0])
    return "\n\n".join(map(_turn, messages))


def _turn(message: Message) -> str:
    return f"{message.get('role', 'message')}: {_content(message)}"


def _message_facts(messages: Sequence[Message]) -> dict[str, Json]:
    """Return what the texts of messages leave out, such as reasoning, by the number of the message from 1.

    Messages without such facts are left out, because most have none.
    """
    by_number: dict[str, Json] = {}
    for number, message in enumerate(messages, 1):
        facts: dict[str, Json] = {**present(without(message, _IN_TEXT))}
        if facts:
            by_number[str(number)] = facts
    return by_number


def _content(message: Mapping[str, Json]) -> str:
    """Return the text of *message* and, below it, its tool calls as JSON; empty without both.

    Parts that are not text are named (``[image]``): W&B's cells show text alone.
    """
    content = message.get("content")
    parts: list[str] = []
    if isinstance(content, list):
        parts += map(part_text, content)
    elif content:
        parts.append(content if isinstance(content, str) else _json(content))
    if message.get("tool_calls"):
        parts.append(_json(message["tool_calls"]))
    return "\n".join(parts)


def _json(value: object) -> str:
    if value:
        return json.dumps(value, ensure_ascii=False, default=str)
    return ""
