"""Tables of a captured program: rollouts with the key of their table, or media; and what the launcher counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.trainers.captured_wandb import captured, rollouts
from support.trainers.command_runs import only_folder, records, report_of, runs

pytestmark = pytest.mark.slow


def test_tables_of_pictures_and_numbers_arrive_as_tables_and_rows_of_texts_as_rollouts(tmp_path: Path) -> None:
    code = """
    import numpy as np, wandb
    wandb.init(project="p", name="e")
    picture = lambda: wandb.Image(np.zeros((2, 2, 3), dtype=np.uint8))
    wandb.log({"seg": wandb.Table(columns=["input", "output"], data=[[picture(), picture()]])})
    wandb.log({"fit": wandb.Table(columns=["input", "prediction"], data=[[0.1, 0.2], [0.3, 0.4]])})
    rows = [["q", "a", 0.5], [None, "b", 1.0]]
    wandb.log({"one": wandb.Table(columns=["prompt", "response", "score"], data=rows)}, step=5)
    wandb.log({"two": wandb.Table(columns=["prompt", "response", "score"], data=[["q", "c", 0.0]])}, step=5)
    """

    captured(tmp_path, code)

    media = [one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "media"]
    assert [(one["key"], [item["type"] for item in one["items"]]) for one in media] == [
        ("seg", ["table"]), ("fit", ["table"])
    ]  # fmt: skip
    found = sorted((one["metadata"]["wandb_key"], one["reward"], len(one["messages"])) for one in rollouts(tmp_path))
    assert found == [("one", 0.5, 2), ("one", 1.0, 1), ("two", 0.0, 2)]
    assert report_of(runs(tmp_path)).drops == {}


def test_rollouts_beyond_the_limit_of_a_step_are_named_with_the_setting(tmp_path: Path) -> None:
    code = """
    import wandb
    wandb.init(project="p", name="e")
    for key in ("one", "two"):
        rows = [[f"{key}{n}", "a"] for n in range(6)]
        wandb.log({key: wandb.Table(columns=["prompt", "response"], data=rows)}, step=3)
    """

    output = captured(tmp_path, code, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="8")

    assert len(rollouts(tmp_path)) == 8
    assert re.search(r"wandb.Table: rollouts +8 .*", output)
    assert re.search(r"wandb.Table: rollouts beyond OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP=8 +4\b", output)


def test_every_cell_of_a_data_frame_is_in_the_rollout_a_picture_in_its_question_and_a_plot_is_counted(
    tmp_path: Path,
) -> None:
    code = """
    import numpy as np, pandas as pd, wandb
    picture = wandb.Image(np.zeros((2, 2, 3), dtype=np.uint8), caption="red")
    frame = pd.DataFrame({
        "prompt": ["p"], "completion": ["c"], "reward": np.float32([0.5]), "n": np.int64([3]), "ok": [True],
        "tags": [["a", "b"]], "images": [[picture, picture]], "page": [wandb.Html("<b>x</b>", inject=False)],
        "plot": [wandb.Histogram([1, 2])],
    })
    wandb.init(project="p", name="e")
    wandb.log({"completions": wandb.Table(dataframe=frame), "eval/scores": 0.5, "epoch": 1}, step=4)
    """

    captured(tmp_path, code)

    (rollout,) = rollouts(tmp_path)
    facts = {"n": 3, "ok": True, "tags": ["a", "b"], "page": "<b>x</b>", "wandb_key": "completions"}
    assert (rollout["split"], rollout["reward"], rollout["metadata"]) == ("eval", 0.5, facts)
    parts = rollout["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "image_url", "text", "text"]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    report = report_of(runs(tmp_path))
    assert (report.drops, report.drop_keys) == (
        {"not_captured": 1}, {"not_captured": "completions: plot (wandb.Histogram)"}
    )  # fmt: skip
