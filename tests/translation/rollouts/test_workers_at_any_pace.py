"""The same job at any pace and with kills."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_bridge.records import Record
from support.otlp.otlp_samples import (
    end,
)
from support.otlp.trace_samples import rollouts_in, rows_in
from support.otlp.translation_bench import bench_of, explorers, send

_JOBS = st.lists(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=3), min_size=4, max_size=4),
                 min_size=2, max_size=3)  # fmt: skip


def play(
    job: list[list[list[float | None]]], order: list[int], kills: set[int]
) -> list[Record]:
    """Let each worker send its steps in order, interleaved by *order*, and the bridge be killed behind some of them."""
    bench = bench_of(max_rollouts=2)
    workers = explorers(*(f"w{number}" for number in range(len(job))))
    bench.open(*workers)
    sent = [0] * len(job)
    for turn, number in enumerate(order):
        step, worker = sent[number], workers[number]
        if step < len(job[number]):
            send(bench, worker, step, *job[number][step])
        else:
            bench.logs(worker, end("finished", 1, time_ns=bench.now_ns))
        sent[number] += 1
        bench.tick(0.5)
        if turn in kills:
            bench.restart()
    bench.close()
    return bench.records


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(job=_JOBS, data=st.data())
def test_the_same_job_keeps_the_same_rollouts_at_any_pace_and_with_kills(
    job: list[list[list[float | None]]], data: st.DataObject
) -> None:
    turns = [number for number, steps in enumerate(job) for _ in range(len(steps) + 1)]
    lockstep = [number for _ in range(len(job[0]) + 1) for number in range(len(job))]

    expected = play(job, lockstep, set())
    records = play(
        job,
        data.draw(st.permutations(turns)),
        data.draw(st.sets(st.integers(0, len(turns)))),
    )

    def kept(of: list[Record]) -> set[str]:
        return {rollout.id for rollout in rollouts_in(of)}

    def figures(of: list[Record]) -> dict[object, object]:
        return {(row.id, row.step): {**row.values} for row in rows_in(of)}

    assert kept(records) == kept(expected)
    assert figures(records) == figures(expected)
    assert len({row.step for row in rows_in(records)}) == len(rows_in(records)), (
        "each step is counted once"
    )
