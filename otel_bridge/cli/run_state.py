"""A run folder -> what `status` tells of it: the report, who still needs which records, and the space they take.

Read-only, beside a bridge at work. As JSON it is what ``/status`` of a service answers, a table for each run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from otel_bridge import settings
from otel_bridge.bridge.codec import CONFIG, END, LATE, OTHER, ROLLOUT, ROW
from otel_bridge.bridge.database import open_for_reading
from otel_bridge.bridge.tables import Destination
from otel_bridge.bridge.view import View
from otel_bridge.errors import OtelBridgeError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.quota import Quota
from otel_bridge.journal.report import Report, read_report, report_from

_KINDS: Final = (ROW, ROLLOUT, LATE, CONFIG, END, OTHER)


@dataclass(frozen=True, slots=True)
class Held:
    """What one exporter keeps in the run folder.

    Attributes:
        records: Those that its tracker's store is not known to have.
        bytes: The space they take, about; another exporter may hold the same.
        unwritten_unix_ns: Time of the oldest record that it has not written; ``None``: there is none.
    """

    records: int = 0
    bytes: int = 0
    unwritten_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """One run folder at one moment.

    Attributes:
        bridge_alive: Somebody holds its lock.
        report: ``None``: no bridge has read it yet.
        bytes: Part of the folder (``segments``, ``ledger``, ``files``) to its bytes.
        held: By exporter.
        held_since_unix_ns: Time of the oldest record in the ledger; ``None``: it is empty.
    """

    run_id: str
    folder: str
    bridge_alive: bool = False
    report: Report | None = None
    bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    held: Mapping[str, Held] = field(default_factory=dict[str, Held])
    held_since_unix_ns: int | None = None

    @property
    def total_bytes(self) -> int:
        """Everything in the folder."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Room:
    """The space of the directory: what is used, and the limit as it is now, in bytes."""

    used_bytes: int
    limit_bytes: int


def room_of(base: Path, env: Mapping[str, str]) -> Room:
    """Measure the directory of run folders."""
    quota = Quota(base, settings.MAX_BYTES.read(env))
    used_bytes = quota.used_bytes()
    return Room(used_bytes, quota.limit_bytes(used_bytes))


def state_of(folder: RunFolder) -> RunState:
    """Read *folder*; what cannot be read of its ledger is left out."""
    report = read_report(folder)
    sizes = _sizes(folder)
    held: dict[str, Held] = {}
    since_ns: int | None = None
    with contextlib.suppress(OtelBridgeError):  # none yet, or on a shared file system, held by its bridge alone
        view = View(open_for_reading(folder.ledger_path))
        try:
            held, since_ns = _held(view, sizes["ledger"])
        finally:
            view.close()
    if report is not None and OTLP in report.exporters:
        held[OTLP] = _not_forwarded(folder, report)
    return RunState(folder.run_id, str(folder.path), probe(folder.lock_path), report, sizes, held, since_ns)


def run_state_from(raw: object) -> RunState | None:
    """Return the state that JSON says; ``None`` when it cannot be understood."""
    try:
        table = cast("dict[str, object]", raw)
        return RunState(
            run_id=str(table["run_id"]),
            folder=str(table["folder"]),
            bridge_alive=bool(table["bridge_alive"]),
            report=report_from(table["report"]) if table["report"] is not None else None,
            bytes={name: int(size) for name, size in cast("dict[str, int]", table["bytes"]).items()},
            held={
                name: Held(int(one["records"] or 0), int(one["bytes"] or 0), one["unwritten_unix_ns"])
                for name, one in cast("dict[str, dict[str, int | None]]", table["held"]).items()
            },
            held_since_unix_ns=cast("int | None", table["held_since_unix_ns"]),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def lasts_s(states: Iterable[RunState], room: Room, now_unix_ns: int) -> float | None:
    """Return how long the space lasts, in seconds, when it fills on as it did; ``None``: nothing fills it.

    A run that goes on fills it by what its ledger has held since its oldest record there; one that has ended, no more.
    """
    growth = 0.0
    for state in states:
        running = state.report is not None and not state.report.ended and state.report.status == "running"
        if running and state.held_since_unix_ns is not None:
            age_s = max((now_unix_ns - state.held_since_unix_ns) / 1e9, 1.0)
            growth += max((one.bytes for one in state.held.values()), default=0) / age_s
    return max(room.limit_bytes - room.used_bytes, 0) / growth if growth > 0 else None


def _sizes(folder: RunFolder) -> dict[str, int]:
    names = (folder.ledger_path.name, f"{folder.ledger_path.name}-wal", f"{folder.ledger_path.name}-shm")
    ledger = sum(_size(folder.path / name) for name in names)
    segments = sum(segment.size_bytes for segment in folder.segments())
    total = Quota(folder.path, 0).used_bytes()
    return {"segments": segments, "ledger": ledger, "files": max(total - segments - ledger, 0)}


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _held(view: View, ledger_bytes: int) -> tuple[dict[str, Held], int | None]:
    position, _, destinations = view.overview()
    oldest = view.oldest()
    here = position - oldest + 1
    held: dict[str, Held] = {}
    for at in destinations:
        records = position - max(at.safe, oldest - 1)
        share = ledger_bytes * records // here if here > 0 else 0
        held[_label(at)] = Held(records, share, _time_behind(view, at.written) if position > at.written else None)
    return held, _time_behind(view, 0)


def _label(at: Destination) -> str:
    return at.exporter if at.named else f"{at.exporter}, no longer named"


def _time_behind(view: View, position: int) -> int | None:
    records = view.records(position, _KINDS, limit=1, limit_bytes=1).records
    time_unix_ns: object = getattr(records[0], "time_unix_ns", None) if records else None
    if time_unix_ns is None and records:
        time_unix_ns = getattr(records[0], "start_unix_ns", None)
    return time_unix_ns if isinstance(time_unix_ns, int) and time_unix_ns > 0 else None


def _not_forwarded(folder: RunFolder, report: Report) -> Held:
    """Count what ``otlp`` has not sent by the segments behind its places; their times by when the files were begun."""
    left_bytes, oldest_ns = 0, None
    for segment in folder.segments():
        at = report.processes.get(segment.instance_id)
        number, offset = (at.forwarded_segment, at.forwarded_offset) if at is not None else (0, 0)
        rest = segment.size_bytes - (offset if segment.number == number else 0)
        if segment.number >= number and rest > 0:
            left_bytes += rest
            oldest_ns = segment.mtime_ns if oldest_ns is None else min(oldest_ns, segment.mtime_ns)
    otlp = report.exporters[OTLP]
    behind = report.position > otlp.written
    return Held(max(report.position - otlp.written, 0), left_bytes, oldest_ns if behind else None)
