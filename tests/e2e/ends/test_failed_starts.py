"""A run that fails before its first row is shown with its config and its end; in Trackio a run begins with a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from otel_bridge.testing.contents import Contents
from support.trackers import conformance_reading
from support.trainers.e2e_jobs import (
    ended,
    environment,
    no_bridge_left,
    run,
    script,
    until,
)

pytestmark = pytest.mark.slow

_ENDS = {
    "failed": "raise ValueError('the model does not fit')",
    "killed": "os.kill(os.getpid(), 9)",
    "finished": "run.finish()",
}


def _begun_and_ended(folder: Path, how: str, exporters: str) -> tuple[Path, RunInfo]:
    base = folder / "runs"
    code = f"""
        import os, otel_bridge
        run = otel_bridge.init("starts", "one", role="trainer", config={{"lr": 0.1}})
        {_ENDS[how]}
        """
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    env = environment(
        base, exporters, MLFLOW_TRACKING_URI=uri, TRACKIO_DIR=str(folder / "trackio")
    )
    with no_bridge_left(folder):
        run(
            script(folder / "train.py", code),
            {**env, "WANDB_MODE": "offline", "WANDB_DIR": str(folder)},
        )
        until(lambda: ended(base))
    return base, RunInfo(run_id_of("starts", "one"), "starts", "one", folder)


@pytest.mark.parametrize(
    "how", [pytest.param("failed", marks=pytest.mark.long), "killed"]
)
def test_a_run_that_fails_before_its_first_row_is_shown_with_its_config(
    tmp_path: Path, how: str
) -> None:
    base, info = _begun_and_ended(tmp_path, how, "wandb,mlflow,trackio,file")

    shown: dict[str, Contents] = {
        "wandb": conformance_reading.wandb_offline(tmp_path, info).contents,
        "mlflow": conformance_reading.mlflow(
            f"sqlite:///{tmp_path / 'mlflow.db'}", info
        ).contents,
    }
    assert {
        name: one.config.get("trainer/lr") for name, one in shown.items()
    } == dict.fromkeys(shown, "0.1")
    assert {name: one.status for name, one in shown.items()} == dict.fromkeys(
        shown, how
    )
    (file,) = base.glob("*/file/*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line.get("status") for line in lines if line["kind"] == "end"] == [how], (
        lines
    )


def test_a_run_that_finishes_without_a_row_opens_no_tracker(tmp_path: Path) -> None:
    base, _ = _begun_and_ended(tmp_path, "finished", "mlflow,file")

    assert list(base.glob("*/file/*.jsonl")) == []
    assert not (tmp_path / "mlflow.db").exists()
