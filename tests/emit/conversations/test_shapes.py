"""Conversations of every library become the same messages, whether as objects, as their dumps, or as JSON text."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pandas
import pytest
from pydantic import BaseModel, ConfigDict

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.conversation import MessageLimits, content_of
from otel_bridge.messages.reader import first_role, is_message, messages_of
from otel_bridge.translation.decode.messages import read_chat
from support.media_samples import png
from support.trainers.emit_rollout_doubles import unread

Parts = list[dict[str, Any]]
_PNG: Final = b"\x89PNG\r\n\x1a\n..."
_BLOB: Final = {
    "type": "blob", "mime_type": "image/png", "modality": "image", "content": base64.b64encode(_PNG).decode(),
}  # fmt: skip
_QUESTION: Final = ("user", [{"type": "text", "content": "Q"}])
_ANSWER: Final = ("assistant", [{"type": "text", "content": "A"}])
_CALL: Final = {
    "type": "tool_call",
    "id": "c",
    "name": "search",
    "arguments": {"q": "x"},
}
_RESULT: Final = {"type": "tool_call_response", "id": "c", "response": "R"}
_THOUGHT: Final = {"type": "reasoning", "content": "why"}

LIMITS: Final = MessageLimits(ContentPolicy(), 1 << 20)


@dataclasses.dataclass
class Part:
    """A part of pydantic-ai, which is a dataclass."""

    part_kind: str
    content: Any = None
    tool_name: str | None = None
    args: Any = None
    tool_call_id: str | None = None


@dataclasses.dataclass
class Request:
    """A message of pydantic-ai."""

    parts: list[Part]
    kind: str = "request"
    instructions: str | None = None


class Base(BaseModel):
    """A message of LangChain, which dumps by its declared type."""

    model_config = ConfigDict(extra="allow")
    content: str
    type: str


class Prompt(BaseModel):
    """A prompt of LangChain."""

    messages: list[Base]


class Opened(BaseModel):
    """A response of OpenAI, with fields that it does not declare."""

    model_config = ConfigDict(extra="allow")


class Caller(Base):
    """A message whose calls only its own class declares."""

    tool_calls: list[dict[str, Any]]


_PYDANTIC_AI: Final = [
    Request([
        Part("system-prompt", "S"), Part("user-prompt", "Q"), Part("tool-return", "R", "search", None, "c"),
        Part("user-prompt", ["A", {"kind": "image-url", "url": "http://x/y.png"}]),
    ]),
    Request([Part("thinking", "why"), Part("tool-call", None, "search", '{"q": "x"}', "c")], "response"),
]  # fmt: skip
_PYDANTIC_AI_MESSAGES: Final = [
    ("system", [{"type": "text", "content": "S"}]),
    _QUESTION,
    ("tool", [{**_RESULT, "name": "search"}]),
    (
        "user",
        [
            {"type": "text", "content": "A"},
            {"type": "uri", "modality": "image", "uri": "http://x/y.png"},
        ],
    ),
    ("assistant", [_THOUGHT, _CALL]),
]
_LANGCHAIN_CALL: Final = {
    "id": "c",
    "name": "search",
    "args": {"q": "x"},
    "type": "tool_call",
}
_OPENAI_CALL: Final = {
    "id": "c",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q": "x"}'},
}

SHAPES: Final[dict[str, tuple[Any, list[tuple[str, Parts]]]]] = {
    "OpenAI's ChatCompletion": (
        {"id": "i", "choices": [{"index": 0, "message": {"role": "assistant", "content": "A"}}]}, [_ANSWER]),
    "OpenAI's Response": (
        {"output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
            {"type": "function_call", "call_id": "c", "name": "search", "arguments": '{"q": "x"}'},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "R"}]},
        ]},
        [("assistant", [_THOUGHT]), ("assistant", [_CALL]), ("tool", [_RESULT])]),
    "Anthropic": (
        {"type": "message", "role": "assistant", "content": [
            {"type": "thinking", "thinking": "why", "signature": "s"},
            {"type": "tool_use", "id": "c", "name": "search", "input": {"q": "x"}}]},
        [("assistant", [{**_THOUGHT, "signature": "s"}, _CALL])]),
    "Gemini's content": (
        {"role": "model", "parts": [
            {"text": "why", "thought": True}, {"text": "A", "thought": None},
            {"functionCall": {"id": "c", "name": "search", "args": {"q": "x"}}},
            {"inlineData": {"mimeType": "image/png", "data": _PNG}}]},
        [("assistant", [_THOUGHT, {"type": "text", "content": "A"}, _CALL, _BLOB])]),
    "Gemini's response": (
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "A"}]}, "finish_reason": "STOP"}]}, [_ANSWER]),
    "Bedrock": (
        [{"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "search", "input": {"q": "x"}}}]},
         {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "R"}]}}]}],
        [("assistant", [_CALL]), ("user", [_RESULT])]),
    "Vercel": (
        [{"role": "assistant", "content": [
            {"type": "tool-call", "toolCallId": "c", "toolName": "search", "input": {"q": "x"}}]},
         {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c", "toolName": "s", "output": "R"}]}],
        [("assistant", [_CALL]), ("tool", [{**_RESULT, "name": "s"}])]),
    "LangChain's pairs": ([("human", "Q"), ("ai", "A")], [_QUESTION, _ANSWER]),
    "LangChain's chunk": ({"type": "AIMessageChunk", "content": "A"}, [_ANSWER]),
    "LangChain's dumpd": (
        {"lc": 1, "type": "constructor", "id": ["AIMessage"], "kwargs": {"type": "ai", "content": "A"}}, [_ANSWER]),
    "LangChain's extras": (
        {"type": "ai", "content": "", "tool_calls": [],
         "additional_kwargs": {"tool_calls": [_OPENAI_CALL], "reasoning_content": "why"}},
        [("assistant", [_THOUGHT, {"type": "text", "content": ""}, _CALL])]),
    "LangChain's prompt as an object": (
        Prompt(messages=[Caller(type="ai", content="A", tool_calls=[_LANGCHAIN_CALL])]),
        [("assistant", [{"type": "text", "content": "A"}, _CALL])]),
    "LangChain's calls that are also in the content": (
        {"type": "ai", "tool_calls": [_LANGCHAIN_CALL],
         "content": [{"type": "tool_use", "id": "c", "name": "search", "input": {"q": "x"}}]},
        [("assistant", [_CALL])]),
    "pydantic-ai's objects": (_PYDANTIC_AI, _PYDANTIC_AI_MESSAGES),
    "pydantic-ai's JSON text": (
        orjson.dumps([dataclasses.asdict(message) for message in _PYDANTIC_AI]).decode(), _PYDANTIC_AI_MESSAGES),
    "pydantic-ai's instructions": (
        Request([Part("user-prompt", "Q")], instructions="S"), [_PYDANTIC_AI_MESSAGES[0], _QUESTION]),
    "ShareGPT's row": (
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, [_QUESTION, _ANSWER]),
    "Cohere": ([{"role": "USER", "message": "Q"}, {"role": "CHATBOT", "message": "A"}], [_QUESTION, _ANSWER]),
    "a row of a data set": ({"messages": [{"role": "user", "content": "Q"}]}, [_QUESTION]),
    "texts": (["Q"], [_QUESTION]),
    "an array from parquet": (np.array([{"role": "user", "content": np.array([{"text": "Q"}])}]), [_QUESTION]),
    "a table of pandas": (
        pandas.DataFrame({"role": ["user", "assistant"], "content": ["Q", "A"]}), [_QUESTION, _ANSWER]),
    "a generator": (({"role": "user", "content": text} for text in "Q"), [_QUESTION]),
    "pictures beside the content": (
        {"role": "user", "content": "Q", "images": [_PNG]}, [("user", [{"type": "text", "content": "Q"}, _BLOB])]),
    "pixels": (
        {"role": "user", "content": [{"type": "image", "image": np.zeros((1, 1, 3), np.uint8)}]},
        [("user", [{"type": "blob", "mime_type": "image/png", "modality": "image", "content": ...}])]),
}  # fmt: skip


def _messages(value: object) -> list[tuple[str, Parts]]:
    conversation = content_of(value, MessageLimits(ContentPolicy(), 1 << 20))
    assert unread(conversation) == 0
    messages = [orjson.loads(message.json) for message in conversation.messages]
    return [(message["role"], message["parts"]) for message in messages]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_conversation_has_its_roles_contents_and_calls(shape: str) -> None:
    value, expected = SHAPES[shape]

    messages = _messages(value)

    for (role, parts), (expected_role, expected_parts) in zip(
        messages, expected, strict=True
    ):
        assert role == expected_role
        assert [
            {**part, **_any(wanted, part)}
            for part, wanted in zip(parts, expected_parts, strict=True)
        ] == [
            {**wanted, **_any(wanted, part)}
            for part, wanted in zip(parts, expected_parts, strict=True)
        ]


def _any(wanted: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of *part* of which any value is right."""
    return {key: part[key] for key, value in wanted.items() if value is ...}


