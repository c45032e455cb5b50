"""Step metrics: which keys share a step, and where their prefix is a role."""

from __future__ import annotations

from otel_bridge.capture.metric_axes import COUNTER, Group, MetricAxes


def axes(*definitions: tuple[str, str | None]) -> MetricAxes:
    found = MetricAxes()
    for name, metric in definitions:
        found.define(name, metric)
    return found


def test_a_prefix_that_glob_and_step_metric_share_is_a_role() -> None:
    slime = axes(
        ("train/step", None),
        ("train/*", "train/step"),
        ("rollout/*", "rollout/step"),
        ("perf/*", "rollout/step"),
    )

    keys = ("train/loss", "rollout/reward", "perf/time", "other")
    assert [slime.group_of(key) for key in keys] == [
        Group("train", "train/step"), Group("rollout", "rollout/step"), Group(None, "rollout/step"), COUNTER
    ]  # fmt: skip
    row = {"train/loss": 1.0, "train/step": 3, "perf/time": 2.0, "rollout/step": 30}
    assert dict(slime.split(row)) == {
        Group("train", "train/step"): {"train/loss": 1.0},
        Group(None, "rollout/step"): {"perf/time": 2.0},
        Group("rollout", "rollout/step"): {},
    }


def test_a_star_makes_no_role_so_that_keys_of_an_evaluation_stay_as_they_are() -> None:
    transformers = axes(("train/global_step", None), ("*", "train/global_step"))

    row = {"eval/loss": 1.0, "train/loss": 2.0, "train/global_step": 7}
    transformers.note(row)

    assert dict(transformers.split(row)) == {Group(None, "train/global_step"): row}
    assert transformers.step_of(Group(None, "train/global_step"), 1, {}) == 7


def test_the_longest_glob_counts_and_an_exact_name_before_it() -> None:
    found = axes(("*", "step"), ("eval/*", "eval/epoch"), ("eval/loss", "batch"))

    assert [
        found.group_of(key).metric for key in ("eval/loss", "eval/acc", "loss")
    ] == [
        "batch",
        "eval/epoch",
        "step",
    ]


def test_a_step_that_is_not_a_whole_number_leaves_the_counter() -> None:
    found = axes(("*", "epoch"))

    steps = []
    for epoch in (1, 1.5, 2.0, "two", None, float("nan")):
        found.note({"epoch": epoch})
        steps.append(found.step_of(Group(None, "epoch"), 99, {}))

    assert steps == [1, 99, 2, 99, 99, 99]


def test_the_value_in_the_row_is_its_step_and_the_latest_one_is_that_of_a_row_without_it() -> (
    None
):
    found = axes(("*", "epoch"))
    found.note({"epoch": 3})

    of_rows = [
        found.step_of(Group(None, "epoch"), 99, row)
        for row in ({"loss": 1.0}, {"epoch": 2}, {"epoch": 0.5})
    ]

    assert of_rows == [3, 2, 99]
