"""Tables as programs log them -> columns of rollouts, each row once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from otel_bridge.capture.tables import SeenTables, rollouts_of, split_of


def found(columns: list[str], *rows: list[Any]) -> list[tuple[int | None, dict[str, Any]]] | None:
    """Step and columns of each group of rollouts."""
    groups = rollouts_of(columns, rows)
    return None if groups is None else [(one.step, one.columns) for one in groups]


def test_trls_completions_have_a_reward_for_each_function_and_the_steps_of_their_rows() -> None:
    columns = ["step", "prompt", "completion", "accuracy", "length_penalty", "advantage"]

    groups = found(columns, ["1", "p", "c", 1.0, 0.5, 0.25], ["2", "p", "d", 0.0, None, -0.25])

    assert groups == [
        (1, {"prompts": ["p"], "responses": ["c"], "advantages": [0.25], "metadata": [None],
             "rewards": {"accuracy": [1.0], "length_penalty": [0.5]}}),
        (2, {"prompts": ["p"], "responses": ["d"], "advantages": [-0.25], "metadata": [None],
             "rewards": {"accuracy": [0.0], "length_penalty": [None]}}),
    ]  # fmt: skip


def test_trls_extra_columns_are_not_rewards_where_the_rewards_were_logged_by_name() -> None:
    columns, row = ["prompt", "completion", "accuracy", "letters", "advantage"], ["p", "c", 1.0, 3, 0.5]

    groups = rollouts_of(columns, [row], ["loss", "train/rewards/accuracy/mean", "train/rewards/accuracy/std"])

    assert groups is not None
    assert (groups[0].columns["rewards"], groups[0].columns["metadata"]) == ([1.0], [{"letters": 3}])


def test_sizes_counters_and_identities_beside_an_advantage_are_metadata_and_not_rewards() -> None:
    numbers = {
        "len": 3, "completion_length": 7, "num_tokens": 9, "tokens": 9, "epoch": 1, "index": 2, "prompt_id": 4, "id": 5,
        "n_turns": 2, "rank": 0, "seed": 1, "policy_version": 3,
    }  # fmt: skip
    rewards = {"accuracy": 1.0, "length_penalty": 0.5, "format": 0.0}
    columns = ["prompt", "completion", *numbers, *rewards, "advantage"]

    ((_, first),) = found(columns, ["p", "c", *numbers.values(), *rewards.values(), 0.5]) or ()

    assert first["rewards"] == {name: [value] for name, value in rewards.items()}
    assert first["metadata"] == [numbers]


def test_a_reward_function_that_was_logged_by_name_is_one_also_when_it_is_called_like_a_size() -> None:
    groups = rollouts_of(["prompt", "completion", "length", "advantage"], [["p", "c", 3, 0.5]], ["rewards/length/mean"])

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
    ],
)
def test_the_key_names_the_split_else_the_row_before_it(key: str, row: list[str], split: str) -> None:
    assert split_of(key, row) == split


def test_verls_wide_table_has_several_rollouts_a_row() -> None:
    columns = ["step", "input_1", "output_1", "score_1", "input_2", "output_2", "score_2"]

    groups = found(columns, [5, "a", "b", 1.0, "c", "d", 0.0])

    assert groups == [(5, {"prompts": ["a", "c"], "responses": ["b", "d"], "rewards": [1.0, 0.0]})]


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
def test_columns_are_found_by_their_names(columns: list[str], row: list[Any], expected: dict[str, Any]) -> None:
    ((_, first),) = found(columns, row) or ()

    assert first == expected


@pytest.mark.parametrize("columns", [["x", "y"], ["text", "label"], ["prompt", "tokens"], []])
def test_other_tables_are_not_rollouts(columns: list[str]) -> None:
    assert found(columns, list(columns)) is None


@pytest.mark.parametrize(
    "cells", [(0.1, 0.2), (0, 0), ([1, 2], [3]), ("text", object()), ({"width": 3}, {"width": 4}), (b"a", b"b")]
)
def test_columns_of_those_names_without_texts_in_them_are_not_rollouts(cells: tuple[Any, Any]) -> None:
    assert found(["input", "prediction"], ["some", "text"], list(cells)) is None


def test_messages_are_texts_and_a_row_without_a_prompt_is_a_rollout_without_one() -> None:
    message = {"role": "user", "content": "hi"}

    groups = found(["prompt", "response"], [[message], "a"], [None, "b"], [math.nan, [message, "c"]], ["", None])

    assert groups == [
        (None, {"prompts": [[message]], "responses": ["a"], "metadata": [None]}),
        (None, {"responses": ["b", [message, "c"], None], "metadata": [None, None, None]}),
    ]


def test_a_table_that_grows_gives_its_new_rows_only() -> None:
    seen = SeenTables()
    rows = [[step, "p", f"r{step}"] for step in range(4)]

    assert seen.new_rows("t", rows[:2], 1, own_step=True) == rows[:2]
    assert seen.new_rows("t", rows[:2], 1, own_step=True) == []
    assert seen.new_rows("t", rows[:4], 2, own_step=True) == rows[2:]
    assert seen.new_rows("other", rows[:4], 2, own_step=True) == rows


def test_a_window_of_the_last_rows_gives_its_new_rows_only() -> None:
    seen, rows = SeenTables(), [["p", [n]] for n in range(6)]

    seen.new_rows("t", rows[:4], 1, own_step=False)

    assert seen.new_rows("t", rows[1:5], 2, own_step=False) == rows[4:5]


def test_the_same_rows_of_another_step_are_new_unless_they_hold_their_step() -> None:
    seen, rows = SeenTables(), [["p", "r", math.nan], ["p", "r", -math.nan]]

    assert seen.new_rows("t", rows, 1, own_step=False) == rows
    assert seen.new_rows("t", rows, 1, own_step=False) == []
    assert seen.new_rows("t", rows, 2, own_step=False) == rows
    assert seen.new_rows("t", rows, 3, own_step=True) == []
