"""Wait, by reading the bridge's report, until what this process appended is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from otel_bridge.emit.keeper import BridgeKeeper
from otel_bridge.emit.sink import Mark
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import ExporterReport, ProcessReport, Report, read_report

_POLL_S: Final = 0.02
_NOT_WAITED_FOR: Final = frozenset({"blocked", "retrying"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wait.

    Attributes:
        written: All that was waited for is written.
        report: The last report, if there is one of this process.
        remains: What is not written, and why.
    """

    written: bool
    report: Report | None
    remains: tuple[str, ...] = ()


class Waiting:
    """One wait.

    Args:
        folder: The run folder.
        keeper: Sees to a bridge meanwhile.
        exporters: Names that the report must list before it counts.
        mark: Where this process's records end.
        end: Wait also for the run's end, if this process is its last.
    """

    def __init__(
        self, folder: RunFolder, keeper: BridgeKeeper, exporters: tuple[str, ...], mark: Mark, *, end: bool = False
    ) -> None:
        self._folder = folder
        self._keeper = keeper
        self._exporters = exporters
        self._mark = mark
        self._end = end
        self._position: int | None = None
        self._gone_ns: int | None = None

    def wait(self, timeout_s: float) -> Outcome:
        """Wait at most *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        while True:
            report = read_report(self._folder)
            if report is not None and self._done(report):
                return Outcome(True, report, _remains(report))
            if not self._keeper.ensure():
                return self._given_up(report)
            left = deadline - time.monotonic()
            if left <= 0:
                return self._given_up(report)
            time.sleep(min(_POLL_S, left))

    def _done(self, report: Report) -> bool:
        mine = report.processes.get(self._mark.instance_id)
        if mine is None and report.ended and self._position is not None:
            return True  # delivered, and deleted with the run's end
        if not self._is_read(mine, report):
            return False
        if not report.launcher and any(name not in report.exporters for name in self._exporters):
            return False
        if self._position is None:
            self._position = report.position
        position = self._position
        if not all(self._written(name, one, mine, position) for name, one in report.exporters.items()):
            return False
        return not self._end or self._ended(report)

    def _is_read(self, mine: ProcessReport | None, report: Report) -> bool:
        """Tell whether the bridge has read all that was appended."""
        if mine is not None:
            return (mine.segment, mine.offset) >= (self._mark.number, self._mark.offset)
        if any(file.instance_id == self._mark.instance_id for file in self._folder.segments()):
            return False
        # Read and deleted, before a report named this process. One written from here on knows what was in them.
        if self._gone_ns is None:
            self._gone_ns = time.time_ns()
        return report.time_unix_ns > self._gone_ns

    def _written(self, name: str, one: ExporterReport, mine: ProcessReport | None, position: int) -> bool:
        if one.state in _NOT_WAITED_FOR or one.state == "ended":
            return True
        if name == OTLP:  # segments are deleted when they are forwarded too
            there = (self._mark.number, self._mark.offset)
            return mine is None or (mine.forwarded_segment, mine.forwarded_offset) >= there
        return one.written >= position

    def _ended(self, report: Report) -> bool:
        # The bridge has a word of its own where a process died without one: that one may be started again, or not.
        others = any(
            one.alive or one.bridge for name, one in report.processes.items() if name != self._mark.instance_id
        )
        states = [one.state for one in report.exporters.values()]
        return (
            report.ended
            or report.launcher
            or others
            or all(state == "ended" or state in _NOT_WAITED_FOR for state in states)
        )

    def _given_up(self, report: Report | None) -> Outcome:
        if report is None or (self._mark.instance_id not in report.processes and self._position is None):
            return Outcome(False, None, ("not delivered yet",))
        return Outcome(False, report, (*_remains(report), "not all of it is written yet"))


def _remains(report: Report) -> tuple[str, ...]:
    return tuple(
        f"{name} is {one.state}: {one.reason}{f'; {one.help}' if one.help else ''}"
        for name, one in report.exporters.items()
        if one.state in _NOT_WAITED_FOR
    )
