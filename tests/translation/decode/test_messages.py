from __future__ import annotations

import json
from typing import Any

import pytest

from otel_bridge.otlp.json_text import as_text, parsed_json
from otel_bridge.records import Json
from otel_bridge.translation.decode import messages
from otel_bridge.translation.decode.messages import (
    flattened_chat,
    read_chat,
    system_message,
)


def test_the_parts_form_becomes_openai_messages_with_tool_calls_and_results() -> None:
    call = {"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"x": 1}}
    given: list[Any] = [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "a"},
                call,
            ],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c1", "response": {"y": 2}}],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c2", "result": "3"}],
        },
    ]

    chat = read_chat(json.dumps(given), "user")

    made = {
        "id": "c1",
        "type": "function",
        "function": {"name": "calc", "arguments": '{"x":1}'},
    }
    assert chat.messages == [
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hm",
            "tool_calls": [made],
        },
        {"role": "tool", "content": '{"y":2}', "tool_call_id": "c1"},
        {"role": "tool", "content": "3", "tool_call_id": "c2"},
    ]
    assert read_chat(given, "user").messages == chat.messages


def test_images_sounds_and_files_become_openai_parts_and_unknown_parts_stay() -> None:
    parts: list[Any] = [
        {"type": "text", "content": "see"},
        {"type": "uri", "modality": "image", "uri": "https://x/y.png"},
        {
            "type": "blob",
            "modality": "image",
            "mime_type": "image/gif",
            "content": "QUJD",
        },
        {
            "type": "blob",
            "modality": "audio",
            "mime_type": "audio/mp3",
            "content": "QUJD",
        },
        {"type": "file", "modality": "image", "file_id": "f1"},
        {"type": "uri", "modality": "video", "uri": "https://x/y.mp4"},
        {"type": "weather", "rain": True},
    ]

    chat = read_chat([{"role": "user", "parts": parts, "name": "ann"}], "user")

    assert chat.messages == [
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/gif;base64,QUJD"},
                },
                {
                    "type": "input_audio",
                    "input_audio": {"data": "QUJD", "format": "mp3"},
                },
                {"type": "file", "file": {"file_id": "f1"}},
                {"type": "uri", "modality": "video", "uri": "https://x/y.mp4"},
                {"type": "weather", "rain": True},
            ],
        }
    ]


def test_openai_messages_pass_as_they_are_with_what_is_beside_their_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "finish_reason": "tool_calls",
            "odd": 1,
        },
        {"role": "tool", "content": {"a": 1}, "tool_call_id": "c"},
    ]

    chat = read_chat(given, "user")

    assert chat.messages == [
        given[0],
        {"role": "tool", "content": '{"a":1}', "tool_call_id": "c"},
    ]
    assert chat.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": "q"}],
        {"role": "user", "content": "q"},
        {"messages": [{"role": "user", "content": "q"}]},
        {"choices": [{"index": 0, "message": {"role": "user", "content": "q"}}]},
        ["q"],
        "q",
    ],
)
def test_every_shape_of_a_list_of_messages_is_read(value: Any) -> None:
    chat = read_chat(value, "user")

    assert chat.messages == [{"role": "user", "content": "q"}]


def test_what_is_not_a_message_is_skipped_and_counted() -> None:
    chat = read_chat(
        [
            1,
            None,
            {"content": "who says?"},
            {"role": 3},
            {"role": "user", "content": "q"},
        ],
        "user",
    )

    assert chat.messages == [{"role": "user", "content": "q"}]
    assert chat.skipped == 3  # nothing is lost with None


@pytest.mark.parametrize(
    ("value", "read"), [(None, []), ("", []), ([], []), ("[broken", ["[broken"])]
)
def test_nothing_is_not_a_message_and_broken_json_is_a_text(
    value: Any, read: list[str]
) -> None:
    chat = read_chat(value, "assistant")

    assert chat.messages == [
        {"role": "assistant", "content": content} for content in read
    ]


