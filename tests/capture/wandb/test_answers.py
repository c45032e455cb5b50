"""What captured calls return and refuse, beside what the real package does offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trackers.wandb_backend.server import WandbServer
from support.trainers.captured_wandb import captured
from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    runs,
)

pytestmark = pytest.mark.slow

AFTER_FINISH = """
import wandb
run = wandb.init(project="p", id="r1")
run.finish()
calls = {
    "log": lambda: run.log({"a": 2}), "alert": lambda: run.alert("t", "x"), "save": lambda: run.save("x"),
    "config": lambda: run.config.update({"z": 1}), "config item": lambda: run.config.__setitem__("y", 1),
    "summary": lambda: run.summary.update({"q": 1}), "define": lambda: run.define_metric("a"),
    "artifact": lambda: run.log_artifact("x"), "tags": lambda: setattr(run, "tags", ("a",)),
    "wandb.log": lambda: wandb.log({"a": 2}), "wandb.summary": lambda: wandb.summary.update({"q": 1}),
}
for name, each in calls.items():
    try:
        each()
        print("ANSWER", name, "nothing")
    except Exception as exc:
        print("ANSWER", name, type(exc).__name__, exc)
"""


def answers(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("ANSWER")]


@pytest.mark.long
def test_calls_after_finish_raise_what_the_real_package_raises(tmp_path: Path) -> None:
    env = environment(tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    real = call(
        [PYTHON, program(tmp_path, "real.py", AFTER_FINISH)], cwd=tmp_path, env=env
    )
    (folder := tmp_path / "captured").mkdir()

    output = captured(folder, AFTER_FINISH)

    assert len(answers(real.stdout)) == 11
    assert answers(output) == answers(real.stdout)


def test_save_returns_its_files_and_artifacts_can_be_waited_for(tmp_path: Path) -> None:
    code = """
        import pathlib, wandb
        pathlib.Path("a.txt").write_text("a")
        run = wandb.init(project="p")
        assert wandb.save("*.txt") == ["a.txt"], wandb.save("*.txt")
        artifact = wandb.Artifact("a", type="model")
        run.upsert_artifact(artifact, distributed_id="d").wait()
        run.finish_artifact(artifact, distributed_id="d").wait()
        assert run.status().sync_items_pending == 0
    """

    captured(tmp_path, code)


def test_media_and_rows_keep_the_order_of_their_calls(tmp_path: Path) -> None:
    code = """
        import numpy as np, wandb
        class Index:
            def __index__(self):
                return 14
        image = wandb.Image(np.zeros((4, 4, 3), dtype="uint8"))
        run = wandb.init(project="p")
        run.log({"a": 1}, step=5)
        run.log({"image": image}, step=6)
        run.log({"a": 2}, step=6)
        run.log({"a": 3}, step=np.array([13]))
        run.log({"a": 4}, step=Index())
        image.bind_to_run(run, "image", 6)
    """

    captured(tmp_path, code)

    shown = [
        (record["kind"], record["step"])
        for record in records(only_folder(runs(tmp_path)))
        if "step" in record
    ]
    assert shown == [("row", 5), ("media", 6), ("row", 6), ("row", 13), ("row", 14)]


@pytest.mark.long
def test_the_key_and_host_of_login_apply_to_the_api_to_sweeps_and_to_the_exporter(
    tmp_path: Path,
) -> None:
    code = """
        import os, sys, wandb
        assert wandb.login(key="k" * 40, host=sys.argv[1] + "/")
        api = wandb.Api()
        assert (api.settings["base_url"], api.api_key) == (sys.argv[1], "k" * 40)
        print("sweep", wandb.sweep({"method": "grid", "parameters": {"lr": {"values": [1]}}}, project="swept"))
        wandb.init(project="p", name="one", entity="me").log({"loss": 1.0})
    """
    with WandbServer() as server:
        variables = server.environment()
        address = variables.pop("WANDB_BASE_URL")
        variables.pop("WANDB_API_KEY", None)
        env = environment(tmp_path, **variables)
        command = [
            "run",
            "--exporters",
            "wandb",
            "--capture",
            "wandb",
            "--",
            "python",
            program(tmp_path, "t.py", code),
        ]

        done = otel_bridge(*command, address, cwd=tmp_path, env=env)

        assert (done.returncode, "sweep sweep0" in done.stdout) == (0, True), (
            done.stdout + done.stderr
        )
        assert server.store.runs, done.stderr
        [run] = server.store.runs.values()
        assert [row["loss"] for row in run.history if "loss" in row] == [1.0]
