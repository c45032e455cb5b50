"""``report.json``: what the bridge has read, written and dropped, one moment of the ledger.

Replaced by rename; read by ``init``, ``flush``, ``finish`` and ``status``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import put_file

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder


@dataclass(slots=True)
class BridgeReport:
    """The process that wrote the report."""

    pid: int = 0
    host: str = ""
    boot_id: str = ""


@dataclass(slots=True)
class ProcessReport:
    """How far one process's segments were read.

    Attributes:
        segment: Number of the segment read last.
        offset: Offset in it behind the last frame read.
        forwarded_segment: The same for what ``otlp`` has forwarded.
        forwarded_offset: Offset in that segment.
        role: Who speaks in it.
        alive: It may say more.
        bridge: It is the bridge's own, which speaks for others; it is not counted.
    """

    segment: int = 0
    offset: int = 0
    forwarded_segment: int = 0
    forwarded_offset: int = 0
    role: str | None = None
    alive: bool = True
    bridge: bool = False


@dataclass(slots=True)
class ExporterReport:
    """How far one exporter is.

    Attributes:
        written: Last position that the tracker took.
        safe: Last position that its store holds.
        state: ``idle``, ``writing``, ``retrying``, ``blocked`` or ``ended``.
        reason: Why it retries or is blocked, one line.
        help: The command or step that mends it.
        destination: The variables that say where it delivers.
        view: Command or address that shows the run.
        tracker_run_id: The tracker's own id of the run, once its writer has said it.
        missed: Records that were deleted before this exporter was first named: it never gets them.
        found: What the tracker already held of the run when this bridge first opened it, one line.
        rows_per_s: Rows written in a second, over the last half minute.
        put_off: Values of what is written that the tracker gets when no record waits: MLflow's assessments.
    """

    written: int = 0
    safe: int = 0
    state: str = "idle"
    reason: str = ""
    help: str = ""
    url: str | None = None
    rows: int = 0
    rollouts: int = 0
    dead_letters: int = 0
    destination: dict[str, str] = field(default_factory=dict[str, str])
    view: str = ""
    tracker_run_id: str | None = None
    missed: int = 0
    found: str = ""
    rows_per_s: float = 0.0
    put_off: int = 0


@dataclass(slots=True)
class Report:
    """One moment of a run's bridge.

    Attributes:
        position: Last position given.
        former: Exporters that are no longer named, as they were last; what the run's address there was stays known.
        drops: Reason to count.
        missing_rows: Rows that the sequence numbers say are missing.
        steps: Axis to the last step.
        rows_by_axis: Axis to the rows so far; those without a step under an empty one.
        row_times: Axis to the time of its last row, in ns.
        rows_per_s: Rows read in a second, over the last half minute.
        waiting: ``rows``, ``traces`` and ``rollouts`` that wait for their rest or their step.
        status: ``running``, ``finished``, ``failed`` or ``killed``.
        ended: Everything of the run is delivered and ended in every tracker.
        launcher: The bridge is ``otel-bridge run``.
    """

    time_unix_ns: int = 0
    project: str = ""
    name: str = ""
    bridge: BridgeReport = field(default_factory=BridgeReport)
    processes: dict[str, ProcessReport] = field(default_factory=dict[str, ProcessReport])
    position: int = 0
    exporters: dict[str, ExporterReport] = field(default_factory=dict[str, ExporterReport])
    former: dict[str, ExporterReport] = field(default_factory=dict[str, ExporterReport])
    drops: dict[str, int] = field(default_factory=dict[str, int])
    missing_rows: int = 0
    steps: dict[str, int] = field(default_factory=dict[str, int])
    rows_by_axis: dict[str, int] = field(default_factory=dict[str, int])
    row_times: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    rows_per_s: float = 0.0
    rollouts: int = 0
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    status: str = "running"
    ended: bool = False
    launcher: bool = False


def write_report(folder: RunFolder, report: Report) -> None:
    """Replace the report of *folder*, 0600.

    Raises:
        JournalError: It cannot be written; the last one stands.
    """
    try:
        put_file(folder.report_path, orjson.dumps(report))
    except OSError as exc:
        raise JournalError(f"{folder.report_path} cannot be written: {exc.strerror}; is the disk full?") from exc


def read_report(folder: RunFolder) -> Report | None:
    """Return the last report; ``None`` when there is none or it cannot be understood."""
    try:
        raw: object = orjson.loads(folder.report_path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return report_from(raw)


def report_from(raw: object) -> Report | None:
    """Return the report that JSON says; ``None`` when it cannot be understood."""
    try:
        return _report(_table(raw))
    except TypeError:
        return None


_T = TypeVar("_T", BridgeReport, ProcessReport, ExporterReport, Report)


def _report(raw: Mapping[str, object]) -> Report:
    nested = {"bridge", "processes", "exporters", "former"}
    report = _filled(Report, {name: value for name, value in raw.items() if name not in nested})
    report.bridge = _filled(BridgeReport, _table(raw.get("bridge", {})))
    report.processes = {
        name: _filled(ProcessReport, _table(value)) for name, value in _table(raw.get("processes", {})).items()
    }
    report.exporters, report.former = _exporters(raw.get("exporters", {})), _exporters(raw.get("former", {}))
    return report


def _exporters(raw: object) -> dict[str, ExporterReport]:
    return {name: _filled(ExporterReport, _table(value)) for name, value in _table(raw).items()}


def _filled(kind: type[_T], raw: Mapping[str, object]) -> _T:
    """Make a *kind* of *raw*: fields unknown here are passed over, missing ones keep their default.

    Raises:
        TypeError: A value has another type than its field.
    """
    filled = kind()
    for name in filled.__dataclass_fields__:
        if name in raw:
            if not _fits(raw[name], getattr(filled, name)):
                raise TypeError(f"{name}={raw[name]!r}")
            setattr(filled, name, raw[name])
    return filled


def _fits(value: object, default: object) -> bool:
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, dict):
        return isinstance(value, dict)
    return type(value) is type(default)


def _table(raw: object) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, got {type(raw).__name__}")
    return cast("dict[str, object]", raw)
