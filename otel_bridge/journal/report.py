"""Reads and writes ``report.json``: what the bridge has read, written and dropped, at one moment of the ledger.

The file is replaced by rename, and read by ``init``, ``flush``, ``finish`` and ``status``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import (
    Stamp,
    StampedCache,
    open_regular,
    read_regular,
    stamp_of,
)
from otel_bridge.journal.folder import RunFolder, put_file
from otel_bridge.journal.segment import SegmentFile
from otel_bridge.text.command_line import runnable
from otel_bridge.text.printable import all_printable, is_printable_json, shown

_REPORT_BYTES = 256 << 20
"""Most bytes of a report that are read, far above any real one: a folder may be somebody else's."""


@dataclass(slots=True)
class BridgeReport:
    """Identifies the process that wrote the report."""

    pid: int = 0
    host: str = ""
    boot_id: str = ""


@dataclass(slots=True)
class ProcessReport:
    """Reports how far one process's segments were read.

    Attributes:
        segment: Number of the segment read last.
        offset: Offset in it after the last frame read.
        forwarded_segment: Number of the segment that ``otlp`` forwarded last.
        forwarded_offset: Offset in that segment.
        role: Role of the sender in it.
        alive: Whether the process may append more.
        bridge: Whether it is the bridge itself, which sends for others and is not counted.
        waiting_rows: Rows that the bridge has read and holds back, so that they have no position
            yet.
    """

    segment: int = 0
    offset: int = 0
    forwarded_segment: int = 0
    forwarded_offset: int = 0
    role: str | None = None
    alive: bool = True
    bridge: bool = False
    waiting_rows: int = 0


@dataclass(slots=True)
class RoleReport:
    """Counts the processes of one role, without launchers, bridges, and processes that were started again.

    Attributes:
        alive: Processes that have not ended.
        processes: These, and the processes that have ended.
    """

    alive: int = 0
    processes: int = 0


@dataclass(frozen=True, slots=True)
class ExporterReport:
    """Reports the delivery of one exporter; in its bridge this is a part of the exporter's state.

    Attributes:
        written: Last position that the tracker's calls accepted.
        durable: Last position that its store holds.
        state: ``idle``, ``writing``, ``retrying``, ``blocked`` or ``ended``.
        reason: Reason why the exporter retries or is blocked, one line.
        help: The command or step that fixes it.
        destination: The variables that define where it delivers.
        view: Command, address or folder that shows the run.
        upload: Command that uploads the run from this machine.
        tracker_run_id: The tracker's own id of the run, once its writer has reported it.
        missed: Records that were deleted before this exporter was first named, which it never gets.
        found: One line about what the tracker already held of the run when this bridge first opened
            it.
        rows_per_s: Rows written per second, over the last half minute.
        degraded: One sentence for each ability that the installed version of the tracker lacks.
        left_out: Records that were not written because the tracker lacks an ability: reason to
            count.
    """

    written: int = 0
    durable: int = 0
    state: str = "idle"
    reason: str = ""
    help: str = ""
    url: str | None = None
    rows: int = 0
    rollouts: int = 0
    dead_letters: int = 0
    destination: dict[str, str] = field(default_factory=dict[str, str])
    view: str = ""
    upload: str = ""
    tracker_run_id: str | None = None
    missed: int = 0
    found: str = ""
    rows_per_s: float = 0.0
    degraded: list[str] = field(default_factory=list[str])
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def trouble(self) -> str:
        """Return the state with its reason and what helps.

        Empty unless it retries or is blocked.
        """
        if self.state not in {"retrying", "blocked"}:
            return ""
        reason = f"{self.state}: {self.reason}"
        return f"{reason}; {self.help}" if self.help else reason


