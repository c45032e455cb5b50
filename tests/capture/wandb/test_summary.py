"""What a program reads of ``run.summary`` is what it reads of the real package; texts are last values of the run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.capture.wandb.values import logged_values
from support.trainers.captured_wandb import (
    captured,
    captured_points,
    captured_summary,
    offline,
)
from support.trainers.command_runs import report_of, runs

pytestmark = pytest.mark.slow

READ = """
import json
import numpy as np
import wandb
run = wandb.init(project="p", name="e")
run.summary.update({"acc": np.float32(0.5), "matrix": [[1, 2], [3, 4]], "count": np.int64(3), "few": np.arange(3)})
run.summary["best"] = np.float64(0.25)
found = [run.summary[key] for key in ("acc", "matrix", "count", "few", "best")]
assert found == [0.5, [[1, 2], [3, 4]], 3, [0, 1, 2], 0.25], found
assert json.dumps(found)
run.log({"list": [1, 2], "train": {"loss": 1.0}})
run.log({"train": {"acc": 2.0}, "page": wandb.Html("x"), "image": wandb.Image(np.zeros((2, 3, 3), np.uint8))})
run.log({"hist": wandb.Histogram([1, 2]), "deep": {"word": "text", "table": wandb.Table(columns=["a"], data=[[1]])}})
assert (run.summary["list"], run.summary["train"]["loss"], run.summary["train"]["acc"]) == ([1, 2], 1, 2)
kinds = [run.summary[key]["_type"] for key in ("page", "image", "hist")]
assert kinds == ["html-file", "image-file", "histogram"], kinds
assert (run.summary["deep"]["word"], run.summary["deep"]["table"]["_type"]) == ("text", "table-file")
run.summary["x"] = {"y": {"z": 1}}
run.summary["x"] = {"y": {"z": 2}}
run.summary["x"]["y"]["z"] = 7
run.summary["x"].update({"w": np.int64(2)})
assert (run.summary["x"]["y"]["z"], run.summary["x"]["w"]) == (7, 2)
assert run.summary._as_dict()["acc"] == 0.5
"""


def test_the_summary_reads_as_in_wandb_and_what_the_program_sets_is_recorded(
    tmp_path: Path,
) -> None:
    (tmp_path / "real").mkdir()
    offline(tmp_path / "real", READ)

    captured(tmp_path, READ)

    assert captured_summary(tmp_path) == {
        "acc": 0.5, "matrix": "[[1,2],[3,4]]", "count": 3, "few": "[0,1,2]", "best": 0.25, "deep/word": "text",
        "x/y/z": 7, "x/w": 2,
    }  # fmt: skip
    assert report_of(runs(tmp_path)).drops == {}


def test_the_latest_text_of_a_key_is_a_last_value_and_a_frame_is_a_table(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pandas")
    code = """
    import datetime
    import pandas
    import wandb
    run = wandb.init(project="p", name="e")
    for step in range(20):
        run.log({"loss": float(step), "note": f"step {step}", "none": None, "names": ["a", str(step)]})
    run.log({"at": datetime.date(2026, 1, 2), "only": "text"})
    run.log({"loss": 1.0, "frame": pandas.DataFrame({"a": [1, 2]})})
    assert (run.summary["note"], run.summary["names"], run.summary["none"], run.step) == (
        "step 19", ["a", "19"], None, 22)
    """

    output = captured(tmp_path, code)

    assert captured_summary(tmp_path) == {
        "note": "step 19", "names": '["a","19"]', "at": "2026-01-02", "only": "text"
    }  # fmt: skip
    assert captured_points(tmp_path)["loss"] == [
        *((step, float(step)) for step in range(20)),
        (21, 1.0),
    ]
    assert (report_of(runs(tmp_path)).drops, "wandb.DataFrame" in output) == ({}, True)


def test_a_medium_that_the_program_sets_in_the_summary_is_counted_and_leaves_no_last_value(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e")
    run.summary.update({"hist": wandb.Histogram([1, 2]), "best": 1, "own": {"_type": "a", "b": 2}})
    assert run.summary["hist"]["_type"] == "histogram"
    """

    captured(tmp_path, code)

    assert captured_summary(tmp_path) == {"best": 1, "own/_type": "a", "own/b": 2}
    assert report_of(runs(tmp_path)).drops == {"not_captured": 1}


def test_the_last_value_of_a_key_is_what_was_set_or_logged_last(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e")
    run.summary.update({"acc": 0.9, "best": 0.9, "epochs": 3})
    for step in range(3):
        run.log({"acc": step / 10, "state": "training", "lr": "warm-up"})
    run.log({"lr": 0.5}, commit=False)
    run.log({"best": 0.1})
    run.log({"mode": "noted after the first texts, so that it waits"})
    run.log({"mode": 7})
    run.log({"deep": {"a": "text", "b": "text"}})
    run.log({"deep": {"a": 1}})
    run.summary["deep"] = {"b": 2}
    assert run.summary["deep"]["b"] == 2
    run.log({"phase": 1}, step=10)
    run.log({"phase": "last"}, step=11, commit=True)
    run.summary.update({"best": 0.95, "state": "done"})
    values = {key: run.summary[key] for key in ("acc", "best", "epochs", "lr", "mode", "phase", "state")}
    assert values == {
        "acc": 0.2, "best": 0.95, "epochs": 3, "lr": 0.5, "mode": 7, "phase": "last", "state": "done"}
    """
    (tmp_path / "real").mkdir()
    offline(tmp_path / "real", code)

    captured(tmp_path, code)

    assert captured_summary(tmp_path) == {
        "acc": 0.2, "best": 0.95, "epochs": 3, "lr": 0.5, "mode": 7, "phase": "last", "state": "done",
        "deep/a": 1, "deep/b": 2,
    }  # fmt: skip


def test_a_value_that_another_thread_notes_meanwhile_is_recorded_last() -> None:
    recorded: list[dict[str, str | float]] = []

    def record(changed: Mapping[str, str | float]) -> None:
        if changed == {"a": "old"}:
            thread = threading.Thread(target=latest.note, args=({"a": "new"},))
            thread.start()
            thread.join()
        recorded.append(dict(changed))

    latest = logged_values.LatestValues(record, lambda *_: None)

    latest.note({"a": "old"})
    latest.flush()

    assert recorded == [{"a": "old"}, {"a": "new"}]


def test_texts_of_keys_beyond_the_limit_are_counted_and_known_keys_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logged_values, "_MAX_KEYS", 1)
    recorded: list[dict[str, str | float]] = []
    drops: list[tuple[str, int, str]] = []
    texts = logged_values.LatestValues(
        lambda changed: recorded.append(dict(changed)),
        lambda reason, number, key: drops.append((reason, number, key)),
    )

    texts.note({"a": "1"})
    texts.note({"a": "2", "b": "2"})
    texts.flush()

    assert (recorded, drops) == ([{"a": "1"}, {"a": "2"}], [("too_many_texts", 1, "b")])


def test_a_key_with_a_newer_value_than_the_recorded_one_counts_once_towards_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logged_values, "_MAX_KEYS", 3)
    recorded: dict[str, str | float] = {}
    drops: list[str] = []
    texts = logged_values.LatestValues(
        recorded.update, lambda _reason, _number, key: drops.append(key)
    )

    texts.note({"a": "1", "b": "1"})
    texts.note({"a": "2", "b": "2"})
    texts.note({"c": "2", "d": "2"})
    texts.flush()

    assert (recorded, drops) == ({"a": "2", "b": "2", "c": "2"}, ["d"])
