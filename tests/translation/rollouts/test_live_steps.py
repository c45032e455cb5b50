"""A live rollout holds its step open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from otel_bridge.emit.rollouts.rollout import Rollout
from support.otlp.trace_samples import rollouts_in
from support.otlp.translation_bench import bench_of, explorers, frame, points
from support.trainers.emit_rollout_doubles import MemoryRun, log_rollouts, open_rollout


def late_by_threads(run: MemoryRun, batch: Callable[[], None]) -> None:
    """Open a rollout of step 1 in a thread; close it when another thread has gone on to step 2."""
    begun, gone_on = threading.Event(), threading.Event()

    def slow() -> None:
        with open_rollout(run, step=1) as rollout:
            begun.set()
            gone_on.wait(10)
            rollout.reward = 9.0

    thread = threading.Thread(target=slow)
    thread.start()
    begun.wait(10)
    batch()
    gone_on.set()
    thread.join()


def late_by_tasks(run: MemoryRun, batch: Callable[[], None]) -> None:
    """Do as `late_by_threads` does with tasks of one thread."""

    async def job() -> None:
        begun, gone_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            with open_rollout(run, step=1) as rollout:
                begun.set()
                await gone_on.wait()
                rollout.reward = 9.0

        task = asyncio.create_task(slow())
        await begun.wait()
        batch()
        gone_on.set()
        await task

    asyncio.run(job())


def go_on(run: MemoryRun, how: str) -> None:
    for step in (1, 2):
        if how == "live":
            with open_rollout(run, step=step) as rollout:
                rollout.reward = 1.0
        else:
            log_rollouts(
                run,
                [Rollout([], reward=1.0) for _ in range(2 if how == "left out" else 1)],
                step=step,
            )


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["live", "batch", "left out"])
@pytest.mark.parametrize("late", [late_by_threads, late_by_tasks])
def test_a_rollout_that_is_under_way_holds_its_step_open_when_another_task_has_gone_on(
    late: Callable[[MemoryRun, Callable[[], None]], None], how: str, restart: bool
) -> None:
    run = MemoryRun(role="explorer", MAX_ROLLOUTS_PER_STEP="1")
    late(run, lambda: go_on(run, how))
    bench = bench_of(max_rollouts=1)
    (worker,) = explorers("a")
    bench.open(worker)

    *before, last = run.records
    early = [
        one
        for signal, payload in before
        for one in frame(bench, worker, signal, payload)
    ]
    if restart:
        bench.translator.flush()
        bench.restart()
    found = frame(bench, worker, *last)

    assert early == []
    assert points(found) == [(1, 3 if how == "left out" else 2)]
    assert [rollout.reward for rollout in rollouts_in(found)] == [9.0]


def test_a_live_rollout_that_never_closes_holds_its_step_open_for_the_step_wait_alone() -> (
    None
):
    run = MemoryRun(role="explorer")
    left = open_rollout(run, step=1)
    left.__enter__()
    go_on(run, "live")
    bench = bench_of(step_watermark_ns=30 * 10**9)
    (worker,) = explorers("a")
    bench.open(worker)

    early = [one for record in run.records for one in frame(bench, worker, *record)]
    left.__exit__(None, None, None)

    assert (early, points(bench.tick(30))[0]) == ([], (1, 1))
