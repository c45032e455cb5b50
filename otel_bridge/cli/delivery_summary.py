"""Prints a table of each run at the end of a command that delivers, and what is not delivered.

A run whose report was never written, or cannot be read, has no table. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.cli.status.view import owed_line, show
from otel_bridge.cli.terminal import Terminal
from otel_bridge.emit.console import drain_command, missed_line
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report
from otel_bridge.text.counts import counted, records_waiting

NO_EXPORTER = "no exporter is chosen; pass --exporters"


def print_runs(
    console: Terminal,
    folders: Iterable[RunFolder],
    remaining: Mapping[str, RunStatus],
    hanging: Collection[str],
) -> None:
    """Print every run's table, and a line for each reason why some of the run is not delivered.

    A run without a report is one line: no bridge could read it.

    Args:
        console: Terminal to print to.
        folders: The runs' folders.
        remaining: Delivery status of each run, by run id.
        hanging: Exporters whose writer did not close.
    """
    for folder in folders:
        report = show(console, folder).report
        if report is None:
            console.print_line(
                f"{folder.run_id}: nothing was read; look at {folder.path}"
            )
            continue
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
    """Return a line for each reason why some of a run is not delivered; empty when all is.

    Records that a *hanging* exporter wrote count as undelivered until it confirms them. A run whose
    folder was deleted has nothing left to deliver, so that it has no line without a reason.
    """
    # Of a run that could not be served nothing else is known.
    if run.reason:
        return [run.reason]
    if run.outcome is Outcome.GONE:
        return []
    lines = ["not everything is read yet"] if run.unread else []
    lines += _waiting(run, run.exporters, hanging)
    if run.position and not run.exporters:
        lines.append(f"{counted(run.position, 'record')}, and no exporter is chosen")
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
        requested: Exporters that this call or its environment names. Records that were deleted
            before they got them are reported.
    """
    # The run could not be served, which an older report does not show.
    if remaining is not None and remaining.reason:
        return remaining.reason
    if report is None:
        return "nothing could be read"
    if not report.has_exporter:
        return _without_exporter(report)
    lines = [] if remaining is None else _unexplained(remaining, hanging)
    lines += _not_received(report, requested)
    if not report.ended:
        lines = [*report.troubles(), *lines]
        # Not `living`: a process of another machine counts as living for minutes after its end.
        open_processes = sum(role.alive for role in report.roles.values())
        if remaining is not None and open_processes:
            lines.append(f"its processes have not ended: {open_processes}")
        lines = lines or ["its delivery was stopped early"]
    return "; ".join(lines)


def _without_exporter(report: Report) -> str:
    """Return why records of a run without an exporter are not delivered.

    It is empty when there are none, or all given up. A webhook may be named all the same: it gets
    alerts, but no records.
    """
    if report.ended and not report.lacks_exporter:
        return ""
    if report.exporters:
        return f"{', '.join(report.exporters)} takes alerts only; {NO_EXPORTER}"
    return NO_EXPORTER


def _not_received(report: Report, requested: Collection[str]) -> list[str]:
    """Return a line for each exporter that will not get some records of the run.

    Deleted ones are named only if this call *requested* the exporter: another drain cannot mend
    that. Those that are owed always, since they are still there.
    """
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        if exporter.missed and name in requested:
            lines.append(missed_line(name, exporter.missed))
    for name, count in report.owed.items():
        remedy = f"deliver them with --exporters {name}, or give them up with --discard {name}"
        lines.append(f"{owed_line(name, count)} ({remedy})")
    return lines


def _unexplained(run: RunStatus, hanging: Collection[str]) -> list[str]:
    """Return a line for each unfinished exporter without a reason.

    A reason is already shown with its exporter.
    """
    names = [name for name, exporter in run.exporters.items() if not exporter.reason]
    return list(_waiting(run, names, hanging))


def _waiting(
    run: RunStatus, names: Iterable[str], hanging: Collection[str]
) -> Iterator[str]:
    """Yield for each of the exporters *names* what it still lacks, or has not confirmed, of *run*.

    Nothing for one that has everything. One that is blocked is named even without records, because
    it will not end its run.
    """
    for name in names:
        exporter = run.exporters[name]
        count = exporter.lacks(run.position)
        if count or exporter.state == "blocked":
            state = exporter.trouble or exporter.state
            if name in hanging:
                state = "which hangs"
            yield f"{records_waiting(count)} for {name}, {state}"
        # All is written, but the tracker's run is still open.
        elif not exporter.has_all(run.position):
            yield f"{name} has not ended the run yet"
        # A writer that hangs can no longer confirm what it wrote.
        elif name in hanging and exporter.durable < exporter.written:
            unconfirmed = counted(exporter.written - exporter.durable, "record")
            yield f"{name} did not confirm in time that it holds the last {unconfirmed}"