@dataclass(slots=True)
class Report:
    """Reports the state of a run's bridge at one moment.

    Attributes:
        processes: Processes, launchers and bridges whose segments remain, by instance.
        roles: Processes of the run by role, those without a role under an empty one.
        generated: Those of ``project`` and ``name`` that were generated, separated by commas.
        position: Last position of the ledger.
        former: Last report of each exporter that is no longer named, so that the run's address
            there stays known.
        drops: Reason to count.
        drop_keys: Reason to the first key that was dropped for it.
        bare_scopes: Instrumentation whose rollouts have no messages, to the setting that makes it
            record some.
        missing_rows: Number of rows that are missing by their sequence numbers.
        steps: Axis to the highest step of its role's current attempt; a row that arrives late does
            not lower it.
        rows_by_axis: Axis to the number of rows that its role logged, with a step or without.
        row_times: Axis to the time of its last row, in ns.
        derived_rows: Number of rows that the bridge made, by the data they are made of, e.g.
            ``rollout statistics``.
        rows_per_s: Rows read per second, over the last half minute.
        waiting: Numbers of ``rows``, ``traces``, ``rollouts`` and ``steps`` that wait for what is
            late.
        status: ``running``, ``finished``, ``failed`` or ``killed``.
        ended: Whether everything of the run is delivered and the run is ended in every tracker.
        owed: Exporters that the run's processes requested and this bridge was not given, to the
            number of records that they lack; for ``otlp``, of segments.
        unchosen: Whether no exporter is chosen for the run's records. The webhook, which takes
            alerts only, may be given all the same.
        destinations: Number of destinations in the ledger, including those of exporters that are no
            longer named.
        discarded: Exporter to the number of records that a person gave up with ``drain --discard``.
        evicted: Exporter to the number of records that were deleted to free space before it had
            them.
        launcher: Whether the bridge is ``otel-bridge run``.
        media: Number of images, tables, texts, sounds and films so far, those in cells of a table
            left aside.
        alerts: Number of alerts so far.
        awaited_ranks: Role to the rank that all others of the role wait for: ``rank``, ``phase``,
            ``step``, ``since_unix_ns`` and the number of ``others``.
        slow_ranks: Role to the rank that is slow in most of its last steps: ``rank``, ``phase``,
            ``ratio`` to the others, ``slow_steps`` and ``steps``, of which these are.
        engine_problems: What is missing of inference engines now, one text for each.
        last_alert: ``title``, ``level`` and ``time_unix_ns`` of the last alert; empty without one.
        featured: The keys that are watched, each to its last values.
    """

    time_unix_ns: int = 0
    project: str = ""
    name: str = ""
    generated: str = ""
    bridge: BridgeReport = field(default_factory=BridgeReport)
    processes: dict[str, ProcessReport] = field(
        default_factory=dict[str, ProcessReport]
    )
    roles: dict[str, RoleReport] = field(default_factory=dict[str, RoleReport])
    position: int = 0
    exporters: dict[str, ExporterReport] = field(
        default_factory=dict[str, ExporterReport]
    )
    former: dict[str, ExporterReport] = field(default_factory=dict[str, ExporterReport])
    drops: dict[str, int] = field(default_factory=dict[str, int])
    drop_keys: dict[str, str] = field(default_factory=dict[str, str])
    bare_scopes: dict[str, str] = field(default_factory=dict[str, str])
    missing_rows: int = 0
    steps: dict[str, int] = field(default_factory=dict[str, int])
    rows_by_axis: dict[str, int] = field(default_factory=dict[str, int])
    row_times: dict[str, int] = field(default_factory=dict[str, int])
    derived_rows: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    rows_per_s: float = 0.0
    rollouts: int = 0
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    status: str = "running"
    ended: bool = False
    owed: dict[str, int] = field(default_factory=dict[str, int])
    unchosen: bool = False
    destinations: int = 0
    discarded: dict[str, int] = field(default_factory=dict[str, int])
    evicted: dict[str, int] = field(default_factory=dict[str, int])
    launcher: bool = False
    media: int = 0
    alerts: int = 0
    awaited_ranks: dict[str, dict[str, str | int]] = field(
        default_factory=dict[str, "dict[str, str | int]"]
    )
    slow_ranks: dict[str, dict[str, str | int | float]] = field(
        default_factory=dict[str, "dict[str, str | int | float]"]
    )
    engine_problems: list[str] = field(default_factory=list[str])
    last_alert: dict[str, str | int] = field(default_factory=dict[str, "str | int"])
    featured: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])

    @property
    def has_exporter(self) -> bool:
        """Return whether an exporter is chosen for the run's records."""
        return bool(self.exporters) and not self.unchosen

    @property
    def settled(self) -> bool:
        """Return whether nothing changes until a person acts: each tracker has ended the run or is blocked.

        ``False`` without a tracker, which may not be opened yet, unless the run has ended.
        """
        states = {exporter.state for exporter in self.exporters.values()}
        return self.ended or (bool(states) and states <= {"blocked", "ended"})

    def troubles(self) -> Iterator[str]:
        """Yield one line for each exporter that retries or is blocked."""
        for name, exporter in self.exporters.items():
            if exporter.trouble:
                yield f"{name} is {exporter.trouble}"

    @property
    def lacks_exporter(self) -> bool:
        """Return whether the run has records that wait for somebody to choose an exporter."""
        return (
            bool(self.position)
            and not self.has_exporter
            and not (self.discarded and self.ended)
        )


