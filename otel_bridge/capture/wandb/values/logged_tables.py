"""Tables of prompts and responses that a run logs -> its rollouts, each row once, counted for the launcher's table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from otel_bridge import settings
from otel_bridge.capture.counts import counts
from otel_bridge.capture.media import table_of
from otel_bridge.capture.seen_rows import MAX_ROWS, CompletedCell, SeenTables
from otel_bridge.capture.tables import (
    CountCell,
    RolloutTable,
    TableRollouts,
    has_step,
    split_of,
)
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.run import Run
from otel_bridge.records import is_evaluation

_KEY = "wandb_key"
"""Entry of a rollout's metadata: the key of its table, by which two tables of one step differ."""
_WANDB = "wandb"
_CALL = "wandb.Table: rollouts"


class TableRecorder:
    """Records the rows of one run's tables as rollouts.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = SeenTables()
        self._latest: dict[tuple[str | None, str], tuple[int, int]] = {}

    def record(
        self,
        key: str,
        table: Any,
        place: tuple[str | None, int],
        *,
        logged: Iterable[str],
        row_keys: tuple[Collection[str], Collection[str]],
    ) -> bool:
        """Record the new rows of a table; return whether it is one of prompts and responses.

        Raises what reading the program's cells raises; the caller counts it as
        ``rollout_unreadable``. Rows beyond 100,000 are counted as ``not_captured``: the keys of a
        table's rows are kept in memory.

        Args:
            key: Key of the table.
            table: A ``wandb.Table``.
            place: Role and step of the call.
            logged: Keys that were logged before, which name reward functions.
            row_keys: Keys of the row logged with it, and of the one before.
        """
        rows = [list(cells) for cells in table.data]
        rollout_table = RolloutTable.of(table.columns, rows, logged)
        if rollout_table is None:
            return False

        def count(column: str, kind: str) -> None:
            counts.not_captured(f"{_CALL}: cells of {kind}")
            self._run.count_drop("not_captured", key=f"{key}: {column} ({kind})")

        if len(rows) > MAX_ROWS:
            beyond = len(rows) - MAX_ROWS
            counts.not_captured(f"{_CALL}: rows beyond {MAX_ROWS}", beyond)
            self._run.count_drop(
                "not_captured", beyond, f"{key}: rows beyond {MAX_ROWS}"
            )
        role, step = place
        new = self._seen.new_rows(
            key, table, rows[:MAX_ROWS], step, own_step=has_step(table.columns)
        )
        for cell in new.completed:
            self._complete(rollout_table, cell, role, count)
        # W&B shows the rows as the program's table as well: its rollouts' table has other columns,
        # and text only.
        if _WANDB in self._run.facts.choice.names and (new.rows or new.completed):
            shown_rows = rows if new.completed else new.rows
            self._run.log({key: table_of(table.columns, shown_rows)}, step, role=role)
        # Of a wide row each sample is a rollout, which one id would join.
        ids = new.ids if len(rollout_table.samples) == 1 else ()
        split = split_of(key, *row_keys)
        for rollouts in rollout_table.rollouts(new.rows, count, ids):
            self._record_rollouts(rollouts, key, place, split)
        return True

    def _record_rollouts(
        self,
        rollouts: TableRollouts,
        key: str,
        place: tuple[str | None, int],
        split: str,
    ) -> None:
        """Record the rollouts of one step of the table *key*.

        A step of the rows goes before that of the call: TRL logs rows of several steps at once.
        """
        role, call_step = place
        step = call_step if rollouts.step is None else rollouts.step
        self._count(rollouts, step, role, split)
        metadata: list[dict[str, Any] | None] = rollouts.columns.pop("metadata")
        keyed_metadata = [{**(facts or {}), _KEY: key} for facts in metadata]
        self._run.log_generations(
            **rollouts.columns,
            metadata=keyed_metadata,
            step=step,
            split=split,
            role=role,
        )

    def _complete(
        self,
        table: RolloutTable,
        cell: CompletedCell,
        role: str | None,
        count: CountCell,
    ) -> None:
        """Record a number or text that a recorded row has got since as an evaluation of its rollout.

        What is neither a number nor a text, or of a column that an evaluation cannot complete, is
        counted as ``not_captured``.
        """
        name = table.evaluation_of(cell.column)
        if name is None or not (
            isinstance(cell.value, str) or coerce.number(cell.value) is not None
        ):
            count(cell.column, f"{type(cell.value).__name__} added to a recorded row")
        else:
            self._run.log_reward(cell.row_id, cell.value, name, role=role)

    def _count(
        self, rollouts: TableRollouts, step: int, role: str | None, split: str
    ) -> None:
        """Count the rollouts of a step: those that are kept, and those beyond the limit, whose rewards count only.

        For the launcher's table only: the run itself keeps and samples out. A later step begins
        anew, and so does an earlier one that comes again.
        """
        options = self._run.rollout_options
        number = len(rollouts)
        earlier_step, earlier_number = self._latest.get((role, split), (step, 0))
        earlier_number = earlier_number if earlier_step == step else 0
        self._latest[role, split] = step, earlier_number + number
        limit = max(0, options.cap_of(split))
        kept_number = min(number, max(0, limit - earlier_number))
        if kept_number:
            counts.captured(_CALL, kept_number, run=self._run)
        if number > kept_number:
            of_eval = is_evaluation(split) and options.cap_eval != options.cap
            setting = (
                settings.MAX_ROLLOUTS_PER_STEP_EVAL
                if of_eval
                else settings.MAX_ROLLOUTS_PER_STEP
            )
            counts.not_captured(
                f"{_CALL} beyond {setting.name}={limit}", number - kept_number
            )
