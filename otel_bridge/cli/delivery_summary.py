"""Prints a table of each run at the end of a command that delivers, and why some of it is not delivered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.cli.status.view import missed_line, owed_line, show
from otel_bridge.cli.terminal import Terminal
from otel_bridge.emit.console import drain_command
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, read_report

NO_EXPORTER: Final = "no exporter is chosen; pass --exporters"


def print_runs(
    console: Terminal, folders: Iterable[RunFolder], remaining: Mapping[str, RunStatus], hanging: Collection[str]
) -> None:
    """Print every run's table, and a line for each reason why some of the run is not delivered.

    Args:
        console: Terminal to print to.
        folders: The runs' folders.
        remaining: Delivery status of each run, by run id.
        hanging: Exporters whose writer did not close.
    """
    for folder in folders:
        report = read_report(folder)
        if report is None:
            console.print_line(f"{folder.run_id}: nothing was read; look at {folder.path}")
            continue
        show(console, folder.run_id, report)
        run = remaining.get(folder.run_id)
        drain = drain_command(folder, chosen=report.has_exporter)
        if report.ended and report.lacks_exporter:
            console.print_line(f"{NO_EXPORTER}: {drain}")
            continue
        lines = _unexplained(run, hanging) if run is not None else []
        for line in lines:
            console.print_line(line)
        if lines or not report.ended:
            console.print_line(f"not everything is delivered; to continue: {drain}")


def undelivered(run: RunStatus, hanging: Collection[str] = ()) -> list[str]:
    """Return a line for each reason why some of a run is not delivered.

    Records that a *hanging* exporter wrote count as undelivered until it confirms them.
    """
    if run.outcome is Outcome.GONE or run.reason:
        return [run.reason] if run.reason else []
    lines = ["not everything is read yet"] if run.unread else []
    lines += filter(None, (_waiting(run, name, hanging) for name in run.exporters))
    if run.position and not run.exporters:
        lines.append(f"{run.position} records, and no exporter is chosen")
    return lines


def undelivered_reason(
    report: Report | None,
    remaining: RunStatus | None,
    hanging: Collection[str] = (),
    *,
    requested: Collection[str] = (),
) -> str:
    """Return in one line why a folder is not done; empty when it is.

    Args:
        report: The last report of the folder.
        remaining: Status of the run at its bridge.
        hanging: Exporters whose writer did not close.
        requested: Exporters that this call or its environment names. Records that were deleted before they got them are
            reported.
    """
    if remaining is not None and remaining.reason:  # the run could not be served, which an older report does not show
        return remaining.reason
    if report is None:
        return "nothing could be read"
    if not report.has_exporter:
        given_up = report.discarded and report.ended
        why = f"{', '.join(report.exporters)} takes alerts only; {NO_EXPORTER}" if report.exporters else NO_EXPORTER
        return why if (report.position or not report.ended) and not given_up else ""
    lines = _unexplained(remaining, hanging) if remaining is not None else []
    lines += [
        missed_line(name, one.missed) for name, one in report.exporters.items() if one.missed and name in requested
    ]
    lines += [
        f"{owed_line(name, count)} (deliver them with --exporters {name}, or give them up with --discard {name})"
        for name, count in report.owed.items()
    ]
    if not report.ended:
        lines = [f"{name} is {one.state}: {one.reason}" for name, one in report.exporters.items() if one.reason] + lines
        living = remaining.living if remaining is not None else 0
        if living:
            lines.append(f"{living} of its processes still {'runs' if living == 1 else 'run'}")
        lines = lines or ["its delivery was stopped early"]
    return "; ".join(lines)


def _unexplained(run: RunStatus, hanging: Collection[str]) -> list[str]:
    """Return a line for each unfinished exporter without a reason; a reason is already shown with its exporter."""
    return list(filter(None, (_waiting(run, name, hanging) for name, one in run.exporters.items() if not one.reason)))


def _waiting(run: RunStatus, name: str, hanging: Collection[str]) -> str:
    """Return what the exporter *name* still lacks, or has not confirmed, of *run*; empty when it has everything."""
    exporter = run.exporters[name]
    count = exporter.lacks(run.position)
    if count or exporter.state == "blocked":
        why = f": {exporter.reason}" if exporter.reason else ""
        help_text = f"; {exporter.help}" if exporter.help else ""
        counted = "1 record waits" if count == 1 else f"{count} records wait"
        state = "which hangs" if name in hanging else exporter.state
        return f"{counted} for {name}, {state}{why}{help_text}"
    if not exporter.has_all(run.position):
        return f"{name} has not ended the run yet"
    if name in hanging and exporter.durable < exporter.written:
        return f"{name} did not confirm in time that it holds the last {exporter.written - exporter.durable} records"
    return ""
