"""Lines on what a command could not deliver."""

from __future__ import annotations

from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.cli.delivery_summary import undelivered_reason
from otel_bridge.journal.report import ExporterReport, Report, RoleReport


def test_only_processes_without_an_end_are_said_not_to_have_ended() -> None:
    roles = {"finished": RoleReport(0, 1), "killed": RoleReport(1, 1)}
    report = Report(roles=roles, exporters={"file": ExporterReport()})

    reason = undelivered_reason(report, RunStatus("r", Outcome.BUSY, living=2))

    assert reason == "its processes have not ended: 1"