@pytest.mark.parametrize(
    "text",
    [
        '{"from": "Paris", "to": "Rome"}',
        '{"role": "admin"}',
        '{"value": 3}',
        "[1, 2]",
        "{",
    ],
)
def test_json_that_is_not_a_message_is_an_answer_as_it_is(text: str) -> None:
    assert messages_of(text, "assistant") == [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": object()},
        {"type": "text", "text": "Q"},
        {"type": "unheard-of", "value": 1},
        object(),
    ],
)
def test_a_part_that_cannot_be_read_is_kept_as_text_and_counted(part: object) -> None:
    content = content_of(
        [{"role": "user", "content": [part]}], MessageLimits(ContentPolicy(), 1 << 20)
    )

    [message] = content.messages
    is_readable = isinstance(part, dict) and part["type"] in {"text", "unheard-of"}
    assert orjson.loads(message.json)["parts"]
    assert unread(content) == (0 if is_readable else 1)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (is_message, True),
        (first_role, "assistant"),
    ],
)
def test_whether_a_value_is_a_message_and_whose_is_known_of_every_shape(
    question: Callable[[object], object], answer: object
) -> None:
    for value in ({"role": "assistant", "content": "A"}, {"type": "ai", "data": {"content": "A"}}, ("ai", "A"),
                  {"message": {"role": "assistant", "content": "A"}}, _PYDANTIC_AI[1]):  # fmt: skip
        assert question(value) == answer


