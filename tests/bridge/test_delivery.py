"""Delivery, step by step and without a thread: every outcome, at every place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from bridge_file_tracker import Nowhere

from otel_bridge.bridge.delivery import Delivery
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.run_info import RunDescription
from otel_bridge.errors import BlockedError, MissingExtraError, PermanentError, RetryableError
from otel_bridge.exporter import Exporter, Memory, RunInfo
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Config, End, Json, LateValue, Record, Rollout, Row, Status


@dataclass
class Tracker:
    """Keeps what it is given; fails where it is told to."""

    ordered: bool = True
    holds: int | None = None
    """What `safe` answers; ``None``: it cannot tell."""
    fails: Callable[[Sequence[Record]], Exception | None] = lambda records: None
    opens: Callable[[], Exception | None] = lambda: None
    calls: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    infos: list[RunInfo] = field(default_factory=list)
    url: str | None = None
    tracker_run_id: str | None = None
    found: str = ""

    @property
    def exporter(self) -> Exporter:
        return Exporter(settings=lambda env, cwd: Nowhere(), ordered=self.ordered, open=self._open)

    def _open(self, run: RunInfo, settings: object, memory: Memory) -> Tracker:
        if (error := self.opens()) is not None:
            raise error
        self.calls.append(("open", (run.reopened,)))
        self.infos.append(run)
        return self

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._write("rows", rows)

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        self._write("rollouts", rollouts)

    def write_late(self, values: Sequence[LateValue]) -> None:
        self._write("late", values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        self.calls.append(("config", (role, config)))

    def safe(self) -> int | None:
        return self.holds

    def end(self, status: Status) -> None:
        self.calls.append(("end", (status.value,)))

    def close(self) -> None:
        self.calls.append(("close", ()))

    def _write(self, kind: str, records: Sequence[Record]) -> None:
        positions = tuple(record.position for record in records)
        error = self.fails(records)
        self.calls.append((kind, positions))
        if error is None:
            self.kept.extend(positions)
            return
        first = getattr(error, "position", None)
        self.kept.extend(position for position in positions if first is not None and position < first)
        raise error


class Bench:
    """A ledger, a tracker and the delivery between them."""

    def __init__(self, path: Path, tracker: Tracker, signals: tuple[str, ...] = ("metrics", "traces")) -> None:
        self.path, self.tracker, self.signals = path, tracker, signals
        self.ledger = Ledger(path / "ledger.sqlite")
        self.lines: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin as a bridge does that was started just now."""
        describe = RunDescription(RunFolder(self.path, "r1"), local=True)
        self.delivery = Delivery(
            "memory",
            self.signals,
            self.ledger,
            resolve=lambda: (self.tracker.exporter, Nowhere()),
            describe=describe,
            say=self.lines.append,
        )

    def run(self, steps: int = 500) -> float | None:
        """Make steps, failures not waited for, until there is nothing to do."""
        for _ in range(steps):
            wait = self.delivery.step()
            if wait is None or self.delivery.progress.state == "blocked" or (wait == 1.0 and not self._failing):
                return wait
        return self.delivery.step()

    @property
    def _failing(self) -> bool:
        return self.delivery.progress.failing_since_s is not None

    def dead(self) -> list[tuple[int, str]]:
        with self.ledger.database.transaction() as sql:
            return list(sql.execute("SELECT position, reason FROM dead_letters ORDER BY position"))


def row(number: int) -> Row:
    return Row(f"m:i:{number}", "t", number, "t/step", number, {"t/loss": 0.5}, {"t/step": number})


def rollout(number: int) -> Rollout:
    return Rollout(f"{number:032x}", "t", "t/rollouts", number, "t/step", 1, 2)


def late(number: int) -> LateValue:
    return LateValue(f"l:i:{number}", f"{number:032x}", "t/rollouts", "reward", 1.0, None, None, "t", 1, "t/step", 1)


def config(value: int) -> Config:
    return Config(f"c:i:{value}", "t", {"lr": value}, 1)


def end(number: int = 1, status: Status = Status.FINISHED) -> End:
    return End(f"e:{number}", status, 1)


def test_an_ordered_tracker_gets_one_kind_a_call_in_the_order_of_the_ledger(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2), rollout(3), row(4), late(5), end()])

    bench.run()

    assert bench.tracker.calls == [
        ("open", (False,)), ("rows", (1, 2)), ("rollouts", (3,)), ("rows", (4,)), ("late", (5,)),
        ("end", ("finished",)), ("close", ()),
    ]  # fmt: skip
    assert (bench.delivery.progress.state, bench.delivery.progress.written) == ("ended", 6)
    assert (bench.delivery.progress.rows, bench.delivery.progress.rollouts) == (3, 1)