def write_report(folder: RunFolder, report: Report) -> None:
    """Replace the report of *folder*, 0600.

    Raises:
        JournalError: The report cannot be written; the last one stays.
    """
    try:
        data = orjson.dumps(report)
    except TypeError:
        # A name that is not UTF-8, as the folder of a tracker may have; readers show it like this.
        data = orjson.dumps(all_printable(asdict(report)))
    try:
        put_file(folder.report_path, data)
    except OSError as exc:
        raise JournalError(
            f"{folder.report_path} cannot be written: {exc.strerror}; is the disk full?"
        ) from exc


def read_report(folder: RunFolder) -> Report | None:
    """Return the last report.

    ``None`` when there is none, or it is not valid, not a regular file or over `_REPORT_BYTES`.

    Texts of producers and trackers are shown on terminals, so that control characters are replaced.
    The check of the bytes comes first, because nearly no report has any.
    """
    try:
        data = read_regular(folder.report_path, _REPORT_BYTES)
        raw: object = orjson.loads(data)
    except (OSError, orjson.JSONDecodeError):
        return None
    return _understood(raw if is_printable_json(data) else all_printable(raw))


def report_from(raw: object) -> Report | None:
    """Return the report that the JSON value *raw* describes, or ``None`` when *raw* is not valid."""
    return _understood(all_printable(raw))


def _understood(raw: object) -> Report | None:
    try:
        return _report(_table(raw))
    except TypeError:
        return None


def left_out_lines(report: Report) -> list[str]:
    """Return one line for each reason for which an exporter left something out."""
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        for reason, count in sorted(exporter.left_out.items()):
            lines.append(f"{name} left out {count:,} {reason}")
    return lines


_T = TypeVar("_T", BridgeReport, ProcessReport, RoleReport, ExporterReport, Report)


def _report(raw: Mapping[str, object]) -> Report:
    """Return the report in *raw*; raises `TypeError` when a field has another type than expected.

    Reports of other versions are read as far as their fields have the same types.
    """
    nested = {"bridge", "processes", "roles", "exporters", "former"}
    flat = dict(raw)
    for name in nested:
        flat.pop(name, None)
    report = _filled(Report, flat)
    report.bridge = _filled(BridgeReport, _table(raw.get("bridge", {})))
    report.processes = _all_filled(ProcessReport, raw.get("processes", {}))
    report.roles = _all_filled(RoleReport, raw.get("roles", {}))
    report.exporters = _all_filled(ExporterReport, raw.get("exporters", {}))
    report.former = _all_filled(ExporterReport, raw.get("former", {}))
    return report


def _all_filled(kind: type[_T], raw: object) -> dict[str, _T]:
    return {name: _filled(kind, _table(value)) for name, value in _table(raw).items()}


def _filled(kind: type[_T], raw: Mapping[str, object]) -> _T:
    """Return a *kind* with the values of *raw*: unknown fields are ignored, missing ones keep their default.

    Raises:
        TypeError: A value has another type than its field.
    """
    default = kind()
    values: dict[str, object] = {}
    for name in default.__dataclass_fields__.keys() & raw.keys():
        if not _fits(raw[name], getattr(default, name)):
            raise TypeError(f"{name}={raw[name]!r}")
        values[name] = raw[name]
    return kind(**values)  # type: ignore[arg-type]  # the types were compared with those of the defaults


def _fits(value: object, default: object) -> bool:
    """Return whether *value* has the type of *default*.

    A field that may be ``None`` holds a text.
    """
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, dict):
        return isinstance(value, dict)
    return type(value) is type(default)


def _table(raw: object) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, got {type(raw).__name__}")
    return cast("dict[str, object]", raw)


# Reports of many run folders, read repeatedly: a report that was not replaced is parsed once.