def test_texts_of_a_sequence_are_messages_where_they_are_json_of_one() -> None:
    texts = [
        '{"role": "user", "content": "Q"}',
        '[{"role": "assistant", "content": "A"}]',
        "plain",
        '{"no": "message"}',
    ]

    content = content_of(np.array(texts, dtype=object), LIMITS)

    assert [(message.role, orjson.loads(message.json)["parts"][0]["content"]) for message in content.messages] == [
        ("user", "Q"), ("assistant", "A"), ("user", "plain"), ("user", '{"no": "message"}')
    ]  # fmt: skip
    assert unread(content) == 0


def test_parts_in_an_array_are_the_parts_of_their_message() -> None:
    content = content_of(
        [{"role": "model", "parts": np.array([{"text": "A"}], dtype=object)}], LIMITS
    )

    assert [orjson.loads(message.json) for message in content.messages] == [
        {"role": "assistant", "parts": [{"type": "text", "content": "A"}]}
    ]


def test_what_a_response_holds_beside_its_messages_stays_with_the_first() -> None:
    answer = {"role": "assistant", "content": "A", "id": "m"}
    choices = [
        {"index": 0, "message": answer, "finish_reason": "length", "text": "A"},
        {"index": 1, "message": answer, "text": "B"},
    ]
    response = {"id": "r", "model": "m1", "usage": {"total": 7}, "choices": choices}

    first, second = map(
        orjson.loads,
        [message.json for message in content_of(response, LIMITS).messages],
    )

    text = {"role": "assistant", "parts": [{"type": "text", "content": "A"}]}
    assert first == {
        **text,
        "id": "m",
        "index": 0,
        "finish_reason": "length",
        "wrapper.id": "r",
        "model": "m1",
        "usage": {"total": 7},
    }
    assert second == {**text, "id": "m", "index": 1, "wrapper.text": "B"}


