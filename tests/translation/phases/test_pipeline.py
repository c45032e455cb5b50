"""Tests of the rows of phases: when a step closes, what changes a row, what is counted, restarts at any point."""

from __future__ import annotations

import random

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.records import End, PlainTrace, RolloutRecord
from otel_bridge.translation import step_rows
from otel_bridge.translation.phases import pipeline
from support.otlp.otlp_samples import T0, S, end, row
from support.otlp.phase_samples import phase, rank, rows_of, send, values_of
from support.otlp.trace_samples import rollout_spans
from support.otlp.translation_bench import bench_of


def job(steps: int, ranks: int) -> list[tuple[int, Span]]:
    """Rank and phase of a job in which rank 1 is slow, in the order of their ends."""
    found: list[tuple[float, int, Span]] = []
    for step in range(steps):
        for number in range(ranks):
            begin, generate, train = (
                step * 100.0,
                10.0 + number,
                20.0 * (3 if number == 1 else 1),
            )
            spans = (
                ("generate", begin, begin + generate),
                ("train", begin + generate, begin + generate + train),
            )
            found += [
                (ended, number, phase(name, step, began, ended))
                for name, began, ended in spans
            ]
    return [
        (number, span) for _, number, span in sorted(found, key=lambda entry: entry[:2])
    ]


def test_a_step_becomes_a_row_once_every_rank_has_a_phase_of_a_later_one() -> None:
    bench = bench_of()
    bench.open(rank(0), rank(1))

    assert send(bench, rank(0), phase("train", 3, 0, 1), phase("train", 4, 2, 3)) == []
    assert send(bench, rank(1), phase("train", 3, 0, 2)) == []
    (record,) = rows_of(send(bench, rank(1), phase("train", 4, 2, 3)))

    assert (record.id, record.role, record.step, record.axis) == (
        "p:trainer:3:a1",
        "trainer",
        3,
        "trainer/step",
    )
    assert (record.time_unix_ns, record.steps["trainer/step"]) == (T0 + 2 * S, 3)
    assert values_of(record) == {
        "time/train": 1.5, "time/max/train": 2.0, "time/share/train": 1.0, "time/slowest_rank/train": 1,
        "time/slowest_ratio/train": 2.0, "time/step": 1.5, "time/max/step": 2.0, "time/slowest_rank/step": 1,
        "time/slowest_ratio/step": 2.0, "time/idle": 0.0, "time/overlap": 0.0, "time/ranks": 2,
    }  # fmt: skip


def test_a_long_phase_is_awaited_and_the_end_of_the_run_closes_what_is_open() -> None:
    bench = bench_of()
    bench.open(rank(0))
    send(bench, rank(0), phase("generate", 0, 0, 1))

    assert rows_of(bench.tick(600)) == []
    records = bench.logs(rank(0), end("finished", 1)) + bench.tick(60)

    assert [
        type(record)
        for record in records
        if isinstance(record, End) or record in rows_of(records)
    ][-1] is End
    assert [
        (record.step, values_of(record)["time/generate"]) for record in rows_of(records)
    ] == [(0, 1.0)]


def test_a_rank_that_died_is_not_awaited_and_its_open_phase_is_counted() -> None:
    bench = bench_of()
    bench.open(rank(0), rank(1))
    send(bench, rank(1), phase("forward", 0, 0, 1, "train"))
    send(
        bench,
        rank(0),
        phase("forward", 0, 0, 1, "train"),
        phase("train", 0, 0, 2),
        phase("train", 1, 2, 3),
    )
    bench.translator.mark_drained(["i1"])
    records = bench.tick(2)

    assert [values_of(record)["time/ranks"] for record in rows_of(records)] == [2]
    assert bench.counts() == {"phase/unclosed": 1}
    assert bench.state.get("dropkey/phase/unclosed") == "train"