class ReportCache:
    """Reads reports and caches those that do not change. Thread-safe.

    A returned report is shared: do not change it.
    """

    def __init__(self) -> None:
        self._kept = StampedCache[Path, Report | None]()

    def read(self, folder: RunFolder) -> Report | None:
        """Return the report of *folder* as `read_report` does."""
        return self.read_stamped(folder, stamp_of(folder.report_path))

    def read_stamped(self, folder: RunFolder, stamp: Stamp | None) -> Report | None:
        """Return the report of *folder*, whose file had *stamp* a moment ago.

        ``None`` for no file.
        """
        if stamp is None:
            return None
        return self._kept.get(folder.report_path, (stamp,), lambda: read_report(folder))


class Link(NamedTuple):
    """Holds a command, address or folder that leads to a run.

    Attributes:
        label: Name of the exporter; with ``upload`` for a command that uploads the run.
        text: The command, address or folder.
    """

    label: str
    text: str


def view_links(report: Report) -> list[Link]:
    """Return what shows the run in each exporter, and what uploads it.

    Nothing of exporters without either.

    An exporter that is no longer named keeps its last link.
    """
    links: list[Link] = []
    for name, exporter in {**report.former, **report.exporters}.items():
        # A command finds nothing in a tracker that was named after all records had been deleted.
        if exporter.url or exporter.rows or exporter.rollouts or not exporter.missed:
            links += links_of(
                name, view=exporter.view, url=exporter.url, upload=exporter.upload
            )
    return links


def links_of(
    name: str, *, view: str, url: str | None = None, upload: str = ""
) -> list[Link]:
    """Return the links of one exporter; an empty text gives none.

    Args:
        name: The exporter.
        view: Command, address or folder that shows the run.
        url: Address of the run, in place of another address; after the command that serves it,
            as the *page* of the exporter.
        upload: Command that uploads the run.
    """
    is_address = "://" in view.partition(" ")[0]
    served_first = bool(view) and not is_address
    links = [
        Link(name, "" if url and is_address else view),
        Link(f"{name} page" if served_first else name, url or ""),
        Link(f"{name} upload", upload),
    ]
    runnable_links: list[Link] = []
    for label, text in links:
        if text:
            runnable_links.append(Link(label, runnable(text)))
    return runnable_links


# The part of a run folder's segments that its bridge has not read yet. Read-only: a bridge may
# serve the run meanwhile.


def unread_bytes(segments: Iterable[SegmentFile], report: Report | None) -> int:
    """Return the bytes of a run's *segments* after the offsets that *report* names.

    Segments of a process that the report does not name yet count whole.

    Commands show with it what a run without a bridge still has to deliver.

    Args:
        segments: All segments of the run folder.
        report: The folder's last report; ``None`` when nothing was read yet.
    """
    processes = {} if report is None else report.processes
    total = 0
    for file in segments:
        process = processes.get(file.instance_id)
        if process is None or file.number > process.segment:
            total += file.size_bytes
        elif file.number == process.segment:
            total += max(file.size_bytes - process.offset, 0)
    return total


# Reads the end of a bridge's log: why a run is not delivered, in the bridge's own words.

NOT_SERVED = " ends, the run is not served: "
"""Text before the reason in the last line of a bridge that could not serve its run."""
_LOG_END_BYTES = 64 << 10


def last_line(log: Path) -> str:
    """Return the last line of the log at *log* with the log's path, or the reason why there is none."""
    try:
        return end_of_log(log) or f"{log} is empty; was its process killed?"
    except OSError as exc:
        return f"{log}: {exc.strerror}"


def end_of_log(log: Path) -> str:
    """Return the last line of the log at *log* with the log's path; empty when nothing was written.

    Raises:
        OSError: The log is missing, or cannot be read.
    """
    with open(open_regular(log), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _LOG_END_BYTES, 0))
        lines = (
            file.read(_LOG_END_BYTES).decode("utf-8", "replace").strip().splitlines()
        )
    if lines:
        return f"{shown(lines[-1].strip())} (the end of {log})"
    return ""


def reason_of_end(log: Path) -> str:
    """Return the reason that the bridge gave in its log at *log* for not serving its run.

    Empty without one, and for a log that cannot be read.
    """
    with contextlib.suppress(OSError):
        return end_of_log(log).partition(NOT_SERVED)[2]
    return ""
