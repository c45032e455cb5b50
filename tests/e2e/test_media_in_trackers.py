"""Media in the real trackers, delivered by bridges that are killed: each there once, as each tracker itself shows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import mlflow_reading
from support.trackers.trackio_store import rows_in
from support.trackers.wandb_offline import offline_directories, read_offline_run
from support.trainers.e2e_jobs import environment, only_folder, script, start, until
from support.waiting import HANG_S

pytestmark = pytest.mark.long
STEPS, KILLS = 25, 5
JOB = f"""
import os, signal
import numpy as np
import otel_bridge

run = otel_bridge.init("media", "job", role="trainer")
for step in range({STEPS}):
    pixels = np.full((8, 8), step, dtype=np.uint8)
    table = otel_bridge.Table(["step", "picture"], [[step, otel_bridge.Image(pixels)]])
    run.log({{"loss": step / 2, "image": otel_bridge.Image(pixels), "table": table}}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""
RUN_ID = run_id_of("media", "job")


def places(folder: Path) -> dict[str, str]:
    return {
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": mlflow_reading.database(folder),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder / "wandb"),
        "HF_HUB_OFFLINE": "1",
    }


def written(base: Path) -> int:
    """Return how many records all trackers have together, by the bridge's report."""
    path = only_folder(base).report_path
    exporters = (
        json.loads(path.read_bytes()).get("exporters", {}) if path.exists() else {}
    )
    return sum(int(one.get("written", 0)) for one in exporters.values())


def test_media_are_in_every_tracker_once_after_kills_of_the_program_and_of_the_bridge(
    tmp_path: Path,
) -> None:
    base, found = tmp_path / "base", places(tmp_path)
    (tmp_path / "wandb").mkdir()
    env = environment(base, "trackio,mlflow,wandb", **found)
    job = start(script(tmp_path / "job.py", JOB), {**env, "OTEL_BRIDGE_OFFLINE": "1"})
    assert job.wait(HANG_S) == -signal.SIGKILL
    drain = [
        sys.executable,
        "-c",
        "import sys; from otel_bridge.cli import main; main(['drain', sys.argv[1]])",
        str(base),
    ]

    for _ in range(KILLS):
        before = written(base)
        bridge = subprocess.Popen(
            drain, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: written(base) > before or bridge.poll() is not None, HANG_S)  # noqa: B023  # called here only
        bridge.kill()
        assert (bridge.wait(HANG_S), written(base) < 3 * 3 * STEPS) == (
            -signal.SIGKILL,
            True,
        )
    done = subprocess.run(
        drain, env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr

    run = RunInfo(id=RUN_ID, project="media", name="job", folder=only_folder(base).path)
    once = {
        (key, step): 1
        for key in ("trainer/image", "trainer/table")
        for step in range(STEPS)
    }
    assert _in_trackio(tmp_path, run) == once
    assert _in_mlflow(found["MLFLOW_TRACKING_URI"], run, tmp_path) == once
    assert _in_wandb(tmp_path / "wandb", run) == once


def _in_trackio(folder: Path, run: RunInfo) -> Counter[tuple[str, int]]:
    held: Counter[tuple[str, int]] = Counter()
    for row in rows_in(folder / "trackio", run):
        for key, value in row.items():
            if not isinstance(value, dict):
                continue
            held[key, row["step"]] += 1
            image = (
                value
                if value["_type"] == "trackio.image"
                else value["_value"][0]["picture"]
            )
            assert (
                (folder / "trackio" / "media" / image["file_path"])
                .read_bytes()
                .startswith(b"\x89PNG")
            )
    return held


def _in_mlflow(uri: str, run: RunInfo, folder: Path) -> Counter[tuple[str, int]]:
    (found,) = mlflow_reading.runs_of(uri, run)
    files = Path(
        mlflow_reading.client(uri).download_artifacts(
            found.info.run_id, "", str(folder)
        )
    )
    images = [path.name.split("+") for path in (files / "images").glob("*.png")]
    tables = [
        path.name.split("-") for path in (files / "tables" / "trainer~table").iterdir()
    ]
    held = Counter((name.replace("~", "/"), int(step)) for name, _, step, *_ in images)
    return held + Counter(("trainer/table", int(step)) for _, step, *_ in tables)


def _in_wandb(folder: Path, run: RunInfo) -> Counter[tuple[str, int]]:
    (directory,) = offline_directories(folder, run.id)
    held: Counter[tuple[str, int]] = Counter()
    for row in read_offline_run(directory).rows:
        for key, value in row.items():
            if isinstance(value, dict):
                held[key, int(str(row["trainer/step"]))] += 1
                assert (directory / "files" / str(value["path"])).is_file()
    return held
