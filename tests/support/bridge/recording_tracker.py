"""A tracker in memory with faults to order: the tests' double of a whole tracker.

`RecordingTracker` keeps what writers write, once per record id, remembers every call, and fails or hangs where a test
ordered it. ``tracker.exporter`` goes wherever an `Exporter` goes, with no entry point::

    tracker = RecordingTracker()
    tracker.fail(RetryableError("down"), position=5, times=2)
    writer = tracker.exporter.open(run, tracker.exporter.read_settings({}, Path()), MemoryTable())

Thread-safe: a delivery thread writes while a test waits with `RecordingTracker.wait_for`.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.records import (
    Alert,
    Distribution,
    Evaluation,
    Json,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge.testing.contents import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_configs,
    scalar_text,
)

WAIT_S = 30.0
_R = TypeVar("_R", Alert, Row, RolloutRecord, Evaluation)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Holds one call of a writer.

    Attributes:
        kind: ``open``, ``rows``, ``rollouts``, ``value``, ``alerts``, ``config``, ``summary``, ``end`` or ``close``.
        positions: Of the records it was given.
        role: Of a config or summary call.
        status: Of an end call.
        error: What it raised, ``None`` when it returned.
    """

    run_id: str
    kind: str
    positions: tuple[Position, ...] = ()
    role: str | None = None
    status: Status | None = None
    error: str | None = None


@dataclass(slots=True)
class RecordedRun:
    """Holds what the recorder has of one run: records by id, in order of first arrival."""

    infos: list[RunInfo] = field(default_factory=list[RunInfo])
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    rollouts: dict[str, RolloutRecord] = field(default_factory=dict[str, RolloutRecord])
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    configs: dict[str | None, Mapping[str, Json]] = field(
        default_factory=dict[str | None, Mapping[str, Json]]
    )
    alerts: dict[str, Alert] = field(default_factory=dict[str, Alert])
    summary: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    status: Status | None = None
    repeated: int = 0
    """Records that came again after they had been written."""


@dataclass(slots=True)
class _InjectedFault:
    error: ExporterError | None
    hang: threading.Event | None
    kind: str | None
    position: Position | None
    times: int | None

    def hits(self, kind: str, positions: Sequence[Position]) -> bool:
        right_kind = self.kind is None or self.kind == kind
        return (
            self.times != 0
            and right_kind
            and (self.position is None or self.position in positions)
        )


