"""The end of a forwarded process may overtake its last rows: it waits for those that it reports."""

from __future__ import annotations

from otel_bridge.records import End, Record, Status
from otel_bridge.translation.processes.lifecycle import MAX_PROCESSES
from support.otlp.otlp_samples import (
    LOGS,
    T0,
    Bench,
    end,
    logs_request,
    metrics_request,
    row,
    source,
    who,
)

FINISHED = Status.FINISHED


def ends(records: list[Record]) -> list[tuple[str, Status, int]]:
    return [
        (record.id, record.status, record.time_unix_ns)
        for record in records
        if isinstance(record, End)
    ]


def test_the_end_of_a_forwarded_process_waits_for_the_rows_it_reports_of() -> None:
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=2)])), LOGS)

    early = bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    rest = bench.request(metrics_request((who(), [row(2, {"loss": 2.0})])))

    assert (ends(early), ends(rest)) == ([], [("e:1", FINISHED, T0)])
    assert [record.id for record in bench.records] == ["m:i1:1", "m:i1:2", "e:1"]


def test_it_waits_no_longer_than_tail_wait_and_what_never_came_is_missing() -> None:
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=2)])), LOGS)
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))

    early = bench.tick(149)
    due = bench.tick(1)

    assert (ends(early), ends(due)) == ([], [("e:1", FINISHED, T0)])
    assert bench.translator.missing_rows() == 1


def test_rows_whose_connection_came_back_long_after_that_of_the_end_stand_before_it_and_in_order() -> (
    None
):
    bench = Bench()
    bench.request(of_rows(1))
    bench.request(logs_request((who(), [end("finished", 1, last_row=6)])), LOGS)
    bench.tick(120)

    for seqs in ((5, 6), (2, 3), (4,)):
        bench.request(of_rows(*seqs))
        bench.tick(3)

    assert [record.id for record in bench.records] == [
        *(f"m:i1:{seq}" for seq in range(1, 7)),
        "e:1",
    ]


def of_rows(*seqs: int) -> bytes:
    return metrics_request((who(), [row(seq, {"loss": float(seq)}) for seq in seqs]))


def test_an_end_that_overtook_a_backlog_waits_as_long_as_rows_keep_coming() -> None:
    bench = Bench()
    bench.request(of_rows(1))
    bench.request(logs_request((who(), [end("finished", 1, last_row=62)])), LOGS)

    for first in range(
        2, 60, 4
    ):  # requests under way together overtake one another, for more than a minute
        bench.tick(2)
        bench.request(of_rows(first + 2, first + 3))
        bench.tick(3)
        bench.request(of_rows(first, first + 1))
    before_last = ends(bench.records)
    bench.request(of_rows(62))

    assert before_last == []
    assert [record.id for record in bench.records] == [
        *(f"m:i1:{seq}" for seq in range(1, 63)),
        "e:1",
    ]


def test_what_an_end_waits_for_outlives_a_kill_and_is_given_up_when_nothing_came_for_tail_wait() -> (
    None
):
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=4)])), LOGS)
    bench.tick(8)
    bench.request(of_rows(1, 3))

    bench.restart()
    gap = bench.tick(10)
    early = bench.tick(139)
    due = bench.tick(1)
    bench.request(of_rows(2))

    assert [[record.id for record in some] for some in (gap, early, due)] == [
        ["m:i1:3"],
        [],
        ["e:1"],
    ]
    assert [record.id for record in bench.records] == [
        "m:i1:1",
        "m:i1:3",
        "e:1",
        "m:i1:2",
    ]
    assert bench.translator.missing_rows() == 1


def test_rows_that_come_again_neither_hold_up_an_end_nor_open_the_run() -> None:
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=2)])), LOGS)
    bench.request(of_rows(1))

    for _ in range(3):
        bench.tick(50)
        bench.request(of_rows(1))

    assert [record.id for record in bench.records] == ["m:i1:1", "e:1"]
    assert bench.translator.status() == "finished"


def test_a_process_whose_last_rows_are_under_way_is_forgotten_after_those_that_are_whole() -> (
    None
):
    bench = Bench()
    bench.request(logs_request((who(), [end("finished", 1, last_row=2)])), LOGS)
    bench.request(of_rows(2))
    for number in range(MAX_PROCESSES):
        each = source(f"e{number}", "explorer")
        bench.open(each)
        bench.logs(each, end("finished", 1))

    forgotten = bench.tick(0)
    bench.request(of_rows(1))

    assert forgotten == []
    assert [record.id for record in bench.records] == ["m:i1:1", "m:i1:2", "e:1"]
