"""``run.id_in()`` names the run that the tracker's own client finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.trackers import mlflow_reading
from support.trackers.mlflow_server import mlflow_server
from support.trainers.e2e_jobs import environment, run, script

pytestmark = pytest.mark.long

TRAIN = """
import json, os, pathlib
import otel_bridge

run = otel_bridge.init(project="ids", name="one", role="trainer")
before = {name: run.id_in(name) for name in ("mlflow", "trackio", "wandb", "file")}
run.log({"loss": 0.5}, step=1)
assert run.flush(300)
given = {name: run.id_in(name) for name in before}
if given["mlflow"]:
    from mlflow import MlflowClient
    pathlib.Path("model.txt").write_text("weights")
    MlflowClient().log_artifact(run.id_in("mlflow"), "model.txt")
print(json.dumps([run.id, before, given]))
run.finish()
"""


def ids_of(
    file: Path, exporters: str, **env: str
) -> tuple[str, dict[str, str | None], dict[str, str | None]]:
    done = run(
        file,
        environment(
            file.parent / "runs", exporters, MLFLOW_DISABLE_TELEMETRY="true", **env
        ),
    )
    assert done.returncode == 0, done.stderr
    run_id, before, given = json.loads(done.stdout.splitlines()[-1])
    return run_id, before, given


def artifacts(uri: str, run_id: str) -> list[str]:
    return [item.path for item in mlflow_reading.client(uri).list_artifacts(run_id)]


def test_with_a_database_an_artifact_is_logged_to_the_run_that_id_in_names(
    tmp_path: Path,
) -> None:
    uri = mlflow_reading.database(tmp_path)
    run_id, before, given = ids_of(
        script(tmp_path / "train.py", TRAIN), exporters="mlflow,trackio,wandb,file", MLFLOW_TRACKING_URI=uri,
        TRACKIO_DIR=str(tmp_path / "trackio"), WANDB_MODE="offline",
    )  # fmt: skip

    found = mlflow_reading.client(uri).search_runs(
        [mlflow_reading.client(uri).get_experiment_by_name("ids").experiment_id]
    )
    (shown,) = found
    assert before == {"mlflow": None, "trackio": run_id, "wandb": run_id, "file": None}
    assert given == {
        "mlflow": shown.info.run_id,
        "trackio": run_id,
        "wandb": run_id,
        "file": None,
    }
    assert artifacts(uri, shown.info.run_id) == ["model.txt"]


def test_with_a_server_an_artifact_is_logged_to_the_run_that_id_in_names(
    tmp_path: Path,
) -> None:
    with mlflow_server(tmp_path) as uri:
        _, before, given = ids_of(
            script(tmp_path / "train.py", TRAIN),
            exporters="mlflow",
            MLFLOW_TRACKING_URI=uri,
        )

        (shown,) = mlflow_reading.client(uri).search_runs(
            [mlflow_reading.client(uri).get_experiment_by_name("ids").experiment_id]
        )
        assert (before["mlflow"], given["mlflow"]) == (None, shown.info.run_id)
        assert artifacts(uri, shown.info.run_id) == ["model.txt"]
