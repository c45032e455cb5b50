"""Tables of a captured program: rollouts with the key of their table, or media; and what the launcher counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.trainers.captured_wandb import captured, rollouts
from support.trainers.command_runs import only_folder, records, report_of, runs

pytestmark = pytest.mark.slow


def test_tables_of_pictures_and_numbers_arrive_as_tables_and_rows_of_texts_as_rollouts(
    tmp_path: Path,
) -> None:
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

    media = [
        one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "media"
    ]
    assert [(one["key"], [item["type"] for item in one["items"]]) for one in media] == [
        ("seg", ["table"]), ("fit", ["table"])
    ]  # fmt: skip
    found = sorted(
        (one["metadata"]["wandb_key"], one["reward"], len(one["messages"]))
        for one in rollouts(tmp_path)
    )
    assert found == [("one", 0.5, 2), ("one", 1.0, 1), ("two", 0.0, 2)]
    assert report_of(runs(tmp_path)).drops == {}


def test_of_several_tables_in_a_list_the_first_is_recorded_and_the_others_are_counted(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    wandb.init(project="p", name="e")
    tables = [wandb.Table(columns=["prompt", "response"], data=[[f"q{n}", "a"]]) for n in range(3)]
    wandb.log({"t": tables})
    wandb.log({"one": tables[1:2]})
    """

    captured(tmp_path, code)

    keys = [one["metadata"]["wandb_key"] for one in rollouts(tmp_path)]
    assert keys == ["t", "one"]
    assert report_of(runs(tmp_path)).drops == {"media_mixed": 2}


def test_rollouts_beyond_the_limit_of_a_step_are_named_with_the_setting(
    tmp_path: Path,
) -> None:
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
    assert re.search(
        r"wandb.Table: rollouts beyond OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP=8 +4\b", output
    )


def test_every_row_beyond_the_most_of_a_table_is_counted(tmp_path: Path) -> None:
    code = """
    import wandb
    from otel_bridge.capture.wandb.values import logged_tables
    logged_tables.MAX_ROWS = 2
    wandb.init(project="p", name="e")
    wandb.log({"t": wandb.Table(columns=["prompt", "response"], data=[["q", f"a{n}"] for n in range(5)])})
    """

    captured(tmp_path, code)

    assert len(rollouts(tmp_path)) == 2
    assert report_of(runs(tmp_path)).drops == {"not_captured": 3}


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
    facts = {
        "n": 3,
        "ok": True,
        "tags": ["a", "b"],
        "page": "<b>x</b>",
        "wandb_key": "completions",
    }
    assert (rollout["split"], rollout["reward"], rollout["metadata"]) == (
        "eval",
        0.5,
        facts,
    )
    parts = rollout["messages"][0]["content"]
    assert [part["type"] for part in parts] == [
        "image_url",
        "text",
        "image_url",
        "text",
        "text",
    ]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    report = report_of(runs(tmp_path))
    assert (report.drops, report.drop_keys) == (
        {"not_captured": 1}, {"not_captured": "completions: plot (wandb.Histogram)"}
    )  # fmt: skip


def test_a_table_that_gets_a_further_column_completes_its_rollouts_and_records_none_again(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    wandb.init(project="p", name="e")
    table = wandb.Table(columns=["prompt", "response"], data=[["q", "a"], ["q", "b"]], log_mode="MUTABLE")
    wandb.log({"samples": table}, step=1)
    table.add_column("score", [0.5, 1.0])
    table.add_column("judge", ["good", "bad"])
    table.add_column("trace", [["x"], ["y"]])
    wandb.log({"samples": table}, step=2)
    """

    captured(tmp_path, code)

    kept = rollouts(tmp_path)
    assert sorted((one["step"], one["reward"], one["messages"][1]["content"]) for one in kept) == [
        (1, 0.5, "a"), (1, 1.0, "b")
    ]  # fmt: skip
    report = report_of(runs(tmp_path))
    assert (report.drops, report.drop_keys) == (
        {"not_captured": 2}, {"not_captured": "samples: trace (list added to a recorded row)"}
    )  # fmt: skip


@pytest.mark.long
def test_w_and_b_shows_the_new_rows_with_every_column_and_picture_of_the_program(
    tmp_path: Path,
) -> None:
    code = """
    import numpy as np, wandb
    wandb.init(project="p", name="e")
    picture = wandb.Image(np.zeros((2, 2, 3), dtype=np.uint8))
    rows = [["q", "a", np.int64(3), picture], ["q", "b", np.int64(4), None]]
    for count in (1, 2):
        table = wandb.Table(columns=["prompt", "response", "n", "image"], data=rows[:count])
        wandb.log({"samples": table}, step=count)
    """

    captured(tmp_path, code, exporters="file,wandb", WANDB_MODE="offline")

    media = [
        one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "media"
    ]
    assert [(one["key"], one["step"]) for one in media] == [
        ("samples", 1),
        ("samples", 2),
    ]
    folder = only_folder(runs(tmp_path)).path / "file"
    first, second = (
        json.loads((folder / one["items"][0]["file"]).read_text()) for one in media
    )
    assert first["columns"] == second["columns"] == ["prompt", "response", "n", "image"]
    assert (first["rows"][0][:3], second["rows"]) == (
        ["q", "a", 3],
        [["q", "b", 4, None]],
    )
    assert first["rows"][0][3] is not None
    assert len(rollouts(tmp_path)) == 2
