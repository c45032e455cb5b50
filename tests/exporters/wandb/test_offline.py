"""Offline directories: one a run, written anew; what they hold."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError, JournalError
from otel_bridge.exporter import RunInfo, TrackerCounts
from otel_bridge.records import Json, Row, Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.child import kill_writer
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from otel_bridge_wandb.offline import store
from otel_bridge_wandb.offline.store import OfflineStore
from otel_bridge_wandb.sdk import staging_in
from otel_bridge_wandb.settings import WandbSettings
from support.bridge.bridge_doubles import refused
from support.trackers.wandb_offline import offline_directories, read_offline_run

OFFLINE = {"WANDB_MODE": "offline"}


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    run = run_info(
        tmp_path,
        tags=("a", "b", "", "x" * 99, "a"),
        group="g",
        notes="n",
        job_type="j",
        entity="e",
    )
    run.folder.mkdir()
    return run


@pytest.fixture
def settings(tmp_path: Path) -> WandbSettings:
    return WandbSettings.from_environment(OFFLINE, tmp_path)


def test_two_runs_that_stage_files_each_have_their_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_DATA_DIR", raising=False)
    seen: list[str | None] = []
    begun = threading.Event()

    def stage_second() -> None:
        begun.set()
        with staging_in(tmp_path / "second"):
            seen.append(os.environ.get("WANDB_DATA_DIR"))

    second = threading.Thread(target=stage_second)
    with staging_in(tmp_path / "first"):
        second.start()
        begun.wait()
        second.join(0.2)
        seen.append(os.environ.get("WANDB_DATA_DIR"))
    second.join()

    assert seen == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert "WANDB_DATA_DIR" not in os.environ


def rows(count: int) -> list[Row]:
    return samples.placed(
        [samples.row(n, {"loss": float(n)}) for n in range(1, count + 1)]
    )


def test_a_job_is_read_back_from_the_runs_own_folder_as_it_was_written(
    run: RunInfo, settings: WandbSettings
) -> None:
    writer = open_writer(exporter, run, settings, MemoryTable())
    deliver(writer, [*rows(2), *samples.placed([samples.config("trainer", lr=0.1)], 3)])
    writer.end(Status.KILLED)

    (directory,) = offline_directories(run.folder, run.id)
    held = read_offline_run(directory)
    lines = [
        {key: value for key, value in row.items() if key != "_runtime"}
        for row in held.rows
    ]
    assert lines == [
        {
            "_step": n - 1,
            "trainer/loss": n,
            "trainer/step": n,
            "_timestamp": samples.START_UNIX_NS / 1e9 + n,
        }
        for n in (1, 2)
    ]
    assert {
        name: (metric.axis, metric.hidden) for name, metric in held.metrics.items()
    } == {
        "trainer/step": ("", True),
        "trainer/loss": ("trainer/step", False),
    }
    assert (held.run_id, held.project, held.name, held.entity) == (
        run.id,
        run.project,
        run.name,
        "e",
    )
    assert (held.group, held.job_type, held.notes, held.tags) == (
        "g",
        "j",
        "n",
        ("a", "b", "x" * 64),
    )
    assert (held.config, held.exit_code) == ({"trainer": {"lr": 0.1}}, 255)
    assert exporter.read_back is not None
    longer = RunInfo(f"{run.id}2", run.project, run.name, run.folder)
    other = open_writer(exporter, longer, settings, MemoryTable())
    deliver(other, rows(2))
    other.end(Status.KILLED)
    assert exporter.read_back(run, settings) == TrackerCounts(numbers=2, rollouts=0)


@pytest.mark.parametrize(
    ("name", "generated", "shown"),
    [
        ("nice", False, "nice"),
        ("train-20260101-000000-1a2b", True, "train-20260101-000000-1a2b"),
        (None, True, ""),
    ],
)
def test_the_name_that_a_joiner_by_id_makes_of_the_id_is_not_written_where_it_could_replace_another(
    run: RunInfo, settings: WandbSettings, name: str | None, generated: bool, shown: str
) -> None:
    run = replace(run, name=name or run.id, name_generated=generated)
    writer = open_writer(exporter, run, settings, MemoryTable())
    deliver(writer, rows(1))
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    assert read_offline_run(directory).name == shown


@pytest.mark.parametrize("role_first", [True, False])
@pytest.mark.parametrize("own", [5, {"lr": 0.5}])
def test_an_entry_that_is_called_like_a_role_stands_beside_the_config_of_that_role(
    run: RunInfo, settings: WandbSettings, role_first: bool, own: Json
) -> None:
    writer = open_writer(exporter, run, settings, MemoryTable())
    configs: list[tuple[str | None, dict[str, Json]]] = [
        ("trainer", {"lr": 0.1}),
        (None, {"trainer": own, "trainer_value": 7, "seed": 1}),
    ]

    for role, config in configs if role_first else reversed(configs):
        writer.write_config(role, config)
    writer.write_config(None, {"trainer": own, "trainer_value": 7, "seed": 2})
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    assert read_offline_run(directory).config == {
        "trainer": {"lr": 0.1}, "trainer_value_value": own, "trainer_value": 7, "seed": 2,
    }  # fmt: skip


def test_an_opening_that_the_full_disk_of_the_ledger_ends_is_repeated_in_one_directory(
    run: RunInfo, settings: WandbSettings
) -> None:
    memory = MemoryTable()
    full = refused(memory, "put", lambda key, value: key == "offline/directories")
    with pytest.raises(JournalError):
        open_writer(exporter, run, settings, memory)

    writer = open_writer(exporter, run, settings, memory)
    deliver(writer, rows(2))
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    assert [row["trainer/loss"] for row in read_offline_run(directory).rows] == [1, 2]
    assert full() == 1


def test_after_a_kill_the_directory_is_replaced_by_one_written_anew(
    run: RunInfo, settings: WandbSettings, tmp_path: Path
) -> None:
    calls = [[row] for row in rows(5)]
    kill_writer(
        "otel_bridge_wandb:exporter", OFFLINE, run, tmp_path / "memory.db", calls
    )
    (killed,) = offline_directories(run.folder, run.id)

    memory = MemoryTable()
    memory.put(
        "offline/directories",
        f'[{{"path": "{killed}", "first": 1, "kept": false}}]'.encode(),
    )
    writer = open_writer(exporter, run, settings, memory)
    held = writer.durable()
    beside = offline_directories(run.folder, run.id)
    deliver(writer, rows(8), held=held)
    writer.end(Status.FINISHED)

    (whole,) = offline_directories(run.folder, run.id)
    assert (held, len(beside), killed in beside, whole != killed) == (0, 2, True, True)
    assert [row["trainer/loss"] for row in read_offline_run(whole).rows] == list(
        range(1, 9)
    )


def test_a_directory_that_was_made_and_not_remembered_is_replaced_too(
    run: RunInfo, settings: WandbSettings
) -> None:
    memory = MemoryTable()
    stray = run.folder / "wandb" / f"offline-run-20260101_000000-{run.id}"
    memory.put("offline/opening", b"[]")  # killed between wandb.init() and the next put
    stray.mkdir(parents=True)

    writer = open_writer(exporter, run, settings, memory)
    deliver(writer, rows(1))
    writer.end(Status.FINISHED)

    assert len(offline_directories(run.folder, run.id)) == 1
    assert not stray.exists()


def test_a_directory_made_and_not_remembered_is_replaced_after_a_second_kill_before_the_next_one_opens(
    run: RunInfo, settings: WandbSettings
) -> None:
    memory = MemoryTable()
    stray = run.folder / "wandb" / f"offline-run-20260101_000000-{run.id}"
    memory.put("offline/opening", b"[]")
    stray.mkdir(parents=True)
    OfflineStore(
        memory, settings.root(run), run.id
    ).before_init()  # killed within wandb.init()

    writer = open_writer(exporter, run, settings, memory)
    deliver(writer, rows(1))
    writer.end(Status.FINISHED)

    assert len(offline_directories(run.folder, run.id)) == 1
    assert not stray.exists()


def test_a_directory_that_cannot_be_deleted_is_said_once(
    run: RunInfo,
    settings: WandbSettings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    memory = MemoryTable()
    monkeypatch.setattr(store.shutil, "rmtree", refused)
    for _ in range(3):
        writer = open_writer(exporter, run, settings, memory)
        deliver(writer, rows(1))
        writer.end(Status.FINISHED)

    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "otel_bridge.wandb"
    ]
    kept = offline_directories(run.folder, run.id)
    assert len(kept) == 3
    assert said == [
        f"W&B offline: {path} cannot be deleted: Permission denied; do so before `wandb sync`"
        for path in kept[:2]
    ]


@pytest.mark.parametrize("reason", ["synced", "taken"])
def test_a_second_directory_follows_one_that_was_synced_or_cannot_be_written_anew(
    run: RunInfo,
    settings: WandbSettings,
    caplog: pytest.LogCaptureFixture,
    reason: str,
    tmp_path: Path,
) -> None:
    memory = MemoryTable()
    first = open_writer(exporter, run, settings, memory)
    deliver(first, rows(2))
    first.end(Status.FINISHED)
    (before,) = offline_directories(run.folder, run.id)
    if reason == "synced":
        (before / f"run-{run.id}.wandb.synced").touch()
    later = run_info(tmp_path, oldest=3 if reason == "taken" else 1)

    for _ in range(2):
        second = open_writer(exporter, later, settings, memory)
        deliver(second, rows(3)[2:])
        second.end(Status.FINISHED)

    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "otel_bridge.wandb"
    ]
    assert len(said) == 1
    assert "a second directory of the run follows" in said[0]
    assert [
        len(read_offline_run(directory).rows)
        for directory in offline_directories(run.folder, run.id)
    ] == [2, 1]


def test_nothing_is_left_in_the_users_home_and_nothing_is_printed(
    tmp_path: Path,
) -> None:
    code = (
        "import pathlib, sys; from otel_bridge_wandb import exporter; "
        "from otel_bridge.testing import samples, MemoryTable, deliver; "
        "run = samples.run_info(pathlib.Path(sys.argv[1])); run.folder.mkdir(); "
        "writer = exporter.open(run, exporter.read_settings({'WANDB_MODE': 'offline'}, run.folder), MemoryTable()); "
        "deliver(writer, samples.job())"
    )
    home = tmp_path / "home"
    environment = {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )

    assert (done.stdout, done.stderr) == (b"", b"")
    left = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert {path.parent for path in left} <= {
        Path(".cache/wandb/logs")
    }  # the log of wandb's own service


def test_a_folder_that_cannot_be_used_is_blocked(tmp_path: Path, run: RunInfo) -> None:
    (tmp_path / "file").touch()
    settings = WandbSettings.from_environment(
        {**OFFLINE, "WANDB_DIR": "file"}, tmp_path
    )

    with pytest.raises(BlockedError, match="cannot be used") as blocked:
        exporter.open(run, settings, MemoryTable())

    assert blocked.value.help == "set WANDB_DIR to a folder you may write"


def test_the_table_is_rolled_over_before_its_lines_grow_long(
    run: RunInfo, settings: WandbSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_bridge_wandb.content.rollout_tables.INCREMENTS", 3)
    writer = open_writer(exporter, run, settings, MemoryTable())

    for rollout in samples.placed([samples.rollout(n, step=n) for n in range(7)]):
        writer.write_rollouts([rollout])
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    tables = read_offline_run(directory).tables
    assert {key: [row["step"] for row in rows] for key, rows in tables.items()} == {
        "explorer/rollouts": [0, 1, 2],
        "explorer/rollouts_2": [3, 4, 5],
        "explorer/rollouts_3": [6],
    }
    assert exporter.read_back is not None
    assert exporter.read_back(run, settings) == TrackerCounts(numbers=0, rollouts=7)


def test_a_text_beyond_the_cell_limit_is_cut_and_says_so(
    run: RunInfo, tmp_path: Path
) -> None:
    settings = WandbSettings.from_environment(
        {**OFFLINE, "OTEL_BRIDGE_WANDB_CELL_CHARS": "10"}, tmp_path
    )
    writer = open_writer(exporter, run, settings, MemoryTable())

    writer.write_rollouts(samples.placed([samples.rollout(1)]))
    writer.end(Status.FINISHED)

    (directory,) = offline_directories(run.folder, run.id)
    (row,) = read_offline_run(directory).tables["explorer/rollouts"]
    assert (row["answer"], row["prompt"]) == (
        "It is 2.",
        "system: Us… (179 more characters)",
    )


def test_wandbs_own_telemetry_is_off_in_the_bridge(tmp_path: Path) -> None:
    code = """
    import threading
    from pathlib import Path
    from otel_bridge.testing import MemoryTable, open_writer, samples
    from otel_bridge_wandb import exporter
    run = samples.run_info(Path.cwd()); run.folder.mkdir()
    settings = exporter.read_settings({"WANDB_MODE": "offline"}, Path.cwd())
    writer = open_writer(exporter, run, settings, MemoryTable())
    writer.write_rows(samples.placed(samples.rows(3)))
    print(sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("Otel")))
    writer.close()
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_directory_of_another_run_whose_id_holds_ours_is_none_of_otel_bridge(
    tmp_path: Path,
) -> None:
    for name in (
        "offline-run-20260101_000000-abc",
        "offline-run-20260101_000000-abc-1",
    ):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    for name in (
        "offline-run-20260101_000000-abc-media",
        "offline-run-20260101_000000-abcd",
        "run-1_1-abc",
    ):
        (tmp_path / "wandb" / name).mkdir(parents=True)

    found = OfflineStore(MemoryTable(), tmp_path, "abc")._present()

    assert sorted(path.name for path in found) == [
        "offline-run-20260101_000000-abc",
        "offline-run-20260101_000000-abc-1",
    ]
