"""Statistics of rollouts arrive behind later rows: each is shown at its own step, in every tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import shown_runs, trackio_store
from support.trainers.e2e_jobs import environment, run, script, status, until

STEPS = 5
JOB = f"""
import otel_bridge

run = otel_bridge.init("axes", "job", role="explorer")
for step in range({STEPS}):
    run.log({{"loss": step / 2}}, step=step)
    run.log_rollouts([{{"messages": "q", "reward": float(step)}}], step=step)
    run.log({{"tokens": step}}, step=step)
run.finish(timeout_s=300)
"""
MEAN = "explorer/rollouts/reward/mean"


@pytest.mark.long
def test_every_row_of_statistics_stands_at_its_own_step_on_every_axis(
    tmp_path: Path,
) -> None:
    base, tracked = tmp_path / "runs", tmp_path / "trackers"
    uri = f"sqlite:///{tracked / 'mlflow.db'}"
    env = environment(
        base, "wandb,mlflow,trackio,file", WANDB_MODE="offline", WANDB_DIR=str(tracked), MLFLOW_TRACKING_URI=uri,
        TRACKIO_DIR=str(tracked / "trackio"),
    )  # fmt: skip
    tracked.mkdir()

    done = run(script(tmp_path / "train.py", JOB), env)
    until(lambda: status(base))

    info = RunInfo(run_id_of("axes", "job"), "axes", "job", tmp_path)
    rows = trackio_store.rows_in(tracked / "trackio", info)
    shown = {
        "wandb": shown_runs.wandb_offline(tracked, info.id),
        "mlflow": shown_runs.mlflow(uri, info),
        "trackio": shown_runs.trackio(tracked / "trackio", info),
    }
    assert done.returncode == 0, done.stderr
    assert [(row["step"], row[MEAN]) for row in rows if MEAN in row] == [
        (n, float(n)) for n in range(STEPS)
    ]
    wrong = [
        row for row in rows if row.get("explorer/step", row["step"]) != row["step"]
    ]
    assert wrong == []
    means = {
        name: sorted(
            (step, float(value)) for key, step, value in one.scalars if key == MEAN
        )
        for name, one in shown.items()
    }
    assert means == {
        name: [(step, float(step)) for step in range(STEPS)] for name in shown
    }