def test_what_stands_beside_a_bare_prompt_stays_with_it() -> None:
    content = content_of({"prompt": "hi", "input": {"a": 1}}, LIMITS)

    [message] = [orjson.loads(message.json) for message in content.messages]
    assert message["parts"] == [{"type": "text", "content": "hi"}]
    assert message["input"] == {"a": 1}


def test_what_a_message_holds_beside_its_known_fields_stays_with_it() -> None:
    given = {
        "role": "user",
        "content": "Q",
        "weight": 0,
        "mask": [1, 0],
        "note": None,
        "api_key": "sk-12345678",
        "train": False,
    }

    content = content_of(
        [given, {"role": "assistant", "content": "A", "score": np.float32(0.5)}], LIMITS
    )

    chat = read_chat(
        [orjson.loads(message.json) for message in content.messages], "user"
    )
    assert chat.messages == [
        {
            "role": "user",
            "content": "Q",
            "weight": 0,
            "mask": [1, 0],
            "api_key": "[redacted]",
            "train": False,
        },
        {"role": "assistant", "content": "A", "score": 0.5},
    ]


CALL_OF_TOOL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": "{}"},
}


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        (
            {"role": "assistant", "parts": [{"text": "A"}], "reasoning_content": "why", "tool_calls": [CALL_OF_TOOL]},
            {"reasoning_content": "why", "tool_calls": [CALL_OF_TOOL]},
        ),
        ({"role": "assistant", "parts": [{"text": "A"}], "content": "beside"}, {"content": "beside"}),
        ({"role": "tool", "tool_call_id": "c1", "call_id": "c2", "content": "4", "refusal": "no"},
         {"call_id": "c2", "refusal": "no"}),
        ({"role": "user", "content": "Q", "tool_call_id": "c1", "instructions": "be brief"},
         {"tool_call_id": "c1", "instructions": "be brief"}),
        ({"role": "assistant", "content": "A", "reasoning": "why", "reasoning_content": "why"}, {}),
        ({"role": "assistant", "content": "A", "reasoning": "why", "thinking": "other"}, {"thinking": "other"}),
        ({"role": "assistant", "content": "A", "additional_kwargs": {"audio_id": "a1"}},
         {"additional_kwargs": {"audio_id": "a1"}}),
        ({"role": "user", "content": "A", "additional_kwargs": "x"}, {"additional_kwargs": "x"}),
        ({"role": "assistant", "content": "A", "refusal": {"why": "no"}}, {"refusal": {"why": "no"}}),
    ],
)  # fmt: skip
def test_what_the_kind_of_a_message_does_not_use_is_a_fact_of_it(
    entry: dict[str, Any], facts: dict[str, object]
) -> None:
    content = content_of([entry], LIMITS)

    shown = orjson.loads(content.messages[0].json)
    assert {
        key: value for key, value in shown.items() if key not in {"role", "parts"}
    } == facts
    assert unread(content) == 0


def test_pictures_beside_the_answer_of_a_tool_are_parts_of_it() -> None:
    content = content_of(
        [{"role": "tool", "tool_call_id": "c1", "content": "4", "images": [png()]}],
        LIMITS,
    )

    parts = orjson.loads(content.messages[0].json)["parts"]
    assert [part["type"] for part in parts] == ["tool_call_response", "blob"]


def test_parts_that_are_not_a_list_are_kept_as_text_and_counted() -> None:
    content = content_of([{"role": "user", "content": "Q", "parts": "more"}], LIMITS)

    assert orjson.loads(content.messages[0].json)["parts"] == [
        {"type": "text", "content": "Q"}, {"type": "text", "content": '{"parts":"more"}'},
    ]  # fmt: skip
    assert unread(content) == 1


