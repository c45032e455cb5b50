"""Summaries of ``define_metric(summary=)``: over which numbers, by exact name or glob."""

from __future__ import annotations

import math

from otel_bridge.capture.wandb.metric_summaries import MetricSummaries


def test_each_kind_is_computed_over_the_finite_numbers_of_its_keys() -> None:
    summaries = MetricSummaries()
    unknown = [*summaries.define("loss", ["min", "last"]), *summaries.define("acc", ["max", "mean", "first", "best"])]

    for number in (3.0, 1, math.nan, 2.0, "4"):
        summaries.note({"loss": number, "acc": number, "other": number, "accuracy": number})

    assert summaries.result() == {"loss.min": 1.0, "acc.max": 3.0, "acc.mean": 2.0, "acc.first": 3.0}
    assert unknown == ["best"]


def test_an_exact_definition_counts_before_the_longest_glob() -> None:
    summaries = MetricSummaries()
    summaries.define("*", ["first"])
    summaries.define("eval/*", ["max"])
    summaries.define("eval/loss", ["min"])

    summaries.note({"eval/loss": 1.0, "eval/acc": 2.0, "loss": 3.0})
    summaries.note({"eval/loss": 2.0, "eval/acc": 1.0, "loss": 4.0})

    assert summaries.result() == {"eval/loss.min": 1.0, "eval/acc.max": 2.0, "loss.first": 3.0}


def test_without_a_definition_nothing_is_computed() -> None:
    summaries = MetricSummaries()
    summaries.define("loss", ["last", "copy"])

    assert (summaries.defined, summaries.result()) == (False, {})
