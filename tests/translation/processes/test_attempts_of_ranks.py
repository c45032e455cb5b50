"""Which start of its role each rank of a job is, whatever rank uses first."""

from __future__ import annotations

import itertools

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge.records import Config, Row
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import T0, Bench, any_value, end, pairs, row, source


def rank(number: int, start: int = 1) -> SegmentInfo:
    return source(f"rank{number}-start{start}", rl_rank=number)


def counted(seq: int, step: int, reward: float) -> LogRecord:
    """Statistics of ten rollouts that an emitter left out."""
    group = {
        "count": 10,
        "sum": 10 * reward,
        "sum_squares": 10 * reward**2,
        "min": reward,
        "max": reward,
    }
    more = {
        "rl.step": step,
        "rl.split": "train",
        "rl.rollouts.count": 10,
        "rl.event.seq": seq,
    }
    return LogRecord(
        time_unix_nano=T0,
        event_name="rl.rollouts",
        body=any_value({"p": group}),
        attributes=pairs(more),
    )


def speak(bench: Bench, sender: SegmentInfo, *steps: int) -> None:
    for number, step in enumerate(steps, 1):
        bench.metrics(sender, row(number, {"loss": 1.0}, step=step))


def finish(bench: Bench, *senders: SegmentInfo) -> None:
    bench.tick(1)
    for sender in senders:
        bench.logs(sender, end("finished", 1, time_ns=bench.now_ns))
    bench.tick(1)


def attempts(bench: Bench) -> dict[str, set[int]]:
    """Process to the attempts that its rows are of."""
    found: dict[str, set[int]] = {}
    for record in bench.records:
        if isinstance(record, Row) and record.id.startswith("m:"):
            found.setdefault(record.id.split(":")[1], set()).add(record.attempt)
    return found


def configs(bench: Bench) -> list[object]:
    return [record.config for record in bench.records if isinstance(record, Config)]


def test_rollouts_of_a_step_are_counted_together_when_a_rank_above_zero_sends_first() -> (
    None
):
    bench = Bench()
    first, second = rank(0), rank(1)
    bench.open(first, second)

    bench.logs(second, counted(1, 1, 14.5))
    bench.metrics(second, row(1, {"loss": 1.0}))
    bench.tick(1)
    bench.logs(first, counted(1, 1, 4.5))
    bench.metrics(first, row(1, {"loss": 1.0}))
    bench.close()

    given = [
        record
        for record in bench.records
        if isinstance(record, Row) and record.id.startswith("s:")
    ]
    assert [
        (one.id, one.attempt, one.values["trainer/rollouts/total"]) for one in given
    ] == [("s:trainer:train:1", 1, 20)]
    assert given[0].values["trainer/rollouts/reward/mean"] == 9.5
    assert (attempts(bench), configs(bench)) == (
        {"rank1-start1": {1}, "rank0-start1": {1}},
        [],
    )


def test_rank_zero_is_not_a_restart_of_a_rank_that_has_ended_before_its_first_word() -> (
    None
):
    bench = Bench()

    speak(bench, rank(1), 1, 2, 3)
    finish(bench, rank(1))
    bench.restart()
    bench.open(rank(0))
    speak(bench, rank(0), 1, 2, 3)

    assert attempts(bench) == {"rank1-start1": {1}, "rank0-start1": {1}}


@pytest.mark.parametrize(
    "order",
    [*itertools.permutations(range(3)), tuple(range(8)), tuple(reversed(range(8)))],
)
def test_a_job_whose_ranks_all_start_again_from_a_checkpoint_is_the_second_attempt_in_any_order(
    order: tuple[int, ...],
) -> None:
    bench = Bench()

    for number in order:
        speak(bench, rank(number), 1, 2, 3)
    finish(bench, *(rank(number) for number in order))
    for number in reversed(order):
        bench.open(rank(number, 2))
        speak(bench, rank(number, 2), 2, 3)
        bench.restart()

    starts = {
        f"rank{number}-start{start}": {start} for number in order for start in (1, 2)
    }
    assert (attempts(bench), configs(bench)) == (starts, [{"attempt": 2}])


@pytest.mark.parametrize("number", [0, 1])
def test_one_rank_that_starts_again_while_the_others_live_is_not_a_further_attempt(
    number: int,
) -> None:
    bench = Bench()

    for each in range(3):
        speak(bench, rank(each), 1, 2, 3)
    finish(bench, rank(number))
    bench.open(rank(number, 2))
    speak(bench, rank(number, 2), 2, 3)

    assert {attempt for of_one in attempts(bench).values() for attempt in of_one} == {1}


def test_rank_zero_of_a_restarted_job_counts_though_a_rank_that_is_new_to_it_was_there_first() -> (
    None
):
    bench = Bench()

    speak(bench, rank(0), 1, 2, 3)
    finish(bench, rank(0))
    bench.open(rank(5, 2))
    speak(bench, rank(5, 2), 2)
    bench.tick(1)
    bench.open(rank(0, 2))
    speak(bench, rank(0, 2), 2)

    assert attempts(bench)["rank0-start2"] == {2}


def test_a_process_is_not_a_restart_of_the_forked_child_that_sent_data_before_it() -> (
    None
):
    bench = Bench()
    child = source("child", rl_forked=True)

    bench.open(rank(0), child)
    speak(bench, child, 1, 2)
    speak(bench, rank(0), 1, 2)

    assert attempts(bench) == {"child": {1}, "rank0-start1": {1}}


def test_a_rank_is_known_to_have_started_again_when_the_process_before_it_is_forgotten() -> (
    None
):
    bench = Bench()

    speak(bench, rank(0), 1, 2)
    finish(bench, rank(0))
    bench.translator.flush()
    bench.state.delete("proc/rank0-start1")
    bench.restart()
    speak(bench, rank(0, 2), 2)

    assert attempts(bench) == {"rank0-start1": {1}, "rank0-start2": {2}}