CALL = [
    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
]
CALLING = {"role": "assistant", "content": "yo", "tool_calls": CALL}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"contents": "hi", "model": "gemini"}, [{"role": "user", "content": "hi"}]),
        ({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, [{"role": "user", "content": "hi"}]),
        (
            {"candidates": [{"content": {"role": "model", "parts": [
                {"text": "yo"}, {"function_call": {"id": "c1", "name": "f", "args": {"a": 1}}},
            ]}, "finishReason": "STOP"}]},
            [CALLING],
        ),
        ([[{"type": "human", "content": "hi", "additional_kwargs": {}}]], [{"role": "user", "content": "hi"}]),
        (
            {"generations": [[{"text": "yo", "message": {
                "type": "ai", "content": "yo", "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c1"}],
            }}]]},
            [CALLING],
        ),
        ({"input": "hi", "model": "gpt"}, [{"role": "user", "content": "hi"}]),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
            [{"role": "user", "content": "hi"}],
        ),
        (
            {"output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yo"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            ]},
            [
                {"role": "assistant", "content": None, "reasoning_content": "think"},
                {"role": "assistant", "content": "yo"},
                {"role": "assistant", "content": None, "tool_calls": CALL},
            ],
        ),
        (
            {"output": {"message": {"role": "assistant", "content": [
                {"text": "yo"}, {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}},
            ]}}, "stopReason": "tool_use"},
            [CALLING],
        ),
        (
            {"role": "assistant", "content": [
                {"type": "text", "text": "yo"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
            ]},
            [CALLING],
        ),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "7"},
            ]}]},
            [{"role": "tool", "content": "7", "tool_call_id": "c1"}],
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "iVBO",
            }}]},
            [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
            ]}],
        ),
        ({"choices": [{"message": {"content": "yo"}}]}, [{"role": "assistant", "content": "yo"}]),
        ({"message": {"role": "assistant", "content": "yo"}, "done": True}, [{"role": "assistant", "content": "yo"}]),
        ([{"from": "human", "value": "hi"}], [{"role": "user", "content": "hi"}]),
        ({"role": "USER", "message": "hi"}, [{"role": "user", "content": "hi"}]),
    ],
)  # fmt: skip
def test_requests_and_responses_of_every_library_hold_messages(
    value: Any, read: list[Any]
) -> None:
    # Requests name what is said to the model, responses what it said.
    role = "assistant" if "choices" in value else "user"

    chat = read_chat(json.dumps(value), role)

    assert chat.messages == read
    assert chat.skipped == 0


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "yo"}}]},
        {"candidates": [{"finishReason": "stop", "content": {"role": "model", "parts": [{"text": "yo"}]}}]},
        {"role": "assistant", "stop_reason": "stop", "content": "yo"},
        {"stopReason": "stop", "output": {"message": {"role": "assistant", "content": [{"text": "yo"}]}}},
        {"done_reason": "stop", "message": {"role": "assistant", "content": "yo"}},
    ],
)  # fmt: skip
def test_the_finish_reason_of_every_library_is_read(value: Any) -> None:
    assert read_chat(json.dumps(value), "assistant").finish_reason == "stop"


@pytest.mark.parametrize(
    "text", ['{"city": "Rome"}', "[1, 2]", "7", '[{"city": "Rome"}]']
)
def test_an_answer_that_is_json_without_a_message_is_the_text_of_one(text: str) -> None:
    chat = read_chat(text, "assistant")

    assert chat.messages == [{"role": "assistant", "content": text}]
    assert chat.skipped == 0


def test_system_instructions_are_parts_or_a_text() -> None:
    assert system_message(
        '[{"type": "text", "content": "a"}, {"type": "text", "content": "b"}]'
    ) == {
        "role": "system",
        "content": "a\nb",
    }
    assert system_message("a") == {"role": "system", "content": "a"}
    assert [system_message(value) for value in (None, "", [], 3)] == [
        None,
        None,
        None,
        None,
    ]


def test_messages_that_lie_flat_in_attributes_are_read_in_their_order() -> None:
    attributes: dict[str, Any] = {f"gen_ai.prompt.{n}.role": "user" for n in range(11)}
    attributes |= {f"gen_ai.prompt.{n}.content": str(n) for n in range(11)}
    attributes |= {
        "gen_ai.prompt.11.tool_calls.0.name": "f",
        "gen_ai.prompt.11.tool_calls.0.arguments": "{}",
    }

    chat = flattened_chat(attributes, "gen_ai.prompt.", "assistant")

    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat.messages == [
        *({"role": "user", "content": str(n)} for n in range(11)),
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


def test_the_last_flat_message_within_the_limit_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_MAX_FLATTENED", 2)
    attributes: dict[str, Any] = {}
    for number in range(3):
        attributes[f"p.{number}.role"] = "user"
        attributes[f"p.{number}.content"] = str(number)

    chat = flattened_chat(attributes, "p.", "user")

    assert [message["content"] for message in chat.messages] == ["0", "1"]


def test_parts_that_lie_flat_in_attributes_are_the_content_of_their_message() -> None:
    contents = "llm.input_messages.0.message.contents."
    attributes: dict[str, Any] = {
        "llm.input_messages.0.message.role": "user",
        f"{contents}1.message_content.type": "image",
        f"{contents}1.message_content.image.image.url": "https://x/y.png",
        f"{contents}0.message_content.type": "text",
        f"{contents}0.message_content.text": "see",
        f"{contents}2.message_content.type": "audio",
        f"{contents}2.message_content.audio.audio.url": "https://x/y.wav",
        "llm.input_messages.0.message.odd.fact": 1,
    }

    chat = flattened_chat(attributes, "llm.input_messages.", "user")

    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "uri", "modality": "audio", "uri": "https://x/y.wav"},
    ]
    assert chat.messages == [{"role": "user", "content": parts, "odd.fact": 1}]


@pytest.mark.parametrize(
    "answer",
    ['[{"name":"Paris","pop":2}]', '[{"text":"hello","start":0}]', '["a","b"]'],
)
def test_an_answer_in_json_that_lies_flat_stays_as_it_was_written(answer: str) -> None:
    attributes = {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": answer,
    }

    [message] = flattened_chat(attributes, "gen_ai.completion.", "assistant").messages

    assert message == {"role": "assistant", "content": answer}