def test_a_silent_rank_is_awaited_no_longer_than_the_timeout_of_a_step() -> None:
    bench = bench_of(step_timeout_ns=100 * S)
    bench.open(rank(0), rank(1))
    send(bench, rank(1), phase("train", 0, 0, 1))
    send(bench, rank(0), phase("train", 0, 0, 1), phase("train", 1, 1, 2))

    assert rows_of(bench.tick(99)) == []
    assert [record.step for record in rows_of(bench.tick(2))] == [0, 1]


def test_a_late_phase_gives_a_further_row_of_its_step_with_all_of_it() -> None:
    bench = bench_of()
    bench.open(rank(0))
    send(bench, rank(0), phase("train", 0, 0, 1), phase("train", 1, 2, 3))

    assert send(bench, rank(0), phase("save", 0, 1, 2)) == []
    (record,) = rows_of(bench.tick(31))

    assert (record.id, record.step) == ("p:trainer:0:a1:1", 0)
    assert (values_of(record)["time/train"], values_of(record)["time/save"]) == (
        1.0,
        1.0,
    )
    assert rows_of(bench.tick(31)) == []


def test_a_phase_that_is_redelivered_changes_nothing() -> None:
    bench = bench_of()
    bench.open(rank(0))
    send(
        bench,
        rank(0),
        phase("train", 0, 0, 1),
        phase("train", 0, 0, 1),
        phase("train", 1, 2, 3),
    )
    send(bench, rank(0), phase("train", 0, 0, 1))

    assert [values_of(record)["time/overlap"] for record in rows_of(bench.records)] == [
        0.0
    ]
    assert rows_of(bench.tick(60)) == []


def test_a_phase_of_another_role_is_a_row_of_that_role() -> None:
    bench = bench_of()
    bench.open(rank(0))
    records = send(
        bench,
        rank(0),
        phase("score", 0, 0, 1, role="judge"),
        phase("score", 1, 2, 3, role="judge"),
    )

    assert [
        (record.role, record.values["judge/time/score"]) for record in rows_of(records)
    ] == [("judge", 1.0)]


def test_a_restarted_rank_replaces_the_phases_of_the_one_that_died_in_the_step() -> (
    None
):
    bench = bench_of()
    again = rank(1, instance="i1b", began_s=70)
    bench.open(rank(0), rank(1))
    send(bench, rank(1), phase("train", 0, 0, 50))
    bench.logs(rank(1), end("failed", 1, time_ns=T0 + 60 * S))
    bench.now_ns += 70 * S
    bench.open(again)
    send(bench, rank(0), phase("train", 0, 0, 1), phase("train", 1, 1, 2))
    send(bench, again, phase("train", 0, 70, 71), phase("train", 1, 71, 72))

    (record,) = rows_of(bench.records)
    assert (values_of(record)["time/ranks"], values_of(record)["time/max/train"]) == (
        2,
        1.0,
    )


def test_a_rank_that_sends_no_phases_delays_a_row_and_prevents_none() -> None:
    bench = bench_of()
    bench.open(rank(0), rank(1))
    send(bench, rank(0), phase("train", 0, 0, 1), phase("train", 1, 2, 3))

    assert rows_of(bench.tick(29)) == []
    assert [record.step for record in rows_of(bench.tick(2))] == [0]


@pytest.mark.parametrize("seed", range(4))
def test_a_bridge_that_is_killed_at_any_point_gives_the_same_rows(seed: int) -> None:
    chance = random.Random(seed)
    whole, killed = bench_of(), bench_of()
    for bench in (whole, killed):
        bench.open(*map(rank, range(4)))
        for number, span in job(steps=6, ranks=4):
            send(bench, rank(number), span)
            if bench is killed and chance.random() < 0.3:
                bench.restart()
        bench.close()

    assert [(row.id, row.values) for row in rows_of(killed.records)] == [
        (row.id, row.values) for row in rows_of(whole.records)
    ]
    assert [row.step for row in rows_of(whole.records)] == [*range(6)]


