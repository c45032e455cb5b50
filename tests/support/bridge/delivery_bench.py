"""A delivery with a real ledger and a tracker in memory, stepped by hand, without a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge.bridge.delivery.context import DeliveryContext, DeliveryRequests
from otel_bridge.bridge.delivery.delivery import Delivery
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.run_description import RunDescription
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import Exporter, RunInfo, WriterMemory
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import (
    Config,
    End,
    Evaluation,
    Json,
    Record,
    RolloutRecord,
    Row,
    Status,
)
from support.bridge.bridge_file_tracker import Nowhere


@dataclass
class Tracker:
    """Keeps what it is given; fails where it is asked to."""

    ordered: bool = True
    window_records: int = 1_000
    holds: int | None = None
    """What `durable` answers; ``None``: it cannot tell."""
    fails: Callable[[Sequence[Record]], Exception | None] = lambda records: None
    opens: Callable[[], Exception | None] = lambda: None
    loses: Callable[[], Exception | None] = lambda: None
    """What `durable` raises: it turned out that nothing more arrives."""
    ends: Callable[[], Exception | None] = lambda: None
    closes: Callable[[], Exception | None] = lambda: None
    calls: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    infos: list[RunInfo] = field(default_factory=list)
    url: str | None = None
    tracker_run_id: str | None = None
    found: str = ""
    degraded: tuple[str, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    cannot_show: str = ""
    """Why it leaves out each rollout, empty: it takes them."""

    @property
    def exporter(self) -> Exporter:
        return Exporter(
            read_settings=lambda env, cwd: Nowhere(),
            ordered=self.ordered,
            open=self._open,
            window_records=self.window_records,
            requires=("tracker",),
        )

    def _open(self, run: RunInfo, settings: object, memory: WriterMemory) -> Tracker:
        if (error := self.opens()) is not None:
            raise error
        self.calls.append(("open", (run.reopened,)))
        self.infos.append(run)
        self.left_out = Counter()
        return self

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._write("rows", rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._write("rollouts", rollouts)
        self.left_out.update(
            {self.cannot_show: len(rollouts)} if self.cannot_show else {}
        )

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        self._write("late", values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        self.calls.append(("config", (role, config)))

    def durable(self) -> int | None:
        if (error := self.loses()) is not None:
            raise error
        return self.holds

    def end(self, status: Status) -> None:
        self.calls.append(("end", (status.value,)))
        if (error := self.ends()) is not None:
            raise error

    def close(self) -> None:
        self.calls.append(("close", ()))
        if (error := self.closes()) is not None:
            raise error

    def _write(self, kind: str, records: Sequence[Record]) -> None:
        positions = tuple(record.position for record in records)
        error = self.fails(records)
        self.calls.append((kind, positions))
        if error is None:
            self.kept.extend(positions)
            return
        first = getattr(error, "position", None)
        self.kept.extend(
            position for position in positions if first is not None and position < first
        )
        raise error


class Bench:
    """A ledger, a tracker and the delivery between them."""

    def __init__(
        self,
        path: Path,
        tracker: Tracker,
        signals: tuple[str, ...] = ("metrics", "traces"),
    ) -> None:
        self.path, self.tracker, self.signals = path, tracker, signals
        self.ledger = Ledger(path / "ledger.sqlite")
        self.lines: list[str] = []
        self.more_comes = False
        self.begin()

    def begin(
        self, resolve: Callable[[], tuple[Exporter, Nowhere]] | None = None
    ) -> None:
        """Begin as a bridge does that was started just now; *resolve* replaces the tracker's own."""
        describe = RunDescription(RunFolder(self.path, "r1"), local=True)
        context = DeliveryContext(
            "memory",
            self.ledger,
            resolve=resolve or (lambda: (self.tracker.exporter, Nowhere())),
            describe=describe,
            log_line=self.lines.append,
            more_comes=lambda: self.more_comes,
        )
        self.delivery = Delivery(context, DeliveryRequests(self.signals))

    def run(self, steps: int = 500) -> float | None:
        """Make steps, failures not waited for, until there is nothing to do."""
        for _ in range(steps):
            wait = self.delivery.step()
            if (
                wait is None
                or self.delivery.exporter_state.state == "blocked"
                or (wait == 1.0 and not self._failing)
            ):
                return wait
        return self.delivery.step()

    @property
    def destination(self) -> ExporterState:
        """The tracker's row in the ledger."""
        (destination,) = self.ledger.view().destinations()
        return destination

    @property
    def _failing(self) -> bool:
        return self.delivery.exporter_state.failing_since_s is not None

    def dead(self) -> list[tuple[int, str]]:
        with self.ledger.database.transaction() as sql:
            return list(
                sql.execute(
                    "SELECT position, reason FROM dead_letters ORDER BY position"
                )
            )


def row(number: int) -> Row:
    return Row(
        f"m:i:{number}",
        "t",
        number,
        "t/step",
        number,
        {"t/loss": 0.5},
        {"t/step": number},
    )


def rollout(number: int) -> RolloutRecord:
    return RolloutRecord(f"{number:032x}", "t", "t/rollouts", number, "t/step", 1, 2)


def late(number: int) -> Evaluation:
    return Evaluation(
        f"l:i:{number}",
        f"{number:032x}",
        "t/rollouts",
        "reward",
        1.0,
        None,
        None,
        "t",
        1,
        "t/step",
        1,
    )


def config(value: int) -> Config:
    return Config(f"c:i:{value}", "t", {"lr": value}, 1)


def end(number: int = 1, status: Status = Status.FINISHED) -> End:
    return End(f"e:{number}", status, 1)
