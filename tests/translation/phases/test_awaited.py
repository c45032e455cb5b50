"""Tests of the rank that every other one waits for."""

from __future__ import annotations

from support.otlp.otlp_samples import T0, Bench, S, end
from support.otlp.phase_samples import phase, rank, send


def bench_of(ranks: int) -> Bench:
    """Three ranks that have done step 0."""
    bench = Bench()
    bench.open(*map(rank, range(ranks)))
    for number in range(ranks):
        send(bench, rank(number), phase("generate", 0, 0, 1), phase("train", 0, 1, 2))
    return bench


def awaited(bench: Bench) -> list[tuple[int, str, int, float, int]]:
    ranks = bench.translator.phases.awaited(bench.now_ns).values()
    return [
        (one.rank, one.phase, one.step, (one.since_unix_ns - T0) / S, one.others)
        for one in ranks
    ]


def test_the_only_rank_that_has_not_ended_a_phase_is_awaited() -> None:
    bench = bench_of(3)
    assert awaited(bench) == []
    send(bench, rank(0), phase("generate", 1, 2, 3))
    assert awaited(bench) == []

    send(bench, rank(2), phase("generate", 1, 2, 4))
    assert awaited(bench) == [(1, "generate", 1, 4.0, 2)]

    send(bench, rank(1), phase("generate", 1, 2, 60))
    assert awaited(bench) == []


def test_a_phase_that_a_rank_never_has_is_not_awaited_of_it() -> None:
    bench = bench_of(2)
    send(bench, rank(0), phase("generate", 1, 2, 3), phase("save", 1, 3, 4))
    send(bench, rank(1), phase("generate", 1, 2, 3))

    assert awaited(bench) == []


def test_a_rank_that_has_gone_on_without_the_phase_is_not_awaited() -> None:
    bench = bench_of(2)
    send(bench, rank(0), phase("generate", 1, 2, 3))
    send(bench, rank(1), phase("train", 1, 3, 5))

    assert ("generate" in {phase for _, phase, *_ in awaited(bench)}) is False


def test_a_rank_that_has_ended_is_not_awaited() -> None:
    bench = bench_of(3)
    send(bench, rank(0), phase("generate", 1, 2, 3))
    send(bench, rank(2), phase("generate", 1, 2, 3))
    bench.logs(rank(1), end("failed", 1))

    assert awaited(bench) == []