def test_facts_of_a_message_beyond_the_limit_are_counted() -> None:
    content = content_of(
        [
            {
                "role": "user",
                "content": "Q",
                **{f"fact{number}": 1 for number in range(103)},
            }
        ],
        LIMITS,
    )

    assert len(orjson.loads(content.messages[0].json)) == 2 + 100
    assert (content.content_filter.losses.counts, content.content_filter.losses.first_keys) == (
        {"clipped": 3}, {"clipped": "fact100"},
    )  # fmt: skip


def test_a_conversation_without_messages_is_none_and_an_empty_answer_stays() -> None:
    empty: list[Any] = ['{"messages": []}', {"conversations": []}]
    for conversation in empty:
        content = content_of(conversation, LIMITS)
        assert (content.messages, unread(content)) == ([], 0)
        assert read_chat(conversation, "user").messages == []
    for conversation in (['{"messages": []}'], {"messages": np.array([])}):
        assert content_of(conversation, LIMITS).messages == []
    for text in ("[]", "{}", '{"output": []}', '{"messages": [], "n": 1}'):
        assert _messages(text) == [("user", [{"type": "text", "content": text}])]


@pytest.mark.parametrize(
    ("status", "details", "reason"),
    [
        ("incomplete", {"reason": "max_output_tokens"}, "max_output_tokens"),
        ("completed", None, "completed"),
    ],
)
def test_a_response_of_openai_says_why_it_ended(
    status: str, details: Any, reason: str
) -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [], "status": status}
    text = {"type": "output_text", "text": "A"}
    answer = {"type": "message", "role": "assistant", "content": [text]}
    facts = {"object": "response", "status": status, "incomplete_details": details}

    for output in ([answer], [thought, answer]):
        whole = {**facts, "output": output}
        for response in (whole, Opened(**whole)):
            first_message = content_of([response], LIMITS).messages[0].json
            assert orjson.loads(first_message)["finish_reason"] == reason
            assert (
                read_chat([orjson.loads(first_message)], "user").finish_reason == reason
            )
        assert (
            read_chat(orjson.dumps(whole).decode(), "assistant").finish_reason == reason
        )


def test_a_status_of_anything_but_a_response_is_not_why_it_ended() -> None:
    job = {"status": "completed", "output": [{"role": "assistant", "content": "A"}]}

    assert read_chat([job], "assistant").finish_reason is None


def test_the_data_in_a_result_of_bedrock_is_its_json() -> None:
    result = {"toolUseId": "c", "content": [{"json": {"a": 1}}, {"text": "R"}]}

    assert _messages([{"role": "user", "content": [{"toolResult": result}]}]) == [
        ("user", [{**_RESULT, "response": '{"a":1}\nR'}])
    ]


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "key: sk-ant-api03-" + "a" * 40},
        {"type": "content", "content": [{"type": "text", "text": "key: sk-ant-api03-" + "a" * 40}]},
        {"type": "content", "content": "key: sk-ant-api03-" + "a" * 40},
    ],
)  # fmt: skip
def test_the_text_of_a_document_is_a_text_without_its_secrets(source: Any) -> None:
    document = {"type": "document", "source": source, "title": "T"}

    ((role, (part,)),) = _messages([{"role": "user", "content": [document]}])

    assert (role, part["type"], part["title"]) == ("user", "text", "T")
    assert part["content"] == "key: [redacted]"


class Url:
    """A URL of pydantic, which is not a text."""

    scheme = "http"
    path = "/y.png"

    def __str__(self) -> str:
        return "http://x/y.png"


_DATA: Final = {"type": "blob", "mime_type": "image/png", "modality": "image", "content": "AAAA"}  # fmt: skip
_URI: Final = {"type": "uri", "modality": "image", "uri": "http://x/y.png"}


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image", "base64": "AAAA", "mime_type": "image/png"}, _DATA),  # LangChain 1
        ({"block_type": "image", "image": b"AAAA", "image_mimetype": "image/png"}, _DATA),  # LlamaIndex
        ({"block_type": "image", "image": None, "url": Url()}, _URI),
        ({"block_type": "image", "path": Path("y.png")}, {**_URI, "uri": "y.png"}),
        ({"type": "file", "mediaType": "image/png", "data": "http://x/y.png"}, _URI),  # Vercel's AI SDK
        ({"type": "input_file", "file_url": "http://x/y.pdf"},  # OpenAI's Responses
         {"type": "uri", "modality": "document", "uri": "http://x/y.pdf"}),
    ],
)  # fmt: skip
def test_a_medium_has_its_data_or_address(part: Any, medium: Any) -> None:
    ((_, (read_part,)),) = _messages([{"role": "user", "content": [part]}])

    assert {key: read_part[key] for key in medium} == medium


