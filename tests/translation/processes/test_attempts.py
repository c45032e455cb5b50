"""Attempts: which start of a role a row belongs to."""

from __future__ import annotations

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge.records import Config, Row
from support.otlp.otlp_samples import (
    T0,
    Bench,
    any_value,
    end,
    metrics_request,
    pairs,
    row,
    source,
    who,
)


def test_attempts_count_the_starts_of_a_role() -> None:
    bench = Bench()

    bench.metrics(source("i1"), *(row(seq, {"loss": 1.0}) for seq in (1, 2, 3)))
    bench.translator.mark_drained(["i1"])
    bench.metrics(
        source("i2"), row(1, {"loss": 1.0}, step=2), row(2, {"loss": 1.0}, step=3)
    )
    bench.metrics(source("i3"), row(1, {"loss": 1.0}, step=4))
    bench.metrics(source("i4", rl_forked=True), row(1, {"loss": 1.0}, step=1))
    bench.metrics(source("i5", rl_attempt=7), row(1, {"loss": 1.0}, step=9))

    rows = [record for record in bench.records if isinstance(record, Row)]
    assert [record.attempt for record in rows] == [1, 1, 1, 2, 2, 2, 2, 7]
    assert [record.values.get("trainer/attempt") for record in rows] == [
        None,
        None,
        None,
        2,
        2,
        2,
        2,
        7,
    ]
    configs = [
        (record.id, record.role, record.config)
        for record in bench.records
        if isinstance(record, Config)
    ]
    assert configs == [
        ("c:otel_bridge:trainer:2", "trainer", {"attempt": 2}),
        ("c:otel_bridge:trainer:7", "trainer", {"attempt": 7}),
    ]
    assert bench.records.index(rows[3]) == 4, (
        "the config stands before the first row of its attempt"
    )


def test_workers_of_one_role_side_by_side_are_one_attempt() -> None:
    bench = Bench()

    for instance in ("i1", "i2", "i3"):
        bench.metrics(source(instance, "explorer"), row(1, {"reward": 1.0}, step=1))
    bench.logs(source("i1", "explorer"), end("failed", 1))
    bench.metrics(source("i4", "explorer"), row(1, {"reward": 1.0}, step=1))

    assert [record.attempt for record in bench.records if isinstance(record, Row)] == [
        1,
        1,
        1,
        1,
    ]


def test_a_worker_whose_first_row_arrives_after_another_has_ended_is_the_same_attempt_when_both_ran_at_once() -> (
    None
):
    bench = Bench()
    fast, slow, again = source("fast"), source("slow"), source("again")
    bench.open(fast, slow)
    bench.metrics(fast, row(1, {"loss": 1.0}), row(2, {"loss": 1.0}))
    bench.tick(1)
    bench.logs(fast, end("finished", 1, time_ns=bench.now_ns))

    bench.metrics(slow, row(1, {"loss": 1.0}))
    bench.tick(1)
    bench.logs(slow, end("finished", 1, time_ns=bench.now_ns))
    bench.tick(1)
    bench.open(again)
    bench.metrics(again, row(1, {"loss": 1.0}))

    assert [record.attempt for record in bench.records if isinstance(record, Row)] == [
        1,
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("status", "steps", "attempt"),
    [
        ("finished", (1, 2), 1),
        ("finished", (2, 2), 1),
        ("finished", (2, 1), 2),
        ("failed", (2, 2), 2),
        ("killed", (2, 2), 2),
    ],
)
def test_a_worker_after_one_that_finished_is_a_restart_only_if_it_goes_back_in_steps(
    status: str, steps: tuple[int, int], attempt: int
) -> None:
    bench = Bench()
    before, after = source("before", "explorer"), source("after", "explorer")
    bench.open(before)
    bench.metrics(before, row(1, {"loss": 1.0}, step=steps[0]))
    bench.logs(before, end(status, 1, time_ns=bench.now_ns))
    bench.tick(1)

    bench.open(after)
    bench.metrics(after, row(1, {"loss": 1.0}, step=steps[1]))

    assert [record.attempt for record in bench.records if isinstance(record, Row)] == [
        1,
        attempt,
    ]


def test_a_worker_is_not_a_restart_while_one_that_has_sent_nothing_yet_lives_since_before() -> (
    None
):
    bench = Bench()
    brief, silent, late = source("brief"), source("silent"), source("late")
    bench.open(brief, silent)
    bench.metrics(brief, row(1, {"loss": 1.0}), row(2, {"loss": 1.0}, step=2))
    bench.tick(1)
    bench.logs(brief, end("finished", 2, time_ns=bench.now_ns))
    bench.tick(1)

    bench.open(late)
    bench.metrics(late, row(1, {"loss": 1.0}))
    bench.metrics(silent, row(1, {"loss": 1.0}))

    assert [record.attempt for record in bench.records if isinstance(record, Row)] == [
        1,
        1,
        1,
        1,
    ]


