"""How a run is shown on the terminal: roles with their last step, trackers with what they hold and how to open it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from otel_bridge.journal.places import places
from otel_bridge.journal.report import ExporterReport, Report
from otel_bridge.records import AXIS, axis_of

_STYLES = {"blocked": "bold red", "retrying": "yellow", "ended": "green"}


def run_table(run_id: str, report: Report, *, live: bool) -> RenderableType:
    """Return *report* as a heading, one table of roles and one of trackers, and a line for each thing that is wrong."""
    heading = Text.assemble((f"{report.project}/{report.name}", "bold"), f" ({run_id}) ", _status(report, live=live))
    parts: list[RenderableType] = [heading, _roles(report), _trackers(report)]
    return Group(*parts, *(Text(line, style="yellow") for line in complaints(report)))


def complaints(report: Report) -> Sequence[str]:
    """Return one line for each blocked or retrying tracker, each reason of drops, and missing rows."""
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        if exporter.state in {"blocked", "retrying"}:
            help_text = f"; {exporter.help}" if exporter.help else ""
            lines.append(f"{name} is {exporter.state}: {exporter.reason}{help_text}")
        if exporter.missed:
            lines.append(f"{name} was named later: {exporter.missed} records had been deleted by then, they are not in it")
        if exporter.dead_letters:
            lines.append(f"{name} refused {exporter.dead_letters} records for good")
    lines += [f"dropped {count}: {reason}" for reason, count in sorted(report.drops.items()) if count]
    if report.missing_rows:
        lines.append(f"{report.missing_rows} rows are missing: their numbers were never received")
    return lines


def place_commands(report: Report) -> Sequence[str]:
    """Return one line a tracker: its name and the command or address that opens the run; ``otlp`` has none."""
    width = max((len(name) for name in report.exporters), default=0)
    return [f"{name:<{width}}  {place}" for name, place in places(report).items()]


def show(console: Console, run_id: str, report: Report, *, live: bool = False) -> None:
    """Print the run; commands stand on lines of their own, unwrapped, so that they can be copied."""
    console.print(run_table(run_id, report, live=live))
    for line in place_commands(report):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _status(report: Report, *, live: bool) -> Text:
    if report.ended:
        return Text(report.status, style="green" if report.status == "finished" else "red")
    if live:
        # A process that died without a word may be started again; until then its run is neither running nor over.
        speaking = any(process.alive for process in report.processes.values())
        return Text("running" if speaking or not report.processes else "ending, no process of it lives", style="cyan")
    age_s = max(time.time() - report.time_unix_ns / 1e9, 0)
    return Text(f"{report.status}, no bridge, last seen {_age(age_s)} ago", style="yellow")


def _roles(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("role", "last step", "rows", "processes"):
        table.add_column(column, justify="left" if column == "role" else "right")
    roles = {axis.removesuffix(f"/{AXIS}") if axis != AXIS else "-": step for axis, step in report.steps.items()}
    for process in report.processes.values():
        if process.role:
            roles.setdefault(process.role, 0)
    for role, step in sorted(roles.items()):
        own = [process for process in report.processes.values() if (process.role or "-") == role]
        alive = sum(process.alive for process in own)
        rows = report.rows_by_axis.get(axis_of(None if role == "-" else role), 0)
        table.add_row(role, str(step), str(rows), f"{alive} of {len(own)} alive" if own else "")
    return table


def _trackers(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("tracker", "state", "rows", "rollouts", "waiting"):
        table.add_column(column, justify="left" if column in {"tracker", "state"} else "right")
    for name, exporter in report.exporters.items():
        state = Text(exporter.state, style=_STYLES.get(exporter.state, ""))
        table.add_row(name, state, str(exporter.rows), str(exporter.rollouts), str(_waiting(report, exporter)))
    return table


def _waiting(report: Report, exporter: ExporterReport) -> int:
    return max(report.position - exporter.written, 0)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
