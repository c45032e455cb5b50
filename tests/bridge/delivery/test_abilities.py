"""What a tracker's installed version cannot do: named, counted, kept over restarts; what no try can mend is blocked."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.errors import RetryableError
from support.bridge.delivery_bench import Bench, Tracker, rollout, row
from support.media_samples import image, media

TEXT = "Tracker 1 shows spans as text, as a tree from 2"
WHY = "rollouts: Tracker 1 shows none"


def test_what_works_with_less_is_kept_and_logged_once_however_often_the_bridge_begins(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker(degraded=(TEXT,)))
    for number in (1, 2):
        bench.ledger.commit([row(number)])
        bench.run()
        bench.delivery.close()
        bench.begin()

    assert bench.ledger.destination("memory", {}).degraded == [TEXT]
    assert bench.lines == [f"memory: {TEXT}"]


def test_an_ability_that_a_newer_version_brings_is_no_longer_named(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker(degraded=(TEXT,)))
    bench.ledger.commit([row(1)])
    bench.run()
    bench.delivery.close()
    bench.tracker.degraded = ()
    bench.begin()
    bench.ledger.commit([row(2)])
    bench.run()

    assert bench.ledger.destination("memory", {}).degraded == []


def test_what_is_left_out_is_counted_over_the_writers_of_several_bridges(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker(cannot_show=WHY))
    bench.ledger.commit([row(1), rollout(2), rollout(3)])
    bench.run()
    bench.delivery.close()
    bench.begin()
    bench.ledger.commit([rollout(4), row(5), rollout(6)])
    bench.run()

    held = bench.ledger.destination("memory", {})
    assert (held.left_out, held.rollouts, held.written) == ({WHY: 4}, 4, 6)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_left_out_of_a_call_that_is_made_again_is_counted_once(
    tmp_path: Path, ordered: bool
) -> None:
    tracker = Tracker(
        ordered=ordered, cannot_show=WHY, holds=0
    )  # its store has nothing when it is opened again
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([rollout(1), rollout(2), row(3)])
    errors = [RetryableError("down") for _ in range(4)]
    bench.run()
    tracker.fails = lambda records: errors.pop() if errors else None
    bench.ledger.commit([row(4)])
    bench.run(20)

    assert [call for call in tracker.calls if call[0] == "rollouts"] == [
        ("rollouts", (1, 2))
    ] * 2
    assert bench.ledger.destination("memory", {}).left_out == {WHY: 2}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import trackio_of_tomorrow", "cannot be imported: No module named 'trackio_of_tomorrow'"),
        ("from pathlib import Tomorrow", "cannot be imported: cannot import name 'Tomorrow' from 'pathlib'"),
        ("Bench.call_of_tomorrow", "lacks what is called: type object 'Bench' has no attribute 'call_of_tomorrow'"),
        ("Bench(1, 2, tomorrow=3)", "lacks what is called: Bench.__init__() got an unexpected keyword argument"),
    ],
)  # fmt: skip
def test_a_tracker_without_a_call_is_blocked_at_open_and_not_tried_again_for_ever(
    tmp_path: Path, program: str, reason: str
) -> None:
    def opens() -> None:
        exec(program, {"Bench": Bench})

    bench = Bench(tmp_path, Tracker(opens=opens))
    bench.ledger.commit([row(1)])

    bench.run()

    shown = bench.delivery.exporter_state
    assert shown.state == "blocked"
    assert shown.reason.startswith(f"tracker {reason}")
    assert shown.help == "pip install --upgrade tracker"


def test_media_of_a_writer_that_shows_none_are_counted_and_hold_nothing_up(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())

    bench.ledger.commit(
        [row(1), media("one", image(1)), media("two", image(2)), row(4)]
    )
    bench.run()

    held = bench.ledger.destination("memory", {})
    assert (held.written, held.rows, held.left_out) == (
        4,
        2,
        {"media: this exporter shows none": 2},
    )
