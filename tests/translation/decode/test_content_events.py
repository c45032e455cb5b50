from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.translation.decode.content_events import (
    chats_of_events,
    chats_of_listed,
)
from support.otlp.otlp_samples import pairs

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def event(name: str, **attributes: Any) -> Span.Event:
    return Span.Event(name=name, attributes=pairs(attributes))


@pytest.mark.parametrize(
    "text", ['{"a": true}', "[1, 2]", '{"x": null}', "null", "7", "[]x"]
)
def test_a_text_that_looks_like_json_stays_as_it_was_written(text: str) -> None:
    prompt, answer = chats_of_events(
        [
            event("gen_ai.user.message", content=text),
            event("gen_ai.choice", message=text),
        ]
    )

    assert prompt.messages == [{"role": "user", "content": text}]
    assert answer.messages == [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "attributes",
    [
        {"message": json.dumps({"role": "assistant", "tool_calls": [CALL]})},
        {"message": json.dumps({"role": "assistant"}), "tool_calls": [CALL]},
        {
            "message": json.dumps({"role": "assistant", "tool_calls": None}),
            "tool_calls": [CALL],
        },
        {
            "message": json.dumps({"role": "assistant", "tool_calls": []}),
            "tool_calls": [CALL],
        },
    ],
)
def test_a_choice_has_its_calls_in_the_message_or_beside_it(
    attributes: dict[str, Any],
) -> None:
    _, answer = chats_of_events(
        [event("gen_ai.choice", finish_reason="tool_calls", **attributes)]
    )

    [message] = answer.messages
    assert (message["content"], message["tool_calls"]) == (None, [CALL])
    assert answer.finish_reason == "tool_calls"


def test_a_choice_without_a_message_has_its_own_content() -> None:
    _, answer = chats_of_events([event("gen_ai.choice", index=0, content="a")])

    assert answer.messages == [{"role": "assistant", "content": "a"}]


def test_events_listed_in_one_attribute_are_input_and_answer() -> None:
    listed: list[Any] = [
        {"event.name": "gen_ai.user.message", "role": "user", "content": "q"},
        {"event.name": "gen_ai.assistant.message", "role": "assistant", "tool_calls": [CALL]},
        {"event.name": "gen_ai.tool.message", "role": "tool", "id": "c", "content": "r"},
        {"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "content": "a"}},
    ]  # fmt: skip

    chats = chats_of_listed(json.dumps(listed))

    assert chats is not None
    prompt, answer = chats
    assert [message["role"] for message in prompt.messages] == [
        "user",
        "assistant",
        "tool",
    ]
    assert prompt.messages[2]["tool_call_id"] == "c"
    assert answer.messages == [{"role": "assistant", "content": "a"}]
    assert (prompt.skipped, answer.skipped) == (0, 0)


@pytest.mark.parametrize(
    "value",
    [None, "q", {"event.name": "gen_ai.choice"}, [{"role": "user", "content": "q"}], ["q"], [{"event.name": 3}],
     [{"event.name": []}], [{"event.name": {}}]],
)  # fmt: skip
def test_what_is_not_a_list_of_events_is_read_in_another_way(value: Any) -> None:
    assert chats_of_listed(value) is None


def test_the_instructions_of_an_event_of_all_messages_come_first() -> None:
    hi = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    details = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "s"}]),
        "gen_ai.input.messages": json.dumps([hi]),
    }

    prompt, _ = chats_of_events(
        [event("gen_ai.client.inference.operation.details", **details)]
    )

    assert prompt.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi"},
    ]


def test_the_result_of_a_tool_in_the_form_of_bedrock_names_its_call() -> None:
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "sun"}]}}

    prompt, _ = chats_of_events(
        [event("gen_ai.tool.message", content=json.dumps([result]))]
    )

    assert prompt.messages == [{"role": "tool", "content": "sun", "tool_call_id": "t1"}]
