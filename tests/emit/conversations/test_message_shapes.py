"""Messages arrive in the shapes that OpenAI's and LangChain's clients give them, with their role and calls."""

from __future__ import annotations

from collections import UserString
from typing import Any, Final

import numpy as np
import orjson
import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.conversation import (
    EncodedMessage,
    MessageLimits,
    content_of,
)
from support.trainers.emit_rollout_doubles import unread

_ARGUMENTS: Final = {"q": "x"}
_LANGCHAIN_CALL: Final = {
    "id": "c",
    "name": "search",
    "args": _ARGUMENTS,
    "type": "tool_call",
}
_OPENAI_CALL: Final = {
    "id": "c",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q": "x"}'},
}

CALLS: Final[dict[str, Any]] = {
    "LangChain model_dump": {"type": "ai", "content": "", "tool_calls": [_LANGCHAIN_CALL]},
    "LangChain messages_to_dict": {"type": "ai", "data": {"content": "", "tool_calls": [_LANGCHAIN_CALL]}},
    "OpenAI Choice": {"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [_OPENAI_CALL]}},
    "Responses item": {
        "type": "function_call", "id": "fc", "call_id": "c", "name": "search", "arguments": '{"q": "x"}',
    },
}  # fmt: skip
ANSWERS: Final[dict[str, Any]] = {
    "LangChain model_dump": {"type": "tool", "content": "found", "tool_call_id": "c"},
    "Responses item": {
        "type": "function_call_output",
        "id": "fco",
        "call_id": "c",
        "output": "found",
    },
}


def _message(entry: object) -> EncodedMessage:
    conversation = content_of([entry], MessageLimits(ContentPolicy(), 1 << 20))
    assert unread(conversation) == 0
    (message,) = conversation.messages
    return message


@pytest.mark.parametrize("shape", CALLS)
def test_a_call_has_its_role_name_and_arguments(shape: str) -> None:
    message = _message(CALLS[shape])
    (call,) = message.calls
    assert message.role == "assistant"
    assert (call.id, call.name, orjson.loads(call.arguments)) == (
        "c",
        "search",
        _ARGUMENTS,
    )


@pytest.mark.parametrize("shape", ANSWERS)
def test_an_answer_names_its_call(shape: str) -> None:
    message = _message(ANSWERS[shape])
    (answer,) = message.answers
    assert (message.role, answer.call_id, answer.text) == ("tool", "c", b"found")


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        (
            {
                "type": "reasoning",
                "id": "r",
                "summary": [{"type": "summary_text", "text": "hm"}],
            },
            {"id": "r"},
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "reasoning": [{"type": "text", "text": "hm"}],
            },
            {},
        ),
    ],
)
def test_reasoning_in_parts_is_read(entry: object, facts: dict[str, str]) -> None:
    message = _message(entry)
    assert message.role == "assistant"
    assert orjson.loads(message.json)["parts"] == [
        {"type": "reasoning", "content": "hm", **facts}
    ]


_FACTS: Final = {"label": "l", "score": 0.5}
PARTS_WITH_FACTS: Final[dict[str, tuple[Any, Any]]] = {
    "text": ({"type": "text", "text": "a"}, {"type": "text", "content": "a"}),
    "thinking": (
        {"type": "thinking", "thinking": "a"},
        {"type": "reasoning", "content": "a"},
    ),
    "call": (
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {}},
    ),
    "answer": (
        {"type": "tool_result", "tool_use_id": "c", "content": "4"},
        {"type": "tool_call_response", "id": "c", "response": "4"},
    ),
    "image": (
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
        {"type": "uri", "modality": "image", "uri": "https://a/b.png"},
    ),
}


@pytest.mark.parametrize("kind", PARTS_WITH_FACTS)
def test_facts_of_a_part_stay_with_it(kind: str) -> None:
    part, encoded = PARTS_WITH_FACTS[kind]
    message = _message({"role": "assistant", "content": [{**part, **_FACTS}]})
    assert orjson.loads(message.json)["parts"] == [{**encoded, **_FACTS}]


@pytest.mark.parametrize("arguments", ['{"q": "x"}', {"q": "x"}])
def test_facts_of_a_call_and_of_its_function_stay_with_it(arguments: Any) -> None:
    function = {"name": "search", "arguments": arguments, "strict": True}
    call = {"id": "c", "type": "function", "index": 3, "function": function}
    message = _message({"role": "assistant", "content": None, "tool_calls": [call]})
    encoded = {
        "type": "tool_call",
        "id": "c",
        "name": "search",
        "arguments": _ARGUMENTS,
        "index": 3,
        "strict": True,
    }
    assert orjson.loads(message.json)["parts"] == [encoded]


@pytest.mark.parametrize("content", [None, "a"])
@pytest.mark.parametrize(
    ("name", "encoded"),
    [("n" * 300, "n" * 256), (["f"] * 300, str(["f"] * 300)[:256])],
    ids=["text", "list"],
)
def test_a_name_that_is_cut_is_counted(
    content: str | None, name: object, encoded: str
) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": name, "arguments": "{}"},
    }
    limits = MessageLimits(ContentPolicy(), 1 << 20)
    content_read = content_of(
        [{"role": "assistant", "content": content, "tool_calls": [call]}], limits
    )
    (message,) = content_read.messages
    assert message.calls[0].name == encoded
    assert content_read.content_filter.losses.first_keys == {"clipped": "name"}


@pytest.mark.parametrize(
    "call_id", [np.int64(7), 7, np.str_("7"), UserString("7"), b"7"]
)
def test_an_id_of_any_type_is_a_text(call_id: object) -> None:
    assert (
        _message({"role": "tool", "content": "4", "tool_call_id": call_id})
        .answers[0]
        .call_id
        == "7"
    )


@pytest.mark.parametrize(
    "messages", [UserString("hi"), [{"role": "user", "content": UserString("hi")}]]
)
def test_a_text_of_another_class_is_one_text(messages: Any) -> None:
    conversation = content_of(messages, MessageLimits(ContentPolicy(), 1 << 20))
    (message,) = conversation.messages
    assert orjson.loads(message.json)["parts"] == [{"type": "text", "content": "hi"}]
    assert unread(conversation) == 0


def test_an_array_of_several_calls_needs_no_role() -> None:
    assert (
        len(
            _message(
                {"tool_calls": np.array([_OPENAI_CALL, _OPENAI_CALL], dtype=object)}
            ).calls
        )
        == 2
    )
