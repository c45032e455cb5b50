"""Capture of wandb with the real package: a program's calls give what the real package writes offline."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from otel_bridge.emit.config.capture_env import capture_variables
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trackers import shown_runs
from support.trainers.captured_wandb import (
    captured,
    captured_config,
    captured_points,
    captured_summary,
    comparable,
    offline,
    points_of,
    rollouts,
)
from support.trainers.command_runs import (
    PYTHON,
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    run_info,
    runs,
    statuses,
    values,
)

pytestmark = pytest.mark.slow

REAL, COMPAT = "import wandb\n", "import otel_bridge.compat.wandb as wandb\n"
EVERY_CALL = """
import argparse, os
import numpy as np
import wandb
captured = "OTEL_BRIDGE_CAPTURE" in os.environ
if captured:
    assert wandb.login(key="local-" + "0" * 40, host=os.environ["WANDB_BASE_URL"]) is True
    assert wandb.api.api_key
config = argparse.Namespace(lr=0.1, layers=2, nested={"a": [1, 2]})
run = wandb.init(project="p", name="one", entity="me", group="g", tags=["x"], notes="n", job_type="train",
                 config=config, reinit=True, save_code=True, monitor_gym=False,
                 settings=wandb.Settings(x_disable_stats=True))
assert isinstance(run, wandb.Run), type(run)
assert wandb.run is run and (run.project, run.name, run.group, run.job_type) == ("p", "one", "g", "train")
assert (run.entity, run.tags, run.notes, run.disabled) == ("me", ("x",), "n", False)
assert wandb.init(project="p") is run
wandb.config["seed"] = 3
wandb.config.batch = 8
wandb.config.update({"lr": 0.2, "extra": "text"}, allow_val_change=True)
assert (wandb.config.lr, run.config["seed"]) == (0.2, 3)
wandb.log({"loss": 1.0})
wandb.log({"loss": 0.5, "acc": np.float32(0.25)})
wandb.log({"a": 1}, commit=False)
wandb.log({"b": 2})
assert run.step == 3, run.step
wandb.log({"c": 1.0}, step=10)
wandb.log({"d": 2.0, "c": 3.0}, step=10)
wandb.log({"e": 1.0}, step=11)
if captured:
    wandb.log({"lower": 1.0}, step=4)
wandb.log({"f": 1.0})
wandb.log({"g": 1.0}, step=20, commit=True)
wandb.log({"nested": {"x": 1, "y": {"z": 2.0}}})
wandb.log({"flag": True, "nan": float("nan"), "word": "text", "none": None})
wandb.log({})
wandb.define_metric("train/step")
wandb.define_metric("train/*", step_metric="train/step")
wandb.define_metric("eval/*", step_metric="train/step", summary="min")
wandb.log({"train/loss": 0.5, "train/step": 100})
wandb.log({"train/loss": 0.25}, commit=False)
wandb.log({"train/step": 101, "eval/acc": 0.5, "other": 1})
wandb.log({"eval/acc": 0.75})
wandb.log({"hist": wandb.Histogram(np_histogram=([1, 2], [0, 1, 2]))})
wandb.log({"image": wandb.Image(np.zeros((2, 2, 3), dtype=np.uint8))})
for n in range(1, 4):
    rows = [[i, f"q{i}", f"a{i}", i / 2] for i in range(n)]
    wandb.log({"val/gen": wandb.Table(columns=["step", "prompt", "response", "score"], data=rows)})
wandb.log({"t": wandb.Table(columns=["x", "y"], data=[[1, 2]])})
run.summary["best"] = 0.75
run.summary.update({"total": 3})
assert run.summary["best"] == 0.75
if captured:
    run.alert("title", "text")
    run.log_code()
    run.mark_preempting()
    run.save("nothing*")
    run.watch(None)
    run.log_artifact(wandb.Artifact("a", type="t")).wait()
    assert os.path.isdir(run.dir) and run.path.endswith(f"/p/{run.id}")
    assert open(f"/proc/self/task/{os.getpid()}/children").read() == ""
