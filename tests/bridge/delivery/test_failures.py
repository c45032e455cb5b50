"""Delivery, step by step and without a thread: records that a tracker refuses, trackers that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from otel_bridge.errors import (
    BlockedError,
    MissingExtraError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import Exporter
from otel_bridge.records import Json, Record, Status
from support.bridge.bridge_doubles import until
from support.bridge.bridge_file_tracker import Nowhere
from support.bridge.delivery_bench import Bench, Tracker, config, end, rollout, row

OPENED = ("open", (False,))


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
    bench.ledger.commit(
        [row(1), row(2), row(3), rollout(4), rollout(5), row(6), row(7)]
    )

    bench.run()

    lost = [] if error is RetryableError else [bad]
    assert sorted(set(bench.tracker.kept)) == [
        position for position in range(1, 8) if position not in lost
    ]
    assert [position for position, _ in bench.dead()] == lost
    assert (bench.delivery.exporter_state.written, bench.destination.dead_letters) == (
        7,
        len(lost),
    )
    assert bench.destination.rows + bench.destination.rollouts == 7 - len(lost)


def test_a_permanent_error_that_names_no_record_is_narrowed_down_by_halves(
    tmp_path: Path,
) -> None:
    refused = {13, 14, 700}
    tracker = Tracker(
        fails=lambda records: (
            PermanentError("no") if refused & {r.position for r in records} else None
        )
    )
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 1201)])

    bench.run()

    assert [position for position, _ in bench.dead()] == sorted(refused)
    assert tracker.kept == [
        position for position in range(1, 1201) if position not in refused
    ]


@pytest.mark.parametrize("named", [0, 3, 99])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_permanent_error_that_names_no_record_of_the_call_costs_only_the_bad_one(
    tmp_path: Path, named: int, ordered: bool
) -> None:
    tracker = Tracker(
        ordered=ordered,
        fails=lambda records: (
            PermanentError("no", position=named)
            if 6 in {record.position for record in records}
            else None
        ),
    )
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit(
        [row(1), row(2), rollout(3), row(4), row(5), row(6), row(7), row(8)]
    )

    bench.run()

    assert bench.dead() == [(6, "no")]


def test_a_writer_that_fails_at_every_record_blocks_instead_of_refusing_everything_for_good(
    tmp_path: Path,
) -> None:
    bench = Bench(
        tmp_path, Tracker(fails=lambda records: AttributeError("run has no log"))
    )
    bench.ledger.commit([row(number) for number in range(1, 101)])

    bench.run()

    assert (bench.delivery.exporter_state.state, len(bench.dead())) == ("blocked", 3)
    assert "run has no log" in bench.delivery.exporter_state.reason


@pytest.mark.parametrize(
    ("reason", "text"), [("no key", "no key"), ("no \x1b[1mkey", r"no \x1b[1mkey")]
)
def test_blocked_is_said_once_and_nothing_is_lost(
    tmp_path: Path, reason: str, text: str
) -> None:
    error: list[Exception | None] = [BlockedError(reason, help="wandb login")]
    bench = Bench(tmp_path, Tracker(opens=lambda: error[0]))
    bench.ledger.commit([row(1)])

    waits = [bench.delivery.step() for _ in range(3)]
    error[0] = None
    bench.run()

    assert (waits, bench.lines) == (
        [60.0] * 3,
        [f"memory is blocked: {text}; wandb login"],
    )
    assert (
        bench.tracker.kept,
        bench.delivery.exporter_state.state,
        bench.delivery.exporter_state.reason,
    ) == (
        [1],
        "idle",
        "",
    )


def test_backing_off_waits_longer_each_time_and_as_long_as_the_tracker_asks(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker(fails=lambda records: RetryableError("busy")))
    bench.ledger.commit([row(1)])

    waits = [bench.delivery.step() or 0.0 for _ in range(12)]
    bench.tracker.fails = lambda records: RetryableError("slow down", retry_after_s=90)
    asked = max(bench.delivery.step() or 0.0 for _ in range(2))
    requested_s = bench.delivery.requested_wait_s
    bench.tracker.fails = lambda records: None
    bench.run()

    assert all(0.05 * 2**n <= wait <= 0.1 * 2**n for n, wait in enumerate(waits[:8]))
    assert all(15.0 <= wait <= 30.0 for wait in waits[-3:])
    assert (asked, requested_s, bench.delivery.requested_wait_s) == (90, 90.0, 0.0)


def test_a_writer_that_keeps_failing_is_opened_anew(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path, Tracker(fails=lambda records: RetryableError("the session is dead"))
    )
    bench.ledger.commit([row(1)])

    for _ in range(6):
        bench.delivery.step()

    assert [kind for kind, _ in bench.tracker.calls].count("open") > 1


def test_what_was_lost_behind_the_last_row_is_written_again_though_no_row_follows(
    tmp_path: Path,
) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), row(2), row(3)])
    tracker.loses = lambda: BlockedError("403") if tracker.kept else None
    bench.run()
    blocked = bench.delivery.exporter_state

    tracker.loses, tracker.holds = lambda: None, 1
    bench.delivery.step()
    bench.delivery.step()
    bench.run()

    assert (blocked.state, blocked.written, blocked.durable) == ("blocked", 0, 0)
    assert tracker.calls == [
        ("open", (False,)), ("rows", (1, 2, 3)), ("close", ()), ("open", (False,)), ("rows", (2, 3)),
    ]  # fmt: skip
    assert (bench.destination.rows, bench.delivery.exporter_state.state) == (3, "idle")


@pytest.mark.parametrize(
    ("error", "written"), [(RetryableError("finish timed out"), 0), (None, 2)]
)
def test_what_is_in_doubt_when_closing_fails_is_not_said_to_be_written(
    tmp_path: Path, error: Exception | None, written: int
) -> None:
    bench = Bench(tmp_path, Tracker(holds=0, closes=lambda: error))
    bench.ledger.commit([row(1), row(2)])
    bench.run()

    bench.delivery.close()

    (at,) = bench.ledger.view().destinations()
    assert (bench.delivery.exporter_state.written, at.written, at.durable) == (
        written,
        written,
        0,
    )


def test_an_upload_that_stands_still_is_opened_anew_though_no_row_follows_and_is_not_idle_till_then(
    tmp_path: Path,
) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), row(2)])
    tracker.loses = lambda: (
        RetryableError("2 lines did not arrive") if tracker.kept else None
    )
    while bench.delivery.exporter_state.state != "retrying":
        bench.delivery.step()

    states: list[str] = []
    while ("close", ()) not in tracker.calls and len(states) < 10:
        bench.delivery.step()
        states.append(bench.delivery.exporter_state.state)
    tracker.loses = lambda: None
    bench.run()

    assert states == ["retrying"] * 3
    assert [call for call in tracker.calls if call[0] == "rows"] == [
        ("rows", (1, 2))
    ] * 2


def test_a_run_whose_end_keeps_failing_is_opened_anew(tmp_path: Path) -> None:
    tracker = Tracker()
    tracker.ends = lambda: (
        RetryableError("closed; open another one")
        if tracker.calls.count(OPENED) < 2
        else None
    )
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), end()])

    for _ in range(12):
        bench.delivery.step()

    assert tracker.calls == [
        OPENED, ("rows", (1,)), *[("end", ("finished",))] * 4, ("close", ()),
        OPENED, ("end", ("finished",)), ("close", ()),
    ]  # fmt: skip
    assert bench.delivery.exporter_state.state == "ended"


def test_a_package_that_is_missing_blocks_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    message = "exporter 'wandb' needs wandb: pip install 'otel-bridge[wandb]'"

    def missing() -> tuple[Exporter, Nowhere]:
        raise MissingExtraError(message)

    bench.begin(missing)

    assert bench.delivery.step() == 60.0
    assert (
        bench.delivery.exporter_state.reason,
        bench.delivery.exporter_state.help,
    ) == (
        message,
        "pip install 'otel-bridge[wandb]'",
    )


def test_a_record_that_cannot_be_read_from_the_ledger_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2), row(3)])
    with bench.ledger.database.transaction() as sql:
        sql.execute("UPDATE records SET data = x'00' WHERE position = 2")

    bench.run()

    assert (bench.tracker.kept, [position for position, _ in bench.dead()]) == (
        [1, 3],
        [2],
    )


def test_a_record_that_every_new_writer_is_given_again_and_refuses_is_one_dead_letter(
    tmp_path: Path,
) -> None:
    def fails(records: Sequence[Record]) -> Exception | None:
        refused = [record.position for record in records if record.position == 2]
        return PermanentError("too odd", position=2) if refused else None

    bench = Bench(tmp_path, Tracker(holds=0, fails=fails))  # as W&B offline
    bench.ledger.commit([row(1), row(2), row(3)])
    bench.run()

    bench.delivery.close()
    bench.begin()
    bench.ledger.commit([row(4)])
    bench.run()

    assert bench.tracker.kept == [1, 3, 1, 3, 4]
    assert bench.dead() == [(2, "too odd")]
    assert (
        bench.destination.dead_letters,
        bench.delivery.exporter_state.dead_letters,
    ) == (1, 1)


def test_a_dead_letter_is_tried_again_without_its_position_and_refused_again_has_it(
    tmp_path: Path,
) -> None:
    refuses = [True]

    def fails(records: Sequence[Record]) -> Exception | None:
        for record in records:
            if record.id == "m:i:2" and refuses[0]:
                return PermanentError("odd", position=record.position)
        return None

    bench = Bench(tmp_path, Tracker(fails=fails))
    bench.ledger.commit([row(1), row(2), row(3)])
    bench.run()

    bench.delivery.requests.retry_dead_letters([1])
    bench.run()
    refused_again = bench.dead(), bench.destination.dead_letters
    refuses[0] = False
    bench.delivery.requests.retry_dead_letters([2])
    bench.run()

    assert refused_again == ([(2, "odd")], 1)
    assert bench.tracker.kept == [1, 3, 0]
    assert (bench.dead(), bench.destination.dead_letters, bench.destination.rows) == (
        [],
        0,
        3,
    )
    assert bench.destination.written == bench.destination.durable == 3


@pytest.mark.parametrize("refuses_again", [False, True])
def test_a_retry_through_a_writer_that_gets_all_records_again_doubles_and_skips_none(
    tmp_path: Path, refuses_again: bool
) -> None:
    refuses = [True]

    def fails(records: Sequence[Record]) -> Exception | None:
        positions = [record.position for record in records if record.id == "m:i:2"]
        if positions and refuses[0]:
            return PermanentError("odd", position=positions[0])
        return None

    # As W&B offline, whose new writer writes the whole directory anew.
    bench = Bench(tmp_path, Tracker(holds=0, fails=fails))
    bench.ledger.commit([row(1), row(2), row(3), end(4)])
    bench.run()
    bench.tracker.kept.clear()
    bench.tracker.calls.clear()

    refuses[0] = refuses_again
    bench.begin()
    bench.delivery.requests.retry_dead_letters([1])
    bench.run()

    assert bench.tracker.kept == ([1, 3] if refuses_again else [1, 2, 3])
    assert bench.dead() == ([(2, "odd")] if refuses_again else [])
    assert bench.tracker.calls[-2:] == [("end", ("finished",)), ("close", ())]
    assert bench.destination.written == 4
    assert bench.delivery.dead_letters_waiting() == 0


def test_a_record_that_cannot_be_read_is_one_dead_letter_however_often_its_batch_is_read(
    tmp_path: Path,
) -> None:
    error: list[Exception | None] = [BlockedError("no login")]
    bench = Bench(tmp_path, Tracker(opens=lambda: error[0]))
    bench.ledger.commit([row(1), row(2), row(3)])
    with bench.ledger.database.transaction() as sql:
        sql.execute("UPDATE records SET data = x'00' WHERE position = 2")

    for _ in range(3):
        bench.delivery.step()
    bench.delivery.close()
    error[0] = None
    bench.begin()
    bench.run()

    assert [position for position, _ in bench.dead()] == [2]
    assert (bench.destination.dead_letters, bench.tracker.kept) == (1, [1, 3])


class _RefusesConfigs(Tracker):
    """A tracker that refuses every config while `refuses`."""

    refuses = True

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        super().write_config(role, config)
        if self.refuses:
            raise PermanentError("too many parameters")


def test_a_config_that_is_refused_when_the_run_is_opened_is_a_dead_letter_and_the_rows_follow(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, _RefusesConfigs())
    bench.ledger.commit([config(1), row(2)], [("config/t", b'{"lr":1}')])

    bench.run()

    assert bench.dead() == [(1, "too many parameters")]
    assert bench.tracker.calls == [
        ("open", (False,)),
        ("config", ("t", {"lr": 1})),
        ("rows", (2,)),
    ]


def test_a_config_whose_retry_is_refused_when_the_run_is_opened_stays_a_dead_letter(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, _RefusesConfigs())
    bench.ledger.commit([config(1), row(2)], [("config/t", b'{"lr":1}')])
    bench.run()
    bench.ledger.commit([end(3)])
    bench.run()

    bench.delivery.requests.retry_dead_letters([1])
    bench.run()

    assert bench.dead() == [(1, "too many parameters")]
    assert bench.destination.dead_letters == 1


def test_a_config_that_was_refused_after_the_opening_is_given_again_to_the_same_writer(
    tmp_path: Path,
) -> None:
    tracker = _RefusesConfigs()
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1)])
    bench.run()
    bench.ledger.commit([config(2)], [("config/t", b'{"lr":2}')])
    bench.run()
    tracker.refuses = False

    bench.delivery.requests.retry_dead_letters([1])
    bench.run()

    assert tracker.calls[-2:] == [("config", ("t", {"lr": 2}))] * 2
    assert bench.dead() == []


def test_a_run_that_a_retried_dead_letter_reopened_is_ended_by_the_next_bridge(
    tmp_path: Path,
) -> None:
    error: list[Exception] = [PermanentError("no", position=1)]
    bench = Bench(tmp_path, Tracker(fails=lambda records: error[0]))
    for record in (row(1), end(2)):
        bench.ledger.commit([record])
        bench.run()
    error[0] = RetryableError("the server restarts")
    bench.delivery.requests.retry_dead_letters([1])
    bench.delivery.step()
    bench.delivery.close()
    bench.tracker.calls.clear()

    bench.begin()
    begun = bench.delivery.exporter_state
    bench.run()

    assert (begun.is_done(2), bench.delivery.exporter_state.is_done(2)) == (False, True)
    assert bench.tracker.calls == [
        ("open", (False,)),
        ("end", ("finished",)),
        ("close", ()),
    ]
    assert (bench.destination.ended, bench.delivery.dead_letters_waiting()) == (2, 0)


def test_a_run_that_goes_on_while_a_dead_letter_is_retried_ends_with_its_own_end(
    tmp_path: Path,
) -> None:
    error: list[Exception | None] = [PermanentError("no", position=1)]
    bench = Bench(tmp_path, Tracker(fails=lambda records: error[0]))
    for record in (row(1), end(2)):
        bench.ledger.commit([record])
        bench.run()
    error[0] = None
    bench.delivery.requests.retry_dead_letters([1])
    bench.delivery.step()
    bench.ledger.commit([row(3)])
    bench.run()
    ended_early = bench.destination.ended
    bench.ledger.commit([end(4, Status.FAILED)])

    bench.run()

    assert (ended_early, bench.destination.ended) == (0, 4)
    assert [call for call in bench.tracker.calls if call[0] == "end"] == [
        ("end", ("finished",)),
        ("end", ("failed",)),
    ]


def test_a_tracker_that_exits_while_its_writer_is_closed_ends_no_thread(
    tmp_path: Path,
) -> None:
    exits = [True]

    def exit_once() -> Exception | None:
        if exits[0] and bench.tracker.kept:
            raise SystemExit("the service process is gone")
        return None

    def closes() -> Exception | None:
        was_exiting, exits[0] = exits[0], False
        if was_exiting:
            raise SystemExit("the service process is gone")
        return None

    bench = Bench(tmp_path, Tracker(holds=0, loses=exit_once, closes=closes))
    bench.ledger.commit([row(1)])
    worker = bench.delivery

    worker.start()
    until(lambda: not exits[0])
    bench.ledger.commit([row(2)])

    until(lambda: worker.notify(retry=True) or worker.exporter_state.written == 2)
    worker.stop()
    assert worker.join(5)


def test_a_writer_is_closed_at_the_stop_although_its_tracker_exits_when_asked(
    tmp_path: Path,
) -> None:
    exits = [False]

    def loses() -> Exception | None:
        if exits[0]:
            raise SystemExit("the service process is gone")
        return None

    bench = Bench(tmp_path, Tracker(holds=0, loses=loses))
    bench.ledger.commit([row(1)])
    bench.run()
    exits[0] = True

    bench.delivery.close()

    assert bench.tracker.calls[-1] == ("close", ())


@pytest.mark.parametrize("fails_first", ["open", "write"])
def test_errors_of_a_tracker_that_is_away_make_no_dead_letter_of_a_record_that_fails_once(
    tmp_path: Path, fails_first: str
) -> None:
    opens: list[Exception] = []
    writes: list[Exception] = [ConnectionError("reset")]
    if fails_first == "open":
        opens += [ConnectionError("no route")] * 6
    else:
        for _ in range(6):
            writes += [RetryableError("503"), ConnectionError("reset")]
    bench = Bench(
        tmp_path,
        Tracker(
            opens=lambda: opens.pop() if opens else None,
            fails=lambda records: writes.pop() if writes else None,
        ),
    )
    bench.ledger.commit([row(1)])

    bench.run()

    assert (bench.dead(), bench.tracker.kept) == ([], [1])
