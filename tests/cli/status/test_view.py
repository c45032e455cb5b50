from __future__ import annotations

import io

import pytest
from rich.console import Console

from otel_bridge.cli.status.view import run_table, show
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


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (1, "1 alert 5 min ago: kl above [redacted] (warn)"),
        (3, "3 alerts, the last one 5 min ago: kl above [redacted] (warn)"),
    ],
)
def test_a_line_has_the_number_of_alerts_and_the_last_one(count: int, line: str) -> None:
    now_ns = 1_700_000_000 * 10**9
    last = {"title": "kl above hf_" + "a" * 34, "level": "warn", "time_unix_ns": now_ns - 300 * 10**9}
    console = Console(width=200, record=True, file=io.StringIO())

    for report in (Report(alerts=count, last_alert=last), Report()):
        console.print(run_table("9f2c", report, live=True, now_unix_ns=now_ns))

    assert [one.strip() for one in console.export_text().splitlines() if "alert" in one] == [line]
