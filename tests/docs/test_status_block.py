"""The page of commands shows what ``otel-bridge status`` prints, line by line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from otel_bridge.cli.status.run_state import DirectoryUse, KeptRecords, RunState
from otel_bridge.cli.status.source import Overview
from otel_bridge.cli.status.view import next_commands, run_view, space_line
from otel_bridge.journal.report import ExporterReport, Report, RoleReport

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
NOW: Final = 1_800_000_000_000_000_000
RUN: Final = "680eac67f948863a"


def status_text(state: RunState, where: str, *, limit_bytes: int) -> str:
    """What `status` prints in a pipe of one run."""
    overview = Overview(
        where, [state], DirectoryUse(state.total_bytes, limit_bytes), time_unix_ns=NOW
    )
    console = Console(file=io.StringIO(), width=120)
    console.print(run_view(state, overview), soft_wrap=True)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(
        [*lines, *next_commands(state, here=overview.here), space_line(overview)]
    )


def test_the_page_of_commands_shows_a_run_as_status_prints_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "PATH", str(Path(sys.executable).parent)
    )  # an activated environment
    exporters = {
        "trackio": ExporterReport(
            written=99,
            state="writing",
            rows=97,
            rollouts=1,
            rows_per_s=12.0,
            view="trackio show --project gsm8k",
        ),
        "mlflow": ExporterReport(
            written=102,
            rows=101,
            rollouts=1,
            rows_per_s=12.1,
            url="http://mlflow:5000/#/experiments/3/runs/5f1c",
        ),
    }
    report = Report(
        time_unix_ns=NOW,
        project="gsm8k",
        name="ppo-7b",
        roles={"trainer": RoleReport(alive=1, processes=1)},
        position=102,
        exporters=exporters,
        steps={"trainer/step": 100},
        rows_by_axis={"trainer/step": 101},
        row_times={"trainer/step": NOW},
        rows_per_s=12.0,
    )
    kept = KeptRecords(records=3, bytes=9_318, unwritten_unix_ns=NOW - 1_000_000_000)
    state = RunState(
        RUN,
        f".otel-bridge/{RUN}",
        bridge_alive=True,
        report=report,
        bytes={"segments": 41_267, "ledger": 90_112},
        held={"trackio": kept, "mlflow": KeptRecords()},
    )

    assert status_text(state, ".otel-bridge", limit_bytes=16 << 30) in (
        DOCS / "commands.md"
    ).read_text("utf-8")
