"""Tables as programs log them -> columns of rollouts, each row once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas
import PIL.Image
import pytest

from otel_bridge.capture.tables import RolloutTable, TableRollouts, split_of
from otel_bridge.emit.media.values import Html


class Figure:
    """A figure of a package whose objects have no text."""

    __module__ = "plotly.graph_objs"


def rollouts_of(
    columns: list[str], rows: Sequence[list[Any]], logged: Iterable[str] = ()
) -> list[TableRollouts] | None:
    """The rollouts of a table of which every cell can be recorded."""
    table = RolloutTable.of(columns, rows, logged)
    return (
        None
        if table is None
        else table.rollouts(rows, lambda column, kind: pytest.fail(f"{column}: {kind}"))
    )


def found(
    columns: list[str], *rows: list[Any]
) -> list[tuple[int | None, dict[str, Any]]] | None:
    """Step and columns of each group of rollouts."""
    groups = rollouts_of(columns, rows)
    return None if groups is None else [(one.step, one.columns) for one in groups]


def test_trls_completions_have_a_reward_for_each_function_and_the_steps_of_their_rows() -> (
    None
):
    columns = [
        "step",
        "prompt",
        "completion",
        "accuracy",
        "length_penalty",
        "advantage",
    ]

    groups = found(
        columns, ["1", "p", "c", 1.0, 0.5, 0.25], ["2", "p", "d", 0.0, None, -0.25]
    )

    assert groups == [
        (1, {"prompts": ["p"], "responses": ["c"], "advantages": [0.25], "metadata": [None],
             "rewards": {"accuracy": [1.0], "length_penalty": [0.5]}}),
        (2, {"prompts": ["p"], "responses": ["d"], "advantages": [-0.25], "metadata": [None],
             "rewards": {"accuracy": [0.0], "length_penalty": [None]}}),
    ]  # fmt: skip


def test_trls_extra_columns_are_not_rewards_where_the_rewards_were_logged_by_name() -> (
    None
):
    columns, row = (
        ["prompt", "completion", "accuracy", "letters", "advantage"],
        ["p", "c", 1.0, 3, 0.5],
    )

    groups = rollouts_of(
        columns,
        [row],
        ["loss", "train/rewards/accuracy/mean", "train/rewards/accuracy/std"],
    )

    assert groups is not None
    assert (groups[0].columns["rewards"], groups[0].columns["metadata"]) == (
        [1.0],
        [{"letters": 3}],
    )


def test_sizes_counters_and_identities_beside_an_advantage_are_metadata_and_not_rewards() -> (
    None
):
    numbers = {
        "len": 3, "completion_length": 7, "num_tokens": 9, "tokens": 9, "epoch": 1, "index": 2, "prompt_id": 4, "id": 5,
        "n_turns": 2, "rank": 0, "seed": 1, "policy_version": 3,
    }  # fmt: skip
    rewards = {"accuracy": 1.0, "length_penalty": 0.5, "format": 0.0}
    columns = ["prompt", "completion", *numbers, *rewards, "advantage"]

    ((_, first),) = (
        found(columns, ["p", "c", *numbers.values(), *rewards.values(), 0.5]) or ()
    )

    assert first["rewards"] == {name: [value] for name, value in rewards.items()}
    assert first["metadata"] == [numbers]


def test_a_reward_function_that_was_logged_by_name_is_one_also_when_it_is_called_like_a_size() -> (
    None
):
    groups = rollouts_of(
        ["prompt", "completion", "length", "advantage"],
        [["p", "c", 3, 0.5]],
        ["rewards/length/mean"],
    )

    assert groups is not None
    assert groups[0].columns["rewards"] == [3]


@pytest.mark.parametrize(
    ("key", "row", "split"),
    [
        ("val/generations", [], "eval"),
        ("train/samples", ["eval/loss"], "train"),
        ("completions", ["eval/loss", "train/global_step", "train/epoch"], "eval"),
        ("completions", ["train/loss", "train/global_step"], "train"),
        ("completions", ["train/global_step"], "train"),
        ("completions", ["eval/scores", "epoch", "global_step"], "eval"),
        ("sample_completions", ["train/loss"], "eval"),
        ("Eval_samples", [], "eval"),
        ("trajectories/eval", [], "eval"),
        ("trajectories/train", [], "train"),
        ("samples/Validation", [], "eval"),
        ("train/test_cases", [], "train"),
        ("value_model/samples", [], "train"),
        ("completions", ["value_loss", "values/mean"], "train"),
    ],
)
def test_the_key_names_the_split_else_the_row_before_it(
    key: str, row: list[str], split: str
) -> None:
    assert split_of(key, row) == split
    assert split_of(key, ["train/global_step"], row) == split


def test_the_row_of_a_table_names_the_split_before_the_row_before_it() -> None:
    assert split_of("completions", ["eval/scores"], ["train/loss"]) == "eval"
    assert split_of("completions", ["train/loss"], ["eval/scores"]) == "train"


def test_every_cell_of_any_type_is_a_fact_of_its_rollout() -> None:
    cells = {
        "int": np.int64(3), "float": np.float32(0.5), "bool": np.bool_(True), "list": [1, "a"], "dict": {"k": (1, 2)},
        "array": np.arange(3), "nested": [{"a": np.int8(1)}], "zero": 0, "no": False,
    }  # fmt: skip

    ((_, first),) = (
        found(["prompt", "response", *cells], ["p", "r", *cells.values()]) or ()
    )

    assert first["metadata"] == [cells]


@pytest.mark.parametrize(
    "empty", [None, math.nan, np.float32("nan"), pandas.NA, pandas.NaT, "", []]
)
def test_empty_cells_are_left_out_also_those_of_a_prompt(empty: Any) -> None:
    groups = found(["prompt", "response", "score", "note"], [empty, "r", empty, empty])

    assert groups == [
        (None, {"responses": ["r"], "rewards": [None], "metadata": [None]})
    ]


def test_cells_that_cannot_be_what_their_column_means_are_facts() -> None:
    columns = ["step", "prompt", "response", "reward", "advantage"]

    groups = found(
        columns, ["last", "p", "r", "good", [0.5, 1.0]], [2, "p", "r", math.inf, "none"]
    )

    assert groups == [
        (None, {"prompts": ["p"], "responses": ["r"], "rewards": [None], "advantages": [[0.5, 1.0]],
                "metadata": [{"step": "last", "reward": "good"}]}),
        (2, {"prompts": ["p"], "responses": ["r"], "rewards": [None], "advantages": [None],
             "metadata": [{"reward": math.inf, "advantage": "none"}]}),
    ]  # fmt: skip


def test_columns_of_one_name_are_two_facts() -> None:
    ((_, first),) = (
        found(["prompt", "response", "note", "note"], ["p", "r", 1, 2]) or ()
    )

    assert first["metadata"] == [{"note": 1, "note_3": 2}]


def test_messages_in_arrays_as_pandas_reads_them_from_parquet_are_texts() -> None:
    prompt = np.array([{"role": "user", "content": "hi"}], dtype=object)

    ((_, first),) = found(["prompt", "response"], [prompt, "r"]) or ()

    assert first["prompts"] == [prompt]


def test_pictures_are_facts_and_what_only_a_page_can_show_is_counted_with_its_column() -> (
    None
):
    picture = PIL.Image.new("RGB", (2, 2))
    rows = [["p", "r", picture, [picture, picture], Figure(), Html("<b>x</b>")]]
    table = RolloutTable.of(
        ["prompt", "response", "image", "images", "plot", "page"], rows
    )
    counted: list[tuple[str, str]] = []
    assert table is not None

    (group,) = table.rollouts(
        [*rows, ["p", "r"]], lambda column, kind: counted.append((column, kind))
    )

    (facts,) = group.columns["metadata"]
    assert (facts["image"].value, [one.value for one in facts["images"]]) == (
        picture,
        [picture, picture],
    )
    assert facts["page"] == "<b>x</b>"
    assert counted == [("plot", "plotly.Figure"), ("", "row of 2 cells in place of 6")]


def test_verls_wide_table_has_several_rollouts_a_row() -> None:
    columns = [
        "step",
        "input_1",
        "output_1",
        "score_1",
        "input_2",
        "output_2",
        "score_2",
    ]

    groups = found(columns, [5, "a", "b", 1.0, "c", "d", 0.0])

    assert groups == [
        (
            5,
            {
                "prompts": ["a", "c"],
                "responses": ["b", "d"],
                "rewards": [1.0, 0.0],
                "metadata": [None, None],
            },
        )
    ]


def test_further_columns_of_a_wide_table_are_facts_of_their_sample_or_of_all() -> None:
    columns = [
        "step",
        "epoch",
        "input_1",
        "output_1",
        "truth_1",
        "input_2",
        "output_2",
        "truth_2",
    ]

    ((_, first),) = found(columns, [5, 2, "a", "b", "x", "c", "d", "y"]) or ()

    assert first["metadata"] == [
        {"truth_1": "x", "epoch": 2},
        {"truth_2": "y", "epoch": 2},
    ]


@pytest.mark.parametrize(
    ("columns", "row", "expected"),
    [
        (["prompt", "response", "scores", "ground_truth"], ["p", "r", 1.0, "g"],
         {"prompts": ["p"], "responses": ["r"], "rewards": [1.0], "metadata": [{"ground_truth": "g"}]}),
        (["global_step", "text", "reward"], [3, "t", 1.0],
         {"responses": ["t"], "rewards": [1.0], "metadata": [None]}),
        (["question", "correct_answer_label", "generated_answer"], ["q", "l", "a"],
         {"prompts": ["q"], "responses": ["a"], "metadata": [{"correct_answer_label": "l"}]}),
    ],
)  # fmt: skip
def test_columns_are_found_by_their_names(
    columns: list[str], row: list[Any], expected: dict[str, Any]
) -> None:
    ((_, first),) = found(columns, row) or ()

    assert first == expected


@pytest.mark.parametrize(
    "columns", [["x", "y"], ["text", "label"], ["prompt", "tokens"], []]
)
def test_other_tables_are_not_rollouts(columns: list[str]) -> None:
    assert found(columns, list(columns)) is None


@pytest.mark.parametrize(
    "cells",
    [
        (0.1, 0.2),
        (0, 0),
        ([1, 2], [3]),
        ("text", object()),
        ({"width": 3}, {"width": 4}),
        (b"a", b"b"),
    ],
)
def test_columns_of_those_names_without_texts_in_them_are_not_rollouts(
    cells: tuple[Any, Any],
) -> None:
    assert found(["input", "prediction"], ["some", "text"], list(cells)) is None


def test_messages_are_texts_and_a_row_without_a_prompt_is_a_rollout_without_one() -> (
    None
):
    message = {"role": "user", "content": "hi"}

    groups = found(
        ["prompt", "response"],
        [[message], "a"],
        [None, "b"],
        [math.nan, [message, "c"]],
        ["", None],
    )

    assert groups == [
        (None, {"prompts": [[message]], "responses": ["a"], "metadata": [None]}),
        (
            None,
            {"responses": ["b", [message, "c"], None], "metadata": [None, None, None]},
        ),
    ]
