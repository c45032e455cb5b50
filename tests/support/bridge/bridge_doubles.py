"""Processes that emit, and hosts that serve them with a recorder, for the tests of the bridge."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from otel_bridge.bridge.exporter_environment import ExporterEnvironment
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.bridge.ingest.eviction import Fullness
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.measurements import Measurements
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import ConfigError, JournalFullError
from otel_bridge.exporter import Exporter
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import hold_life
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.journal.report import Report, read_report
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.translation.options import OtherTraces, TranslationOptions
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN, T0, end, event, logs, resource, row, who
from support.waiting import HANG_S

WAIT_S = HANG_S
_instances = itertools.count(1)


def run_folder(base: Path, run_id: str = RUN) -> RunFolder:
    folder = RunFolder(base, run_id)
    folder.create()
    return folder


@contextmanager
def measurements(
    folder: RunFolder,
    log_line: Callable[[str], None] = lambda _: None,
    problems_changed: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Measurements, SegmentReader]]:
    """Open what measures for a run, with the reader that counts what it drops."""
    with ExitStack() as opened:
        ledger = opened.enter_context(closing(Ledger(folder.ledger_path)))
        reader = SegmentReader(
            folder,
            ledger,
            TranslationOptions(run_id=folder.run_id),
            other_traces=lambda: OtherTraces.COUNTED,
            log_line=log_line,
        )
        opened.enter_context(closing(reader))
        segment = opened.enter_context(closing(BridgeSegment(folder)))
        measured = Measurements(segment, reader, log_line, problems_changed)
        yield opened.enter_context(closing(measured)), reader


@dataclass
class Process:
    """A process of the run that emits, played by the test's own."""

    folder: RunFolder
    instance: str
    writer: SegmentWriter
    life: RecordLock
    seq: int = 0
    events: int = 0
    time_ns: int | None = None

    @classmethod
    def start(
        cls,
        folder: RunFolder,
        *exporters: str,
        role: str = "trainer",
        signals: tuple[str, ...] = ("metrics", "traces", "logs"),
        by_signal: Mapping[str, tuple[str, ...]] | None = None,
        segment_bytes: int = 8 << 20,
        kind: str = "process",
        **changes: object,
    ) -> Process:
        instance = f"i{next(_instances):04d}"
        host, pid = this_host(), os.getpid()
        named = (
            by_signal if by_signal is not None else dict.fromkeys(signals, exporters)
        )
        attributes = {**who(instance, role), "rl.run.id": folder.run_id}
        header = SegmentHeader(
            instance_id=instance, run_id=folder.run_id, project="gsm8k", run_name="ppo", kind=kind,
            resource=resource(attributes).SerializeToString(), exporters=named, destinations={}, host=host.name,
            boot_id=host.boot_id, pid=pid, start_ticks=start_ticks(pid), created_unix_ns=time.time_ns(), role=role,
        )  # fmt: skip
        header = replace(header, **changes)  # type: ignore[arg-type]
        life = hold_life(folder, instance)
        return cls(
            folder,
            instance,
            SegmentWriter(folder.segments_dir, header, segment_bytes=segment_bytes),
            life,
        )

    def log(self, count: int = 1, *, at_ns: int | None = None, **values: float) -> None:
        """Append *count* rows."""
        for _ in range(count):
            self.seq += 1
            scope = row(
                self.seq, values or {"loss": self.seq / 2}, time_ns=T0 + self.seq
            )
            self.append(Signal.METRICS, scope.SerializeToString(), at_ns)

    def config(self, config: Mapping[str, object]) -> None:
        self._event("rl.run.config", dict(config))

    def flush(self) -> None:
        self.append(Signal.CONTROL, b"")

    def end(self, status: str = "finished") -> None:
        """Say the end and release the sign of life."""
        self.events += 1
        self.append(Signal.LOGS, logs(end(status, self.events, last_row=self.seq)))
        self.die()

    def die(self) -> None:
        """End without a word."""
        self.writer.close()
        self.life.release()

    def append(self, signal: int, payload: bytes, at_ns: int | None = None) -> None:
        self.writer.append(signal, payload, time.time_ns() if at_ns is None else at_ns)

    def _event(self, name: str, body: object) -> None:
        self.events += 1
        self.append(Signal.LOGS, logs(event(name, self.events, body)))

    @property
    def row_ids(self) -> list[str]:
        return [f"m:{self.instance}:{seq}" for seq in range(1, self.seq + 1)]


@dataclass
class Trackers:
    """Exporters by name; an unknown name is a setting that cannot be used."""

    by_name: dict[str, Exporter] = field(default_factory=dict)

    def load(self, name: str) -> Exporter:
        if name not in self.by_name:
            raise ConfigError(f"exporter {name!r} is not known")
        return self.by_name[name]


def options(
    *recorders: tuple[str, RecordingTracker], **changes: object
) -> BridgeOptions:
    """Options that wait for little, with recorders as exporters."""
    trackers = Trackers({name: recorder.exporter for name, recorder in recorders})
    translation = TranslationOptions(
        end_grace_ns=200_000_000,
        row_wait_ns=300_000_000,
        end_of_stream_wait_ns=300_000_000,
        step_watermark_ns=300_000_000,
    )
    made = BridgeOptions(
        ExporterEnvironment({}, Path(), trackers.load),
        translation=translation,
        poll_s=0.01,
        retry_after_exit_s=0.5,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def open_bridge(folder: RunFolder, options: BridgeOptions) -> RunBridge:
    """The bridge of one folder, whose polls the test makes."""
    return RunBridge.open(
        folder,
        options,
        wake=lambda: None,
        log_line=lambda _: None,
        lock=None,
        fullness=Fullness(folder.base, options),
    )


@contextmanager
def serving(
    base: Path, how: BridgeOptions, *, until_done: bool = False
) -> Iterator[BridgeSupervisor]:
    """A host on a thread, stopped at the end."""
    lines: list[str] = []
    host = BridgeSupervisor(base, how, until_done=until_done, log_line=lines.append)
    host.lines = lines  # type: ignore[attr-defined]
    host.start()
    try:
        yield host
    finally:
        host.stop(5.0)


def served(base: Path, how: BridgeOptions) -> BridgeSupervisor:
    """Serve in this thread until nothing is left to do."""
    lines: list[str] = []
    host = BridgeSupervisor(base, how, until_done=True, log_line=lines.append)
    host.lines = lines  # type: ignore[attr-defined]
    host.serve()
    return host


def until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait until *condition* holds: for what other processes and files do, where there is no event to wait for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.005)


def report_when(
    folder: RunFolder, condition: Callable[[Report], bool], timeout_s: float = WAIT_S
) -> Report:
    """Return the first report that fulfils *condition*."""
    found: list[Report] = []

    def seen() -> bool:
        report = read_report(folder)
        if report is not None and condition(report):
            found.append(report)
        return bool(found)

    until(seen, timeout_s)
    return found[0]


def written(recorder: RecordingTracker, run_id: str = RUN) -> list[str]:
    return list(recorder.run(run_id).rows)


def refused(
    owner: object,
    name: str,
    when: Callable[..., bool] = lambda *_: True,
    *,
    times: float = 1,
) -> Callable[[], int]:
    """Let method *name* of *owner* refuse the first *times* calls that are *when*; return how often it did."""
    real, hits = getattr(owner, name), [0]

    def refusing(*args: Any, **named: Any) -> Any:
        if hits[0] < times and when(*args):
            hits[0] += 1
            raise JournalFullError("database or disk is full")
        return real(*args, **named)

    setattr(owner, name, refusing)
    return lambda: hits[0]
