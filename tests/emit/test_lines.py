from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.emit import lines
from otel_bridge.emit.identity import Asked, identify
from otel_bridge.journal.report import ExporterReport, Report

_RUN = identify(Asked(project="maths", name="ppo"), {}, Path.cwd(), launched=False)


def test_the_line_of_finish_tells_this_process_from_the_whole_run() -> None:
    report = Report(rows=1200, rollouts=1, exporters={"trackio": ExporterReport(view="tail -f log")})

    assert lines.ended(_RUN, "finished", 300, report, ()) == (
        "maths/ppo finished · 300 rows logged by this process · the run has 1,200 rows, 1 rollout"
        " · trackio: tail -f log"
    )


def test_what_waits_comes_by_itself() -> None:
    report = Report(rows=1, rollouts=0, waiting={"rows": 0, "traces": 0, "rollouts": 2})

    assert lines.ended(_RUN, "finished", 1, report, ()).endswith(" · waiting: 2 rollouts, which come by themselves")


@pytest.mark.parametrize(
    ("exporter", "said"),
    [
        (ExporterReport(), []),
        (ExporterReport(found="it holds 3 rows already"), ["it holds 3 rows already"]),
        (ExporterReport(missed=1), ["trackio was named later: 1 record had been deleted by then"]),
    ],
)
def test_what_a_tracker_held_before_and_what_it_never_gets_is_said(exporter: ExporterReport, said: list[str]) -> None:
    assert lines.found(Report(exporters={"trackio": exporter})) == said


def test_a_run_of_which_nothing_is_known_says_its_own_rows() -> None:
    assert lines.ended(_RUN, "failed", 0, None, ("not delivered yet",)) == (
        "maths/ppo failed · 0 rows logged by this process · not delivered yet"
    )
