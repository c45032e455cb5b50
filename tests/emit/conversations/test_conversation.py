"""Tests of what may leave the process, whole or cut; and of the shapes that messages come in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.conversation import (
    MessageLimits,
    content_of,
    encode,
)
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.errors import ConfigError
from otel_bridge.messages.content_filter import ContentFilter
from support.trainers.emit_rollout_doubles import (
    ANSWER,
    CONVERSATION,
    QUESTION,
    RESULT,
    MemoryRun,
    attributes,
    log_reward,
    log_rollouts,
    message,
    span_messages,
    unread,
)


def parts(
    entry: object, policy: ContentPolicy | None = None, limit: int = 10_000
) -> Any:
    """The GenAI parts of one message, ``None`` when it is none."""
    conversation = encode([entry], ContentFilter(policy or ContentPolicy(), limit))
    return (
        orjson.loads(conversation.messages[0].json)["parts"]
        if conversation.messages
        else None
    )


# --- policy -----------------------------------------------------------------------------------------------------------
def test_off_keeps_the_shape_and_the_numbers_and_no_text() -> None:
    run = MemoryRun(MESSAGE_CONTENT="off")

    finished = Rollout(
        CONVERSATION,
        reward=1.0,
        error=ValueError("said something"),
        metadata={"text": "secret", "level": 3},
    )
    log_rollouts(run, [finished], step=1)
    log_reward(run, "r1", 0.5, explanation="because")

    assert [span.name for span in run.spans] == [
        "rollout",
        "chat",
        "execute_tool calculator",
        "chat",
    ]
    for span in run.spans:
        assert not any(
            "messages" in key or "arguments" in key or "result" in key
            for key in attributes(span)
        )
    root = run.roots[0]
    assert (attributes(root)["rl.reward"], attributes(root)["rl.metadata.level"]) == (
        1.0,
        3,
    )
    given = b"".join(payload for _, payload in run.records)
    assert not any(
        text in given
        for text in (b"secret", b"said something", b"because", b"2 + 2", b"It is 4")
    )


@pytest.mark.parametrize("value", ["no_content", "false", "NO_CONTENT", "0"])
def test_the_genai_switch_counts_where_ours_is_not_set(value: str) -> None:
    switch = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value}

    assert ContentPolicy.read(switch).off
    assert not ContentPolicy.read({**switch, "OTEL_BRIDGE_MESSAGE_CONTENT": "full"}).off
    assert not ContentPolicy.read(
        {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"}
    ).off


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_BRIDGE_MESSAGE_CONTENT": "some"},
        {"OTEL_BRIDGE_REDACT": "names"},
        {"OTEL_BRIDGE_REDACT": ","},
    ],
)
def test_a_malformed_policy_is_an_error(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(env))):
        ContentPolicy.read(env)


def test_truncation_cuts_inside_the_parts_and_says_so() -> None:
    run = MemoryRun(MESSAGE_CONTENT="truncate:5")
    call = {
        "id": "c1",
        "function": {"name": "calculator", "arguments": {"expression": "1234567"}},
    }

    conversation = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        RESULT,
        ANSWER,
    ]
    log_rollouts(run, [Rollout(conversation, metadata={"note": "abcdefgh"})])

    root, _, tool, _ = run.spans
    assert span_messages(root).input[0] == message("user", "What … [9 more characters]")
    assert orjson.loads(attributes(tool)["gen_ai.tool.call.arguments"]) == {
        "expre… [5 more characters]": "12345… [2 more characters]"
    }
    assert attributes(root)["rl.metadata.note"] == "abcde… [3 more characters]"
    assert attributes(root)["rl.clipped"] > 0


# --- shapes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", [{"type": "text", "content": "hi"}]),
        (None, []),
        (3, [{"type": "text", "content": "3"}]),
        (
            [{"type": "text", "text": "hi"}, "ho"],
            [{"type": "text", "content": t} for t in ("hi", "ho")],
        ),
        (
            [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}],
            [{"type": "uri", "modality": "image", "uri": "https://host/a.png"}],
        ),
        (
            [{"type": "image_url", "image_url": "data:image/png;base64,QUJD"}],
            [
                {
                    "type": "blob",
                    "mime_type": "image/png",
                    "modality": "image",
                    "content": "QUJD",
                }
            ],
        ),
        (
            [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}],
            [
                {
                    "type": "blob",
                    "mime_type": "audio/wav",
                    "modality": "audio",
                    "content": "QUJD",
                }
            ],
        ),
        (
            [
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": "image/jpeg",
                        "data": "QUJD",
                    },
                }
            ],
            [
                {
                    "type": "blob",
                    "mime_type": "image/jpeg",
                    "modality": "image",
                    "content": "QUJD",
                }
            ],
        ),
        (
            [{"type": "image", "image": object()}],
            [{"type": "text", "content": "[image: object]"}],
        ),
        (
            [{"type": "file", "file": {"file_id": "f1"}}],
            [{"type": "file", "modality": "document", "file_id": "f1"}],
        ),
        (
            [{"type": "thinking", "thinking": "hm"}],
            [{"type": "reasoning", "content": "hm"}],
        ),
        ([{"type": "new", "x": 1}], [{"type": "new", "x": 1}]),
        (
            [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}],
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
        ),
        (
            [{"type": "tool_result", "tool_use_id": "c", "content": "4"}],
            [{"type": "tool_call_response", "id": "c", "response": "4"}],
        ),
    ],
)
def test_content_of_any_kind_becomes_parts(content: object, expected: object) -> None:
    assert parts({"role": "user", "content": content}) == expected


def test_parts_of_the_genai_conventions_pass() -> None:
    given = [
        {"type": "text", "content": "hi"},
        {"type": "uri", "modality": "image", "uri": "https://host/a.png"},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}},
        {"type": "tool_call_response", "id": "c", "response": {"b": 2}},
    ]

    assert parts({"role": "assistant", "parts": given}) == given


def test_a_blob_that_is_too_large_goes_whole() -> None:
    given = [
        {
            "type": "blob",
            "mime_type": "image/png",
            "modality": "image",
            "content": "A" * 100,
        }
    ]

    assert parts({"role": "user", "parts": given}, limit=50) == [
        {**given[0], "content": ""}
    ]


@pytest.mark.parametrize("broken", ['{"a": ', "not json", "", '{"a": 1}', "[1"])
def test_arguments_that_are_not_json_stay_text(broken: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": broken}}

    [part] = parts({"role": "assistant", "tool_calls": [call]})

    assert part["arguments"] == ({"a": 1} if broken == '{"a": 1}' else broken)


class Broken:
    """An object whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Model:
    """A message as client libraries make them."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self._fields


def test_messages_may_be_objects_and_of_other_habits() -> None:
    function = SimpleNamespace(name="f", arguments='{"a": 1}')
    calls = [SimpleNamespace(id="c", function=function)]

    assert parts(Model({"role": "user", "content": "hi"})) == [
        {"type": "text", "content": "hi"}
    ]
    assert parts({"from": "gpt", "value": "hi"}) == [{"type": "text", "content": "hi"}]
    assert parts(SimpleNamespace(role="assistant", content=None, tool_calls=calls)) == [
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}
    ]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (3, b"3"), ({"name": "x"}, b'{\\"name\\":\\"x\\"}'), (b"bytes", b"bytes"), (2.5, b"2.5"),
        (Broken(), b"[unreadable]"),
    ],
)  # fmt: skip
def test_what_is_not_a_message_is_kept_as_text_and_counted(
    entry: object, text: bytes
) -> None:
    conversation = encode([entry, QUESTION], ContentFilter(ContentPolicy(), 100))

    assert text in conversation.messages[0].json
    assert (unread(conversation), len(conversation.messages)) == (1, 2)


def test_a_conversation_that_raises_when_it_is_read_is_its_type() -> None:
    class Raising:
        def model_dump(self) -> None:
            raise RuntimeError

    content = content_of(Raising(), MessageLimits(ContentPolicy(), 1 << 20))

    assert b"[Raising]" in content.messages[0].json
    assert (unread(content), len(content.messages)) == (1, 1)


@pytest.mark.parametrize("entry", [None, [], {}])
def test_what_holds_nothing_counts_nothing(entry: object) -> None:
    conversation = encode([entry, QUESTION], ContentFilter(ContentPolicy(), 100))

    assert (unread(conversation), len(conversation.messages)) == (0, 1)