def test_more_than_ten_calls_that_lie_flat_keep_their_order() -> None:
    attributes: dict[str, Any] = {
        f"gen_ai.completion.0.tool_calls.{n}.name": f"f{n}" for n in range(12)
    }

    [message] = flattened_chat(attributes, "gen_ai.completion.", "assistant").messages

    calls: Any = message["tool_calls"]
    assert [call["function"]["name"] for call in calls] == [f"f{n}" for n in range(12)]


def test_json_that_no_store_takes_is_made_sound_and_deep_json_stays_text() -> None:
    deep = "[" * 100 + "]" * 100

    assert parsed_json(
        '{"a": "\\ud800", "b": 123456789012345678901234567890, "c": [NaN]}'
    ) == {
        "a": "?",
        "b": "123456789012345678901234567890",
        "c": [pytest.approx(float("nan"), nan_ok=True)],
    }
    assert parsed_json(deep) == deep
    assert parsed_json("[" * 100_000) == "[" * 100_000
    assert as_text({"a": 1 << 70}) == '{"a": 1180591620717411303424}'


def test_endlessly_nested_metadata_of_a_message_costs_nothing_else() -> None:
    message: Any = {"role": "assistant", "content": "yo", "finish_reason": "stop"}
    for _ in range(900):
        message = {"response_metadata": message}
    message |= {"role": "assistant", "content": "yo"}

    chat = read_chat([message], "assistant")

    assert [message["content"] for message in chat.messages] == ["yo"]


def test_a_message_with_endlessly_nested_content_is_read_as_text() -> None:
    nested: Any = "x"
    for _ in range(900):
        nested = [nested]

    chat = read_chat(
        json.dumps(
            [
                {"role": "user", "content": nested},
                {"role": "user", "parts": [{"a": nested}]},
            ]
        ),
        "user",
    )

    assert [message["role"] for message in chat.messages] == ["user", "user"]
    assert isinstance(chat.messages[0]["content"], str)
    assert isinstance(chat.messages[1]["content"], str)


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["text"], "content": "x"},
        {"type": {"name": "text"}},
        {"type": "uri", "modality": ["image"], "uri": "u"},
    ],
)
def test_a_part_whose_type_is_not_a_text_stays_as_it_is(part: Any) -> None:
    chat = read_chat([{"role": "user", "parts": [part]}], "user")

    assert chat.messages == [{"role": "user", "content": [part]}]


def test_content_with_a_part_whose_type_is_not_a_text_stays_as_it_is() -> None:
    message = {"role": "user", "content": [{"type": ["tool-call"], "text": "x"}]}

    assert read_chat([message], "user").messages == [message]


def test_what_parts_hold_beside_openais_form_is_a_fact_of_the_message() -> None:
    parts: list[Any] = [
        {"type": "text", "content": "a", "label": "l"},
        {"type": "reasoning", "content": "hm"},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {}, "index": 3},
    ]
    chat = read_chat(
        [{"role": "assistant", "parts": parts}, {"role": "user", "parts": parts[:1]}],
        "user",
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat.messages == [
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hm",
            "tool_calls": [call],
            "part_facts": {"1": {"label": "l"}, "3": {"index": 3}},
        },
        {"role": "user", "content": "a", "part_facts": {"1": {"label": "l"}}},
    ]


def test_a_fact_with_the_name_of_what_was_read_stays_beside_it() -> None:
    text: dict[str, Json] = {"type": "text", "content": "a"}
    answer: dict[str, Json] = {"type": "tool_call_response", "response": "r"}

    chat = read_chat(
        [
            {"role": "user", "parts": [text], "content": "b"},
            {"role": "user", "parts": [text], "content": "a"},
            {"role": "tool", "name": "search", "parts": [answer]},
        ],
        "user",
    )

    assert chat.messages == [
        {"role": "user", "content": "a", "message.content": "b"},
        {"role": "user", "content": "a"},
        {"role": "tool", "content": "r", "name": "search"},
    ]


def test_a_message_of_the_role_thinking_is_the_reasoning_of_the_answer_behind_it() -> (
    None
):
    attributes: dict[str, Json] = {
        "c.0.role": "thinking", "c.0.content": "hm", "c.0.finish_reason": "end_turn",
        "c.1.role": "thinking", "c.1.content": "so",
        "c.2.role": "assistant", "c.2.content": "a",
        "c.3.role": "thinking", "c.3.content": "oh",
        "c.4.role": "user", "c.4.content": "b",
        "c.5.role": "thinking", "c.5.content": "ah",
    }  # fmt: skip

    chat = flattened_chat(attributes, "c.", "assistant")

    reasoning = {"role": "assistant", "content": None}
    assert chat.messages == [
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hm\nso",
            "finish_reason": "end_turn",
        },
        {**reasoning, "reasoning_content": "oh"},
        {"role": "user", "content": "b"},
        {**reasoning, "reasoning_content": "ah"},
    ]
    assert (chat.finish_reason, chat.skipped) == ("end_turn", 0)