class RecordingTracker:
    """Keeps runs in memory, as a tracker does.

    Args:
        ordered: As in `Exporter`.
        reports_durable: Writers report `durable`: the last position written, less *lag* records; else ``None``.
        lag: Records that are written and not yet durable; lost when a writer is opened again, as after a kill.

    Attributes:
        calls: Every call that ended, in order.
        waiting: Calls that hang now.
        runs: What is held, by run id.
    """

    def __init__(
        self, *, ordered: bool = True, reports_durable: bool = False, lag: int = 0
    ) -> None:
        self.reports_durable, self.lag = reports_durable, lag
        self.calls: list[RecordedCall] = []
        self.waiting: list[RecordedCall] = []
        self.runs: dict[str, RecordedRun] = {}
        self.exporter = Exporter(
            read_settings=RecorderSettings.read, ordered=ordered, open=self._open
        )
        self._faults: list[_InjectedFault] = []
        self._changed = threading.Condition(threading.RLock())

    def fail(
        self,
        error: ExporterError,
        *,
        kind: str | None = None,
        position: Position | None = None,
        times: int | None = 1,
    ) -> None:
        """Make calls raise a copy of *error*.

        Args:
            error: What is raised; its own position is kept, else it names *position*.
            kind: Only calls of this kind (see `RecordedCall`); ``None``: of every kind.
            position: Only calls that hold this record; those before it are written first. ``None``: every call.
            times: How often; ``None``: until `heal`.
        """
        with self._changed:
            self._faults.append(_InjectedFault(error, None, kind, position, times))

    def hang(
        self,
        until: threading.Event,
        *,
        kind: str | None = None,
        position: Position | None = None,
    ) -> None:
        """Make the next call of *kind* that holds *position* wait for *until*, then go on."""
        with self._changed:
            self._faults.append(_InjectedFault(None, until, kind, position, 1))

    def heal(self) -> None:
        """Take all faults back."""
        with self._changed:
            self._faults.clear()

    def run(self, run_id: str) -> RecordedRun:
        """Return what is held of a run, empty when it was never opened."""
        with self._changed:
            return self.runs.setdefault(run_id, RecordedRun())

    def contents(self, run_id: str) -> Contents:
        """Return what is held of a run in the shape the contract compares."""
        with self._changed:
            return _contents(self.run(run_id))

    def wait_for(
        self, condition: Callable[[RecordingTracker], bool], timeout_s: float = WAIT_S
    ) -> None:
        """Wait until *condition* holds; it is looked at after every call.

        Raises:
            AssertionError: It did not hold in time; the message names the last calls.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_s):
                raise AssertionError(
                    f"not so within {timeout_s} s; the last calls: {self.calls[-5:]}"
                )

    def _open(
        self, run: RunInfo, _settings: ExporterSettings, _memory: WriterMemory
    ) -> RecordingWriter:
        held = self.run(run.id)
        self.enter(RecordedCall(run.id, "open"))
        with self._changed:
            held.infos.append(run)
            held.status = None
            self._lose_what_was_not_durable(held)
        return RecordingWriter(self, run.id)

    def _lose_what_was_not_durable(self, held: RecordedRun) -> None:
        if not self.reports_durable or not self.lag:
            return
        lost = set(_positions(held)[-self.lag :])
        held.rows = {
            key: record
            for key, record in held.rows.items()
            if record.position not in lost
        }
        held.rollouts = {
            key: record
            for key, record in held.rollouts.items()
            if record.position not in lost
        }
        held.evaluations = {
            key: record
            for key, record in held.evaluations.items()
            if record.position not in lost
        }

    def enter(
        self,
        call: RecordedCall,
        keep: Callable[[Position | None], None] = lambda _: None,
    ) -> None:
        """Note one call, act on the faults it meets, else keep its records: for writers.

        Args:
            call: The call.
            keep: Keeps the records before a position, all for ``None``.
        """
        with self._changed:
            fault = next(
                (
                    fault
                    for fault in self._faults
                    if fault.hits(call.kind, call.positions)
                ),
                None,
            )
            if fault is not None and fault.times is not None:
                fault.times -= 1
        if fault is not None and fault.hang is not None:
            with self._changed:
                self.waiting.append(call)
                self._changed.notify_all()
            fault.hang.wait()
            with self._changed:
                self.waiting.remove(call)
        error = None if fault is None else fault.error
        with self._changed:
            self.calls.append(
                dataclasses.replace(call, error=None if error is None else repr(error))
            )
            if error is None:
                keep(None)
            elif fault is not None and fault.position is not None:
                keep(fault.position)
            self._changed.notify_all()
        if error is not None:
            raise _copy(error, fault.position if fault is not None else None)


class RecordingWriter:
    """Writes to a `RecordingTracker`; made by ``recorder.exporter.open``."""

    def __init__(self, recorder: RecordingTracker, run_id: str) -> None:
        self.url: str | None = f"memory://{run_id}"
        self._recorder = recorder
        self._run_id = run_id

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Keep *rows*; one with a value that is not a number is refused by its position."""
        held = self._recorder.run(self._run_id)
        bad = next(
            (
                n
                for n, row in enumerate(rows)
                if not all(map(_is_value, row.values.values()))
            ),
            None,
        )
        self._write("rows", rows[:bad], held.rows)
        if bad is not None:
            raise PermanentError(
                f"row {rows[bad].id} has a value that is not a number",
                position=rows[bad].position,
            )

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Keep *rollouts*."""
        held = self._recorder.run(self._run_id)
        self._write("rollouts", rollouts, held.rollouts)

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Keep *values*."""
        held = self._recorder.run(self._run_id)
        self._write("evaluations", values, held.evaluations)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Replace the config of *role*."""
        held = self._recorder.run(self._run_id)
        self._recorder.enter(
            RecordedCall(self._run_id, "config", role=role),
            lambda _: held.configs.update({role: config}),
        )

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Keep *alerts*."""
        held = self._recorder.run(self._run_id)
        self._write("alerts", alerts, held.alerts)

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Replace the values of these keys."""
        held = self._recorder.run(self._run_id)
        self._recorder.enter(
            RecordedCall(self._run_id, "summary", role=role),
            lambda _: held.summary.update(values),
        )

    def durable(self) -> Position | None:
        """Return the last position less the lag, ``None`` where the recorder does not tell."""
        if not self._recorder.reports_durable:
            return None
        positions = _positions(self._recorder.run(self._run_id))
        return (
            0
            if len(positions) <= self._recorder.lag
            else positions[-1 - self._recorder.lag]
        )

    def end(self, status: Status) -> None:
        """Note the status."""
        held = self._recorder.run(self._run_id)
        self._recorder.enter(
            RecordedCall(self._run_id, "end", status=status),
            lambda _: setattr(held, "status", status),
        )

    def close(self) -> None:
        """Note the call."""
        self._recorder.enter(RecordedCall(self._run_id, "close"))

    def _write(self, kind: str, records: Sequence[_R], table: dict[str, _R]) -> None:
        held = self._recorder.run(self._run_id)

        def keep(before: Position | None) -> None:
            for record in records:
                if before is not None and record.position >= before:
                    return
                held.repeated += record.id in table
                table.setdefault(record.id, record)

        self._recorder.enter(
            RecordedCall(
                self._run_id, kind, tuple(record.position for record in records)
            ),
            keep,
        )


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Names the recorder's one destination, itself."""

    destination: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, _env: Mapping[str, str], _cwd: Path) -> RecorderSettings:
        """Return the settings; neither the environment nor the working folder matters."""
        return cls()

    def view(self, run: RunInfo) -> str:
        """Return the address of the run."""
        return f"memory://{run.id}"


