"""Several workers of one role: a step closes when every living worker is past it, whatever their pace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from otel_bridge.emit.rollouts.calls import log_rollouts, open_rollout
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.journal.frames import Signal
from otel_bridge.records import Record
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    BRIDGE,
    LOGS,
    RUN,
    TRACES,
    Bench,
    SegmentInfo,
    end,
    logs_request,
    resource,
    row,
    source,
    who,
)
from support.otlp.trace_samples import left_out, rollout_spans, rollouts_in, rows_in, scope_spans, trace_id
from support.trainers.emit_rollout_doubles import MemoryRun


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
            log_rollouts(run, [Rollout([], reward=1.0) for _ in range(2 if how == "left out" else 1)], step=step)


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
    early = [one for signal, payload in before for one in frame(bench, worker, signal, payload)]
    if restart:
        bench.translator.flush()
        bench.restart()
    found = frame(bench, worker, *last)

    assert early == []
    assert points(found) == [(1, 3 if how == "left out" else 2)]
    assert [rollout.reward for rollout in rollouts_in(found)] == [9.0]


def test_a_live_rollout_that_never_closes_holds_its_step_open_for_the_step_wait_alone() -> None:
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


def frame(bench: Bench, worker: SegmentInfo, signal: int, payload: bytes) -> list[Record]:
    return bench.translator.frame(worker, Signal(signal), payload, False, bench.now_ns, bench.now_ns)


ALL_STATISTICS = [
    f"explorer/rollouts/{name}"
    for name in ("kept", "reward/max", "reward/mean", "reward/min", "reward/std", "total", "zero_variance_groups")
]


def bench_of(**options: Any) -> Bench:
    return Bench(TranslationOptions(run_id=RUN, **options))


def explorers(*names: str, role: str = "explorer") -> list[SegmentInfo]:
    return [source(name, role) for name in names]


def send(bench: Bench, worker: SegmentInfo, step: int, *rewards: float | None) -> list[Record]:
    """Send the rollouts of one step of a worker, a frame each."""
    records: list[Record] = []
    for number, reward in enumerate(rewards):
        spans = rollout_spans(f"{worker.instance_id}-{step}-{number}", step=step, reward=reward)
        payload = scope_spans(spans).SerializeToString()
        records += bench.translator.frame(worker, TRACES, payload, False, bench.now_ns, bench.now_ns)
    bench.records += records
    return records


def points(records: list[Record], what: str = "total") -> list[tuple[int | None, object]]:
    return [(row.step, row.values[f"{row.role}/rollouts/{what}"]) for row in rows_in(records)]


def request(instance: str, *spans: Span, **resource_attributes: object) -> bytes:
    named = who(instance, role="explorer") if instance else resource_attributes
    part = ResourceSpans(resource=resource(named), scope_spans=[scope_spans(spans)])
    return ExportTraceServiceRequest(resource_spans=[part]).SerializeToString()


def test_a_step_waits_for_the_slower_worker_and_is_counted_once() -> None:
    bench = bench_of(max_rollouts=1)
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)

    early = [record for step in range(5) for record in send(bench, fast, step, 0.5)]
    first, second = send(bench, slow, 0, 1.0), send(bench, slow, 1, 1.0)

    assert early + first == []
    assert [rollout.id for rollout in rollouts_in(second)] == [trace_id("slow-0-0")]
    assert points(second) == [(0, 2)]


def test_a_worker_of_another_role_holds_no_step_up() -> None:
    bench = bench_of()
    [explorer], [trainer] = explorers("e"), explorers("t", role="trainer")
    bench.open(explorer, trainer)
    bench.metrics(trainer, row(1, {"loss": 1.0}))
    send(bench, explorer, 1, 1.0)

    assert points(send(bench, explorer, 2, 1.0)) == [(1, 1)]


def test_a_process_of_the_role_that_sends_no_rollouts_holds_a_step_up_for_the_step_wait_alone() -> None:
    bench = bench_of()
    explorer, idle = explorers("e", "idle")
    bench.open(explorer, idle)
    send(bench, explorer, 1, 1.0)

    at_once = send(bench, explorer, 2, 1.0)
    early, due = bench.tick(29), bench.tick(1)

    assert (at_once, early, points(due)) == ([], [], [(1, 1), (2, 1)])


def test_further_ranks_and_forked_children_that_send_no_rollouts_hold_no_step_up() -> None:
    bench = bench_of()
    [explorer] = explorers("e")
    bench.open(explorer, source("rank", "explorer", rl_rank=1), source("child", "explorer", rl_forked=True))
    send(bench, explorer, 1, 1.0)

    assert points(send(bench, explorer, 2, 1.0)) == [(1, 1)]


def test_a_worker_that_joins_late_is_waited_for_from_then_on() -> None:
    bench = bench_of(max_rollouts=1)
    first, late = explorers("first", "late")
    bench.open(first)
    send(bench, first, 1, 0.5)
    alone = send(bench, first, 2, 0.5)

    bench.open(late)
    waiting = send(bench, first, 3, 0.5)
    joined = send(bench, late, 2, 1.0) + send(bench, late, 3, 1.0)

    assert (points(alone), waiting, points(joined)) == ([(1, 1)], [], [(2, 2)])
    assert [rollout.reward for rollout in rollouts_in(joined)] == [1.0]


def test_a_worker_that_has_not_begun_when_frames_were_written_is_not_waited_for_when_they_are_read_late() -> None:
    bench = bench_of()
    first, later = explorers("first", "later")
    bench.open(first)
    bench.translator.opened(later, bench.now_ns + 10**12)
    send(bench, first, 1, 1.0)

    assert points(send(bench, first, 2, 1.0)) == [(1, 1)]


def test_a_worker_that_dies_is_waited_for_no_more() -> None:
    bench = bench_of()
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)
    send(bench, slow, 1, 1.0)
    for step in range(1, 4):
        send(bench, fast, step, 0.5)

    bench.request(logs_request((who("slow", "explorer"), [end("killed")])), LOGS, BRIDGE)
    closed = bench.tick(1)

    assert points(closed) == [(1, 2), (2, 1)]


def test_a_worker_that_is_behind_is_waited_for_longer_than_a_step_wait() -> None:
    bench = bench_of(max_rollouts=1)
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)
    send(bench, slow, 1, 1.0)
    send(bench, fast, 1, 0.5)
    send(bench, fast, 2, 0.5)
    send(bench, slow, 2, 0.4)
    send(bench, fast, 3, 0.5)

    during = bench.tick(900)
    arrived = send(bench, slow, 3, 1.0)
    closed = bench.tick(30)

    assert (points(during), arrived, points(closed)) == ([(2, 2)], [], [(3, 2)])
    assert [rollout.reward for rollout in rollouts_in(closed)] == [1.0]


def test_a_worker_that_is_behind_and_sends_nothing_holds_steps_up_for_the_step_timeout() -> None:
    bench = bench_of(step_timeout_ns=100 * 10**9)
    fast, stuck = explorers("fast", "stuck")
    bench.open(fast, stuck)
    send(bench, stuck, 1, 1.0)
    send(bench, fast, 1, 0.5)
    send(bench, fast, 2, 0.5)

    early, due = bench.tick(99), bench.tick(1)
    send(bench, fast, 3, 0.5)
    later = bench.tick(30)

    assert (points(early), points(due), points(later)) == ([(1, 2)], [(2, 1)], [(3, 1)])


def test_the_first_evaluation_of_a_slower_worker_is_waited_for() -> None:
    bench = bench_of()
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)
    send(bench, slow, 8, 1.0)

    def evaluate(worker: SegmentInfo) -> list[Record]:
        spans = rollout_spans(f"eval-{worker.instance_id}", step=10, rl__split="eval")
        payload = scope_spans(spans).SerializeToString()
        return bench.translator.frame(worker, TRACES, payload, False, bench.now_ns, bench.now_ns)

    evaluate(fast)
    early = [row for row in rows_in(bench.tick(60)) if row.step == 10]
    evaluate(slow)
    due = [row for row in rows_in(bench.tick(30)) if row.step == 10]

    assert (early, [row.values["explorer/rollouts/eval/total"] for row in due]) == ([], [2])


def test_a_role_that_goes_back_to_its_checkpoint_has_seats_and_statistics_of_its_own() -> None:
    bench = bench_of(max_rollouts=1)
    before, after = explorers("before", "after")
    bench.open(before)
    for step in range(1, 5):
        send(bench, before, step, 0.5)
    bench.request(logs_request((who("before", "explorer"), [end("killed")])), LOGS, BRIDGE)

    bench.open(after)
    for step in range(3, 6):
        send(bench, after, step, 1.0)
        bench.restart()
    bench.close()

    rows = [row for row in rows_in(bench.records) if "explorer/rollouts/total" in row.values]
    assert [(row.id, row.attempt, row.values["explorer/rollouts/total"]) for row in rows] == [
        ("s:explorer:train:1", 1, 1),
        ("s:explorer:train:2", 1, 1),
        ("s:explorer:train:3", 1, 1),
        ("s:explorer:train:4", 1, 1),
        ("s:explorer:train:3:a2", 2, 1),
        ("s:explorer:train:4:a2", 2, 1),
        ("s:explorer:train:5:a2", 2, 1),
    ]
    assert [(rollout.step, rollout.reward) for rollout in rollouts_in(bench.records)] == [
        (1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5), (3, 1.0), (4, 1.0), (5, 1.0),
    ]  # fmt: skip


def test_a_rollout_whose_spans_are_still_awaited_holds_its_step_open() -> None:
    bench = bench_of()
    [worker] = explorers("e")
    bench.open(worker)
    root, *children = rollout_spans("partial", step=1, reward=0.0)

    def frame(*spans: Span) -> list[Record]:
        payload = scope_spans(spans).SerializeToString()
        return bench.translator.frame(worker, TRACES, payload, False, bench.now_ns, bench.now_ns)

    frame(root)
    held = send(bench, worker, 1, 1.0) + send(bench, worker, 2, 1.0)
    bench.restart()
    done = frame(*children)

    # The completed rollout is added to the step that it was awaited for, and then the step closes.
    assert held == []
    assert points(done + bench.tick(1)) == [(1, 2)]


def test_behind_a_receiver_a_passed_step_waits_for_what_the_network_carries_last() -> None:
    bench = bench_of()
    sums = {"p": {"count": 3, "sum": 3.0, "sum_squares": 3.0, "min": 1.0, "max": 1.0}}
    overtaken = logs_request((who("far", "explorer"), [left_out(1, sums, 3)]))
    bench.request(request("far", *rollout_spans("1", step=1)), TRACES)
    at_once = bench.request(request("far", *rollout_spans("2", step=2)), TRACES)
    bench.tick(5)
    bench.request(overtaken, LOGS)

    assert (at_once, points(bench.tick(5))) == ([], [(1, 4)])


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("own_first", [False, True])
def test_statistics_leave_a_series_to_the_row_that_has_its_key_and_are_counted(restart: bool, own_first: bool) -> None:
    bench = bench_of()
    (worker,) = explorers("a")
    bench.open(worker)
    own = row(1, {"rollouts/total": 77.0, "explorer/rollouts/eval/kept": 5.0})
    if own_first:
        bench.metrics(worker, own)
    send(bench, worker, 1, 1.0)
    first = send(bench, worker, 2, 1.0)
    if not own_first:
        bench.metrics(worker, own)
    if restart:
        bench.restart()
    second = send(bench, worker, 3, 1.0)

    named = [sorted(one.values) for one in rows_in(first + second)]
    rest = [key for key in ALL_STATISTICS if key != "explorer/rollouts/total"]
    assert named == [rest if own_first else ALL_STATISTICS, rest]
    assert bench.counts() == {"same_key": 2 if own_first else 1}
    assert bench.state.get("dropkey/same_key") == "explorer/rollouts/total"


def test_bridges_that_restart_again_and_again_put_the_close_of_a_passed_step_off_no_further() -> None:
    bench = bench_of()
    bench.request(request("far", *rollout_spans("1", step=1)), TRACES)
    bench.request(request("far", *rollout_spans("2", step=2)), TRACES)
    bench.tick(4)
    bench.restart()
    early = bench.tick(4)
    bench.restart()

    assert (points(early), points(bench.tick(2))) == ([], [(1, 1)])


def test_the_end_of_a_far_worker_may_overtake_its_rollouts() -> None:
    bench = bench_of()
    ends = logs_request((who("b", "explorer"), [end("finished", 1)]))
    bench.request(request("a", *rollout_spans("a1", step=1)), TRACES)
    bench.request(request("b", *rollout_spans("b1", step=1)), TRACES)
    bench.request(request("a", *rollout_spans("a2", step=2)), TRACES)
    bench.request(ends, LOGS)
    bench.tick(5)
    bench.request(request("b", *rollout_spans("b2", step=2)), TRACES)

    bench.request(request("a", *rollout_spans("a3", step=3)), TRACES)
    bench.tick(10)
    bench.tick(10)

    assert points(bench.records) == [(1, 2), (2, 2)]


def test_third_party_processes_that_cannot_be_distinguished_close_steps_by_the_step_wait() -> None:
    bench = bench_of(max_rollouts=1)
    agents = {"service.name": "agent", "rl.run.id": RUN}

    def agent(name: str, step: int, reward: float) -> list[Record]:
        return bench.request(request("", *rollout_spans(name, step=step, reward=reward), **agents), TRACES)

    agent("fast1", 1, 0.5)
    held = agent("fast2", 2, 0.5)
    bench.tick(20)
    agent("slow1", 1, 1.0)
    bench.tick(10)
    closed = bench.tick(20)

    assert (held, [rollout.reward for rollout in rollouts_in(closed)]) == ([], [1.0])


def test_third_party_processes_with_an_id_are_distinguished() -> None:
    bench = bench_of()
    bench.request(request("", *rollout_spans("1", step=1), **{"service.name": "agent", "service.instance.id": "x",
                                                               "rl.run.id": RUN}), TRACES)  # fmt: skip
    bench.request(request("", *rollout_spans("2", step=2), **{"service.name": "agent", "service.instance.id": "x",
                                                               "rl.run.id": RUN}), TRACES)  # fmt: skip

    assert points(bench.tick(10)) == [(1, 1)]


def test_at_the_memory_bound_rollouts_are_chosen_ahead_and_their_steps_stay_open() -> None:
    bench = bench_of(max_rollouts=2, max_open_traces=6)
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)

    ahead = send(bench, fast, 1, 0.1, 0.2, 0.3, 0.4) + send(bench, fast, 2, 0.5, 0.5, 0.5, 0.5)
    bench.restart()
    send(bench, slow, 1, 1.0)
    closed = send(bench, slow, 2, 0.0)

    assert ahead == []
    assert points(closed) == [(1, 5)]
    assert points(closed, "reward/mean") == [(1, pytest.approx(0.4))]
    assert sorted(rollout.reward or 0 for rollout in rollouts_in(closed)) == [0.1, 1.0]


# --- any pace, any kill -----------------------------------------------------------------------------------------------
_JOBS = st.lists(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=3), min_size=4, max_size=4),
                 min_size=2, max_size=3)  # fmt: skip


def play(job: list[list[list[float | None]]], order: list[int], kills: set[int]) -> list[Record]:
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=_JOBS, data=st.data())
def test_the_same_job_keeps_the_same_rollouts_at_any_pace_and_with_kills(
    job: list[list[list[float | None]]], data: st.DataObject
) -> None:
    turns = [number for number, steps in enumerate(job) for _ in range(len(steps) + 1)]
    lockstep = [number for _ in range(len(job[0]) + 1) for number in range(len(job))]

    expected = play(job, lockstep, set())
    records = play(job, data.draw(st.permutations(turns)), data.draw(st.sets(st.integers(0, len(turns)))))

    def kept(of: list[Record]) -> set[str]:
        return {rollout.id for rollout in rollouts_in(of)}

    def figures(of: list[Record]) -> dict[object, object]:
        return {(row.id, row.step): {**row.values} for row in rows_in(of)}

    assert kept(records) == kept(expected)
    assert figures(records) == figures(expected)
    assert len({row.step for row in rows_in(records)}) == len(rows_in(records)), "each step is counted once"


def test_statistics_of_left_out_rollouts_say_how_far_a_worker_is_too() -> None:
    bench = bench_of()
    a, b = explorers("a", "b")
    bench.open(a, b)
    flat = {"p": {"count": 2, "sum": 0, "sum_squares": 0, "min": 0, "max": 0}}
    bench.logs(a, left_out(1, flat, 2))
    send(bench, b, 1, 1.0)
    send(bench, b, 2, 1.0)

    assert points(bench.logs(a, left_out(2, flat, 2, seq=2))) == [(1, 3)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_worker_that_is_behind_and_still_sends_is_waited_for_after_a_restart_too(restart: bool) -> None:
    bench = bench_of(step_timeout_ns=100 * 10**9)
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)
    send(bench, slow, 1, 1.0)
    bench.tick(90)
    send(bench, fast, 2, 0.5)
    send(bench, slow, 1, 1.0, 0.5)
    bench.tick(20)

    if restart:
        bench.restart()
    early = bench.tick(50)

    assert [step for step, _ in points(early) if step == 2] == []