def test_a_tracker_without_order_gets_a_window_sorted_by_kind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(ordered=False))
    bench.ledger.commit([row(1), rollout(2), late(3), row(4), rollout(5)])

    bench.run()

    assert bench.tracker.calls == [("open", (False,)), ("rows", (1, 4)), ("rollouts", (2, 5)), ("late", (3,))]


def test_of_a_window_without_order_only_the_calls_that_failed_are_made_again(tmp_path: Path) -> None:
    errors = [RetryableError("busy")]
    tracker = Tracker(
        ordered=False, fails=lambda records: errors.pop() if errors and records[0].position == 2 else None
    )
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), rollout(2), row(3)])

    bench.delivery.step()
    bench.delivery.step()
    written = bench.delivery.progress.written
    bench.run()

    assert (written, bench.delivery.progress.written) == (0, 3)
    assert [call for call in tracker.calls if call[0] != "open"] == [
        ("rows", (1, 3)),
        ("rollouts", (2,)),
        ("rollouts", (2,)),
    ]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("error", [RetryableError, PermanentError, ValueError])
@pytest.mark.parametrize("bad", range(1, 8))
def test_an_error_at_any_record_costs_at_most_that_record(
    tmp_path: Path, bad: int, error: type[Exception], ordered: bool
) -> None:
    left = [1 if error is RetryableError else 10**6]

    def fails(records: Sequence[Record]) -> Exception | None:
        if bad not in {record.position for record in records} or left[0] == 0:
            return None
        left[0] -= 1
        return error("odd") if error is ValueError else error("odd", position=bad)

    bench = Bench(tmp_path, Tracker(ordered=ordered, fails=fails))
    bench.ledger.commit([row(1), row(2), row(3), rollout(4), rollout(5), row(6), row(7)])

    bench.run()

    lost = [] if error is RetryableError else [bad]
    assert sorted(set(bench.tracker.kept)) == [position for position in range(1, 8) if position not in lost]
    assert [position for position, _ in bench.dead()] == lost
    assert (bench.delivery.progress.written, bench.delivery.progress.dead_letters) == (7, len(lost))
    assert bench.delivery.progress.rows + bench.delivery.progress.rollouts == 7 - len(lost)


def test_a_permanent_error_that_names_no_record_is_narrowed_down_by_halves(tmp_path: Path) -> None:
    refused = {13, 14, 700}
    tracker = Tracker(fails=lambda records: PermanentError("no") if refused & {r.position for r in records} else None)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 1201)])

    bench.run()

    assert [position for position, _ in bench.dead()] == sorted(refused)
    assert tracker.kept == [position for position in range(1, 1201) if position not in refused]


def test_a_writer_that_fails_at_every_record_blocks_instead_of_burying_everything(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(fails=lambda records: AttributeError("run has no log")))
    bench.ledger.commit([row(number) for number in range(1, 101)])

    bench.run()

    assert (bench.delivery.progress.state, len(bench.dead())) == ("blocked", 3)
    assert "run has no log" in bench.delivery.progress.reason


def test_blocked_is_said_once_and_nothing_is_lost(tmp_path: Path) -> None:
    error: list[Exception | None] = [BlockedError("no key", help="wandb login")]
    bench = Bench(tmp_path, Tracker(opens=lambda: error[0]))
    bench.ledger.commit([row(1)])

    waits = [bench.delivery.step() for _ in range(3)]
    error[0] = None
    bench.run()

    assert (waits, bench.lines) == ([60.0] * 3, ["memory is blocked: no key; wandb login"])
    assert (bench.tracker.kept, bench.delivery.progress.state, bench.delivery.progress.reason) == ([1], "idle", "")


def test_backing_off_waits_longer_each_time_and_as_long_as_the_tracker_asks(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(fails=lambda records: RetryableError("busy")))
    bench.ledger.commit([row(1)])

    waits = [bench.delivery.step() or 0.0 for _ in range(12)]
    bench.tracker.fails = lambda records: RetryableError("slow down", retry_after_s=90)
    asked = max(bench.delivery.step() or 0.0 for _ in range(2))

    assert all(0.05 * 2**n <= wait <= 0.1 * 2**n for n, wait in enumerate(waits[:8]))
    assert all(15.0 <= wait <= 30.0 for wait in waits[-3:])
    assert (asked, bench.delivery.progress.state) == (90, "retrying")


