"""Tables of prompts and responses that a run logs -> its rollouts, each row once, counted for the launcher's table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from otel_bridge import settings
from otel_bridge.capture.counts import counts
from otel_bridge.capture.tables import RolloutTable, SeenTables, TableRollouts, has_step, split_of
from otel_bridge.emit.config.snapshot import EVAL
from otel_bridge.emit.run import Run

_KEY: Final = "wandb_key"
"""Entry of a rollout's metadata: the key of its table, by which two tables of one step differ."""
_CALL: Final = "wandb.Table: rollouts"


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

        Args:
            key: Key of the table.
            table: A ``wandb.Table``.
            place: Role and step of the call.
            logged: Keys that were logged before, which name reward functions.
            row_keys: Keys of the row logged with it, and of the one before.
        """
        columns = list(table.columns)
        rows = [list(cells) for cells in table.data]
        rollout_table = RolloutTable.of(columns, rows, logged)
        if rollout_table is None:
            return False
        role, step = place
        split = split_of(key, *row_keys)

        def count(column: str, kind: str) -> None:
            counts.not_captured(f"{_CALL}: cells of {kind}")
            self._run.count_drop("not_captured", key=f"{key}: {column} ({kind})")

        new_rows = self._seen.new_rows(key, rows, step, own_step=has_step(columns))
        for rollouts in rollout_table.rollouts(new_rows, count):
            own_step = step if rollouts.step is None else rollouts.step
            self._count(rollouts, own_step, role, split)
            metadata: list[dict[str, Any] | None] = rollouts.columns.pop("metadata")
            keyed = [{**(facts or {}), _KEY: key} for facts in metadata]
            self._run.log_generations(**rollouts.columns, metadata=keyed, step=own_step, split=split, role=role)
        return True

    def _count(self, rollouts: TableRollouts, step: int, role: str | None, split: str) -> None:
        """Count the rollouts of a step: those that are kept, and those beyond the limit, whose rewards count only."""
        options = self._run.rollout_options
        number = len(rollouts)
        before_step, before = self._latest.get((role, split), (step, 0))
        before = before if before_step == step else 0
        self._latest[role, split] = step, before + number
        limit = max(0, options.cap_of(split))
        kept = min(number, max(0, limit - before))
        if kept:
            counts.captured(_CALL, kept, run=self._run)
        if number > kept:
            of_eval = split == EVAL and options.cap_eval != options.cap
            setting = settings.MAX_ROLLOUTS_PER_STEP_EVAL if of_eval else settings.MAX_ROLLOUTS_PER_STEP
            counts.not_captured(f"{_CALL} beyond {setting.name}={limit}", number - kept)
