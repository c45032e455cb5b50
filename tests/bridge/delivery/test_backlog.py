"""Delivery, step by step and without a thread: work that a writer puts off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import RetryableError
from otel_bridge.records import Row
from support.bridge.delivery_bench import Bench, Tracker, end, row


@dataclass
class Later(Tracker):
    """Puts one thing off for each row."""

    left: int = 0
    broken: bool = False

    @property
    def backlog(self) -> int:
        return self.left

    def write_rows(self, rows: Sequence[Row]) -> None:
        super().write_rows(rows)
        self.left += len(rows)

    def process_backlog(self) -> bool:
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


def test_how_much_waits_is_noted_in_the_ledger_until_none_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])

    noted = []
    while not noted or noted[-1]:
        bench.delivery.step()
        noted.append(bench.ledger.destination("memory", {}).backlog)

    assert noted == [2, 1, 0]


def test_a_bridge_that_begins_again_does_what_the_last_one_left_without_another_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later())
    bench.ledger.commit([row(1), row(2)])
    while names(bench.tracker)[-1:] != ["later"]:
        bench.delivery.step()
    bench.tracker.calls.clear()

    bench.begin()
    bench.run()

    assert names(bench.tracker) == ["open", "later"]
    assert bench.delivery.progress.state == "idle"


def test_after_a_tracker_was_away_for_long_it_is_done_without_another_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Later(broken=True))
    bench.ledger.commit([row(1)])
    for _ in range(20):
        bench.delivery.step()
    state, closed = bench.delivery.progress.state, "close" in names(bench.tracker)

    bench.tracker.broken = False
    bench.run()

    assert (state, closed) == ("retrying", True)
    assert (bench.tracker.left, bench.delivery.progress.state) == (0, "idle")
