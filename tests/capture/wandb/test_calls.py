"""Capture of wandb with the real package: a program's calls give what the real package writes offline."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

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
    only_folder,
    records,
    report_of,
    runs,
    statuses,
)

pytestmark = pytest.mark.slow

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
wandb.define_metric("hidden", summary="none")
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
    folders = [tmp_path / name for name in ("captured", "real")]
    for folder in folders:
        folder.mkdir()

    truth = offline(folders[1], EVERY_CALL)
    output = captured(folders[0], EVERY_CALL)

    points = captured_points(folders[0])
    ((step, histogram),) = points.pop("hist")
    ((true_step, true_histogram),) = [
        (row["_step"], row["hist"]) for row in truth.rows if "hist" in row
    ]
    assert (step, histogram["edges"], histogram["counts"]) == (
        true_step,
        true_histogram["bins"],
        true_histogram["values"],
    )
    expected, found = comparable(points_of(truth)), comparable(points)
    assert expected.pop(
        "train/step"
    )  # the axis of the role `train`, not a value of its rows
    assert found.pop("lower") == "[[4, 1.0]]"  # W&B drops it
    assert found == expected
    assert truth.config.items() <= captured_config(folders[0]).items()
    report = report_of(runs(folders[0]))
    assert (statuses(only_folder(runs(folders[0]))), report.name) == (
        ["finished"],
        truth.name,
    )
    alerts = [
        one for one in records(only_folder(runs(folders[0]))) if one["kind"] == "alert"
    ]
    assert [(one["title"], one["text"], one["level"]) for one in alerts] == [
        ("title", "text", "info")
    ]
    assert [(one["step"], one["split"], one["reward"]) for one in rollouts(folders[0])] == [
        (0, "eval", 0.0), (1, "eval", 0.5), (2, "eval", 1.0)
    ]  # fmt: skip
    assert report.steps["train/step"] == 101
    assert re.search(r"wandb\.log +23 +\n", output)
    assert re.search(r"define_metric\(summary='none'\) +1\n", output)
    assert captured_summary(folders[0]) == {
        "best": 0.75,
        "total": 3,
        "eval/acc.min": 0.5,
        "word": "text",
    }


@pytest.mark.long
def test_an_array_of_one_number_is_that_number_as_in_wandb(tmp_path: Path) -> None:
    code = """
    import numpy as np, wandb
    run = wandb.init(project="p", name="e")
    row = {"zero_d": np.array(2.0), "one": np.array([[4]]), "scalar": np.float32(0.5), "true": np.bool_(True)}
    wandb.log(row)
    wandb.log(row, step=3)
    assert {key: run.summary[key] for key in row} == {"zero_d": 2.0, "one": 4, "scalar": 0.5, "true": True}
    """
    (tmp_path / "real").mkdir()

    captured(tmp_path, code)

    assert comparable(captured_points(tmp_path)) == comparable(
        points_of(offline(tmp_path / "real", code))
    )


def test_media_arrive_with_the_step_and_the_files_that_wandb_made(
    tmp_path: Path,
) -> None:
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
    wandb.log({"deep": {"x": 1, "er": {"image": wandb.Image(red, caption="deep")}}})
    """

    output = captured(tmp_path, code)

    folder = only_folder(runs(tmp_path))
    found = {str(one["key"]): one for one in records(folder) if one["kind"] == "media"}
    shown = {
        key: (one["step"], [(item["type"], item["caption"]) for item in one["items"]])
        for key, one in found.items()
    }
    assert shown == {
        "image": (4, [("image", "red")]),
        "train/grid": (7, [("image", ""), ("image", "")]),
        "page": (5, [("html", "")]),
        "t": (6, [("table", "")]),
        "film": (7, [("video", "")]),
        "deep/er/image": (8, [("image", "deep")]),
    }
    assert captured_points(tmp_path) == {"loss": [(4, 1.0)], "deep/x": [(8, 1)]}
    page = (folder.path / "file" / found["page"]["items"][0]["file"]).read_text()
    assert page == "<p>hi</p>"
    assert [item["type"] for item in found["t"]["cells"]] == ["image"]
    assert report_of(runs(tmp_path)).drops == {"not_captured": 1}
    assert re.search(r"wandb.Image +3\b", output)
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


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboardX") is None, reason="tensorboardX is not here"
)
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

    assert captured_points(tmp_path) == {
        "losses/value": [(0, 0.0), (100, 0.5), (200, 1.0)]
    }


@pytest.mark.long
def test_entries_of_the_config_are_replaced_whole_and_w_and_bs_own_keys_of_a_row_are_its_own(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e", config={"a": {"b": 1, "c": 2}, "kept": {"x": 1}})
    run.config.update({"a": {"b": 3}}, allow_val_change=True)
    assert run.config["a"] == {"b": 3}
    run.log({"x": 1, "_step": 50, "_runtime": 99, "_timestamp": 123.0})
    run.log({"_step": 70})
    run.log({"x": 2, "n": {"_step": 3}})
    assert run.step == 3 and run.summary["_step"] == 2 and run.summary["_timestamp"] > 1000, dict(run.summary)
    assert run.summary["_runtime"] < 90
    """
    (tmp_path / "real").mkdir()
    truth = offline(tmp_path / "real", code)

    captured(tmp_path, code)

    assert comparable(captured_points(tmp_path)) == comparable({
        "x": [(0, 1), (2, 2)], "n/_step": [(2, 3)]
    })  # fmt: skip
    assert (
        comparable(points_of(truth))["x"] == comparable(captured_points(tmp_path))["x"]
    )
    assert (
        captured_config(tmp_path) == truth.config == {"a": {"b": 3}, "kept": {"x": 1}}
    )
