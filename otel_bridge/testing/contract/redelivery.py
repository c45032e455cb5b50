"""The contract: the same again, and after a kill."""

# ruff: noqa: D102  # the name of a test says what it tests
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.testing import samples
from otel_bridge.testing.contract.compare import same_scalars, written
from otel_bridge.testing.contract.fixtures import ContractFixtures, Open, ReadBack
from otel_bridge.testing.delivery import deliver


class RedeliveryContract(ContractFixtures):
    """Tests that any call may come again: a kill loses nothing and doubles nothing."""

    def test_a_call_that_comes_again_changes_nothing(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.job(seed=run.id)[:-1]
        writer = opened()
        if writer.durable() is not None:
            writer.close()
            pytest.skip(
                "this writer shows what it holds: only what lies behind comes again"
            )

        # Twice by one writer, as after an answer that was lost.
        deliver(writer, records)
        deliver(writer, records)
        written(writer, records[2:])

        self.holds(read_back(run), records)

    def test_records_that_come_again_after_a_restart_change_nothing(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.job(seed=run.id)[:-1]

        written(opened(), records[:8])
        # By a new writer, which has only its memory to know what is there.
        written(opened(), records)
        written(opened(), records)

        self.holds(read_back(run), records)

    def test_a_dead_letter_that_is_tried_again_is_written(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        rows = samples.placed(samples.rows(4))
        writer = opened()
        deliver(writer, rows[:3])

        # As `otel-bridge dead-letters retry` gives it: without a position.
        deliver(writer, [replace(rows[3], position=0)])
        writer.close()

        same_scalars(read_back(run), rows)

    def test_a_killed_writer_loses_nothing_and_doubles_nothing(
        self,
        opened: Open,
        run: RunInfo,
        read_back: ReadBack,
        environment: Mapping[str, str],
        tmp_path: Path,
    ) -> None:
        records = samples.job(steps=4, seed=run.id)[:-1]

        # Twice: the second writer is killed while it goes on from what the first one left.
        self.kill_after(opened, records[:6], run, environment, tmp_path)
        self.kill_after(opened, records[:13], run, environment, tmp_path)
        written(opened(), records)

        self.holds(read_back(run), records)
