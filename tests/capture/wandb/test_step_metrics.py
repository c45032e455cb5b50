"""Step metrics beside ``log(step=)``: each point has the step that the real package writes offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.captured_wandb import (
    captured,
    captured_points,
    captured_summary,
    comparable,
    offline,
    points_of,
)
from support.trainers.command_runs import only_folder, records, runs

pytestmark = pytest.mark.slow


def test_a_row_has_the_value_of_its_step_metric_and_not_that_of_the_next_row(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e")
    run.define_metric("train/*", step_metric="train/step")
    run.define_metric("val/*", step_metric=run.define_metric("epoch"))
    for step in range(4):
        wandb.log({"train/step": step * 100, "train/loss": step}, step=step * 2)
        wandb.log({"train/acc": step}, step=step * 2)
        wandb.log({"val/acc": step, "epoch": step + 7}, step=step * 2)
    wandb.log({"val/late": 1}, step=20)
    """
    (tmp_path / "real").mkdir()
    truth = points_of(offline(tmp_path / "real", code))

    captured(tmp_path, code)

    found = captured_points(tmp_path)
    assert (
        found["train/loss"]
        == found["train/acc"]
        == [(0, 0), (100, 1), (200, 2), (300, 3)]
    )
    assert found["val/acc"] == [(7, 0), (8, 1), (9, 2), (10, 3)]
    assert found["val/late"] == [(10, 1)]
    for key in ("train/loss", "train/acc", "val/acc"):
        assert comparable(found)[key] == comparable(truth)[key]


def test_dots_in_the_name_of_a_metric_are_levels_of_nested_values_unless_escaped(
    tmp_path: Path,
) -> None:
    code = r"""
    import os
    import wandb
    run = wandb.init(project="p", name="e")
    run.define_metric("train.*", step_metric="train.step", summary="min")
    run.define_metric("plain\\.acc", step_metric="plain\\.step", summary="min")
    for step in (30, 10, 20):
        run.log({"train": {"loss": step, "step": step}, "plain.acc": step, "plain.step": step})
    assert run.summary["plain.acc"]["min"] == 10
    if "OTEL_BRIDGE_CAPTURE" not in os.environ:
        assert run.summary["train"]["loss"]["min"] == 10
    """
    (tmp_path / "real").mkdir()
    offline(tmp_path / "real", code)

    captured(tmp_path, code)

    found = captured_points(tmp_path)
    assert found["train/loss"] == found["plain.acc"] == [(30, 30), (10, 10), (20, 20)]
    assert captured_summary(tmp_path) == {"train/loss.min": 10, "plain.acc.min": 10}


def test_media_have_the_step_of_their_row_and_a_step_below_the_counter_leaves_the_pending_row_alone(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e")
    run.define_metric("*", step_metric="epoch")
    wandb.log({"epoch": 1, "loss": 1.0}, step=10)
    wandb.log({"epoch": 2, "loss": 2.0, "page": wandb.Html("<b>x</b>", inject=False)}, step=20)
    wandb.log({"epoch": 0, "loss": 0.5, "early": 1}, step=15)
    wandb.log({"acc": 2.0}, step=20)
    wandb.log({"acc": 3.0}, step=30)
    """

    captured(tmp_path, code)

    found = captured_points(tmp_path)
    assert sorted(found["loss"]) == [(0, 0.5), (1, 1.0), (2, 2.0)]
    assert (found["acc"], found["early"]) == ([(2, 2.0), (2, 3.0)], [(0, 1)])
    media = [
        one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "media"
    ]
    assert [(one["key"], one["step"]) for one in media] == [("page", 2)]
