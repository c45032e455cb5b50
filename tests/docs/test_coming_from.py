"""Every program of the page "Coming from wandb, trackio or mlflow" does what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import conformance_reading, mlflow_reading
from support.trackers.wandb_offline import offline_directories, read_offline_run
from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    records,
    values,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/coming-from.md").read_text("utf-8")
PROGRAMS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
RUN = RunInfo(run_id_of("gsm8k", "ppo-7b"), "gsm8k", "ppo-7b", Path())
LOSSES = [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def run(tmp_path: Path, name: str, **variables: str) -> Path:
    file = tmp_path / "train.py"
    file.write_text(PROGRAMS[name], "utf-8")
    done = call(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment(tmp_path, **variables),
    )
    assert done.returncode == 0, done.stderr
    base = tmp_path / ".otel-bridge"
    report = ended(base)
    assert (report.status, report.drops) == ("finished", {})
    return base


def test_the_page_has_a_program_for_each_tracker_and_one_beside_each() -> None:
    assert sorted(PROGRAMS) == [
        f"{kind}_{name}"
        for kind in ("beside", "from")
        for name in ("mlflow", "trackio", "wandb")
    ]


@pytest.mark.parametrize("name", ["from_wandb", "from_mlflow", "from_trackio"])
def test_a_program_that_changed_over_gives_its_rows_config_and_end(
    tmp_path: Path, name: str
) -> None:
    base = run(tmp_path, name, OTEL_BRIDGE_EXPORTERS="file")

    found = records(only_folder(base))
    (config,) = [line["config"] for line in found if line["kind"] == "config"][-1:]
    assert values(only_folder(base))["loss"] == LOSSES
    assert config == (
        {"lr": 1e-6, "warmup": 5} if name == "from_wandb" else {"lr": 1e-6}
    )
    assert sum(line["kind"] == "rollout" for line in found) == (
        3 if name == "from_trackio" else 0
    )


@pytest.mark.long
def test_mlflows_client_writes_to_the_same_run(tmp_path: Path) -> None:
    uri = mlflow_reading.database(tmp_path)

    run(
        tmp_path,
        "beside_mlflow",
        MLFLOW_TRACKING_URI=uri,
        MLFLOW_DISABLE_TELEMETRY="true",
    )

    (held,) = mlflow_reading.runs_of(uri, RUN)
    artifacts = [
        found.path
        for found in mlflow_reading.client(uri).list_artifacts(held.info.run_id)
    ]
    assert (held.data.metrics, artifacts) == ({"loss": 0.5}, ["notes.txt"])


@pytest.mark.slow
def test_a_run_of_ones_own_takes_what_wandb_alone_carries(tmp_path: Path) -> None:
    store = tmp_path / "store"

    run(tmp_path, "beside_wandb", WANDB_MODE="offline", WANDB_DIR=str(store))

    (ours,) = offline_directories(store, RUN.id)
    (row,) = read_offline_run(ours).rows
    (theirs,) = set((store / "wandb").glob("offline-run-*")) - {ours}
    assert (row["loss"], row["step"]) == (0.5, 1)
    assert read_offline_run(theirs).tables == {"samples": [{"prompt": "2 + 2?"}]}


@pytest.mark.slow
def test_a_run_of_ones_own_takes_what_trackio_alone_carries(tmp_path: Path) -> None:
    folder = tmp_path / "trackio"

    run(tmp_path, "beside_trackio", TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1")

    shown = conformance_reading.trackio(folder, RUN)
    assert [scalar.triple for scalar in shown.contents.scalars] == [("loss", 1, "0.5")]