def test_steps_that_go_back_are_rows_too() -> None:
    bench = bench_of()
    bench.open(rank(0))
    send(
        bench,
        rank(0),
        *(phase("train", step, at, at + 1) for at, step in enumerate((5, 6, 3, 4))),
    )
    bench.close()

    assert sorted(
        row.step for row in rows_of(bench.records) if row.step is not None
    ) == [
        3,
        4,
        5,
        6,
    ]


def test_bad_phases_are_counted_and_the_others_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "_MAX_NAMES", 2)
    bench = bench_of()
    bench.open(rank(0))
    nameless, backwards = phase("", 0, 0, 1), phase("train", 0, 2, 1)

    send(
        bench,
        rank(0),
        nameless,
        backwards,
        phase("a", 0, 0, 1),
        phase("b", 0, 1, 2),
        phase("c", 0, 2, 3),
    )
    bench.close()

    assert bench.counts() == {"phase/invalid": 2, "phase/too_many_names": 1}
    (record,) = rows_of(bench.records)
    assert {"time/a", "time/b", "time/c"} & {*values_of(record)} == {"time/a", "time/b"}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_rows, "MAX_STEPS", 5)
    bench = bench_of()
    bench.open(rank(0))
    send(bench, rank(0), *(phase("train", step, step, step + 1) for step in range(50)))

    send(bench, rank(0), phase("save", 7, 0, 1))
    bench.translator.flush()

    assert len(bench.state.items("phase/step/")) == 5
    assert bench.counts() == {"phase/late": 1}


def test_a_late_phase_is_in_a_row_before_its_step_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_rows, "MAX_STEPS", 5)
    bench = bench_of()
    bench.open(rank(0))
    send(bench, rank(0), *(phase("train", step, step, step + 1) for step in range(5)))
    send(bench, rank(0), phase("save", 0, 1, 2))

    records = send(
        bench, rank(0), *(phase("train", step, step, step + 1) for step in range(5, 9))
    )

    assert [
        values_of(record).get("time/save")
        for record in rows_of(records)
        if record.step == 0
    ] == [1.0]
    assert bench.counts() == {}


def test_the_last_two_steps_are_remembered_however_large_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_rows, "_MAX_ALL_DATA", 10)
    bench = bench_of()
    bench.open(rank(0))
    for step in range(4):
        send(
            bench,
            rank(0),
            *(
                phase("train", step, 10 * step + part, 10 * step + part + 1)
                for part in range(9)
            ),
        )
        bench.now_ns += 1

    send(bench, rank(0), phase("save", 2, 29, 30))
    corrected = rows_of(bench.tick(31))

    assert [record.step for record in corrected] == [2]
    send(bench, rank(0), phase("save", 0, 9, 10))
    assert bench.counts() == {"phase/late": 1}


def test_a_phase_is_never_a_rollout_and_a_third_party_may_give_it_any_name() -> None:
    bench = bench_of()
    bench.open(rank(0))
    mixed = ScopeSpans(
        scope={"name": "app"}, spans=[*rollout_spans("a"), phase("train", 0, 0, 1)]
    )
    mixed.spans[-1].name = "train"

    bench.translator.frame(
        rank(0), 2, mixed.SerializeToString(), False, bench.now_ns, bench.now_ns
    )
    bench.close()

    assert [
        row.step for row in rows_of(bench.records) if "trainer/time/train" in row.values
    ] == [0]
    assert [
        len(record.spans)
        for record in bench.records
        if isinstance(record, RolloutRecord)
    ] == [len(rollout_spans("a"))]
    assert not [record for record in bench.records if isinstance(record, PlainTrace)]


def test_a_key_of_the_users_own_rows_is_theirs() -> None:
    bench = bench_of()
    bench.open(rank(0))
    bench.metrics(rank(0), row(1, {"time/train": 7.0}, step=0))
    send(bench, rank(0), phase("train", 0, 0, 1))
    records = bench.close()

    assert all("trainer/time/train" not in row.values for row in rows_of(records))
    assert bench.counts()["same_key"] == 1
