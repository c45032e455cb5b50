"""Reads what `status` shows of a run folder: its report, and what each exporter still needs.

Read-only: a bridge may serve the run at the same time. ``/status`` of a service returns the same as
JSON, per run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from otel_bridge import settings
from otel_bridge.bridge.ledger.codec import KINDS
from otel_bridge.bridge.ledger.queries import LedgerView, open_view
from otel_bridge.errors import FormatVersionError, JournalError, OtelBridgeError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.files import Stamp, StampedCache
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.folder_scan import FolderScan, scan_folder
from otel_bridge.journal.liveness import judge_processes
from otel_bridge.journal.locks import probe
from otel_bridge.journal.quota import Quota, bytes_below
from otel_bridge.journal.report import (
    ProcessReport,
    Report,
    ReportCache,
    report_from,
    unread_bytes,
)
from otel_bridge.journal.segment import SegmentFile
from otel_bridge.records import PlainTrace, RolloutRecord


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Counts the records that one exporter keeps in the run folder.

    Attributes:
        records: Number of records that are not durable in its tracker.
        bytes: Their space, approximately; other exporters may keep the same records.
        unwritten_unix_ns: Time of the oldest record that it has not written; ``None`` when there is
            none.
    """

    records: int = 0
    bytes: int = 0
    unwritten_unix_ns: int | None = None


