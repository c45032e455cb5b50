from __future__ import annotations

import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import RunInfo
from otel_bridge.testing import deliver, samples
from otel_bridge.testing.child import kill_writer
from otel_bridge.testing.contract import same_scalars
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened
from support.waiting import HANG_S

exporter = otel_bridge_mlflow.exporter
ROLES = ("trainer", "explorer", "evaluator")


def first_use(uri: str, run: RunInfo, role: str, start, results) -> None:
    """Runs in a child: open the fresh database together with the others, write ten rows."""
    try:
        start.wait(60)
        deliver(
            opened(uri, run),
            samples.placed(samples.rows(10, keys=3, role=role)),
            tries=20,
        )
        results.put("written")
    except BaseException as exc:  # noqa: BLE001  # whatever it is, the parent shows it
        results.put(repr(exc))


@pytest.mark.long
def test_three_bridges_that_open_one_fresh_database_at_once_share_one_run(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    uri, run = f"sqlite:///{tmp_path}/new/mlflow.db", samples.run_info(tmp_path)
    start, results = context.Barrier(3), context.Queue()

    children = [
        context.Process(target=first_use, args=(uri, run, role, start, results))
        for role in ROLES
    ]
    for child in children:
        child.start()
    said = [results.get(timeout=HANG_S) for _ in children]
    for child in children:
        child.join(30)

    assert said == ["written"] * 3
    same_scalars(
        mlflow_reading.contents(uri, run),
        [row for role in ROLES for row in samples.rows(10, keys=3, role=role)],
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mlflow.db"]


@pytest.mark.long
def test_a_writer_killed_between_two_calls_is_followed_by_one_that_goes_on(
    tmp_path: Path,
) -> None:
    uri, run = mlflow_reading.database(tmp_path), samples.run_info(tmp_path)
    rows = samples.placed(samples.rows(30))

    kill_writer(
        "otel_bridge_mlflow:exporter",
        {"MLFLOW_TRACKING_URI": uri},
        run,
        tmp_path / "memory.db",
        [rows[:10], rows[10:20]],
    )
    deliver(opened(uri, run), rows[10:])

    same_scalars(mlflow_reading.contents(uri, run), rows)


def test_write_ahead_mode_is_set_when_asked_for_and_not_else(tmp_path: Path) -> None:
    uri, run = mlflow_reading.database(tmp_path), samples.run_info(tmp_path)

    opened(uri, run)
    before = mode(tmp_path)
    opened(uri, run, OTEL_BRIDGE_MLFLOW_WAL="1")

    assert (before, mode(tmp_path)) == ("delete", "wal")


def mode(folder: Path) -> str:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute("PRAGMA journal_mode").fetchone()[0]


def test_a_database_in_a_place_that_cannot_be_written_blocks_with_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(BlockedError) as raised:
        opened(f"sqlite:///{tmp_path}/file/mlflow.db", samples.run_info(tmp_path))

    assert "writable" in raised.value.help


def test_a_file_that_is_not_a_database_blocks(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary" * 1000)

    with pytest.raises(BlockedError, match="not a database") as raised:
        opened(f"sqlite:///{tmp_path}/notes.txt", samples.run_info(tmp_path))

    assert "MLFLOW_TRACKING_URI" in raised.value.help
    assert (tmp_path / "notes.txt").read_text() == "dear diary" * 1000


def test_opening_takes_the_otlp_exporters_out_of_the_environment_and_touches_no_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import metrics, trace

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()

    opened(mlflow_reading.database(tmp_path), samples.run_info(tmp_path)).write_rows(
        samples.placed(samples.rows(1))
    )

    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == providers
