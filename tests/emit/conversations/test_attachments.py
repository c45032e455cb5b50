"""Media beside a conversation: pictures of metadata become parts of the first message of the user."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import PIL.Image
import pytest

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.conversations.conversation import (
    Content,
    MessageLimits,
    content_of,
)
from otel_bridge.emit.media.values import Audio, Image, Markdown, Table
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.emit.rollouts.spans import rollout_content, root_attributes
from support.trainers.emit_rollout_doubles import unread

LIMITS = MessageLimits(ContentPolicy(), 1 << 20)
PIXELS = np.zeros((2, 2, 3), dtype=np.uint8)


def messages_of(content: Content) -> list[Mapping[str, Any]]:
    """The encoded messages as data."""
    return [orjson.loads(message.json) for message in content.messages]


def kinds_of(content: Content) -> list[list[str]]:
    """The types of the parts of each message; of a text its text."""
    return [
        [
            part["content"]
            if part["type"] == "text"
            else f"<{part['type']} {part['mime_type']}>"
            for part in one["parts"]
        ]
        for one in messages_of(content)
    ]


@pytest.mark.parametrize(
    "picture",
    [
        PIL.Image.new("RGB", (2, 2)),
        Image(PIXELS),
        [Image(PIXELS)],
        [PIL.Image.new("L", (2, 2))],
    ],
)
def test_a_picture_in_the_metadata_is_a_part_of_the_question_and_no_fact(
    picture: Any,
) -> None:
    rollout = Rollout("What is it?", metadata={"image": picture, "level": 3})

    content = rollout_content(rollout, LIMITS)

    assert kinds_of(content) == [["<blob image/png>", "What is it?"]]
    facts = dict(root_attributes(rollout, content, LIMITS))
    assert (facts["rl.metadata.level"], "rl.metadata.image" in facts) == (3, False)
    assert set(rollout.metadata) == {"image", "level"}


def test_a_picture_of_a_broken_file_costs_itself_and_not_its_message() -> None:
    file = io.BytesIO()
    PIL.Image.effect_noise((64, 64), 50).save(file, "PNG")
    # Pillow reads the pixels later, and raises then.
    broken = PIL.Image.open(io.BytesIO(file.getvalue()[:2000]))
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "image": broken},
    ]

    content = content_of([{"role": "user", "content": parts}], LIMITS)

    assert kinds_of(content) == [["What is it?", "[image: PngImageFile]"]]
    assert unread(content) == 1


def test_pictures_take_the_places_that_a_template_has_for_them() -> None:
    question = {
        "role": "user",
        "content": [
            {"type": "text", "text": "Compare"},
            {"type": "image"},
            {"type": "image"},
        ],
    }

    content = content_of(
        [{"role": "system", "content": "Be short."}, question],
        LIMITS,
        media=[Image(PIXELS)] * 2,
    )

    assert kinds_of(content) == [
        ["Be short."],
        ["Compare", "<blob image/png>", "<blob image/png>"],
    ]
    assert unread(content) == 0


def test_without_a_question_media_are_a_message_ahead_of_the_others() -> None:
    content = content_of(
        [{"role": "assistant", "content": "a"}],
        LIMITS,
        media=[Image(PIXELS, caption="first")],
    )

    assert [one["role"] for one in messages_of(content)] == ["user", "assistant"]
    assert kinds_of(content) == [["<blob image/png>", "first"], ["a"]]


def test_media_objects_are_parts_of_a_message_wherever_they_are_in_it() -> None:
    tone = Audio(np.zeros(8, dtype=np.int16), 8000)
    question = {
        "role": "user",
        "content": [Image(PIXELS), tone, Markdown("*so*")],
        "images": [Image(PIXELS)],
    }

    content = content_of([question], LIMITS)

    assert kinds_of(content) == [
        ["<blob image/png>", "<blob audio/wav>", "*so*", "<blob image/png>"]
    ]
    assert base64.b64decode(messages_of(content)[0]["parts"][0]["content"]).startswith(
        b"\x89PNG"
    )


def test_a_medium_that_cannot_be_encoded_is_counted_and_leaves_a_text_that_says_why() -> (
    None
):
    content = content_of(
        "q",
        LIMITS,
        media=[Image("/no/such/file.png"), Table(["a"], [[1]]), Image(object())],
    )

    assert kinds_of(content) == [
        ["[image: media_file]", "[table: media_mixed]", "[image: media_format]", "q"]
    ]
    assert unread(content) == 3


def test_without_content_no_picture_leaves() -> None:
    rollout = Rollout("q", metadata={"image": Image(PIXELS)})

    content = rollout_content(rollout, MessageLimits(ContentPolicy(0), 1 << 20))

    assert b"PNG" not in base64.b64decode(
        messages_of(content)[0]["parts"][0]["content"]
    )