_InLedger: TypeAlias = tuple[Mapping[str, KeptRecords], int | None]
"""Kept records by exporter, and the time of the ledger's oldest record."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Describes one run folder at one moment.

    Attributes:
        bridge_alive: Whether a process holds its lock.
        report: Its report, with the processes that are alive now; ``None`` when no bridge has read
            it yet.
        bytes: Part of the folder (``segments``, ``ledger``, ``files``) to its bytes.
        held: Kept records, by exporter.
        held_since_unix_ns: Time of the oldest record in the ledger; ``None`` when the ledger is
            empty.
        unread_bytes: Part of the segments that no bridge has read, by the report.
        refused: Why a bridge of this version refuses the folder, with what to do; empty when it
            does not.
        unseen_senders: Whether processes sent to a receiver that has exited, so that it is unknown
            whether they run.
    """

    run_id: str
    folder: str
    bridge_alive: bool = False
    report: Report | None = None
    bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    held: Mapping[str, KeptRecords] = field(default_factory=dict[str, KeptRecords])
    held_since_unix_ns: int | None = None
    unread_bytes: int = 0
    refused: str = ""
    unseen_senders: bool = False

    @property
    def total_bytes(self) -> int:
        """Return the size of the whole folder."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class DirectoryUse:
    """Holds the used space of the directory and its present limit, in bytes.

    Attributes:
        of_disk: Whether the limit is half of the free disk, which is less than
            ``OTEL_BRIDGE_MAX_BYTES``.
    """

    used_bytes: int
    limit_bytes: int
    of_disk: bool = False


def directory_use(
    base: Path, env: Mapping[str, str], states: Iterable[RunState] = ()
) -> DirectoryUse:
    """Measure the directory of run folders; what cannot be read of it counts as 0.

    The folders of *states* are not measured again.

    Raises:
        ConfigError: ``OTEL_BRIDGE_MAX_BYTES`` cannot be parsed.
    """
    max_bytes = settings.MAX_BYTES.read(env)
    measured = {Path(state.folder).name: state.total_bytes for state in states}
    used_bytes = bytes_below(str(base), measured)
    limit_bytes = Quota(base, max_bytes).limit_bytes(used_bytes)
    return DirectoryUse(used_bytes, limit_bytes, of_disk=limit_bytes < max_bytes)


class StateReader:
    """Reads the states of run folders repeatedly; unchanged files are read once. Thread-safe.

    Each folder is measured anew at every call, because any of its files may have grown.

    Args:
        liveness_timeout_s: Seconds that a process of another machine may append nothing and still
            count as alive.

    Attributes:
        reports: The cache of reports, which callers may use too.
    """

    def __init__(
        self, liveness_timeout_s: float = settings.LIVENESS_TIMEOUT_S.default
    ) -> None:
        self._liveness_timeout_ns = int(liveness_timeout_s * 1e9)
        self.reports = ReportCache()
        self._ledgers = StampedCache[Path, _InLedger]()

    def read(self, folder: RunFolder) -> RunState:
        """Return the state of *folder*; what cannot be read is left out, so that one run hides no other.

        A folder that a bridge of this version would refuse has the reason in ``refused``: another
        format with unread data or an unreadable ledger, or another kind of file in the place of its
        lock. A ledger that is missing or locked is left out without one.
        """
        scan = scan_folder(folder)
        report = self.reports.read_stamped(folder, scan.report)
        unread = unread_bytes(scan.segments, report)
        refused = ""
        kept_records: Mapping[str, KeptRecords] = {}
        since_ns: int | None = None
        # The usual old run: its ledger is not opened, of which a directory may hold thousands.
        if report is not None and not unread and _holds_nothing(report):
            kept_records = {name: KeptRecords() for name in report.exporters}
        else:
            (kept_records, since_ns), refused = self._read_ledger(folder, scan, unread)
        # ``otlp`` has no destination in the ledger: its offsets are in the report.
        if report is not None:
            not_forwarded = _not_forwarded(scan.segments, report)
            kept_records = {**kept_records, **not_forwarded}
        served = False
        try:
            served = probe(folder.lock_path)
        except JournalError as exc:
            # A link or a pipe in its place, or no locks: one line, and the other runs as usual.
            refused = refused or str(exc)
        unseen = False
        # A bridge that serves the run judges its processes itself, and reports them. Of an ended run
        # `status` shows none as living.
        if report is not None and report.status == "running" and not served:
            report, unseen = judge_processes(
                folder,
                report,
                scan.segments,
                time.time_ns(),
                liveness_timeout_ns=self._liveness_timeout_ns,
            )
        return RunState(
            folder.run_id,
            str(folder.path),
            bridge_alive=served,
            report=report,
            bytes=_sizes(scan),
            held=kept_records,
            held_since_unix_ns=since_ns,
            unread_bytes=unread,
            refused=refused,
            unseen_senders=unseen,
        )

    def _read_ledger(
        self, folder: RunFolder, scan: FolderScan, unread: int
    ) -> tuple[_InLedger, str]:
        """Return what the ledger has, as `_in_ledger` does, and why this version refuses the folder.

        Either may be empty.
        """
        path = folder.ledger_path
        try:
            # Only unread data needs a bridge that can read the folder.
            if unread:
                folder.check_format()
            stored = self._ledgers.get(
                path, scan.ledger, partial(_in_ledger, path, scan.ledger)
            )
        except FormatVersionError as exc:
            return ({}, None), str(exc)
        except OtelBridgeError:
            # No ledger yet, or locked by its bridge on a shared file system.
            return ({}, None), ""
        return stored, ""


def run_state_from(raw: object) -> RunState | None:
    """Return the state that the JSON value *raw* describes, or ``None`` when *raw* is not valid.

    Fields of a later version are ignored.
    """
    try:
        table = cast("dict[str, Any]", raw)
        fields = {
            name: table[name] for name in RunState.__dataclass_fields__ if name in table
        }
        fields["held"] = {
            name: KeptRecords(**kept) for name, kept in table["held"].items()
        }
        if table["report"] is not None:
            fields["report"] = report_from(table["report"])
        return RunState(**fields)
    except (TypeError, KeyError, AttributeError):
        # One state of another form is left out, and the other runs are shown.
        return None


def _sizes(scan: FolderScan) -> dict[str, int]:
    file_bytes = scan.total_bytes - scan.segment_bytes - scan.ledger_bytes
    return {
        "segments": scan.segment_bytes,
        "ledger": scan.ledger_bytes,
        "files": file_bytes,
    }


def _holds_nothing(report: Report) -> bool:
    """Return whether the run has ended and every destination is durable up to its end."""
    exporters = report.exporters.values()
    return (
        report.ended
        and report.destinations == len(report.exporters) > 0
        and all(exporter.durable >= report.position for exporter in exporters)
    )


def _in_ledger(ledger: Path, stamps: Iterable[Stamp | None]) -> _InLedger:
    """Return from *ledger* the kept records by exporter, and the time of its oldest record.

    Records that several exporters need count for each of them, also for an exporter that the run
    does not request any more: its label says so.

    Args:
        ledger: Its path.
        stamps: The stamps of its files, which have their sizes.

    Raises:
        FormatVersionError: Another version wrote it.
        OtelBridgeError: It is missing, damaged, or locked by its bridge on a shared file system.
    """
    ledger_bytes = sum(stamp.size_bytes for stamp in stamps if stamp is not None)
    kept_records: dict[str, KeptRecords] = {}
    with open_view(ledger) as view:
        position, _, destinations = view.overview()
        oldest = view.oldest()
        records_here = position - oldest + 1
        for destination in destinations:
            records = position - max(destination.durable, oldest - 1)
            # By number, since the ledger does not count the bytes of each record. Without a record
            # here nothing is kept.
            share = ledger_bytes * records // max(records_here, 1)
            name = destination.exporter
            if not destination.named:
                name = f"{name}, no longer named"
            unwritten_ns = _time_behind(view, destination.written)
            kept_records[name] = KeptRecords(records, share, unwritten_ns)
        return kept_records, _time_behind(view, 0)


def _time_behind(view: LedgerView, position: int) -> int | None:
    """Return the time of the first record after *position*; ``None`` without one, or if it has no time.

    One record is read, whatever its size, since a limit of bytes lets the first one through. One
    that cannot be decoded counts as none.
    """
    for record in view.records(position, KINDS, limit=1, limit_bytes=1).records:
        if isinstance(record, (RolloutRecord, PlainTrace)):
            return record.start_unix_ns or None
        return record.time_unix_ns or None
    return None


def _not_forwarded(
    segments: Iterable[SegmentFile], report: Report
) -> dict[str, KeptRecords]:
    """Return what ``otlp`` has not forwarded, by its name; empty for a run without it.

    It is counted in bytes of segments after its offsets, with the age of their files: the ledger,
    in which other exporters have their position, does not know it. A segment of a process that the
    report does not have yet counts whole.
    """
    if OTLP not in report.exporters:
        return {}
    rest_bytes = 0
    times_ns: list[int] = []
    for segment in segments:
        process = report.processes.get(segment.instance_id, ProcessReport())
        number = process.forwarded_segment
        offset = process.forwarded_offset if segment.number == number else 0
        rest = segment.size_bytes - offset
        if segment.number >= number and rest > 0:
            rest_bytes += rest
            times_ns.append(segment.mtime_ns)
    records = max(report.position - report.exporters[OTLP].written, 0)
    oldest_ns = min(times_ns, default=None) if records else None
    return {OTLP: KeptRecords(records, rest_bytes, oldest_ns)}
