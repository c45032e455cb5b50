"""Several processes that log to one captured W&B run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trackers import shown_runs
from support.trainers.captured_wandb import (
    captured,
    captured_config,
    captured_points,
)
from support.trainers.command_runs import (
    report_of,
    run_info,
    runs,
)

pytestmark = pytest.mark.slow


SLIME = """
import json, subprocess, sys, wandb

def init(kind, run_id=None):
    settings = wandb.Settings(mode="shared", x_primary=kind == "driver", x_label=kind, x_update_finish_state=False)
    given = {"id": run_id, "resume": "allow", "reinit": True} if run_id else {"name": "one", "config": {"lr": 0.5}}
    wandb.init(project="p", entity=None, group="g", settings=settings, **given)
    wandb.define_metric("train/step")
    wandb.define_metric("train/*", step_metric="train/step")
    wandb.define_metric("rollout/step")
    wandb.define_metric("rollout/*", step_metric="rollout/step")
    wandb.define_metric("perf/*", step_metric="rollout/step")

if len(sys.argv) > 1:
    kind, run_id = sys.argv[1:]
    init(kind, run_id)
    assert wandb.run.id == run_id
    for step in range(3):
        if kind == "trainer":
            wandb.log({"train/loss": step / 2, "train/step": step})
        else:
            wandb.log({f"rollout/{kind}": step, "perf/" + kind: 1.0, "rollout/step": 10 * step})
else:
    init("driver")
    kinds = ["trainer", "manager", "evaluator"]
    children = [subprocess.Popen([sys.executable, __file__, kind, wandb.run.id]) for kind in kinds]
    assert [one.wait() for one in children] == [0, 0, 0]
    wandb.log({"driver": 1})
"""


@pytest.mark.long
def test_four_processes_in_slimes_manner_are_one_run_with_two_axes(
    tmp_path: Path,
) -> None:
    captured(tmp_path, SLIME, RANK="3")

    report = report_of(runs(tmp_path))
    tens = (0, 10, 20)
    assert (report.name, report.project, captured_config(tmp_path)["lr"]) == (
        "one",
        "p",
        0.5,
    )
    assert (report.steps["train/step"], report.steps["rollout/step"]) == (2, 20)
    assert captured_points(tmp_path) == {
        "train/loss": [(0, 0.0), (1, 0.5), (2, 1.0)],
        **{
            f"rollout/{kind}": [(step, step // 10) for step in tens]
            for kind in ("manager", "evaluator")
        },
        **{
            f"perf/{kind}": [(step, 1.0) for step in tens]
            for kind in ("manager", "evaluator")
        },
        "driver": [(0, 1)],
    }


@pytest.mark.long
def test_slimes_axes_are_those_of_every_tracker(tmp_path: Path) -> None:
    for tracker in ("mlflow", "trackio"):
        pytest.importorskip(tracker)
    store = tmp_path / "store"
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(store),
    }

    captured(tmp_path, SLIME, exporters="wandb,mlflow,trackio", **places)

    run = run_info(runs(tmp_path))
    trackers = (
        shown_runs.wandb_offline(store, run.id),
        shown_runs.mlflow(places["MLFLOW_TRACKING_URI"], run),
        shown_runs.trackio(tmp_path / "trackio", run),
    )
    for shown in trackers:
        points = [
            (key, step, float(value))
            for key, step, value in shown.scalars
            if not key.endswith("attempt")
        ]
        assert points == [
            ("driver", 0, 1.0),
            *(
                (f"perf/{kind}", step, 1.0)
                for kind in ("evaluator", "manager")
                for step in (0, 10, 20)
            ),
            *(
                (f"rollout/{kind}", 10 * step, step)
                for kind in ("evaluator", "manager")
                for step in range(3)
            ),
            *(("train/loss", step, step / 2) for step in range(3)),
        ]


@pytest.mark.long
def test_a_forked_child_and_a_pickled_run_join_the_run(tmp_path: Path) -> None:
    code = """
    import multiprocessing, os, wandb

    def work(run):
        run.log({"spawned": 1}, step=5)

    if __name__ == "__main__":
        run = wandb.init(project="p", name="e")
        wandb.log({"parent": 1}, step=7)
        if os.fork() == 0:
            assert wandb.init() is run
            wandb.log({"forked": 2}, step=7)
            os._exit(0)
        os.wait()
        child = multiprocessing.get_context("spawn").Process(target=work, args=(run,))
        child.start()
        child.join()
        assert child.exitcode == 0
        wandb.log({"parent2": 3}, step=7)
    """

    captured(tmp_path, code)

    assert captured_points(tmp_path) == {
        "parent": [(7, 1)], "parent2": [(7, 3)], "forked": [(7, 2)], "spawned": [(5, 1)]
    }  # fmt: skip