def test_bytes_assigned_to_a_block_of_llamaindex_are_encoded() -> None:
    part = {"block_type": "image", "image": _PNG, "image_mimetype": "image/png"}

    assert _messages([{"role": "user", "content": [part]}]) == [("user", [_BLOB])]


@pytest.mark.parametrize("collection", [tuple, partial(np.array, dtype=object)])
def test_answers_of_tools_in_any_sequence_of_parts_name_their_calls(
    collection: Callable[[Any], Any],
) -> None:
    answers = [{"type": "tool-result", "toolCallId": "c", "output": "R"}]

    assert _messages([{"role": "tool", "content": collection(answers)}]) == [
        ("tool", [_RESULT])
    ]


def test_a_plain_text_of_langchain_is_a_text() -> None:
    part = {"type": "text-plain", "text": "A"}

    assert _messages([{"role": "assistant", "content": [part]}]) == [_ANSWER]


class Author(BaseModel):
    """The author of a message of Harmony."""

    role: str
    name: str | None = None


def _harmony(role: str, text: str, name: str | None = None, **fields: Any) -> Any:
    content = [{"type": "text", "text": text}]
    return {"author": Author(role=role, name=name), "content": content, **fields}


def test_a_conversation_of_harmony_has_its_roles_reasoning_and_calls() -> None:
    tool = "functions.search"
    called = {"channel": "commentary", "recipient": tool}
    messages = [
        _harmony("user", "Q"),
        _harmony("assistant", "why", channel="analysis"),
        _harmony("assistant", '{"q": "x"}', **called),
        _harmony("tool", "R", tool, channel="commentary", recipient="assistant"),
        _harmony("assistant", "A", channel="final"),
    ]
    call = {"type": "tool_call", "name": tool, "arguments": {"q": "x"}}
    expected: Any = [
        _QUESTION,
        ("assistant", [_THOUGHT]),
        ("assistant", [call]),
        ("tool", [{"type": "tool_call_response", "response": "R"}]),
        _ANSWER,
    ]

    assert _messages({"messages": messages}) == expected
    dumped = [
        {**message, "author": message["author"].model_dump()} for message in messages
    ]
    assert _messages(dumped) == expected
    on_the_wire = read_chat(orjson.dumps(dumped).decode(), "user").messages
    assert [message["role"] for message in on_the_wire] == [
        role for role, _ in expected
    ]
    assert on_the_wire[1]["reasoning_content"] == "why"
    assert on_the_wire[2]["tool_calls"] == [
        {"type": "function", "function": {"name": tool, "arguments": '{"q":"x"}'}}
    ]
    assert on_the_wire[3]["name"] == tool


def test_who_a_message_of_another_library_is_sent_to_is_a_fact_of_it() -> None:
    sent = {"role": "user", "content": "Q", "channel": "c", "recipient": "bob"}

    (message,) = content_of([sent], LIMITS).messages

    assert orjson.loads(message.json) == {
        "role": "user", "parts": _QUESTION[1], "channel": "c", "recipient": "bob",
    }  # fmt: skip


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
def test_a_message_whose_role_is_a_call_is_that_call(role: str) -> None:
    call = '{"name": "search", "arguments": {"q": "x"}}'
    expected = {key: _CALL[key] for key in ("type", "name", "arguments")}
    given = [
        {"from": role, "value": call},
        {"role": role, "content": f"[{call}, {call}]"},
        {"role": role, "content": "broken {"},
    ]

    assert _messages(given) == [
        ("assistant", [expected]),
        ("assistant", [expected, expected]),
        ("assistant", [{"type": "text", "content": "broken {"}]),
    ]
    calls = read_chat(orjson.dumps(given[1:2]).decode(), "user").messages[0][
        "tool_calls"
    ]
    assert isinstance(calls, list)
    assert len(calls) == 2