def test_a_writer_that_keeps_failing_is_opened_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(fails=lambda records: RetryableError("the session is dead")))
    bench.ledger.commit([row(1)])

    for _ in range(6):
        bench.delivery.step()

    assert [kind for kind, _ in bench.tracker.calls].count("open") > 1


def test_a_package_that_is_missing_blocks_with_the_command_that_installs_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    message = "exporter 'wandb' needs wandb: pip install 'otel-bridge[wandb]'"

    def missing() -> tuple[Exporter, Nowhere]:
        raise MissingExtraError(message)

    bench.delivery._resolve = missing

    assert bench.delivery.step() == 60.0
    assert (bench.delivery.progress.reason, bench.delivery.progress.help) == (
        message,
        "pip install 'otel-bridge[wandb]'",
    )


def test_the_run_is_described_before_its_first_record_and_older_configs_are_not_given_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    state = [
        ("run", b'{"id":"r1","project":"gsm8k","name":"ppo","identity":{"rl.wandb.entity":"team"},"tags":["a"]}'),
        ("config/t", b'{"lr":2}'), ("config/", b'{"seed":1}'), ("key/t/loss", b'"t/step"'),
    ]  # fmt: skip
    bench.ledger.commit([config(1), row(2), config(2)], state)
    bench.run()

    bench.ledger.commit([config(3)])
    bench.run()

    info = bench.tracker.infos[0]
    assert bench.tracker.calls == [
        ("open", (False,)), ("config", (None, {"seed": 1})), ("config", ("t", {"lr": 2})), ("rows", (2,)),
        ("config", ("t", {"lr": 3})),
    ]  # fmt: skip
    assert (info.id, info.project, info.name, info.entity, info.tags) == ("r1", "gsm8k", "ppo", "team", ("a",))
    assert (info.keys, info.oldest, info.folder) == ({"t/loss": "t/step"}, 1, tmp_path / "r1")


def test_a_new_bridge_goes_on_where_the_tracker_says(tmp_path: Path) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 11)])
    bench.run()
    tracker.holds = 6  # killed, and the upload of four rows with it
    tracker.calls.clear()

    bench.begin()
    bench.run()

    assert tracker.calls == [("open", (False,)), ("rows", (7, 8, 9, 10))]
    assert (bench.delivery.progress.rows, bench.delivery.progress.written) == (10, 10)


def test_what_a_tracker_holds_beyond_the_note_is_not_sent_again(tmp_path: Path) -> None:
    tracker = Tracker(holds=4)  # written just before a kill, and not noted
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 7)])

    bench.run()

    assert tracker.calls == [("open", (False,)), ("rows", (5, 6))]
    assert (bench.delivery.progress.rows, bench.delivery.progress.written) == (6, 6)


def test_the_trackers_own_id_and_what_it_held_are_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(tracker_run_id="m1", found="it holds 3 rows already"))
    bench.ledger.commit([row(1)])

    bench.run()

    (at,) = bench.ledger.view().destinations()
    assert (at.tracker_run_id, bench.delivery.progress.found) == ("m1", "it holds 3 rows already")
    assert bench.lines == ["memory: it holds 3 rows already"]


def test_what_is_written_counts_as_safe_only_when_the_tracker_says_so(tmp_path: Path) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), row(2), row(3)])

    bench.run()
    before = bench.delivery.progress
    tracker.holds = 3
    bench.delivery.close()

    assert [(item.written, item.safe) for item in (before, bench.delivery.progress)] == [(3, 0), (3, 3)]


def test_what_was_in_doubt_when_the_run_ended_stays_in_doubt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(holds=0))
    bench.ledger.commit([row(1), row(2), end()])

    bench.run()

    assert (bench.delivery.progress.written, bench.delivery.progress.safe) == (3, 0)


def test_a_run_that_ended_is_opened_again_by_later_data_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.ledger.commit([config(2)])
    bench.run()
    bench.tracker.calls.clear()

    bench.ledger.commit([row(4), end(2, Status.FAILED)])
    bench.run()

    assert bench.tracker.calls == [("open", (True,)), ("rows", (4,)), ("end", ("failed",)), ("close", ())]