def test_behind_a_receiver_a_process_that_was_silent_for_long_makes_room_for_the_next_attempt() -> (
    None
):
    bench = Bench()

    for instance, waited_s in (("i1", 0), ("i2", 60), ("i3", 91)):
        bench.tick(waited_s)
        scope = row(1, {"loss": 1.0}, step=3)
        bench.request(metrics_request((who(instance), [scope])))

    assert [record.attempt for record in bench.records if isinstance(record, Row)] == [
        1,
        1,
        2,
    ]


def test_an_attempt_that_the_user_names_himself_is_his() -> None:
    bench = Bench()

    bench.metrics(
        source("i1", rl_attempt=3),
        row(1, {"attempt": 0.5}),
        row(2, {"loss": 1.0}, step=2),
    )

    rows = [record for record in bench.records if isinstance(record, Row)]
    assert [dict(record.values) for record in rows] == [
        {"trainer/attempt": 0.5},
        {"trainer/attempt": 3, "trainer/loss": 1.0},
    ]


def test_attempts_without_a_role_and_of_further_ranks_have_keys_of_their_own() -> None:
    bench = Bench()

    bench.metrics(source("i1", rl_role="", rl_attempt=2), row(1, {"loss": 1.0}))
    bench.metrics(source("i2", rl_rank=1, rl_attempt=2), row(1, {"loss": 1.0}))

    assert [
        dict(record.values) for record in bench.records if isinstance(record, Row)
    ] == [
        {"attempt": 2, "loss": 1.0},
        {"trainer/attempt/rank1": 2, "trainer/loss/rank1": 1.0},
    ]
    assert bench.state.get("key/attempt") == "step"


def counted(seq: int, step: int) -> LogRecord:
    """Statistics of two rollouts that an emitter left out."""
    group = {"count": 2, "sum": 1, "sum_squares": 1, "min": 0, "max": 1}
    more = {
        "rl.step": step,
        "rl.split": "train",
        "rl.rollouts.count": 2,
        "rl.event.seq": seq,
    }
    return LogRecord(
        time_unix_nano=T0,
        event_name="rl.rollouts",
        body=any_value({"p": group}),
        attributes=pairs(more),
    )


def statistics(bench: Bench) -> list[tuple[object, ...]]:
    rows = [
        record
        for record in bench.records
        if isinstance(record, Row) and record.id.startswith("s:")
    ]
    return [
        (row.id, row.attempt, row.values.get(f"{row.role}/attempt")) for row in rows
    ]


def test_statistics_of_a_step_report_the_attempt_that_their_rollouts_came_from() -> (
    None
):
    bench = Bench()

    bench.metrics(source("i1"), row(1, {"loss": 1.0}, step=4))
    bench.logs(source("i1"), counted(1, 4), counted(2, 5))
    bench.translator.mark_drained(["i1"])
    bench.logs(source("i2"), counted(1, 4))  # before its first row
    bench.restart()
    bench.metrics(source("i2"), row(1, {"loss": 1.0}, step=4))
    bench.logs(source("i2"), counted(2, 6), counted(3, 7))
    bench.close()

    assert statistics(bench) == [
        ("s:trainer:train:4", 1, None),
        ("s:trainer:train:5", 1, None),
        ("s:trainer:train:4:a2", 2, 2),
        ("s:trainer:train:6:a2", 2, 2),
        ("s:trainer:train:7:a2", 2, 2),
    ]
    assert [
        record.attempt
        for record in bench.records
        if isinstance(record, Row) and record.id[0] != "s"
    ] == [1, 2]
    assert [
        record.config for record in bench.records if isinstance(record, Config)
    ] == [{"attempt": 2}]


def test_an_attempt_that_the_emitter_names_holds_for_a_role_that_sends_no_rows() -> (
    None
):
    bench = Bench()

    bench.logs(source("i1", "explorer", rl_attempt=3), counted(1, 4))
    bench.logs(source("i2", "explorer", rl_attempt=2), counted(1, 3))
    bench.close()

    configs = [
        (record.id, record.role, record.config)
        for record in bench.records
        if isinstance(record, Config)
    ]
    assert configs == [("c:otel_bridge:explorer:3", "explorer", {"attempt": 3})]
    assert statistics(bench) == [
        ("s:explorer:train:3:a2", 2, 2),
        ("s:explorer:train:4:a3", 3, 3),
    ]
    assert bench.state.get("key/explorer/attempt") == "explorer/step"
