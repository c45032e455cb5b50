"""Wait for delivery of this process's records, by reading the bridge's report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.console import wait_display
from otel_bridge.emit.recording.process_segment import Checkpoint
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import (
    ExporterReport,
    ProcessReport,
    Report,
    read_report,
    reason_of_end,
)
from otel_bridge.text.counts import counted
from otel_bridge.text.wait_display import Amount, records_in_trackers

_POLL_S = 0.02
# These wait for a person, or for a tracker that is down, so possibly for hours.
_NOT_WAITED_FOR = frozenset({"blocked", "retrying"})


@dataclass(frozen=True, slots=True)
class FlushOutcome:
    """Holds the result of a wait.

    Attributes:
        written: Whether every exporter that is neither blocked nor retrying has all records.
        report: The last report with this process, if any.
        remains: Statements on records that are not written, blocked and retrying exporters
            included.
    """

    written: bool
    report: Report | None
    remains: tuple[str, ...] = ()

    def in_state(self, state: str) -> tuple[str, ...]:
        """Return the exporters that are in *state*, such as ``blocked``."""
        exporters = {} if self.report is None else self.report.exporters
        return tuple(
            name for name, exporter in exporters.items() if exporter.state == state
        )


class DeliveryWaiter:
    """Waits for the delivery of one process's records.

    Args:
        folder: The run folder.
        starter: Starter that keeps a bridge running meanwhile.
        exporters: Names that the report must list before it counts.
        checkpoint: End of this process's records.
        end: Whether to wait also for the run's end, if this process is its last.
        launched: Whether a launcher keeps the run open until its command ends, so that its end is
            not awaited.
    """

    def __init__(
        self,
        folder: RunFolder,
        starter: BridgeStarter,
        exporters: tuple[str, ...],
        checkpoint: Checkpoint,
        *,
        end: bool = False,
        launched: bool = True,
    ) -> None:
        self._folder = folder
        self._starter = starter
        self._exporters = exporters
        self._checkpoint = checkpoint
        self._end_position = (checkpoint.number, checkpoint.offset)
        self._end = end
        self._launched = launched
        self._position: int | None = None
        self._gone = False

    def wait(self, timeout_s: float) -> FlushOutcome:
        """Wait at most *timeout_s*; return the result, also when no bridge can be started.

        The report is polled, since the trainer opens no socket. A bridge that is killed meanwhile
        is started again. A report that is missing or cannot be read shows nothing: the wait goes
        on.
        """
        deadline = time.monotonic() + timeout_s
        with wait_display() as display:
            while True:
                gone_before = self._gone
                report = read_report(self._folder)
                if report is not None and self._done(report):
                    return FlushOutcome(True, report, _remains(report))
                if self._gone and not gone_before:
                    continue  # the next report shows whether a bridge is needed at all: the run may have ended
                # At each poll: a bridge that is killed during the wait is started again.
                if not self._starter.ensure():
                    return self._given_up(report)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return self._given_up(report)
                display.show(partial(self._amounts, report))
                time.sleep(min(_POLL_S, remaining_s))

    def _amounts(self, report: Report | None) -> dict[str, Amount]:
        """Return what is awaited, with how much of it is done.

        It is the bridge, the records that the exporters of *report* lack, or the run's end. A thing
        without numbers has an empty amount.
        """
        if report is None:
            mine = None
        else:
            mine = report.processes.get(self._checkpoint.instance_id)
        if report is None or (mine is None and self._position is None):
            return {"the start of the bridge": Amount()}
        if mine is not None and (mine.segment, mine.offset) < self._end_position:
            return {"the bridge to read the records": Amount()}
        amounts = records_in_trackers([report], without=_NOT_WAITED_FOR)
        if any(amount.total != amount.done for amount in amounts.values()):
            return amounts
        return {"the trackers to end the run": Amount()}

    def _done(self, report: Report) -> bool:
        """Return whether *report* shows that all that is awaited has happened.

        Reading comes first: a report from before it has exporters that lack nothing.
        """
        mine = report.processes.get(self._checkpoint.instance_id)
        if mine is None and report.ended and self._position is not None:
            return True  # delivered, and deleted with the run's end
        if not self._is_read(mine) or (mine is not None and mine.waiting_rows):
            return False
        # A launcher chooses its exporters itself.
        if not self._is_kept_open(report) and not self._has_exporters(report):
            return False
        if self._position is None:
            # Noted once: what arrives later is not awaited.
            self._position = report.position
        if not self._is_written(report, mine, self._position):
            return False
        return not self._end or self._has_ended(report)

    def _has_exporters(self, report: Report) -> bool:
        """Return whether *report* shows what each exporter of this process has.

        One that only this process requested leaves the report's exporters when the process has ended:
        the other processes of the run may name others. It has everything if nothing is owed to it.
        """
        departed = report.former.keys() - report.owed.keys()
        return report.exporters.keys() | departed >= {*self._exporters}

    def _is_kept_open(self, report: Report) -> bool:
        """Return whether a launcher keeps the run open until its command ends."""
        return report.launcher and self._launched

    def _is_read(self, mine: ProcessReport | None) -> bool:
        """Return whether the bridge has read all appended records.

        A process that is missing in the report has either not been seen yet, or been read and
        deleted: its segments decide.
        """
        if mine is not None:
            return (mine.segment, mine.offset) >= self._end_position
        instance_id = self._checkpoint.instance_id
        if any(file.instance_id == instance_id for file in self._folder.segments()):
            return False
        # Read and deleted. A bridge reports its reading before it deletes, so any report from now
        # on includes this.
        was_gone = self._gone
        self._gone = True
        return was_gone

    def _is_written(
        self, report: Report, mine: ProcessReport | None, position: int
    ) -> bool:
        """Return whether every exporter that is waited for has the records up to *position*.

        Blocked and retrying ones are not waited for: that may take hours. One that has ended has
        written all. True where no exporter is left.
        """
        for name, exporter in report.exporters.items():
            if exporter.state in _NOT_WAITED_FOR or exporter.state == "ended":
                continue
            if name != OTLP:
                is_written = exporter.written >= position
            else:  # segments are deleted when they are forwarded too
                is_written = (
                    mine is None
                    or (mine.forwarded_segment, mine.forwarded_offset)
                    >= self._end_position
                )
            if not is_written:
                return False
        return True

    def _has_ended(self, report: Report) -> bool:
        """Return whether the run has ended in every tracker, or waits for more than this process.

        Then its end is not awaited: it comes with the end of another process, which may train for
        days.
        """
        if report.ended or self._is_kept_open(report):
            return True
        for name, process in report.processes.items():
            is_other = name != self._checkpoint.instance_id
            # The bridge writes the end of a process that died without one; such a process may be
            # restarted, or not.
            if is_other and (process.alive or process.bridge):
                return True
        states = {exporter.state for exporter in report.exporters.values()}
        return states <= {"ended", *_NOT_WAITED_FOR}

    def _given_up(self, report: Report | None) -> FlushOutcome:
        """Return the outcome of a wait that is over, with why records remain.

        The report says why; where this process is not in it, the bridge's log may.
        """
        has_begun = self._position is not None
        if report is not None and (
            has_begun or self._checkpoint.instance_id in report.processes
        ):
            return FlushOutcome(
                False, report, (*_remains(report), "not all records are written yet")
            )
        remark = "not delivered yet"
        if not self._starter.delivered_by():
            reason = reason_of_end(self._folder.log_path)
            remark += f": {reason}" if reason else ""
        return FlushOutcome(False, None, (remark,))


def _remains(report: Report) -> tuple[str, ...]:
    """Return a line for each exporter that is not waited for: state, what it lacks, what helps.

    Empty when every exporter is waited for.
    """
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        if exporter.state in _NOT_WAITED_FOR:
            remedy = f"; {exporter.help}" if exporter.help else ""
            missing = _to_go(name, exporter, report)
            lines.append(
                f"{name} is {exporter.state}{missing}: {exporter.reason}{remedy}"
            )
    return tuple(lines)


def _to_go(name: str, exporter: ExporterReport, report: Report) -> str:
    """Return text on the number of records that the exporter lacks.

    Empty for ``otlp``, which counts no records.
    """
    count = report.position - exporter.written
    if name == OTLP or count <= 0:
        return ""
    return f" with {counted(count, 'record')} to go"
