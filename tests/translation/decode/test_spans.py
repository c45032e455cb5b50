from __future__ import annotations

import json
import math
from typing import Any

import pytest

from otel_bridge import records
from otel_bridge.translation.decode.attributes import as_float, as_int, as_name
from otel_bridge.translation.decode.spans import (
    is_marked,
    is_rollout,
    kind_of,
    read_span,
)
from support.otlp import trace_samples as sample


def test_a_chat_span_becomes_a_generation_with_messages_model_and_tokens() -> None:
    span = sample.span(
        "a",
        2,
        "chat policy",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "policy",
            "gen_ai.response.model": "policy-7b",
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.system_instructions": '[{"type": "text", "content": "s"}]',
            "gen_ai.input.messages": json.dumps([sample.text("user", "q")]),
            "gen_ai.output.messages": [
                {**sample.text("assistant", "a"), "finish_reason": "length"}
            ],
            "ratio": 0.5,
        },
    )

    read = read_span(span)

    assert read.finish_reason == "length"
    assert read.record() == records.Span(
        id="0000000000000002",
        parent_id="0000000000000001",
        name="chat policy",
        kind="generation",
        start_unix_ns=sample.NOW + 2,
        end_unix_ns=sample.NOW + 102,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "policy",
            "gen_ai.response.model": "policy-7b",
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 3,
            "ratio": 0.5,
        },
        input=[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        output=[{"role": "assistant", "content": "a", "finish_reason": "length"}],
        model="policy-7b",
        input_tokens=12,
        output_tokens=3,
        otlp=span.SerializeToString(),
    )


@pytest.mark.parametrize(
    ("result", "output"), [("2", "2"), ('{"y": 2}', {"y": 2}), ({"y": 2}, {"y": 2})]
)
def test_a_tool_span_holds_arguments_and_result(result: Any, output: Any) -> None:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.call.arguments": '{"x": 1}',
    }

    record = read_span(
        sample.span("a", 3, "t", {**attributes, "gen_ai.tool.call.result": result})
    ).record()

    assert (record.kind, record.input, record.output) == ("tool", {"x": 1}, output)
    assert record.attributes == {"gen_ai.operation.name": "execute_tool"}


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("x", {"gen_ai.operation.name": "text_completion"}, "generation"),
        ("chat m", {"gen_ai.operation.name": "invoke_agent"}, "span"),
        ("chat m", {}, "generation"),
        ("execute_tool t", {}, "tool"),
        ("chat", {}, "span"),
        ("x", {"openinference.span.kind": "LLM"}, "generation"),
        ("x", {"traceloop.span.kind": "tool"}, "tool"),
        ("rollout", {}, "span"),
    ],
)
def test_the_kind_follows_the_operation_else_the_name(
    name: str, attributes: dict[str, Any], kind: str
) -> None:
    assert kind_of(name, attributes) == kind


def test_messages_of_older_instrumentations_are_read() -> None:
    flat = {
        "llm.request.type": "chat",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
    }
    flat |= {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "a",
    }
    inference = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
    }
    inference |= {"llm.input_messages.0.message.content": "q", "output.value": "o"}
    event = sample.span("a", 1, "chat m", {"gen_ai.operation.name": "chat"})
    event.events.add(
        name="gen_ai.client.inference.operation.details"
    ).attributes.extend(
        sample.pairs({"gen_ai.input.messages": [sample.text("user", "q")]})
    )

    read = [
        read_span(sample.span("a", 1, "x", flat)),
        read_span(sample.span("a", 1, "x", inference)),
        read_span(event),
    ]

    assert [one.prompt for one in read] == [[{"role": "user", "content": "q"}]] * 3
    assert read[0].answer == [{"role": "assistant", "content": "a"}]


def test_the_answer_in_pydantic_ais_list_of_events_is_the_answer_of_the_call() -> None:
    listed: list[dict[str, Any]] = [
        {"event.name": "gen_ai.user.message", "role": "user", "content": "q"},
        {"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "content": "a"}},
    ]  # fmt: skip
    attributes = {"gen_ai.operation.name": "chat", "events": json.dumps(listed)}

    call = read_span(sample.span("a", 1, "chat m", attributes))

    assert call.prompt == [{"role": "user", "content": "q"}]
    assert call.answer == [{"role": "assistant", "content": "a"}]
    assert call.skipped == 0


def test_an_error_is_the_status_message_else_the_exception_else_said_bare() -> None:
    silent = sample.span("a", 1, "x", error="")
    thrown = sample.span("a", 1, "x", error="")
    thrown.events.add(name="exception").attributes.extend(
        sample.pairs({"exception.type": "ValueError", "exception.message": "bad"})
    )

    errors = [
        read_span(one).error
        for one in (sample.span("a", 1, "x", error="boom"), thrown, silent)
    ]

    assert errors == ["boom", "ValueError: bad", "error"]
    assert read_span(sample.span("a", 1, "x")).error is None


def test_a_rollout_is_reported_by_its_name_its_id_or_a_genai_operation() -> None:
    spans = [
        sample.span("a", 1, "rollout"),
        sample.span("a", 1, "x", {"rl.rollout.id": "mine"}),
        sample.span("a", 1, "x", {"gen_ai.operation.name": "chat"}),
        sample.span("a", 1, "GET /", {"http.method": "GET"}),
    ]

    assert [is_rollout(span) for span in spans] == [True, True, True, False]
    assert [is_marked(span) for span in spans] == [True, True, False, False]


def test_values_of_any_type_become_numbers_and_names_or_nothing() -> None:
    values: list[Any] = [3, 3.0, "3", True, 2.5, "x", None, [], 1e300, 10**30, "9" * 30]

    assert [as_int(value) for value in values] == [
        3,
        3,
        3,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
    ]
    assert (as_int("3_100"), as_float("3_100")) == (None, None)
    lowest = -(1 << 63)
    assert [as_int(value) for value in (str(lowest), float(lowest))] == [lowest] * 2
    assert [as_float(value) for value in values[:6]] == [3.0, 3.0, 3.0, 1.0, 2.5, None]
    assert as_float(10**400) == math.inf
    assert [as_name(value) for value in values[:7]] == [
        "3",
        "3.0",
        "3",
        None,
        "2.5",
        "x",
        None,
    ]
