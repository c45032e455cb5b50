"""Cells of W&B's table of rollouts: media of a message are named, their bytes stay out of the text."""

from __future__ import annotations

import json
from dataclasses import replace

from otel_bridge.records import Message
from otel_bridge.testing.samples import rollout
from otel_bridge_wandb.content.rollout_tables import COLUMNS, rollout_cells


def test_a_picture_of_a_question_is_named_in_its_cell_and_an_address_stays() -> None:
    question: Message = {
        "role": "user",
        "content": [
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64,iVBORw0K"},
            },
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "text", "text": "What is it?"},
        ],
    }
    record = replace(
        rollout(), messages=[question, {"role": "assistant", "content": "a dog"}]
    )

    cells = dict(zip(COLUMNS, rollout_cells(record, 1_000), strict=True))

    assert cells["prompt"] == "[image]\nhttps://example.org/a.png\nWhat is it?"
    assert cells["answer"] == "a dog"


def test_what_follows_the_last_answer_and_what_texts_leave_out_is_in_the_row() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "a dog", "reasoning_content": "four legs"},
        {"role": "tool", "content": "a cat", "tool_call_id": "c"},
    ]

    cells = dict(
        zip(
            COLUMNS,
            rollout_cells(replace(rollout(), messages=messages), 1_000),
            strict=True,
        )
    )

    assert cells["prompt"] == "What is it?"
    assert cells["answer"] == "a dog\n\ntool: a cat"
    facts = json.loads(str(cells["facts"]))
    assert facts["messages"] == {
        "2": {"reasoning_content": "four legs"},
        "3": {"tool_call_id": "c"},
    }
