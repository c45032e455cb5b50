"""Several workers of one role: a step closes when every living worker is past it, whatever their pace."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from otel_bridge.records import Record
from support.otlp.otlp_samples import (
    BRIDGE,
    LOGS,
    RUN,
    TRACES,
    SegmentInfo,
    end,
    logs_request,
    resource,
    row,
    source,
    who,
)
from support.otlp.trace_samples import (
    left_out,
    rollout_spans,
    rollouts_in,
    rows_in,
    scope_spans,
    trace_id,
)
from support.otlp.translation_bench import bench_of, explorers, points, send

ALL_STATISTICS = [
    f"explorer/rollouts/{name}"
    for name in (
        "kept",
        "reward/max",
        "reward/mean",
        "reward/min",
        "reward/std",
        "total",
        "zero_variance_groups",
    )
]


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


def test_a_process_of_the_role_that_sends_no_rollouts_holds_a_step_up_for_the_step_wait_alone() -> (
    None
):
    bench = bench_of()
    explorer, idle = explorers("e", "idle")
    bench.open(explorer, idle)
    send(bench, explorer, 1, 1.0)

    at_once = send(bench, explorer, 2, 1.0)
    early, due = bench.tick(29), bench.tick(1)

    assert (at_once, early, points(due)) == ([], [], [(1, 1), (2, 1)])


def test_further_ranks_and_forked_children_that_send_no_rollouts_hold_no_step_up() -> (
    None
):
    bench = bench_of()
    [explorer] = explorers("e")
    bench.open(
        explorer,
        source("rank", "explorer", rl_rank=1),
        source("child", "explorer", rl_forked=True),
    )
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


def test_a_worker_that_starts_a_little_later_has_its_part_in_the_first_steps() -> None:
    bench = bench_of(max_rollouts=2, step_startup_ns=5 * 10**9)
    first, second = explorers("first", "second")
    bench.open(first)
    alone = send(bench, first, 1, 0.5) + send(bench, first, 2, 0.5)
    alone += bench.tick(4)

    bench.open(second)
    both = send(bench, second, 1, 1.0) + send(bench, second, 2, 1.0)
    bench.restart()
    early = bench.tick(4)
    due = bench.tick(1)

    assert (alone, both, early, points(due)) == ([], [], [], [(1, 2)])


def test_rows_do_not_wait_for_workers_that_may_start_later() -> None:
    bench = bench_of(step_startup_ns=5 * 10**9)
    (worker,) = explorers("a")
    bench.open(worker)

    at_once = bench.metrics(worker, row(1, {"loss": 1.0}))

    assert [row.values for row in rows_in(at_once)] == [{"explorer/loss": 1.0}]


def test_the_end_of_the_run_ends_the_wait_for_workers_that_may_start_later() -> None:
    bench = bench_of(step_startup_ns=5 * 10**9)
    (worker,) = explorers("a")
    bench.open(worker)
    send(bench, worker, 1, 1.0)

    assert points(bench.logs(worker, end("finished", 1))) == [(1, 1)]


def test_a_worker_that_has_not_begun_when_frames_were_written_is_not_waited_for_when_they_are_read_late() -> (
    None
):
    bench = bench_of()
    first, later = explorers("first", "later")
    bench.open(first)
    bench.translator.opened(later, bench.now_ns + 10**12)
    send(bench, first, 1, 1.0)

    assert points(send(bench, first, 2, 1.0)) == [(1, 1)]


@pytest.mark.parametrize("set_back_seconds", [0, 3600])
def test_a_worker_that_dies_is_waited_for_no_more(set_back_seconds: int) -> None:
    bench = bench_of()
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)
    send(bench, slow, 1, 1.0)
    for step in range(1, 4):
        send(bench, fast, step, 0.5)

    bench.tick(-set_back_seconds)
    bench.request(
        logs_request((who("slow", "explorer"), [end("killed")])), LOGS, BRIDGE
    )
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


def test_a_worker_that_is_behind_and_sends_nothing_holds_steps_up_for_the_step_timeout() -> (
    None
):
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
        return bench.translator.frame(
            worker, TRACES, payload, False, bench.now_ns, bench.now_ns
        )

    evaluate(fast)
    early = [row for row in rows_in(bench.tick(60)) if row.step == 10]
    evaluate(slow)
    due = [row for row in rows_in(bench.tick(30)) if row.step == 10]

    assert (early, [row.values["explorer/rollouts/eval/total"] for row in due]) == (
        [],
        [2],
    )


def test_a_role_that_goes_back_to_its_checkpoint_has_seats_and_statistics_of_its_own() -> (
    None
):
    bench = bench_of(max_rollouts=1)
    before, after = explorers("before", "after")
    bench.open(before)
    for step in range(1, 5):
        send(bench, before, step, 0.5)
    bench.request(
        logs_request((who("before", "explorer"), [end("killed")])), LOGS, BRIDGE
    )

    bench.open(after)
    for step in range(3, 6):
        send(bench, after, step, 1.0)
        bench.restart()
    bench.close()

    rows = [
        row for row in rows_in(bench.records) if "explorer/rollouts/total" in row.values
    ]
    assert [
        (row.id, row.attempt, row.values["explorer/rollouts/total"]) for row in rows
    ] == [
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
        return bench.translator.frame(
            worker, TRACES, payload, False, bench.now_ns, bench.now_ns
        )

    frame(root)
    held = send(bench, worker, 1, 1.0) + send(bench, worker, 2, 1.0)
    bench.restart()
    done = frame(*children)

    # The completed rollout is added to the step that it was awaited for, and then the step closes.
    assert held == []
    assert points(done + bench.tick(1)) == [(1, 2)]


def test_behind_a_receiver_a_passed_step_waits_for_what_the_network_carries_last() -> (
    None
):
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
def test_statistics_leave_a_series_to_the_row_that_has_its_key_and_are_counted(
    restart: bool, own_first: bool
) -> None:
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


def test_bridges_that_restart_again_and_again_put_the_close_of_a_passed_step_off_no_further() -> (
    None
):
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


def test_third_party_processes_that_cannot_be_distinguished_close_steps_by_the_step_wait() -> (
    None
):
    bench = bench_of(max_rollouts=1)
    agents = {"service.name": "agent", "rl.run.id": RUN}

    def agent(name: str, step: int, reward: float) -> list[Record]:
        return bench.request(
            request("", *rollout_spans(name, step=step, reward=reward), **agents),
            TRACES,
        )

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


def test_at_the_memory_bound_rollouts_are_chosen_ahead_and_their_steps_stay_open() -> (
    None
):
    bench = bench_of(max_rollouts=2, max_open_traces=6)
    fast, slow = explorers("fast", "slow")
    bench.open(fast, slow)

    ahead = send(bench, fast, 1, 0.1, 0.2, 0.3, 0.4) + send(
        bench, fast, 2, 0.5, 0.5, 0.5, 0.5
    )
    bench.restart()
    send(bench, slow, 1, 1.0)
    closed = send(bench, slow, 2, 0.0)

    assert ahead == []
    assert points(closed) == [(1, 5)]
    assert points(closed, "reward/mean") == [(1, pytest.approx(0.4))]
    assert sorted(rollout.reward or 0 for rollout in rollouts_in(closed)) == [0.1, 1.0]


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
def test_a_worker_that_is_behind_and_still_sends_is_waited_for_after_a_restart_too(
    restart: bool,
) -> None:
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
