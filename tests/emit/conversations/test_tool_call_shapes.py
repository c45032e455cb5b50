"""Tool calls of a message arrive in every shape that programs and parquet files give them; no call is lost."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.conversation import (
    Content,
    MessageLimits,
    content_of,
)
from support.trainers.emit_rollout_doubles import unread

_ARGUMENTS: Final = {"q": "x"}
_FUNCTION: Final = {"name": "search", "arguments": '{"q": "x"}'}
_CALL: Final = {"id": "c", "type": "function", "function": _FUNCTION}
_CALL_TEXT: Final = orjson.dumps(_CALL).decode()

SHAPES: Final[dict[str, Any]] = {
    "list": [_CALL],
    "one dict": _CALL,
    "JSON text": _CALL_TEXT,
    "JSON text of a list": f"[{_CALL_TEXT}]",
    "JSON texts": [_CALL_TEXT],
    "array": np.array([_CALL], dtype=object),
    "array of JSON texts": np.array([_CALL_TEXT]),
    "function as JSON text": [
        {"id": "c", "function": orjson.dumps(_FUNCTION).decode()}
    ],
    "function as a name": [{"id": "c", "function": "search", "arguments": _ARGUMENTS}],
    "custom": [
        {
            "id": "c",
            "type": "custom",
            "custom": {"name": "search", "input": '{"q": "x"}'},
        }
    ],
    "args": [{"id": "c", "name": "search", "args": _ARGUMENTS}],
    "parameters": [{"id": "c", "name": "search", "parameters": _ARGUMENTS}],
}


def _conversation(**fields: object) -> Content:
    message = {"role": "assistant", "content": None, **fields}
    return content_of([message], MessageLimits(ContentPolicy(), 1 << 20))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tool_call_keeps_its_name_and_arguments_in_every_shape(shape: str) -> None:
    conversation = _conversation(tool_calls=SHAPES[shape])
    (call,) = conversation.messages[0].calls
    assert (call.id, call.name, orjson.loads(call.arguments)) == (
        "c",
        "search",
        _ARGUMENTS,
    )
    assert unread(conversation) == 0


@pytest.mark.parametrize(
    "content", [None, "the key is sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"]
)
def test_a_generator_of_tool_calls_is_read_also_beside_a_secret(
    content: str | None,
) -> None:
    conversation = _conversation(content=content, tool_calls=(call for call in [_CALL]))
    assert [call.name for call in conversation.messages[0].calls] == ["search"]


def test_what_is_not_a_tool_call_is_kept_as_text_and_counted() -> None:
    conversation = _conversation(tool_calls=["search the web"])
    assert b"search the web" in conversation.messages[0].json
    assert unread(conversation) == 1


@pytest.mark.parametrize("absent", [None, "", [], float("nan"), np.array([])])
def test_absent_tool_calls_count_nothing(absent: object) -> None:
    conversation = _conversation(content="A", tool_calls=absent)
    assert conversation.messages[0].calls == ()
    assert unread(conversation) == 0


def test_an_array_of_content_parts_is_read_as_its_list() -> None:
    parts = np.array([{"type": "text", "text": "A"}], dtype=object)
    (message,) = _conversation(content=parts).messages
    assert orjson.loads(message.json)["parts"] == [{"type": "text", "content": "A"}]
