"""Rollouts of spans in any order and of any content: broken, doubled, endless."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.records import RolloutRecord
from support.otlp import trace_samples as sample
from support.otlp.trace_samples import SECOND, Bench, rollouts_in, rows_in


def spoiled() -> list[Span]:
    good = sample.rollout_spans("a")[1]
    short, zero, spanless = Span(), Span(), Span()
    for span in (short, zero, spanless):
        span.CopyFrom(good)
    short.trace_id, zero.trace_id, spanless.span_id = b"x", bytes(16), b""
    return [short, zero, spanless]


def test_spans_without_ids_are_counted_and_their_neighbours_arrive() -> None:
    bench = Bench(selection="first")

    records = bench.send(*spoiled(), *sample.rollout_spans("a"))

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [4]
    assert bench.counted() == {"span/invalid": 3}


def test_a_span_that_ends_before_it_starts_and_values_of_wrong_types_do_no_harm() -> (
    None
):
    bench = Bench(selection="first")
    root, *children = sample.rollout_spans("a", step=None, reward=None)
    root.attributes.extend(
        sample.pairs(
            {
                "rl.step": "seven",
                "rl.reward": [1],
                "gen_ai.input.messages": 5,
                "rl.split": 2,
            }
        )
    )
    root.end_time_unix_nano = 1

    records = bench.send(root, *children) + bench.close()

    [rollout] = rollouts_in(records)
    assert (rollout.step, rollout.reward, rollout.end_unix_ns) == (
        None,
        None,
        rollout.start_unix_ns,
    )


def test_a_span_source_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_bridge.translation.rollouts.trace_store.MAX_SPANS", 10)
    bench = Bench(selection="first")

    bench.send(
        *(sample.span("a", n + 2, "chat m") for n in range(15)),
        sample.span("a", 1, "rollout"),
    )
    records = bench.close()

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [10]
    assert bench.counted() == {"span/too_many": 6}


def test_a_root_beyond_the_bound_of_its_trace_does_not_lift_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otel_bridge.translation.rollouts.trace_store.MAX_SPANS", 10)
    bench = Bench(selection="first")
    bench.send(*(sample.span("a", n + 2, "chat m") for n in range(10)))
    bench.send(sample.span("a", 1, "rollout"))

    bench.send(*(sample.span("a", n + 20, "chat m") for n in range(3)))
    records = bench.close()

    assert [len(rollout.spans) for rollout in rollouts_in(records)] == [11]
    assert bench.counted() == {"span/too_many": 3}


NAMES = ("a", "b", "c", "d", "e")
FOREIGN_SPANS = [
    sample.span(
        "f",
        2,
        "chat m",
        {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '["q"]'},
    ),
    sample.span(
        "f",
        3,
        "chat m",
        {"gen_ai.operation.name": "chat", "gen_ai.output.messages": '["a"]'},
    ),
    sample.span(
        "f",
        1,
        "invoke_agent",
        {"gen_ai.operation.name": "invoke_agent", "step": 1, "rl.role": "explorer"},
    ),
]
EVENTS = [
    (sample.evaluation("a", "reward", 0.9, seq=1), "i1"),
    (sample.evaluation("b", "style", 0.1, seq=2), "i1"),
    (sample.evaluation("b", "style", 0.2, seq=3), "i1"),
    (sample.evaluation("c", "advantage", -1.0, seq=1), "i2"),
]


def all_spans() -> list[Span]:
    spans: list[Span] = []
    for number, name in enumerate(NAMES):
        spans += sample.rollout_spans(
            name,
            reward=number / 10,
            counted=number % 2 == 0,
            rl__group__id=f"p{number // 2}",
        )
    return spans + FOREIGN_SPANS


def by_id(records: list[Any]) -> dict[str, RolloutRecord]:
    found = rollouts_in(records)
    assert len({rollout.id for rollout in found}) == len(found)
    return {rollout.id: rollout for rollout in found}


def totals(records: list[Any]) -> list[Any]:
    names = ("total", "kept", "zero_variance_groups")
    return [
        (row.id, *(row.values[f"explorer/rollouts/{name}"] for name in names))
        for row in rows_in(records)
    ]


EXPECTED_BENCH = Bench(max_rollouts=4)
for event in EVENTS:
    EXPECTED_BENCH.evaluate(*event)
EXPECTED_RECORDS = EXPECTED_BENCH.send(*all_spans()) + EXPECTED_BENCH.close()
EXPECTED = by_id(EXPECTED_RECORDS)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_order_split_doubling_and_restart_gives_the_same_rollouts(
    data: st.DataObject,
) -> None:
    assert len(EXPECTED) == 4
    spans = all_spans()
    items: list[Any] = data.draw(st.permutations([*spans, *EVENTS]))
    items += data.draw(st.lists(st.sampled_from(items), max_size=10))
    bench = Bench(
        max_rollouts=4, trace_grace_ns=60 * SECOND, step_watermark_ns=300 * SECOND
    )
    records: list[Any] = []

    while items:
        size = data.draw(st.integers(1, 8))
        frame, items = items[:size], items[size:]
        came = [item for item in frame if isinstance(item, Span)]
        records += bench.send(*came)
        for evaluated in frame:
            if not isinstance(evaluated, Span):
                records += bench.evaluate(*evaluated)
        if data.draw(st.booleans()):
            bench.restart()
        records += bench.after(data.draw(st.sampled_from([0, 1])))
    records += bench.after(60) + bench.after(300) + bench.close()

    assert by_id(records) == EXPECTED
    assert totals(records) == totals(EXPECTED_RECORDS)
    assert bench.counted() == {}
    assert bench.rollouts.waiting() == (0, 0)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_in_names_values_and_ids_never_raise(
    left: bytes, right: bytes
) -> None:
    text = left.decode("utf-8", "replace")
    bench = Bench(selection="first", content=ContentPolicy(5))
    attributes = {
        "gen_ai.operation.name": text,
        "gen_ai.input.messages": text,
        "rl.step": text,
        "rl.reward": right,
    }
    span = Span(
        trace_id=left[:16],
        span_id=right[:8],
        parent_span_id=left[:8],
        name=text,
        attributes=sample.pairs(attributes),
    )
    root = sample.span(
        "a",
        1,
        "rollout",
        {**attributes, "rl.rollout.spans": len(right), "rl.split": text},
    )

    records = (
        bench.send(span, root, producer=sample.FOREIGN, scope=text)
        + bench.after(1_000)
        + bench.close()
    )

    assert sample.trace_id("a") in {rollout.id for rollout in rollouts_in(records)}


def test_entries_beside_messages_that_are_not_messages_are_counted() -> None:
    bench = Bench()
    messages = json.dumps([{"role": "user", "content": "Hi"}, 7, {"text": "no role"}])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}

    bench.send(
        sample.span("a", 1, "chat m", attributes, parent=None), producer=sample.FOREIGN
    )
    (rollout,) = rollouts_in(bench.close())

    assert rollout.messages == [{"role": "user", "content": "Hi"}]
    assert bench.counted() == {"message/invalid": 2}
