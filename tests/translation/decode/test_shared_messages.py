"""Tests of spans that say by an index which message of their root they were made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.translation.decode import shared_messages
from otel_bridge.translation.decode.attributes import mapping_of
from support.otlp import trace_samples as sample

QUESTION = sample.text("user", "What is 1+1?")
ASKS = {
    "role": "assistant",
    "parts": [
        {"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"x": "1+1"}}
    ],
}
RESULT = {
    "role": "tool",
    "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}],
}
ANSWER = sample.text("assistant", "It is 2.")
THANKS = sample.text("user", "Thanks.")
CHAT = {"gen_ai.operation.name": "chat"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c1"}


def with_messages(spans: list[Span], top: Span) -> list[Span]:
    whole = shared_messages.with_messages([("i1", span) for span in spans], top)
    assert all(producer == "i1" for producer, _ in whole)
    return [span for _, span in whole]


def root(given: list[Any], made: list[Any]) -> Span:
    said = {
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.output.messages": json.dumps(made),
    }
    return sample.span("a", 1, "rollout", said)


def child(number: int, index: Any, attributes: dict[str, Any]) -> Span:
    return sample.span("a", number, "child", {**attributes, "rl.message.index": index})


def texts(span: Span) -> dict[str, Any]:
    """Attributes, those that hold JSON parsed."""
    found = mapping_of(span.attributes)
    return {
        key: json.loads(value)
        if isinstance(value, str) and value[:1] in "[{"
        else value
        for key, value in found.items()
    }


def test_each_span_gets_the_texts_of_its_message_and_loses_the_index() -> None:
    top = root([QUESTION, ASKS, RESULT, THANKS], [ANSWER])
    spans = [top, child(2, 1, CHAT), child(3, 2, TOOL), child(4, 3, CHAT)]

    whole = with_messages(spans, top)

    assert whole[0] is top
    assert [texts(span) for span in whole[1:]] == [
        {**CHAT, "gen_ai.input.messages": [QUESTION], "gen_ai.output.messages": [ASKS]},
        {
            **TOOL,
            "gen_ai.tool.call.arguments": {"x": "1+1"},
            "gen_ai.tool.call.result": "2",
        },
        {**CHAT, "gen_ai.input.messages": [RESULT], "gen_ai.output.messages": [ANSWER]},
    ]
    assert [span.span_id for span in whole] == [span.span_id for span in spans]


def test_the_spans_that_came_stay_as_they_are() -> None:
    top, first = root([QUESTION], [ANSWER]), child(2, 1, CHAT)
    before = first.SerializeToString()

    with_messages([top, first], top)

    assert first.SerializeToString() == before


def test_texts_that_a_span_brings_hold() -> None:
    top, tool = (
        root([QUESTION, ASKS, RESULT], [ANSWER]),
        child(3, 2, {**TOOL, "gen_ai.tool.call.arguments": "mine"}),
    )

    whole = with_messages([top, tool], top)

    assert texts(whole[1]) == {
        **TOOL,
        "gen_ai.tool.call.arguments": "mine",
        "gen_ai.tool.call.result": "2",
    }


def test_spans_with_messages_of_their_own_and_without_an_index_are_not_touched() -> (
    None
):
    spans = sample.rollout_spans("a")

    whole = with_messages(spans, spans[0])

    assert all(mine is given for mine, given in zip(whole, spans, strict=True))


@pytest.mark.parametrize("index", [-1, 2, 1 << 62, "1", 1.0, True, None])
def test_an_index_that_names_no_message_is_passed_over(index: Any) -> None:
    top, first = root([QUESTION], [ANSWER]), child(2, index, CHAT)

    assert with_messages([top, first], top)[1] is first


@pytest.mark.parametrize("broken", ["", "[", "{}", "null", '["a"]', 7])
def test_a_root_that_cannot_be_read_leaves_its_children_bare(broken: Any) -> None:
    top = sample.span("a", 1, "rollout", {"gen_ai.input.messages": broken})
    first = child(2, 0, CHAT)

    assert with_messages([top, first], top)[1] is first


def test_of_calls_with_one_id_the_nearest_is_meant() -> None:
    again = {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "id": "c1", "name": "calc", "arguments": "second"}
        ],
    }
    top, tool = (
        root([QUESTION, ASKS, RESULT, again, RESULT], [ANSWER]),
        child(3, 4, TOOL),
    )

    whole = with_messages([top, tool, child(4, 5, CHAT)], top)

    assert texts(whole[1])["gen_ai.tool.call.arguments"] == "second"
