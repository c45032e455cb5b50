"""The contract is a test that can fail: each sloppy writer here must be caught by the test that is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.records import Evaluation, RolloutRecord, Row, Status
from otel_bridge.testing import Contents, open_writer
from otel_bridge.testing.contract import WriterContract
from otel_bridge.testing.memory import MemoryTable
from support.bridge.recording_tracker import RecordingTracker, RecordingWriter


class Doubling(RecordingWriter):
    """Gives every record a new id: what comes again stands there twice."""

    made = 0

    def write_rows(self, rows: Sequence[Row]) -> None:
        Doubling.made += 1
        super().write_rows(
            [dataclasses.replace(row, id=f"{row.id}-{Doubling.made}") for row in rows]
        )


class Losing(RecordingWriter):
    def write_rows(self, rows: Sequence[Row]) -> None:
        super().write_rows(rows[:999])


class Raising(RecordingWriter):
    def write_rows(self, rows: Sequence[Row]) -> None:
        sum(value for row in rows for value in row.values.values())  # type: ignore[misc]
        super().write_rows(rows)


class Reversing(RecordingWriter):
    def write_rows(self, rows: Sequence[Row]) -> None:
        times = [row.time_unix_ns for row in reversed(rows)]
        super().write_rows(
            [
                dataclasses.replace(row, time_unix_ns=time)
                for row, time in zip(rows, times, strict=True)
            ]
        )


class Joining(RecordingWriter):
    """Lets keys that look alike become one."""

    def write_rows(self, rows: Sequence[Row]) -> None:
        changed = [
            {key.replace("@", "_at_"): value for key, value in row.values.items()}
            for row in rows
        ]
        super().write_rows(
            [
                dataclasses.replace(row, values=values)
                for row, values in zip(rows, changed, strict=True)
            ]
        )


class Forgetful(RecordingWriter):
    def write_config(self, role: str | None, config: Mapping[str, object]) -> None:
        pass

    def end(self, status: Status) -> None:
        pass

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        super().write_rollouts(rollouts[:50])

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        pass


CASES = [
    (Doubling, "test_a_call_that_comes_again_changes_nothing"),
    (Doubling, "test_records_that_come_again_after_a_restart_change_nothing"),
    (Doubling, "test_a_killed_writer_loses_nothing_and_doubles_nothing"),
    (
        Losing,
        "test_a_thousand_rows_and_one_of_more_than_a_thousand_keys_go_in_one_call",
    ),
    (Raising, "test_one_bad_record_is_named_and_the_others_arrive"),
    (Reversing, "test_a_key_has_its_values_in_the_order_of_their_steps"),
    (Joining, "test_odd_keys_arrive_each_under_a_name_of_its_own"),
    (
        Forgetful,
        "test_the_config_of_each_role_is_shown_once_also_when_it_grows_and_comes_again",
    ),
    (Forgetful, "test_the_end_is_shown_and_may_come_again"),
    (Forgetful, "test_every_rollout_arrives_once_with_reward_messages_and_spans"),
    (
        Forgetful,
        "test_an_evaluation_is_attached_once_and_one_without_its_rollout_is_not_a_loss_of_others",
    ),
]


@pytest.mark.parametrize(("writer", "name"), CASES)
def test_the_contract_catches(
    writer: type[RecordingWriter], name: str, tmp_path: Path
) -> None:
    recorder = RecordingTracker()
    run = RunInfo(id="0123456789abcdef", project="contract", name=name, folder=tmp_path)
    memory = MemoryTable(tmp_path / "memory.db")

    def make(
        info: RunInfo, settings: ExporterSettings, table: WriterMemory
    ) -> RecordingWriter:
        recorder.exporter.open(info, settings, table)
        return writer(recorder, info.id)

    sloppy = Exporter(
        read_settings=recorder.exporter.read_settings, ordered=True, open=make
    )

    def opened(**changes: object) -> RecordingWriter:
        info = dataclasses.replace(run, **changes)  # type: ignore[arg-type]
        return open_writer(sloppy, info, sloppy.read_settings({}, tmp_path), memory)  # type: ignore[return-value]

    def read(info: RunInfo) -> Contents:
        return recorder.contents(info.id)

    given = {
        "opened": opened, "run": run, "read_back": read, "environment": {}, "tmp_path": tmp_path, "hostile": "text",
        "status": Status.FAILED,
    }  # fmt: skip
    test: Callable[..., None] = getattr(WriterContract(), name)
    wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]

    with pytest.raises((AssertionError, TypeError)):
        test(**{argument: given[argument] for argument in wanted})
