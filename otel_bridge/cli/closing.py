"""The last words of a command that delivered: a line of progress while it does, and each run's table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.status import Status as Spinner

from otel_bridge.bridge.rest import Remaining, Rest
from otel_bridge.cli.tables import show
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, read_report

NO_EXPORTER: Final = "no exporter is chosen; pass --exporters"


class DeliveryLine:
    """One line on the terminal that says what waits for which tracker; nothing where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("delivering …", console=console)

    def __enter__(self) -> DeliveryLine:
        self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spinner.stop()

    def update(self, runs: Mapping[str, Remaining]) -> None:
        """Show where *runs* stand."""
        waiting: dict[str, int] = {}
        for run in runs.values():
            for name, exporter in run.exporters.items():
                waiting[name] = waiting.get(name, 0) + max(run.position - exporter.written, 0)
        parts = [f"{name} {count:,}" for name, count in waiting.items() if count]
        self._spinner.update("delivering: " + (", ".join(parts) + " waiting" if parts else "the last records"))


def print_runs(
    console: Console, folders: Iterable[RunFolder], remaining: Mapping[str, Remaining], hanging: Collection[str]
) -> None:
    """Print every run's table and, in a line for each reason, what of it is not delivered.

    Args:
        console: Where to.
        folders: The runs' folders.
        remaining: Where each run stands, by run id.
        hanging: Exporters whose writer did not close.
    """
    for folder in folders:
        report = read_report(folder)
        if report is None:
            console.print(f"{folder.run_id}: nothing was read; look at {folder.path}", soft_wrap=True)
            continue
        show(console, folder.run_id, report)
        run = remaining.get(folder.run_id)
        if report.ended and report.position and not report.exporters:
            console.print(f"{NO_EXPORTER}: otel-bridge drain --exporters NAME {folder.path}", soft_wrap=True)
            continue
        lines = _unexplained(run, hanging) if run is not None else []
        for line in lines:
            console.print(line, soft_wrap=True)
        if lines or not report.ended:
            console.print(f"not all is delivered; go on with: otel-bridge drain {folder.path}", soft_wrap=True)


def left(run: Remaining, hanging: Collection[str] = ()) -> list[str]:
    """Return what of a run is not delivered, one line for each reason; what *hanging* exporters took may not be."""
    if run.rest is Rest.GONE or run.reason:
        return [run.reason] if run.reason else []
    lines = ["not everything is read yet"] if run.unread else []
    lines += filter(None, (_waiting(run, name, hanging) for name in run.exporters))
    if run.position and not run.exporters:
        lines.append(f"{run.position} records, and no exporter is chosen")
    return lines


def remains(report: Report | None, remaining: Remaining | None, hanging: Collection[str] = ()) -> str:
    """Return in one line why a folder is not done; empty when it is."""
    if remaining is not None and remaining.reason:  # it could not be served: an older report says nothing of it
        return remaining.reason
    if report is None:
        return "nothing could be read"
    if not report.exporters:
        return NO_EXPORTER if report.position or not report.ended else ""
    lines = _unexplained(remaining, hanging) if remaining is not None else []
    if not report.ended:
        lines = [f"{name} is {one.state}: {one.reason}" for name, one in report.exporters.items() if one.reason] + lines
        living = remaining.living if remaining is not None else 0
        if living:
            lines.append(f"{living} of its processes still {'runs' if living == 1 else 'run'}")
        lines = lines or ["its delivery was ended early"]
    return "; ".join(lines)


def _unexplained(run: Remaining, hanging: Collection[str]) -> list[str]:
    """Return a line for each exporter that is not done and gave no reason: those that did are shown with it."""
    return list(filter(None, (_waiting(run, name, hanging) for name, one in run.exporters.items() if not one.reason)))


def _waiting(run: Remaining, name: str, hanging: Collection[str]) -> str:
    """Return what of *run* the exporter *name* has not got, or did not say that it has; empty: nothing."""
    exporter = run.exporters[name]
    count = run.position - exporter.written
    if count > 0 or exporter.state == "blocked":
        why = f": {exporter.reason}" if exporter.reason else ""
        help_text = f"; {exporter.help}" if exporter.help else ""
        counted = "1 record waits" if count == 1 else f"{max(count, 0)} records wait"
        state = "which hangs" if name in hanging else exporter.state
        return f"{counted} for {name}, {state}{why}{help_text}"
    if name in hanging and exporter.safe < exporter.written:
        return f"{name} did not say in time that it holds the last {exporter.written - exporter.safe} records"
    return ""