@pytest.mark.parametrize("role", ["tool-response", "tool_response"])
def test_the_answer_of_a_tool_of_smolagents_or_swift_is_one(role: str) -> None:
    expected = [("tool", [{"type": "tool_call_response", "response": "R"}])]

    assert _messages([{"role": role, "content": "R"}]) == expected


def test_the_answers_of_tools_of_tau_and_llamaindex_name_their_calls() -> None:
    answer = {"role": "tool", "id": "c", "content": "R", "requestor": "assistant"}
    extras = {"tool_call_id": "c", "name": "search"}

    assert _messages([
        answer, {"role": "tool", "tool_messages": [answer, answer]},
        {"role": "tool", "content": "R", "additional_kwargs": extras},
    ]) == [("tool", [_RESULT])] * 4  # fmt: skip


def test_the_name_of_a_tool_stays_with_its_answer() -> None:
    answer = {"function_response": {"name": "search", "response": {"r": 1}}}
    content = content_of([{"role": "user", "parts": [answer]}], LIMITS)
    message = orjson.loads(content.messages[0].json)

    assert read_chat([message], "user").messages == [
        {"role": "tool", "content": '{"r":1}', "name": "search"}
    ]


def test_a_call_of_llamaindex_has_its_arguments() -> None:
    names = {"tool_call_id": "c", "tool_name": "search"}
    call = {"block_type": "tool_call", **names, "tool_kwargs": {"q": "x"}}

    assert _messages([{"role": "assistant", "blocks": [call]}]) == [
        ("assistant", [_CALL])
    ]


def test_a_row_of_a_prompt_and_a_completion_is_both() -> None:
    row = {
        "prompt": [{"role": "user", "content": "Q"}],
        "completion": [{"role": "assistant", "content": "A"}],
        "answer": "4",
    }

    for conversation in (row, orjson.dumps(row).decode(), [row]):
        assert _messages(conversation) == [_QUESTION, _ANSWER]
    first_message = content_of(row, LIMITS).messages[0]
    assert orjson.loads(first_message.json)["answer"] == "4"
    assert _messages({"prompt": row["prompt"], "chosen": []}) == [_QUESTION]
    text = '{"prompt": "Q", "completion": "A"}'
    assert _messages(text) == [("user", [{"type": "text", "content": text}])]


def test_a_cell_that_a_row_of_pandas_does_not_have_is_not_in_its_message() -> None:
    call = {"role": "assistant", "tool_calls": [_LANGCHAIN_CALL]}
    answer = {"role": "tool", "content": "R", "tool_call_id": "c"}
    thought = {"role": "assistant", "content": "A", "reasoning": "why", "weight": 0.5}
    table = pandas.DataFrame([{"role": "user", "content": "Q"}, call, answer, thought])

    for rows in (table, table.to_dict("records")):
        messages = content_of(rows, LIMITS).messages
        assert [orjson.loads(message.json) for message in messages] == [
            {"role": "user", "parts": _QUESTION[1]},
            {"role": "assistant", "parts": [_CALL]},
            {"role": "tool", "parts": [_RESULT]},
            {"role": "assistant", "parts": [_THOUGHT, *_ANSWER[1]], "weight": 0.5},
        ]


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("shell_call", {"action": {"q": "x"}}),
        ("apply_patch_call", {"operation": {"q": "x"}}),
    ],
)
def test_a_call_of_a_built_in_tool_of_openai_and_its_answer_are_read(
    kind: str, facts: dict[str, Any]
) -> None:
    output = {"type": f"{kind}_output", "call_id": "c", "output": "R"}

    assert _messages([{"type": kind, "call_id": "c", **facts}, output]) == [
        ("assistant", [{**_CALL, "name": kind}]),
        ("tool", [_RESULT]),
    ]
