"""Delivery, step by step and without a thread: where it begins, what is safe, how a run ends and is opened again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from otel_bridge.records import Status
from support.bridge.bridge_file_tracker import Nowhere
from support.bridge.delivery_bench import Bench, Tracker, config, end, row


def test_the_run_is_described_before_its_first_record_and_older_configs_are_not_given_again(
    tmp_path: Path,
) -> None:
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
    assert (info.id, info.project, info.name, info.entity, info.tags) == (
        "r1",
        "gsm8k",
        "ppo",
        "team",
        ("a",),
    )
    assert (info.keys, info.oldest, info.folder) == (
        {"t/loss": "t/step"},
        1,
        tmp_path / "r1",
    )


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
    assert (bench.destination.rows, bench.delivery.exporter_state.written) == (10, 10)


def test_a_window_written_whole_just_before_a_stop_is_not_written_again(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(number) for number in range(1, 4)])
    while not bench.tracker.kept:
        bench.delivery.step()
    bench.delivery.close()

    bench.begin()
    bench.run()

    assert bench.tracker.kept == [1, 2, 3]


def test_what_a_tracker_holds_beyond_the_note_is_not_sent_again(tmp_path: Path) -> None:
    tracker = Tracker(holds=4)  # written just before a kill, and not noted
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 7)])

    bench.run()

    assert tracker.calls == [("open", (False,)), ("rows", (5, 6))]
    assert (bench.destination.rows, bench.delivery.exporter_state.written) == (6, 6)


def test_the_trackers_own_id_and_what_it_held_are_reported(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path, Tracker(tracker_run_id="m1", found="it holds 3 rows already")
    )
    bench.ledger.commit([row(1)])

    bench.run()

    (at,) = bench.ledger.view().destinations()
    assert (at.tracker_run_id, bench.delivery.exporter_state.found) == (
        "m1",
        "it holds 3 rows already",
    )
    assert bench.lines == ["memory: it holds 3 rows already"]


def test_what_is_written_counts_as_safe_only_when_the_tracker_says_so(
    tmp_path: Path,
) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(1), row(2), row(3)])

    bench.run()
    before = bench.delivery.exporter_state
    tracker.holds = 3
    bench.delivery.close()

    assert [
        (item.written, item.durable) for item in (before, bench.delivery.exporter_state)
    ] == [
        (3, 0),
        (3, 3),
    ]


def test_what_was_in_doubt_when_the_run_ended_stays_in_doubt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker(holds=0))
    bench.ledger.commit([row(1), row(2), end()])

    bench.run()

    assert (
        bench.delivery.exporter_state.written,
        bench.delivery.exporter_state.durable,
    ) == (3, 0)


def test_a_run_that_ended_is_opened_again_by_later_data_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.ledger.commit([config(2)])
    bench.run()
    bench.tracker.calls.clear()

    bench.ledger.commit([row(4), end(2, Status.FAILED)])
    bench.run()

    assert bench.tracker.calls == [
        ("open", (True,)),
        ("rows", (4,)),
        ("end", ("failed",)),
        ("close", ()),
    ]


def test_an_end_of_another_status_reaches_a_run_that_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.tracker.calls.clear()

    bench.ledger.commit([end(2)])
    bench.run()
    bench.ledger.commit([end(3, Status.KILLED)])
    bench.run()

    assert bench.tracker.calls == [
        ("open", (True,)),
        ("end", ("killed",)),
        ("close", ()),
    ]


def test_a_bridge_that_begins_behind_an_end_opens_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), end(1)])
    bench.run()
    bench.tracker.calls.clear()

    bench.begin()
    bench.run()

    assert (bench.tracker.calls, bench.delivery.exporter_state.state) == ([], "ended")


def test_room_for_others_is_made_by_taking_what_is_written_for_safe(
    tmp_path: Path,
) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 7)])
    bench.run()

    bench.delivery.skip_through(4)
    bench.ledger.prune(4)
    tracker.calls.clear()
    bench.ledger.commit([row(7)])
    bench.run()

    # The store holds nothing: what is still there is written anew, and the writer is notified that it is not all.
    assert tracker.calls == [("open", (False,)), ("rows", (5, 6, 7))]
    assert tracker.infos[-1].oldest == 5


def test_the_destination_is_a_new_one_where_the_place_is_another(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1), row(2)])
    bench.run()
    other = Tracker()
    bench.begin(
        lambda: (other.exporter, replace(Nowhere(), destination={"PLACE": "b"}))
    )

    bench.run()

    assert (other.kept, bench.tracker.kept) == ([1, 2], [1, 2])
