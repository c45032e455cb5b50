from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.content.policy import ContentPolicy, Limit
from otel_bridge.records import RolloutRecord
from otel_bridge.translation.decode.resources import Producer, origin_of, producer_of
from otel_bridge.translation.rollouts.assembly import (
    EvaluationScore,
    ReceivedTrace,
    RolloutAssembler,
    SamplingFacts,
)
from support.otlp import trace_samples as sample

ID = sample.trace_id("a")


def assembled(
    spans: list[Span],
    producer: Producer = sample.OURS,
    *,
    scope: str = "otel_bridge",
    scores: tuple[EvaluationScore, ...] = (),
    limit: Limit = None,
    limit_bytes: int = 1 << 20,
) -> tuple[SamplingFacts, RolloutRecord]:
    assembler = RolloutAssembler(
        "rollouts", ContentPolicy(limit), limit_bytes, lambda _reason, _number: None
    )
    origin = origin_of(producer, scope)
    trace = ReceivedTrace(ID, [(origin, span) for span in spans])
    facts = assembler.facts(trace)
    return facts, assembler.rollout(trace, facts, scores, {"trainer/step": 4})


def test_a_rollout_whose_root_never_came_has_what_the_root_was_at_its_start() -> None:
    start = {
        "rl.rollout.id": "mine",
        "rl.step": 7,
        "rl.group.id": "p17",
        "rl.split": "eval",
        "rl.sample.index": 3,
    }
    root, first, *others = sample.rollout_spans("a", step=8)
    first.attributes.add(key="rl.rollout.start").value.CopyFrom(sample.value(start))

    facts, rollout = assembled([*others, first])
    _, complete = assembled([*others, first, root])

    assert (facts.step, facts.group, facts.split) == (7, "p17", "eval")
    assert (rollout.step, rollout.group, rollout.split) == (7, "p17", "eval")
    assert (rollout.key, rollout.sample) == ("explorer/rollouts", 3)
    assert (rollout.metadata, rollout.incomplete) == ({"rollout_id": "mine"}, True)
    assert (complete.step, complete.group, complete.incomplete) == (8, None, False)
    for span in (*rollout.spans, *complete.spans):
        assert "rl.rollout.start" not in span.attributes
        assert b"rl.rollout.start" not in span.otlp


def test_every_attribute_of_our_root_finds_its_field() -> None:
    spans = sample.rollout_spans(
        "a",
        step=7,
        rl__split="eval",
        rl__group__id="p17",
        rl__sample__index=3,
        rl__trajectory__id="t1",
        rl__prompt__index=1,
        rl__batch__index=5,
        rl__rewards__format=0.2,
        rl__advantage=-0.5,
        rl__policy__version=9,
        rl__dataset="gsm8k",
        rl__dataset__index=11,
        rl__tool__calls=1,
        rl__tool__runtimes=[0.1],
        rl__metadata__seed=3,
        rl__clipped=10,
        gen_ai__response__finish_reasons=["tool_calls", "length"],
    )

    facts, rollout = assembled(spans)

    assert facts == SamplingFacts(
        "explorer",
        "eval",
        7,
        "p17",
        1.0,
        failed=False,
        truncated=True,
        start_unix_ns=sample.NOW + 1,
        end_unix_ns=sample.NOW + 101,
        run_id="r1",
        policy_version=9,
        dataset="gsm8k",
    )
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "calc", "arguments": '{"x":"1+1"}'},
    }
    messages = [
        {"role": "user", "content": "what? a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2"},
    ]
    assert rollout == RolloutRecord(
        id=ID,
        role="explorer",
        key="explorer/rollouts",
        step=7,
        axis="explorer/step",
        start_unix_ns=sample.NOW + 1,
        end_unix_ns=sample.NOW + 101,
        messages=messages,
        spans=rollout.spans,
        split="eval",
        group="p17",
        sample=3,
        trajectory_id="t1",
        prompt_index=1,
        batch_index=5,
        reward=1.0,
        rewards={"format": 0.2},
        advantage=-0.5,
        finish_reason="length",
        policy_version=9,
        dataset="gsm8k",
        dataset_index=11,
        tools={"calls": 1, "runtimes": [0.1]},
        metadata={"seed": 3},
        clipped_bytes=10,
        steps={"trainer/step": 4, "explorer/step": 7},
    )
    assert [span.name for span in rollout.spans] == [
        "rollout",
        "chat policy",
        "execute_tool calc",
        "chat policy",
    ]


def test_the_order_in_which_spans_came_does_not_matter_and_doubles_are_one() -> None:
    spans = sample.rollout_spans("a")

    assert assembled([*reversed(spans), spans[2]]) == assembled(spans)


