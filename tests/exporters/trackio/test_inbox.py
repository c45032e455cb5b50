"""Trackio's inbox: what lies in its files is what Trackio's own importer makes of them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import RunInfo
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.contract import same_scalars
from otel_bridge_trackio import exporter
from otel_bridge_trackio.payload import timestamp
from support.trackers import trackio_store

pytestmark = pytest.mark.skipif(
    not trackio_store.HAS_INBOX, reason="Trackio below 0.28"
)


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(
        tmp_path,
        tmp_path.name,
        project="".join(c for c in tmp_path.name if c.isalnum()),
    )


def opened(folder: Path, run: RunInfo, memory: MemoryTable | None = None):
    settings = exporter.read_settings(
        {"TRACKIO_DIR": str(folder), "TRACKIO_STORAGE_MODE": "jsonl"}, run.folder
    )
    return open_writer(exporter, run, settings, memory or MemoryTable())


def imported(folder: Path, run: RunInfo):
    """Import as the dashboard does, into the test process's own store, and read it back."""
    trackio_store.imported(folder / "inbox")
    return trackio_store.held(run)


def test_rows_and_rollouts_come_whole_through_trackios_importer_and_twice_is_once(
    tmp_path: Path, run: RunInfo
) -> None:
    rollout = samples.rollout(0, seed=run.id)
    records = samples.placed([*samples.rows(30), rollout, samples.evaluation(rollout)])

    writer = opened(tmp_path, run)
    deliver(writer, records)
    deliver(writer, records)
    shown = imported(tmp_path, run)
    deliver(writer, records[:5])

    again = imported(tmp_path, run)
    same_scalars(again, records)
    assert again == shown
    assert [held.id for held in shown.rollouts] == [rollout.id]
    assert shown.evaluations == [(rollout.id, "judge", 0.5)]
    assert list((tmp_path / "inbox").iterdir()) == []


def test_a_config_that_changes_is_the_last_one_after_the_import(
    tmp_path: Path, run: RunInfo
) -> None:
    memory = MemoryTable()
    writer = opened(tmp_path, run, memory)
    writer.write_config("trainer", {"lr": 1})
    writer.write_rows(samples.placed(samples.rows(3)))
    writer.write_config("trainer", {"lr": 2})

    assert imported(tmp_path, run).config == {"trainer/lr": "2"}
    assert trackio_store.created(run) == timestamp(samples.rows(1)[0].time_unix_ns)


def test_what_json_cannot_say_is_written_as_trackio_does(
    tmp_path: Path, run: RunInfo
) -> None:
    row = replace(
        samples.row(1), values={"a": math.nan, "b": math.inf, "c": -math.inf}, steps={}
    )

    opened(tmp_path, run).write_rows(samples.placed([row]))

    (file,) = (tmp_path / "inbox").rglob("*.jsonl")
    assert json.loads(file.read_text())["metrics"] == {
        "a": "NaN",
        "b": "Infinity",
        "c": "-Infinity",
    }


def test_a_step_that_would_stop_the_importer_for_ever_never_gets_into_the_inbox(
    tmp_path: Path, run: RunInfo
) -> None:
    rows = samples.placed(samples.rows(3))

    refused = deliver(
        opened(tmp_path, run), [rows[0], replace(rows[1], step=2**63), rows[2]]
    )

    assert refused == [2]
    same_scalars(imported(tmp_path, run), [rows[0], rows[2]])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_blocks(tmp_path: Path, run: RunInfo) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(BlockedError) as raised:
        opened(tmp_path, run).write_rows(samples.placed(samples.rows(1)))

    assert "TRACKIO_DIR" in raised.value.help


def test_a_file_where_the_inbox_should_be_blocks(tmp_path: Path, run: RunInfo) -> None:
    (tmp_path / "inbox").write_text("not a folder")

    with pytest.raises(BlockedError) as raised:
        opened(tmp_path, run).write_rows(samples.placed(samples.rows(1)))

    assert "TRACKIO_DIR" in raised.value.help
