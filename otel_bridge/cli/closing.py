"""The last words of a command that delivered: a line of progress while it does, and each run's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def print_runs(console: Console, folders: Iterable[RunFolder]) -> bool:
    """Print every run's table and what remains of it; says whether all is delivered."""
    whole = True
    for folder in folders:
        report = read_report(folder)
        if report is None:
            console.print(f"{folder.run_id}: nothing was read; look at {folder.path}", soft_wrap=True)
            whole = False
            continue
        show(console, folder.run_id, report)
        if report.ended and report.position and not report.exporters:
            whole = False
            console.print(f"{NO_EXPORTER}: otel-bridge drain --exporters NAME {folder.path}", soft_wrap=True)
        elif not report.ended:
            whole = False
            console.print(f"not all is delivered; go on with: otel-bridge drain {folder.path}", soft_wrap=True)
    return whole


def remains(report: Report | None, remaining: Remaining | None) -> str:
    """Return in one line why a folder is not done; empty when it is."""
    if remaining is not None and remaining.reason:  # it could not be served: an older report says nothing of it
        return remaining.reason
    if report is not None and report.ended:
        return "" if report.exporters or not report.position else NO_EXPORTER
    return "nothing could be read" if report is None else _unfinished(report, remaining)


def _unfinished(report: Report, remaining: Remaining | None) -> str:
    stuck = [f"{name} is {one.state}: {one.reason}" for name, one in report.exporters.items() if one.reason]
    if stuck:
        return "; ".join(stuck)
    if not report.exporters:
        return NO_EXPORTER
    if remaining is not None and remaining.living:
        return f"{remaining.living} of its processes still run"
    return "its delivery was ended early" if remaining is None or remaining.rest is Rest.BUSY else remaining.rest.value
