from __future__ import annotations

from collections.abc import Mapping

import pytest

from otel_bridge.emit.config.tracker_ids import tracker_run_id
from otel_bridge.journal.report import ExporterReport, Report

RUN_ID = "0123456789abcdef"


def given(exporter: str, tracker_id: str | None) -> Report:
    return Report(exporters={exporter: ExporterReport(tracker_run_id=tracker_id)})


@pytest.mark.parametrize("exporter", ["wandb", "mlflow", "trackio", "csv"])
def test_the_id_that_the_writer_said_goes_before_all(exporter: str) -> None:
    env = {"WANDB_RUN_ID": "w", "MLFLOW_RUN_ID": "m"}

    assert (
        tracker_run_id(exporter, RUN_ID, env, given(exporter, "its own")) == "its own"
    )


@pytest.mark.parametrize(
    "report", [None, Report(), given("mlflow", None), given("wandb", None)]
)
@pytest.mark.parametrize(
    ("exporter", "env", "expected"),
    [
        ("wandb", {}, RUN_ID),
        ("trackio", {}, RUN_ID),
        ("mlflow", {}, None),
        ("csv", {}, None),
        ("wandb", {"WANDB_RUN_ID": "w"}, "w"),
        ("mlflow", {"MLFLOW_RUN_ID": "m"}, "m"),
    ],
)
def test_before_the_writer_has_said_it_an_id_is_known_where_it_follows(
    report: Report | None, exporter: str, env: Mapping[str, str], expected: str | None
) -> None:
    assert tracker_run_id(exporter, RUN_ID, env, report) == expected


def test_a_further_machine_may_have_a_wandb_run_of_its_own() -> None:
    env = {"WANDB_RUN_ID": "w"}

    assert tracker_run_id("wandb", RUN_ID, env, None, node_rank=1) is None
    assert (
        tracker_run_id("wandb", RUN_ID, env, given("wandb", "w-n1"), node_rank=1)
        == "w-n1"
    )
