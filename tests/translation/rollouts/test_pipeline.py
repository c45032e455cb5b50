"""Traces that become rollouts: when one is complete, what joins it, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge.records import PlainTrace
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import OtherTraces
from support.otlp import trace_samples as sample
from support.otlp.trace_samples import (
    SECOND,
    Bench,
    late_in,
    rollout_pipeline,
    rollouts_in,
    rows_in,
)


def test_a_batch_rollout_in_one_frame_is_a_record_at_once() -> None:
    bench = Bench(selection="first")

    records = bench.send(*sample.rollout_spans("a"))

    [rollout] = rollouts_in(records)
    assert (rollout.id, rollout.step, rollout.reward, len(rollout.spans)) == (
        sample.trace_id("a"),
        1,
        1.0,
        4,
    )
    assert bench.rollouts.waiting() == (0, 0)
    assert bench.counted() == {}
    assert bench.counted("trace/spans/") == {}


def test_many_traces_in_one_frame_are_parted() -> None:
    bench = Bench(selection="first")
    spans = [span for name in "abc" for span in sample.rollout_spans(name)]

    records = bench.send(*reversed(spans))

    assert {rollout.id for rollout in rollouts_in(records)} == {
        sample.trace_id(name) for name in "abc"
    }
    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [4, 4, 4]


def test_a_rollout_in_pieces_is_complete_with_its_last_span_also_after_a_restart() -> (
    None
):
    bench = Bench(selection="first")
    root, *children = sample.rollout_spans("a")

    before = bench.send(root) + bench.send(*children[:2])
    bench.restart()

    assert before == []
    assert [len(rollout.spans) for rollout in rollouts_in(bench.send(children[2]))] == [
        4
    ]


def test_a_trace_that_does_not_say_how_many_spans_it_has_waits_behind_its_root() -> (
    None
):
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    root, *children = sample.rollout_spans("a", counted=False)

    before = (
        bench.send(children[0])
        + bench.after(100)
        + bench.send(root)
        + bench.after(1)
        + bench.send(*children[1:])
    )
    after = bench.after(1)

    assert before == []
    assert [len(rollout.spans) for rollout in rollouts_in(after)] == [4]


def test_a_span_that_never_comes_does_not_hold_its_rollout() -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)

    records = bench.send(*sample.rollout_spans("a")[:3]) + bench.after(2)

    [rollout] = rollouts_in(records)
    assert (len(rollout.spans), rollout.incomplete) == (3, False)


def test_a_root_that_never_comes_leaves_an_incomplete_rollout() -> None:
    bench = Bench(selection="first", trace_timeout_ns=600 * SECOND)
    bench.send(sample.rollout_spans("a")[1])
    bench.after(300)
    bench.send(sample.rollout_spans("a")[2])

    early, late = bench.after(599), bench.after(1)

    assert early == []
    assert [
        (len(rollout.spans), rollout.incomplete) for rollout in rollouts_in(late)
    ] == [(2, True)]


def test_a_span_behind_its_rollout_completes_it_and_a_redelivered_one_does_not() -> (
    None
):
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))

    records = bench.send(*sample.rollout_spans("a")) + bench.send(
        sample.span("a", 9, "chat x")
    )
    bench.restart()
    records += (
        bench.send(*sample.rollout_spans("a"))
        + bench.send(sample.span("a", 10, "chat x"))
        + bench.close()
    )

    late = [
        (one.id, one.rollout_key, one.step, len(one.spans))
        for one in records
        if isinstance(one, PlainTrace)
    ]
    assert late == [(sample.trace_id("a"), "explorer/rollouts", 1, 1)] * 2
    assert (rollouts_in(records), bench.counted()) == ([], {})


def test_a_span_behind_a_rollout_that_was_sampled_out_is_counted() -> None:
    bench = Bench(selection="first", max_rollouts=0)
    bench.send(*sample.rollout_spans("a"))

    records = bench.send(
        sample.span("a", 9, "llm_request", parent=2),
        producer=sample.FOREIGN,
        scope="vllm",
    )

    assert (records, bench.counted()) == ([], {"span/late": 1})


def test_messages_that_come_after_their_rollout_was_shown_are_counted_once() -> None:
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))
    message = sample.message_event("a", 2)

    records = [
        *bench.rollouts.content(sample.FOREIGN, "i2", message, bench.now),
        *bench.rollouts.content(sample.FOREIGN, "i2", message, bench.now),
    ]

    assert (records, bench.counted()) == ([], {"event/no_span": 1})


def test_messages_of_a_span_that_its_rollout_never_gets_are_counted() -> None:
    bench = Bench(selection="first")
    bench.rollouts.content(
        sample.FOREIGN, "i2", sample.message_event("a", 9), bench.now
    )

    records = bench.send(*sample.rollout_spans("a"))

    [rollout] = rollouts_in(records)
    assert (len(rollout.spans), bench.counted()) == (4, {"event/no_span": 1})


def test_a_rollout_that_begins_late_in_a_trace_of_something_else_is_shown() -> None:
    bench = Bench(selection="first", trace_timeout_ns=600 * SECOND)
    bench.send(sample.span("a", 9, "GET /weights"))
    bench.after(600)

    records = bench.send(*sample.rollout_spans("a"))

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [4]
    assert bench.counted() == {"trace/other": 1}


def test_spans_that_come_after_a_trace_of_something_else_was_shown_are_counted_once() -> (
    None
):
    bench = Bench(trace_grace_ns=2 * SECOND)
    bench.rollouts = rollout_pipeline(
        bench.state, bench.options, other_traces=lambda: OtherTraces.SHOWN
    )
    health = sample.span("w", 1, "GET /health", parent=None)
    bench.send(health)
    bench.after(3)

    for _ in range(2):
        assert bench.send(health, sample.span("w", 2, "SELECT")) == []

    assert bench.counted() == {"span/late": 1}


@pytest.mark.parametrize("early", [True, False])
def test_a_server_span_that_came_to_another_run_moves_to_the_rollout_of_its_trace(
    early: bool,
) -> None:
    server, job = (
        Bench(selection="first"),
        Bench(selection="first", trace_grace_ns=2 * SECOND),
    )
    root, *children = sample.rollout_spans("a", counted=False)
    if early:
        server.send(
            sample.span("a", 9, "llm_request", parent=2),
            producer=sample.FOREIGN,
            scope="vllm",
        )
        job.send(children[0])
    else:
        job.send(children[0])
        server.send(
            sample.span("a", 9, "llm_request", parent=2),
            producer=sample.FOREIGN,
            scope="vllm",
        )
    trace_id = sample.trace_id("a")

    assert (server.rollouts.strays(), job.rollouts.strays()) == ({trace_id}, set())
    assert job.rollouts.own_traces() == {trace_id}
    records = job.rollouts.adopt(server.rollouts.stray(trace_id), job.now)
    records += job.rollouts.adopt(
        server.rollouts.stray(trace_id), job.now
    )  # as after a kill
    server.rollouts.give_away(trace_id)
    records += job.send(root, *children[1:]) + job.after(2)

    [rollout] = rollouts_in(records)
    assert [span.name for span in rollout.spans].count("llm_request") == 1
    assert (server.close(), server.counted(), job.counted()) == ([], {}, {})


def test_a_redelivered_rollout_that_waits_for_its_step_stays_one() -> None:
    bench = Bench()
    bench.send(*sample.rollout_spans("a"))

    records = bench.send(*sample.rollout_spans("a")) + bench.close()

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [4]


def test_spans_sent_again_do_not_fill_the_state() -> None:
    bench = Bench()
    children = sample.rollout_spans("a")[1:]
    bench.send(*children)
    before = bench.counted("trace/")

    for _ in range(3):
        bench.send(*children, *children)

    assert bench.counted("trace/") == before


def test_a_reward_in_a_span_that_joins_a_waiting_rollout_counts_in_the_choice() -> None:
    bench = Bench(trace_grace_ns=2 * SECOND)
    bench.send(
        sample.span("a", 1, "chat m", {"gen_ai.operation.name": "chat", "rl.step": 1}),
        producer=sample.FOREIGN,
        scope="x",
    )
    bench.after(2)
    reward = sample.span(
        "a", 2, "agentlightning.annotation", {"agentlightning.reward.0.value": 0.5}
    )
    bench.send(reward, producer=sample.FOREIGN, scope="x")
    bench.restart()

    records = bench.close()

    assert [rollout.reward for rollout in rollouts_in(records)] == [0.5]
    assert [row.values["agent/rollouts/reward/mean"] for row in rows_in(records)] == [
        0.5
    ]


def test_a_span_joins_its_rollout_while_that_waits_for_its_step() -> None:
    bench = Bench()
    bench.send(*sample.rollout_spans("a"))

    records = bench.send(sample.span("a", 9, "verify")) + bench.close()

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [5]


def test_spans_of_other_processes_join_and_the_root_says_the_role() -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    root, *children = sample.rollout_spans("a", counted=False)

    bench.send(*children, producer=sample.FOREIGN, scope="tool-server")
    records = bench.send(root) + bench.after(2)

    [rollout] = rollouts_in(records)
    assert (rollout.role, len(rollout.spans)) == ("explorer", 4)


@pytest.mark.parametrize("restart", [False, True])
def test_a_trace_that_is_not_a_rollout_is_counted_once_and_left_alone(
    restart: bool,
) -> None:
    bench = Bench(trace_grace_ns=2 * SECOND)
    records = bench.send(sample.span("http", 2, "SELECT")) + bench.send(
        sample.span("http", 1, "GET /")
    )
    if restart:
        bench.restart()

    records += (
        bench.after(2) + bench.send(sample.span("http", 3, "late")) + bench.close()
    )

    assert records == []
    assert bench.counted() == {"trace/other": 1}
    assert bench.rollouts.waiting() == (0, 0)
    assert bench.counted("trace/spans/") == {}


def test_a_trace_becomes_a_rollout_by_any_of_its_spans() -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    bench.send(sample.span("a", 1, "GET /"), producer=sample.FOREIGN, scope="http")

    bench.send(
        sample.span("a", 2, "chat m", {"gen_ai.operation.name": "chat"}),
        producer=sample.FOREIGN,
        scope="ai",
    )
    records = bench.after(2)

    assert [(rollout.role, rollout.step) for rollout in rollouts_in(records)] == [
        ("agent", None)
    ]


def test_open_traces_are_bounded_and_those_that_are_not_rollouts_go_first() -> None:
    bench = Bench(selection="first", max_open_traces=2)
    records = bench.send(sample.rollout_spans("a")[1])
    bench.now += 1
    records += bench.send(sample.span("http", 2, "SELECT"))
    bench.now += 1
    records += bench.send(sample.rollout_spans("b")[1])
    counts = bench.counted()
    bench.now += 1
    records += bench.send(sample.rollout_spans("c")[1])

    assert counts == {"trace/other": 1}
    assert [(rollout.id, rollout.incomplete) for rollout in rollouts_in(records)] == [
        (sample.trace_id("a"), True)
    ]
    assert bench.counted() == {"trace/other": 1, "trace/evicted": 1}
    assert bench.rollouts.waiting() == (2, 0)


def test_the_bytes_of_open_traces_are_bounded() -> None:
    bench = Bench(selection="first", max_open_trace_bytes=5_000, max_rollouts=1_000)

    records: list[Any] = []
    for number in range(20):
        bench.now += 1
        records += bench.send(*sample.rollout_spans(f"{number}")[1:])

    stored = sum(
        len(value)
        for _, value in bench.state.items("trace/spans/")
        if isinstance(value, bytes)
    )
    assert stored <= 5_000
    assert len(rollouts_in(records)) + bench.rollouts.waiting()[0] == 20


def test_closing_releases_everything_and_what_comes_later_is_taken_as_ever() -> None:
    bench = Bench()
    bench.send(*sample.rollout_spans("whole"))
    bench.send(sample.rollout_spans("rootless")[1])
    bench.send(sample.span("http", 1, "GET /"))
    bench.evaluate(sample.evaluation("elsewhere", "reward", 1.0))

    first = bench.close()
    second = bench.send(*sample.rollout_spans("again", step=2)) + bench.close()

    assert {rollout.id for rollout in rollouts_in(first)} == {
        sample.trace_id(name) for name in ("whole", "rootless")
    }
    assert len(late_in(first)) == 1
    assert [rollout.id for rollout in rollouts_in(second)] == [sample.trace_id("again")]
    assert bench.rollouts.waiting() == (0, 0)


def test_every_record_carries_the_axes_known_so_far() -> None:
    bench = Bench(selection="first")
    bench.state.set("axis/trainer/step", 8)
    read_from_state = rollout_pipeline(bench.state, bench.options)
    axes = StepAxes(bench.state, bench.options.max_keys)
    axes.advance("trainer/step", 9)
    given = rollout_pipeline(bench.state, bench.options, axes)

    [read] = rollouts_in(
        read_from_state.spans(
            sample.OURS,
            "i1",
            sample.scope_spans(sample.rollout_spans("a", step=3)),
            sample.NOW,
        )
    )
    [given] = rollouts_in(
        given.spans(
            sample.OURS,
            "i1",
            sample.scope_spans(sample.rollout_spans("b", step=3)),
            sample.NOW,
        )
    )

    assert read.steps == {"trainer/step": 8, "explorer/step": 3}
    assert given.steps == {"trainer/step": 9, "explorer/step": 3}


@pytest.mark.parametrize(
    ("fate", "counted", "shown"),
    [
        (OtherTraces.COUNTED, {"trace/other": 1}, []),
        (OtherTraces.SHOWN, {}, [("GET /health", 2)]),
        (OtherTraces.SHOWN_AND_COUNTED, {"trace/other": 1}, [("GET /health", 2)]),
    ],
)
def test_a_trace_that_is_not_a_rollout_becomes_a_record_where_somebody_shows_it(
    fate: OtherTraces, counted: dict[str, int], shown: list[tuple[str, int]]
) -> None:
    bench = Bench(trace_grace_ns=2 * SECOND)
    bench.rollouts = rollout_pipeline(
        bench.state, bench.options, other_traces=lambda: fate
    )
    bench.send(
        sample.span("w", 2, "SELECT"), sample.span("w", 1, "GET /health", parent=None)
    )

    records = bench.after(3)

    assert [
        (record.name, len(record.spans))
        for record in records
        if isinstance(record, PlainTrace)
    ] == shown
    assert len(records) == len(shown)
    assert bench.counted() == counted
    assert (
        bench.send(sample.span("w", 1, "GET /health", parent=None)) + bench.after(3)
        == []
    )


def test_a_child_of_a_process_whose_clock_is_off_stays_in_its_rollout() -> None:
    bench = Bench()
    root, chat, tool, last = sample.rollout_spans("a")
    hours = 3_600 * sample.SECOND
    tool.start_time_unix_nano, tool.end_time_unix_nano = 1, 2
    last.start_time_unix_nano += hours
    last.end_time_unix_nano += hours

    [rollout] = rollouts_in(bench.send(root, chat, tool, last) + bench.close())

    assert (rollout.start_unix_ns, rollout.end_unix_ns) == (
        root.start_time_unix_nano,
        root.end_time_unix_nano,
    )
    assert rollout.spans[0].name == "rollout"
    assert {span.name for span in rollout.spans[1:]} == {
        "chat policy",
        "execute_tool calc",
    }
    assert [message["role"] for message in rollout.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
