from __future__ import annotations

import io

import pytest
from rich.console import Console

from otel_bridge.cli.status.view import show
from otel_bridge.journal.report import ProcessReport, Report


@pytest.mark.parametrize(("status", "said"), [("running", "trainer 9 10 0 of 1 alive"), ("finished", "trainer 9 10")])
def test_processes_are_counted_while_the_run_goes_on(status: str, said: str) -> None:
    report = Report(
        project="maths",
        name="ppo",
        status=status,
        ended=status != "running",
        steps={"trainer/step": 9},
        rows_by_axis={"trainer/step": 10},
        processes={"i1": ProcessReport(role="trainer", alive=False)},
    )
    console = Console(width=200, record=True, file=io.StringIO())

    show(console, "9f2c", report)

    assert said in [" ".join(line.split()) for line in console.export_text().splitlines()]