def _is_value(value: object) -> bool:
    return isinstance(value, int | float | Distribution)


def _positions(held: RecordedRun) -> list[Position]:
    rows = [row.position for row in held.rows.values()]
    rollouts = [rollout.position for rollout in held.rollouts.values()]
    return sorted(
        rows + rollouts + [value.position for value in held.evaluations.values()]
    )


def _copy(error: ExporterError, position: Position | None) -> ExporterError:
    """Return a fresh error (a raised one carries its traceback), naming *position* unless it names one itself."""
    fresh = copy.copy(error)
    fresh.position = position if error.position is None else error.position
    return fresh


def _contents(held: RecordedRun) -> Contents:
    contents = Contents(
        config=flat_configs(held.configs.items()),
        status=held.status,
        alerts=[(one.title, one.level) for one in held.alerts.values()],
        summary={key: scalar_text(value) for key, value in held.summary.items()},
    )
    for row in sorted(
        held.rows.values(), key=lambda row: (row.time_unix_ns, row.position)
    ):
        for key, value in row.values.items():
            if isinstance(value, Distribution):
                contents.distributions.append(
                    HeldDistribution(key, row.step, value.min, value.max, value.count)
                )
            else:
                contents.scalars.append(
                    HeldScalar(key, row.step, value, row.time_unix_ns // 1_000_000)
                )
    for rollout in held.rollouts.values():
        contents.rollouts.append(
            HeldRollout(
                rollout.id, rollout.reward, len(rollout.messages), len(rollout.spans)
            )
        )
    contents.evaluations.extend(
        (value.rollout_id, value.name, value.value)
        for value in held.evaluations.values()
        if value.value is not None
    )
    return contents