wandb.finish(exit_code=0)
assert wandb.run is None
"""


def test_every_call_gives_what_real_wandb_writes_offline(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("captured", "real", "compat")]
    for folder in folders:
        folder.mkdir()

    truth = offline(folders[1], EVERY_CALL)
    output = captured(folders[0], EVERY_CALL)
    captured(folders[2], EVERY_CALL.replace(REAL, "import sys; sys.modules['wandb'] = None\n" + COMPAT))

    points = captured_points(folders[0])
    ((step, histogram),) = points.pop("hist")
    ((true_step, true_histogram),) = [(row["_step"], row["hist"]) for row in truth.rows if "hist" in row]
    assert (step, histogram["edges"], histogram["counts"]) == (
        true_step,
        true_histogram["bins"],
        true_histogram["values"],
    )
    expected, found = comparable(points_of(truth)), comparable(points)
    assert expected.pop("train/step")  # the axis of the role `train`, not a value of its rows
    assert found.pop("lower") == "[[4, 1.0]]"  # W&B drops it
    assert found == expected
    without = captured_points(folders[2])
    assert [without.pop(key) != [] for key in ("hist", "lower")] == [True, True]
    assert (comparable(without), captured_summary(folders[2])) == (expected, {"best": 0.75, "total": 3})
    assert truth.config.items() <= captured_config(folders[2]).items()
    assert [(one["step"], one["reward"]) for one in rollouts(folders[2])] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert truth.config.items() <= captured_config(folders[0]).items()
    report = report_of(runs(folders[0]))
    assert (statuses(only_folder(runs(folders[0]))), report.name) == (["finished"], truth.name)
    alerts = [one for one in records(only_folder(runs(folders[0]))) if one["kind"] == "alert"]
    assert [(one["title"], one["text"], one["level"]) for one in alerts] == [("title", "text", "info")]
    assert [(one["step"], one["split"], one["reward"]) for one in rollouts(folders[0])] == [
        (0, "eval", 0.0), (1, "eval", 0.5), (2, "eval", 1.0)
    ]  # fmt: skip
    assert report.steps["train/step"] == 101
    assert re.search(r"wandb.log +23  define_metric\(summary=\) +1\n", output)
    assert captured_summary(folders[0]) == {"best": 0.75, "total": 3}


def test_media_arrive_with_the_step_and_the_files_that_wandb_made(tmp_path: Path) -> None:
    code = """
    import numpy as np, pathlib, wandb
    wandb.init(project="p", name="e")
    wandb.define_metric("train/step")
    wandb.define_metric("train/*", step_metric="train/step")
    red = np.zeros((2, 3, 3), dtype=np.uint8)
    red[..., 0] = 255
    wandb.log({"loss": 1.0, "image": wandb.Image(red, caption="red")}, step=4)
    wandb.log({"train/step": 7, "train/grid": [wandb.Image(red), wandb.Image(255 - red)]})
    wandb.log({"page": wandb.Html("<p>hi</p>", inject=False)})
    wandb.log({"t": wandb.Table(columns=["x", "picture"], data=[[1, wandb.Image(red)], [2.5, None]])})
    pathlib.Path("a.gif").write_bytes(b"GIF89a")
    wandb.log({"film": wandb.Video("a.gif"), "plot": wandb.Object3D(np.zeros((4, 3)))})
    """

    output = captured(tmp_path, code)

    folder = only_folder(runs(tmp_path))
    found = {str(one["key"]): one for one in records(folder) if one["kind"] == "media"}
    shown = {
        key: (one["step"], [(item["type"], item["caption"]) for item in one["items"]]) for key, one in found.items()
    }
    assert shown == {
        "image": (4, [("image", "red")]),
        "train/grid": (7, [("image", ""), ("image", "")]),
        "page": (5, [("html", "")]),
        "t": (6, [("table", "")]),
        "film": (7, [("video", "")]),
    }
    page = (folder.path / "file" / found["page"]["items"][0]["file"]).read_text()
    assert page == "<p>hi</p>"
    assert [item["type"] for item in found["t"]["cells"]] == ["image"]
    assert report_of(runs(tmp_path)).drops == {"not_captured": 1}
    assert re.search(r"wandb.Image +2\b", output)
    assert re.search(r"wandb.Object3D +1\b", output)


def test_a_kill_after_the_last_log_loses_nothing(tmp_path: Path) -> None:
    code = """
    import os, signal, wandb
    wandb.init(project="p", name="e")
    for step in range(5):
        wandb.log({"loss": float(step)}, step=step)
        wandb.log({"acc": float(step)}, step=step)
    os.kill(os.getpid(), signal.SIGKILL)
    """

    captured(tmp_path, code, code_of_exit=137)

    points = [(step, float(step)) for step in range(5)]
    assert captured_points(tmp_path) == {"loss": points, "acc": points}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("wandb.finish(exit_code=3)", "failed"),
        ("raise SystemExit(0)", "finished"),
        ("wandb.run.__exit__(ValueError, ValueError('x'), None)", "failed"),
    ],
)
def test_the_exit_code_is_the_status(tmp_path: Path, code: str, status: str) -> None:
    captured(tmp_path, f"import wandb\nwandb.init(project='p', name='e')\nwandb.log({{'a': 1}}, step=3)\n{code}")

    assert statuses(only_folder(runs(tmp_path))) == [status]
    assert captured_points(tmp_path) == {"a": [(3, 1)]}


@pytest.mark.parametrize("how", ["mode='disabled'", "settings=wandb.Settings(mode='disabled')", ""])
def test_a_run_that_the_program_disables_is_not_recorded(tmp_path: Path, how: str) -> None:
    code = f"import wandb\nrun = wandb.init({how})\nrun.log({{'a': 1}})\nprint(run.disabled)"
    variables = {} if how else {"WANDB_MODE": "disabled"}

    output = captured(tmp_path, code, **variables)

    assert output.splitlines()[0] == "True"
    assert not list(runs(tmp_path).glob("*/segments/*"))


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


def test_four_processes_in_slimes_manner_are_one_run_with_two_axes(tmp_path: Path) -> None:
    captured(tmp_path, SLIME, RANK="3")

    report = report_of(runs(tmp_path))
    tens = (0, 10, 20)
    assert (report.name, report.project, captured_config(tmp_path)["lr"]) == ("one", "p", 0.5)
    assert (report.steps["train/step"], report.steps["rollout/step"]) == (2, 20)
    assert captured_points(tmp_path) == {
        "train/loss": [(0, 0.0), (1, 0.5), (2, 1.0)],
        **{f"rollout/{kind}": [(step, step // 10) for step in tens] for kind in ("manager", "evaluator")},
        **{f"perf/{kind}": [(step, 1.0) for step in tens] for kind in ("manager", "evaluator")},
        "driver": [(0, 1)],
    }


@pytest.mark.long
def test_slimes_axes_are_those_of_every_tracker(tmp_path: Path) -> None:
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
        points = [(key, step, float(value)) for key, step, value in shown.scalars if not key.endswith("attempt")]
        assert points == [
            ("driver", 0, 1.0),
            *((f"perf/{kind}", step, 1.0) for kind in ("evaluator", "manager") for step in (0, 10, 20)),
            *((f"rollout/{kind}", 10 * step, step) for kind in ("evaluator", "manager") for step in range(3)),
            *(("train/loss", step, step / 2) for step in range(3)),
        ]


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


def test_a_run_begun_again_in_one_process_is_another_run(tmp_path: Path) -> None:
    code = """
    import wandb
    for name in ("a", "b"):
        with wandb.init(project="p", name=name, reinit="finish_previous") as run:
            run.log({name: 1}, step=1)
    """

    captured(tmp_path, code)

    assert sorted(path.name for path in runs(tmp_path).iterdir() if (path / "segments").is_dir()) != []
    assert len(list(runs(tmp_path).glob("*/segments"))) == 2


def test_runs_beside_each_other_are_runs_of_their_own_and_do_not_become_the_programs_run(tmp_path: Path) -> None:
    code = """
    import wandb
    own = wandb.init(project="p", name="own")
    others = [wandb.init(project="p", name=f"trial{n}", reinit="create_new") for n in range(2)]
    assert wandb.run is own
    for step in range(2):
        for n, run in enumerate(others):
            run.log({"trial": n}, step=step)
        wandb.log({"own": 1}, step=step)
    """

    captured(tmp_path, code)

    found = {report.name: values(folder) for folder in run_folders(runs(tmp_path)) if (report := read_report(folder))}
    assert found == {
        "own": {"own": [(0, 1), (1, 1)]},
        "trial0": {"trial": [(0, 0), (1, 0)]},
        "trial1": {"trial": [(0, 1), (1, 1)]},
    }


@pytest.mark.parametrize(("variables", "project"), [({}, "huggingface"), ({"OTEL_BRIDGE_PROJECT": "mine"}, "mine")])
def test_a_chosen_project_wins_over_the_default_of_transformers(
    tmp_path: Path, variables: dict[str, str], project: str
) -> None:
    captured(tmp_path, "import wandb\nprint(wandb.init(project='huggingface', name='e').project)", **variables)

    assert report_of(runs(tmp_path)).project == project


@pytest.mark.skipif(importlib.util.find_spec("tensorboardX") is None, reason="tensorboardX is not here")
def test_sync_tensorboard_captures_the_event_writer(tmp_path: Path) -> None:
    code = """
    import wandb
    from tensorboardX import SummaryWriter
    wandb.init(project="p", name="e", sync_tensorboard=True, monitor_gym=True)
    writer = SummaryWriter("events")
    for step in range(3):
        writer.add_scalar("losses/value", step / 2, step * 100)
    writer.close()
    """

    captured(tmp_path, code)

    assert captured_points(tmp_path) == {"losses/value": [(0, 0.0), (100, 0.5), (200, 1.0)]}


def test_tee_writes_w_and_bs_own_run_too_and_is_refused_with_its_exporter(tmp_path: Path) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e", config={"lr": 1})
    run.define_metric("train/*", step_metric="train/step")
    wandb.config["seed"] = 3
    wandb.log({"train/loss": 0.5, "train/step": 7})
    run.log({"train/loss": 0.25, "train/step": 8})
    """
    script = program(tmp_path, "train.py", code)
    env = environment(tmp_path, OTEL_BRIDGE_CAPTURE_MODE="tee", WANDB_MODE="offline", WANDB_SILENT="true")
    command = ("--capture", "wandb", "--", "python", script)

    done = otel_bridge("run", "--exporters", "file", *command, cwd=tmp_path, env=env)
    refused = otel_bridge("run", "--exporters", "wandb", *command, cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
    assert captured_points(tmp_path) == {"train/loss": [(7, 0.5), (8, 0.25)]}
    assert captured_config(tmp_path)["seed"] == 3
    assert refused.returncode == 1
    assert "wandb is an exporter too, and would have every row twice" in refused.stderr


def test_a_bridge_that_the_captured_program_starts_writes_with_the_real_wandb(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="wandb", WANDB_MODE="offline")
    script = program(tmp_path, "train.py", "import wandb\nwandb.init(project='p', name='e')\nwandb.log({'a': 1})\n")

    done = call([PYTHON, script], cwd=tmp_path, env=env | capture_variables(env, ["wandb"]))

    assert done.returncode == 0, done.stderr
    assert ended(runs(tmp_path)).exporters["wandb"].rows == 1