def test_a_foreign_agent_gives_its_conversation_its_step_and_its_rewards() -> None:
    history: list[Any] = [{"role": "user", "content": "q"}]
    first = [
        *history,
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"},
    ]
    chat = {"gen_ai.operation.name": "chat"}
    spans = [
        sample.span(
            "a",
            1,
            "invoke_agent bob",
            {"gen_ai.operation.name": "invoke_agent", "dl.iteration": 3},
        ),
        sample.span(
            "a",
            2,
            "chat m",
            chat
            | {
                "gen_ai.input.messages": history,
                "gen_ai.output.messages": [{"role": "assistant", "content": "a1"}],
            },
        ),
        sample.span(
            "a",
            3,
            "chat m",
            chat
            | {
                "gen_ai.input.messages": first,
                "gen_ai.output.messages": json.dumps([sample.text("assistant", "a2")]),
            },
        ),
        sample.span(
            "a", 4, "agentlightning.annotation", {"agentlightning.reward.0.value": 0.1}
        ),
        sample.span(
            "a",
            5,
            "agentlightning.annotation",
            {
                "agentlightning.reward.0.name": "task",
                "agentlightning.reward.0.value": 0.75,
                "agentlightning.reward.1.value": 0.5,
            },
        ),
    ]

    agent = producer_of({"service.name": "agent", "agentlightning.rollout_id": "ro-1"})

    facts, rollout = assembled(spans, agent, scope="x")

    assert (facts.role, facts.step, facts.reward) == ("agent", 3, 0.75)
    assert [message["content"] for message in rollout.messages] == [
        "q",
        "a1",
        "q2",
        "a2",
    ]
    assert (rollout.reward, rollout.rewards) == (0.75, {"task": 0.75, "1": 0.5})
    assert rollout.metadata == {"rollout_id": "ro-1"}
    assert (rollout.key, rollout.axis, rollout.incomplete) == (
        "agent/rollouts",
        "agent/step",
        False,
    )


def test_a_span_named_rollout_inside_a_larger_trace_sends_for_it() -> None:
    spans = [
        sample.span("a", 1, "train_step"),
        sample.span("a", 2, "rollout", {"rl.step": 5, "rl.reward": 0.5}),
    ]

    facts, rollout = assembled(spans)

    assert (facts.step, rollout.reward, rollout.incomplete) == (5, 0.5, False)
    assert [span.name for span in rollout.spans] == ["train_step", "rollout"]


def test_without_its_root_a_rollout_is_incomplete_and_shows_what_came() -> None:
    spans = sample.rollout_spans("a", step=None)[1:]

    _, rollout = assembled(spans)

    assert rollout.incomplete
    assert (rollout.step, rollout.axis, rollout.steps) == (
        None,
        None,
        {"trainer/step": 4},
    )
    assert [message["role"] for message in rollout.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert rollout.end_unix_ns == sample.NOW + 104


def test_evaluations_override_and_their_remarks_become_metadata() -> None:
    scores = (
        EvaluationScore("advantage", 2.0),
        EvaluationScore("reward", 0.25, "good", "since"),
        EvaluationScore("style", 0.5),
        EvaluationScore("verdict", None, "pass"),
    )

    _, rollout = assembled(sample.rollout_spans("a"), scores=scores)

    assert (rollout.reward, rollout.advantage, rollout.rewards) == (
        0.25,
        2.0,
        {"style": 0.5},
    )
    assert rollout.metadata == {
        "reward.label": "good",
        "reward.explanation": "since",
        "verdict.label": "pass",
    }
    assert rollout.remarks == {"reward": ["good", "since"], "verdict": ["pass", None]}


def test_an_id_of_the_users_own_and_a_version_that_is_not_a_number_become_metadata() -> (
    None
):
    _, rollout = assembled(
        sample.rollout_spans("a", rl__rollout__id="mine", rl__policy__version="v2")
    )

    assert rollout.metadata == {"rollout_id": "mine", "policy_version": "v2"}
    assert rollout.policy_version is None


def test_the_content_policy_is_for_others_only() -> None:
    spans = sample.rollout_spans("a")

    _, ours = assembled(spans, limit=0)
    _, theirs = assembled(spans, sample.FOREIGN, scope="other", limit=0)

    assert len(ours.messages) == 4
    assert theirs.messages == []
    assert theirs.reward == 1.0
    assert theirs.clipped_bytes > 0
    assert b"what?" not in b"".join(span.otlp for span in theirs.spans)


def test_a_rollout_beyond_the_limit_is_clipped_and_says_so() -> None:
    spans = sample.rollout_spans("a", rl__metadata__text="x" * 100_000)

    _, rollout = assembled(spans, limit_bytes=10_000)

    assert sum(len(span.otlp) for span in rollout.spans) <= 10_000
    assert rollout.clipped_bytes > 90_000
    assert len(rollout.messages) == 4
