"""An exporter whose ledger refuses one note, once, on a full or failing disk: nothing is lost, and all is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from otel_bridge.errors import PermanentError
from support.bridge.bridge_doubles import refused, until
from support.bridge.delivery_bench import Bench, Tracker, end, late, row


def _wrote(position: int) -> Callable[..., bool]:
    return lambda at: at.written == position


def test_a_full_ledger_that_cannot_take_a_dead_letter_loses_nothing_of_its_call(
    tmp_path: Path,
) -> None:
    def fails(records: object) -> Exception | None:
        return (
            PermanentError("no", position=4)
            if any(one.position == 4 for one in records)
            else None
        )  # type: ignore[attr-defined]

    bench = Bench(tmp_path, Tracker(fails=fails))
    wide = {f"t/k{number}": 0.5 for number in range(3000)}
    bench.ledger.commit([replace(row(number), values=wide) for number in range(1, 11)])
    with bench.ledger.database.transaction() as sql:
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count={pages}")
    for _ in range(20):
        bench.delivery.step()
    with bench.ledger.database.transaction() as sql:
        sql.execute("PRAGMA max_page_count=1000000")

    bench.run()

    assert set(bench.tracker.kept) == {1, 2, 3, 5, 6, 7, 8, 9, 10}
    assert bench.dead() == [(4, "no")]
    assert (bench.delivery.exporter_state.written, bench.destination.rows) == (10, 9)


def test_a_writer_that_opened_where_that_could_not_be_noted_is_opened_again(
    tmp_path: Path,
) -> None:
    tracker = Tracker(holds=0)
    bench = Bench(tmp_path, tracker)
    bench.ledger.commit([row(number) for number in range(1, 9)])
    write = tracker._write

    def keeping(kind: str, records: Any) -> None:
        write(kind, records)
        tracker.holds = records[-1].position

    tracker._write = keeping  # type: ignore[method-assign]
    bench.run()
    bench.delivery.close()
    tracker.kept, tracker.holds = tracker.kept[:3], 3  # its store lost what lay behind
    bench.begin()
    bench.ledger.commit([row(9)])
    refusals = refused(bench.ledger, "save", _wrote(3))

    bench.run()

    assert (refusals(), set(tracker.kept)) == (1, set(range(1, 10)))


def test_a_run_whose_opening_could_not_be_noted_is_ended_by_the_next_bridge(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(1)])
    refusals = refused(bench.ledger, "save", lambda at: at.opened)
    bench.run()
    bench.delivery.close()
    bench.begin()
    bench.ledger.commit([late(7), end(1)])

    bench.run()

    assert (refusals(), bench.tracker.calls[-3:]) == (
        1,
        [("late", (2,)), ("end", ("finished",)), ("close", ())],
    )


def test_rows_are_counted_although_it_could_not_be_noted_at_once(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker())
    bench.ledger.commit([row(number) for number in range(1, 101)])
    refusals = refused(bench.ledger, "save", _wrote(100))

    bench.run()

    assert (
        refusals(),
        bench.delivery.exporter_state.written,
        bench.destination.rows,
    ) == (
        1,
        100,
        100,
    )


def test_a_dead_letter_that_was_written_is_written_once_although_that_could_not_be_noted(
    tmp_path: Path,
) -> None:
    bad = [True]

    def fails(records: Any) -> Exception | None:
        refuses = bad[0] and records[0].position == 2
        return PermanentError("no", position=2) if refuses else None

    bench = Bench(tmp_path, Tracker(fails=fails))
    for number in (1, 2, 3):
        bench.ledger.commit([row(number)])
        bench.run()
    bad[0] = False
    before, refusals = (
        len(bench.tracker.calls),
        refused(bench.ledger, "remove_dead_letters"),
    )
    bench.delivery.requests.retry_dead_letters([1])

    bench.run()
    bench.run()

    assert (refusals(), bench.dead(), bench.destination.rows) == (1, [], 3)
    assert [kind for kind, _ in bench.tracker.calls[before:]].count("rows") == 1


def test_the_thread_of_an_exporter_outlives_a_bound_that_could_not_be_noted(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Tracker(holds=0))
    bench.ledger.commit([row(number) for number in range(1, 9)])
    worker = bench.delivery
    worker.start()
    until(lambda: worker.exporter_state.written == 8)
    refusals = refused(bench.ledger, "save", lambda at: at.durable > 0)
    worker.requests.skip_through(4)
    until(lambda: refusals() == 1)
    bench.ledger.commit([row(number) for number in range(9, 12)])

    until(lambda: worker.notify(retry=True) or worker.exporter_state.written == 11)

    worker.stop()
    assert worker.join(5)


def test_a_retried_dead_letter_waits_until_the_run_that_it_reopened_has_ended_again(
    tmp_path: Path,
) -> None:
    bad = [True]

    def fails(records: Any) -> Exception | None:
        return (
            PermanentError("no", position=2)
            if bad[0] and records[0].position == 2
            else None
        )

    bench = Bench(tmp_path, Tracker(fails=fails))
    for record in (row(1), row(2), row(3), end(4)):
        bench.ledger.commit([record])
        bench.run()
    bad[0] = False
    before = len(bench.tracker.calls)
    bench.delivery.requests.retry_dead_letters([1])

    waiting: list[tuple[int, bool]] = []
    while not waiting or waiting[-1][0]:
        bench.delivery.step()
        made = [kind for kind, _ in bench.tracker.calls[before:]]
        waiting.append((bench.delivery.dead_letters_waiting(), "end" in made))

    assert (waiting[-1], bench.dead()) == ((0, True), [])
    assert all(left for left, ended in waiting if not ended)


def test_a_reopened_run_ends_again_although_the_last_dead_letter_cannot_be_retried(
    tmp_path: Path,
) -> None:
    bad = [True]

    def fails(records: Any) -> Exception | None:
        return (
            PermanentError("no", position=2)
            if bad[0] and records[0].position == 2
            else None
        )

    bench = Bench(tmp_path, Tracker(fails=fails))
    for record in (row(1), row(2), row(3), end(4)):
        bench.ledger.commit([record])
        bench.run()
    bad[0] = False
    before, discarded = len(bench.tracker.calls), 99
    bench.delivery.requests.retry_dead_letters([1, discarded])

    bench.run()

    made = [kind for kind, _ in bench.tracker.calls[before:]]
    assert (made, bench.dead(), bench.delivery.dead_letters_waiting()) == (
        ["open", "rows", "end", "close"],
        [],
        0,
    )