def test_an_end_of_another_status_reaches_a_run_that_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.tracker.calls.clear()

    bench.ledger.commit([end(2)])
    bench.run()
    bench.ledger.commit([end(3, Status.KILLED)])
    bench.run()

    assert bench.tracker.calls == [("open", (True,)), ("end", ("killed",)), ("close", ())]


def test_a_bridge_that_begins_behind_an_end_opens_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.tracker.calls.clear()

    bench.begin()
    bench.run()

    assert (bench.tracker.calls, bench.delivery.progress.state) == ([], "ended")


def test_an_exporter_of_metrics_gets_no_rollouts_but_all_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(), ("metrics",))
    bench.ledger.commit([rollout(1), row(2), rollout(3), late(4), end()])

    bench.run()

    assert bench.tracker.calls == [
        ("open", (False,)), ("rows", (2,)), ("late", (4,)), ("end", ("finished",)), ("close", ())
    ]  # fmt: skip


def test_room_for_others_is_made_by_taking_what_is_written_for_safe(tmp_path: Path) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 7)])
    bench.run()

    bench.delivery.let_go(4)
    bench.ledger.prune(4)
    tracker.calls.clear()
    bench.ledger.commit([row(7)])
    bench.run()

    # The store holds nothing: what is still there is written anew, and the writer is told that it is not all.
    assert tracker.calls == [("open", (False,)), ("rows", (5, 6, 7))]
    assert tracker.infos[-1].oldest == 5


def test_a_record_that_cannot_be_read_from_the_ledger_is_a_dead_letter(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2), row(3)])
    with bench.ledger.database.transaction() as sql:
        sql.execute("UPDATE records SET data = x'00' WHERE position = 2")
    bench.ledger.recent.close()

    bench.run()

    assert (bench.tracker.kept, [position for position, _ in bench.dead()]) == ([1, 3], [2])


def test_the_destination_is_a_new_one_where_the_place_is_another(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2)])
    bench.run()
    other = Tracker()
    bench.delivery._resolve = lambda: (other.exporter, Nowhere({"PLACE": "b"}))
    bench.begin()
    bench.delivery._resolve = lambda: (other.exporter, replace(Nowhere(), destination={"PLACE": "b"}))

    bench.run()

    assert (other.kept, bench.tracker.kept) == ([1, 2], [1, 2])


@dataclass
class Later(Tracker):
    """Puts one thing off for each row."""

    left: int = 0
    broken: bool = False

    def write_rows(self, rows: Sequence[Row]) -> None:
        super().write_rows(rows)
        self.left += len(rows)

    def catch_up(self) -> bool:
        if self.broken:
            raise RetryableError("down")
        if self.left:
            self.left -= 1
            self.calls.append(("later", ()))
        return not self.left


def names(tracker: Tracker) -> list[str]:
    return [name for name, _ in tracker.calls]


def test_what_was_put_off_is_done_when_no_record_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])

    bench.run()

    assert names(bench.tracker) == ["open", "rows", "later", "later"]
    assert bench.delivery.progress.state == "idle"


def test_a_record_that_comes_meanwhile_goes_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])
    while names(bench.tracker)[-1:] != ["later"]:
        bench.delivery.step()

    bench.ledger.commit([row(3)])
    bench.run()

    assert names(bench.tracker) == ["open", "rows", "later", "rows", "later", "later"]


def test_the_run_ends_behind_it_and_only_then_is_its_end_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])
    bench.ledger.commit([end()])
    while names(bench.tracker)[-1:] != ["later"]:
        bench.delivery.step()
    before = bench.delivery.progress.written

    bench.run()

    assert names(bench.tracker) == ["open", "rows", "later", "later", "end", "close"]
    assert (before, bench.delivery.progress.written) == (2, 3)


def test_an_end_that_a_record_cancels_waits_for_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])
    bench.ledger.commit([end()])
    while names(bench.tracker)[-1:] != ["later"]:
        bench.delivery.step()

    bench.ledger.commit([row(4)])
    bench.run()

    assert names(bench.tracker) == ["open", "rows", "later", "rows", "later", "later"]


def test_while_it_fails_records_go_on_and_it_is_tried_again(tmp_path: Path) -> None:
    tracker = Later(broken=True)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1)])
    while bench.delivery.progress.state != "retrying":
        bench.delivery.step()
    bench.ledger.commit([row(2)])
    bench.delivery.step()
    written = list(tracker.kept)

    tracker.broken = False
    bench.run()

    assert written == [1, 2]
    assert (tracker.left, bench.delivery.progress.state) == (0, "idle")
