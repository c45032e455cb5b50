"""Summaries of ``define_metric(summary=)``: what the program reads of them, as with the real package."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.capture.wandb.values.shown_summaries import ShownSummaries
from support.trainers.captured_wandb import captured, captured_summary, offline

PROGRAM = """
import json, math, pathlib
import wandb

ALL = "min,max,mean,first,last"
KINDS = ("min", "max", "mean", "last", "first", "copy", "none", "min,max", "none,max", "copy,max", ALL)
run = wandb.init(project="p", name="e")
found = []

def read(*keys):
    found.append({})
    for key in keys:
        try:
            value = run.summary[key]
        except KeyError:
            value = "nothing"
        shown = {kind: value[kind] for kind in value.keys()} if hasattr(value, "keys") else {"": value}
        found[-1][key] = {kind: "NaN" if one != one else one for kind, one in shown.items()}

read("undefined")
for kinds in KINDS:
    run.define_metric(kinds, summary=kinds)
run.define_metric("glob/*", summary="max")
run.define_metric("glob/plain")
run.define_metric("glob/min", summary="min")
for number in (3, 5, 4):
    run.log({key: number for key in (*KINDS, "glob/a", "glob/plain", "glob/min", "other", "max.max")})
    read(*KINDS, "glob/a", "glob/plain", "glob/min", "other", "max.max")
assert run.summary["max"]["max"] == run.summary["glob/a"].max == run.summary.get("max").get("max") == 5
for value in (math.nan, 7, "text", None):
    run.log({ALL: value})
    read(ALL)
run.log({"mean": 6}, step=20)
run.log({"mean": 8, "partial": 1}, step=20)
read("mean", "partial")
run.log({"other": 4}, step=21)
read("mean", "partial")
run.define_metric("max", summary="min")
run.log({"max": 9})
read("max")
run.define_metric("max", overwrite=True, summary="first")
run.log({"max": 11})
read("max")
run.log({"later": 5})
run.define_metric("later", summary="max")
run.log({"later": 2})
read("later")
run.summary["later"] = 1
read("later")
run.log({"later": 0})
read("later")
for wrong in ("best", "bogus"):
    try:
        run.define_metric("wrong", summary=wrong)
    except wandb.Error as error:
        found.append(str(error))
run.log({"nested": {"a": 1, "b": {"c": 2}}})
found.append([run.summary.nested.a, run.summary["nested"]["b"]["c"]])
pathlib.Path("found.json").write_text(json.dumps(found))
"""


def shown_of(summaries: ShownSummaries, row: dict[str, Any]) -> dict[str, Any]:
    """What the summary shows of *row*."""
    plain, results = summaries.of_row(row)
    return {**plain, **results}


def test_each_kind_is_computed_over_the_values_of_its_keys() -> None:
    summaries = ShownSummaries()
    unknown = [
        *summaries.define("loss", ["min", "last"], {}, replace=False),
        *summaries.define("acc", ["max", "mean", "first", "best"], {}, replace=False),
    ]

    for number in (3.0, 1, 2.0, "4"):
        shown = shown_of(
            summaries,
            {"loss": number, "acc": number, "other": number, "accuracy": number},
        )

    assert shown == {
        "loss": {"min": 1, "last": "4"}, "acc": {"max": 3.0, "mean": 2.0, "first": 3.0}, "other": "4", "accuracy": "4"
    }  # fmt: skip
    assert (summaries.kinds_of("loss"), summaries.kinds_of("acc")) == (
        "min",
        "max,mean,first",
    )
    assert unknown == ["best"]


def test_a_nan_makes_a_nan_of_all_but_first_and_last() -> None:
    summaries = ShownSummaries()
    summaries.define("x", ["min", "max", "mean", "first", "last"], {}, replace=False)

    for number in (1, math.nan, 2):
        shown: Any = shown_of(summaries, {"x": number})["x"]

    assert (shown.pop("first"), shown.pop("last")) == (1, 2)
    assert [math.isnan(value) for value in shown.values()] == [True, True, True]


def test_an_exact_definition_counts_before_the_longest_glob() -> None:
    summaries = ShownSummaries()
    for name, kind in (("*", "first"), ("eval/*", "max"), ("eval/loss", "min")):
        summaries.define(name, [kind], {}, replace=False)

    summaries.of_row({"eval/loss": 1.0, "eval/acc": 2.0, "loss": 3.0})
    shown = shown_of(summaries, {"eval/loss": 2.0, "eval/acc": 1.0, "loss": 4.0})

    assert shown == {
        "eval/loss": {"min": 1.0},
        "eval/acc": {"max": 2.0},
        "loss": {"first": 3.0},
    }


def test_without_a_definition_the_summary_shows_the_row_itself() -> None:
    summaries, row = ShownSummaries(), {"loss": 1.0}
    summaries.define("loss", ["copy"], {}, replace=False)

    assert summaries.of_row(row)[0] is row


@pytest.mark.long
def test_the_program_reads_what_it_reads_from_real_wandb_offline(
    tmp_path: Path,
) -> None:
    summaries: dict[str, object] = {}
    for name, run_program in {"real": offline, "captured": captured}.items():
        (tmp_path / name).mkdir()
        run_program(tmp_path / name, PROGRAM)
        summaries[name] = json.loads((tmp_path / name / "found.json").read_text())

    assert summaries["captured"] == summaries["real"]


@pytest.mark.slow
def test_a_kill_leaves_the_summaries_of_all_rows(tmp_path: Path) -> None:
    code = """
    import os, signal, wandb
    run = wandb.init(project="p", name="e")
    run.define_metric("train/step")
    run.define_metric("train/*", step_metric="train/step", summary="min")
    run.define_metric("acc", summary="max,mean,last")
    run.define_metric("own", summary="max")
    for step, acc in enumerate((5, 7, 3)):
        run.log({"acc": acc, "train/loss": acc, "train/step": step, "own": acc})
    run.summary["own"] = 1
    os.kill(os.getpid(), signal.SIGKILL)
    """

    captured(tmp_path, code, code_of_exit=137)

    assert captured_summary(tmp_path) == {
        "train/loss.min": 3,
        "acc.max": 7,
        "acc.mean": 5,
        "own": 1,
    }
