"""Tests of parallel lists: guards, prompts, turns, decoding."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from otel_bridge import Image
from otel_bridge.emit.rollouts.columns import group_names
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    attributes,
    log_generations,
    message,
    span_messages,
)


def texts(run: MemoryRun) -> list[tuple[str | None, str | None]]:
    """Prompt and answer of each rollout."""
    found = []
    for root in run.roots:
        given = span_messages(root)
        prompt = given.input[0]["parts"][0]["content"] if given.input else None
        found.append(
            (prompt, given.output[0]["parts"][0]["content"] if given.output else None)
        )
    return found


def facts(run: MemoryRun, key: str) -> list[Any]:
    return [attributes(root).get(key) for root in run.roots]


def test_lists_become_rollouts() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["one", "two"], responses=["1", "2"], rewards=[1.0, 0.0], advantages=[0.5, -0.5],
        finish_reasons=["stop", "length"], groups=["a", "b"], policy_versions=[8, 9], datasets="gsm8k",
        dataset_indices=[3, 4], metadata=[{"level": 1}, {"level": 2}], states=["done", "cut"], step=5, split="eval",
    )  # fmt: skip

    assert texts(run) == [("one", "1"), ("two", "2")]
    first = {
        key: value
        for key, value in attributes(run.roots[0]).items()
        if not key.endswith("messages")
    }
    assert first.pop("rl.rollout.id") == run.roots[0].trace_id.hex()
    assert first == {
        "rl.step": 5, "rl.split": "eval", "rl.group.id": "a", "rl.prompt.index": 0, "rl.sample.index": 0,
        "rl.batch.index": 0, "rl.reward": 1.0, "rl.advantage": 0.5, "rl.policy.version": 8, "rl.dataset": "gsm8k",
        "rl.dataset.index": 3, "gen_ai.response.finish_reasons": ["stop"], "rl.metadata.level": 1,
        "rl.metadata.state": "done", "rl.rollout.spans": 2,
    }  # fmt: skip


def test_lists_may_be_iterators() -> None:
    run = MemoryRun()

    log_generations(
        run,
        prompts=iter(["one", "two"]),
        responses=iter(["1", "2"]),
        rewards=map(float, [1, 0]),
        tool_facts=iter([{"calls": 2}, None]),
    )

    assert texts(run) == [("one", "1"), ("two", "2")]
    assert facts(run, "rl.reward") == [1.0, 0.0]
    assert facts(run, "rl.tool.calls") == [2, None]


@pytest.mark.parametrize(
    "short", [None, [], [1.0], [None, None, None, None], [math.nan] * 4, (1.0, 2.0)]
)
@pytest.mark.parametrize(
    "name", ["rewards", "advantages", "finish_reasons", "groups", "trajectory_ids", "policy_versions", "loss_masks",
             "datasets", "dataset_indices", "metadata", "states", "ids", "errors", "tool_facts", "prompt_token_ids",
             "response_token_ids", "samples_per_prompt", "prompt_trajectory_ids"],
)  # fmt: skip
def test_a_list_may_be_missing_short_or_hold_nothing(name: str, short: Any) -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p"] * 4, responses=["a", "b", "c", "d"], **{name: short}
    )

    assert "internal_error" not in run.drops
    assert "rollout_unreadable" not in run.drops
    # Equal ids are one trajectory; all else leaves four rollouts.
    assert len(run.roots) == 4 or name == "trajectory_ids"


def test_numpy_arrays_and_tensors_are_lists_too() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=np.array(["p", "q"]), responses=["a", "b"], rewards=np.array([[0.5, 0.5], [0.0, 1.0]]),
        policy_versions=np.array([1, 2]), groups=np.array([7, 7]),
    )  # fmt: skip

    assert facts(run, "rl.reward") == [1.0, 1.0]
    assert facts(run, "rl.policy.version") == [1, 2]
    assert facts(run, "rl.group.id") == ["7", "7"]


def test_without_ids_a_sample_s_prompt_is_that_of_its_block() -> None:
    run = MemoryRun()

    log_generations(run, prompts=["p", "q"], responses=["1", "2", "3", "4", "5"])

    assert [prompt for prompt, _ in texts(run)] == ["p", "p", "q", "q", "q"]
    assert facts(run, "rl.sample.index") == [0, 1, 0, 1, 2]
    assert len(set(facts(run, "rl.group.id"))) == 2


def test_a_number_of_samples_for_each_prompt_fans_out() -> None:
    run = MemoryRun()

    log_generations(
        run,
        prompts=["p", "q", "r"],
        responses=["1", "2", "3", "4"],
        samples_per_prompt=[1, 3, 0],
    )

    assert [prompt for prompt, _ in texts(run)] == ["p", "q", "q", "q"]


def test_more_samples_per_prompt_than_there_are_all_have_the_first_prompt() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p", "q"], responses=["1", "2", "3"], samples_per_prompt=10**15
    )

    assert [prompt for prompt, _ in texts(run)] == ["p", "p", "p"]


def test_more_prompts_than_responses_are_fine() -> None:
    run = MemoryRun()

    log_generations(run, prompts=["p", "q", "r"], responses=["1", "2"])

    assert texts(run) == [("p", "1"), ("q", "2")]


def test_a_sample_finds_its_prompt_by_trajectory_id() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p", "q"], prompt_trajectory_ids=["x", "y"], responses=["1", "2", "3"],
        trajectory_ids=["y", "x", "unknown"],
    )  # fmt: skip

    assert [prompt for prompt, _ in texts(run)] == ["q", "p", "q"]


def test_the_turns_of_a_rollout_find_their_prompts_by_trajectory_id() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["q1", "p", "q1a1 q2"], prompt_trajectory_ids=["x", "y", "x"], responses=["b", "a1", "a2"],
        trajectory_ids=["y", "x", "x"],
    )  # fmt: skip

    asked = [
        [entry["parts"][0].get("content", entry["parts"][0].get("response")) for entry in span_messages(root).input]
        for root in run.roots
    ]  # fmt: skip
    assert asked == [["p"], ["q1", "a1", " q2"]]
    assert run.drops == {}


def test_a_prompt_of_another_trajectory_is_not_that_of_a_later_turn() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p", "q"], prompt_trajectory_ids=["x", "y"], responses=["1", "2"], trajectory_ids=["x", "x"],
    )  # fmt: skip

    assert [entry["parts"][0]["content"] for entry in span_messages(run.roots[0]).input] == ["p", "1"]  # fmt: skip
    assert run.drops == {"rollout_no_response": 1}


@pytest.mark.parametrize("prompts", [[], ()])
def test_an_empty_list_of_prompts_gives_no_trace(prompts: Any) -> None:
    run = MemoryRun()

    log_generations(run, prompts=prompts, responses=["1", "2"], rewards=[1.0, 2.0])

    assert run.records == []


def test_an_empty_prompt_gives_no_trace_and_is_counted() -> None:
    run = MemoryRun()

    log_generations(run, prompts=["", "q", None, []], responses=["1", "2", "3", "4"])

    assert texts(run) == [("q", "2")]
    assert run.drops == {"rollout_empty_prompt": 3}


def test_prompts_are_texts_messages_lists_of_them_or_json_text() -> None:
    run = MemoryRun()
    user = {"role": "user", "content": "hi"}

    log_generations(
        run,
        prompts=["hi", user, [user], '[{"role": "user", "content": "hi"}]'],
        responses=["a"] * 4,
    )

    assert [span_messages(root).input for root in run.roots] == [
        [message("user", "hi")]
    ] * 4


def test_rewards_by_name_are_parts_and_their_sum() -> None:
    run = MemoryRun()

    log_generations(
        run,
        prompts=["p"],
        responses=["1", "2"],
        rewards={"format": [0.5], "answer": [1.0, [0.25, 0.5]]},
    )

    assert facts(run, "rl.reward") == [1.5, 0.75]
    assert facts(run, "rl.rewards.format") == [0.5, None]
    assert facts(run, "rl.rewards.answer") == [1.0, 0.75]


def test_tool_facts_are_dicts_by_sample_or_lists_by_name() -> None:
    by_sample, by_name = MemoryRun(), MemoryRun()

    log_generations(
        by_sample,
        responses=["1", "2"],
        tool_facts=[{"calls": 1, "outputs": ["4"]}, None],
    )
    log_generations(
        by_name, responses=["1", "2"], tool_facts={"calls": [1, 2], "errors": ["boom"]}
    )

    assert facts(by_sample, "rl.tool.calls") == [1, None]
    assert facts(by_sample, "rl.tool.outputs") == [["4"], None]
    assert facts(by_name, "rl.tool.calls") == [1, 2]
    assert facts(by_name, "rl.tool.errors") == ["boom", None]


def test_only_kept_samples_are_decoded_and_text_goes_before_tokens() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="2")
    decoded: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        decoded.append(ids)
        return f"decoded {ids}"

    log_generations(
        run, prompts=["p"], responses=["best", None, None, None], response_token_ids=[[1], [2], [3], [4]],
        rewards=[9.0, 1.0, 2.0, 0.0], decode=decode,
    )  # fmt: skip

    assert texts(run) == [("p", "best"), ("p", "decoded [4]")]
    assert decoded == [[4]]


def test_a_decode_function_that_raises_costs_a_text_and_nothing_else() -> None:
    run = MemoryRun()

    log_generations(
        run,
        prompts=["p"],
        response_token_ids=[[1, 2]],
        rewards=[1.0],
        decode=lambda ids: 1 / 0,
    )

    assert texts(run) == [
        ("p", "[2 tokens that could not be decoded: ZeroDivisionError]")
    ]
    assert facts(run, "rl.reward") == [1.0]
    assert run.drops == {"rollout_decode": 1}


def test_a_loss_mask_parts_what_the_policy_said_from_what_tools_said() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p"], response_token_ids=[[1, 2, 3, 4, 5]], loss_masks=[[1, 1, 0, 0]],
        decode=lambda ids: "".join(map(str, ids)),
    )  # fmt: skip

    roles = [
        (entry["role"], entry["parts"][0])
        for entry in span_messages(run.roots[0]).input
    ]
    assert roles == [
        ("user", {"type": "text", "content": "p"}),
        ("assistant", {"type": "text", "content": "12"}),
        ("tool", {"type": "tool_call_response", "response": "34"}),
    ]
    assert span_messages(run.roots[0]).output == [message("assistant", "5")]


@pytest.mark.parametrize(
    "prompts",
    [
        ["p", "p", "q"],
        ["p", "p1o", "q"],
        [
            [{"role": "user", "content": "p"}],
            [
                {"role": "user", "content": "p"},
                {"role": "assistant", "content": "1"},
                {"role": "tool", "content": "o"},
            ],
            "q",
        ],
    ],
)
def test_entries_of_one_trajectory_are_turns_of_one_rollout(prompts: list[Any]) -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=prompts, responses=["1", "2", "x"], trajectory_ids=["t", "t", "u"], rewards=[0.0, 1.0, 0.5],
        finish_reasons=["tool", "stop", "stop"],
    )  # fmt: skip

    assert facts(run, "rl.trajectory.id") == ["t", "u"]
    assert facts(run, "rl.reward") == [1.0, 0.5]
    turns = [attributes(span) for span in run.frames[0] if span.name == "chat"]
    given = [
        (turn["rl.turn.index"], turn["rl.turn.last"], turn["rl.reward"])
        for turn in turns
    ]
    assert given == [(0, False, 0.0), (1, True, 1.0)]
    said_by_policy = [
        e["parts"][0]["content"]
        for e in span_messages(run.roots[0]).input
        if e["role"] == "assistant"
    ]
    assert (said_by_policy, span_messages(run.roots[0]).output) == (
        ["1"],
        [message("assistant", "2")],
    )


def test_turns_as_token_ids_say_only_what_is_new() -> None:
    run = MemoryRun()

    log_generations(
        run, prompt_token_ids=[[1], [1, 2, 3]], response_token_ids=[[2], [4]], trajectory_ids=["t", "t"],
        decode=lambda ids: "".join(map(str, ids)),
    )  # fmt: skip

    parts = [entry["parts"][0] for entry in span_messages(run.roots[0]).input]
    assert [part.get("content", part.get("response")) for part in parts] == [
        "1",
        "2",
        "3",
    ]
    assert span_messages(run.roots[0]).output == [message("assistant", "4")]


_TEMPLATE = ["<|system|>" + "be brief. " * 100, "<|assistant|>" + "think first. " * 100]


@pytest.mark.parametrize(
    "prompts",
    [
        [
            f"{_TEMPLATE[0]}{question}{_TEMPLATE[1]}"
            for question in ("2 + 2?", "3 + 3?")
        ],
        [[*range(40), question, *range(40)] for question in (101, 102)],
        [np.array([*range(40), question, *range(40)]) for question in (101, 102)],
        [
            [
                message("system", _TEMPLATE[0]),
                message("user", question),
                message("user", _TEMPLATE[1]),
            ]
            for question in ("2 + 2?", "3 + 3?")
        ],
        [
            [{"role": "user", "content": [{"text": question}, {"image": object()}]}]
            for question in ("2 + 2?", "3 + 3?")
        ],
        [b"2 + 2?", b"3 + 3?"],
        ["a\udc80b", "a\udc80c"],
        [[2**70], [2**71]],
        [
            [{"role": "user", "content": ["Describe.", part]}]
            for part in (b"\xff1", b"\xff2")
        ],
        [
            [{"role": "user", "content": ["Describe.", np.full((400, 400, 3), shade)]}]
            for shade in (1, 2)
        ],
        [np.full((400, 400), shade, np.uint8) for shade in (1, 2)],
        [
            [{"role": "user", "content": [Pillow.new("RGB", (2, 2), colour)]}]
            for colour in ("red", "blue")
        ],
        [
            [{"role": "user", "content": [Image(np.full((60, 60), shade))]}]
            for shade in (1, 2)
        ],
        [
            ["Describe.", Image("a.png", caption=caption)]
            for caption in ("left", "right")
        ],
    ],
    ids=[
        "text",
        "token ids",
        "arrays",
        "messages",
        "objects",
        "bytes",
        "not Unicode",
        "large integers",
        "bytes in a part",
        "pixels in a part",
        "pixels",
        "pictures",
        "media",
        "captions",
    ],
)
def test_prompts_of_one_template_are_groups_of_their_own_and_equal_prompts_one(
    prompts: list[Any],
) -> None:
    first, second = group_names(prompts)

    assert first != second
    assert group_names([copy.deepcopy(prompts[0])]) == [first]


def test_groups_with_and_without_trajectory_ids_mix() -> None:
    run = MemoryRun()

    log_generations(
        run, prompts=["p"], responses=["1", "2", "3"], trajectory_ids=["t", None, "t"]
    )

    assert facts(run, "rl.trajectory.id") == ["t", None]


def test_an_unknown_list_is_counted() -> None:
    run = MemoryRun()

    log_generations(run, responses=["1"], scores=[1.0])

    assert (len(run.roots), run.drops) == (1, {"rollout_unknown_column": 1})


def test_a_text_of_responses_is_one_response() -> None:
    run = MemoryRun()
    log_generations(run, prompts=["one"], responses="1", rewards=[1.0])
    assert texts(run) == [("one", "1")]
    assert run.drops == {}


@pytest.mark.parametrize(
    ("columns", "drops"),
    [
        ({"prompts": [], "responses": ["a"]}, {"rollout_empty_prompt": 1}),
        (
            {"prompts": ["p", "q"], "responses": ["a"], "rewards": [1.0]},
            {"rollout_no_response": 1},
        ),
        ({"prompts": ["p"], "responses": []}, {"rollout_no_response": 1}),
        (
            {"responses": ["a"], "rewards": [1.0, 0.0], "ids": ["x", "y"]},
            {"rollout_long_list": 2},
        ),
        (
            {"responses": ["a", "b"], "states": ["s"], "errors": [None, None, "lost"]},
            {"rollout_short_list": 1, "rollout_long_list": 1},
        ),
        (
            {
                "prompts": ["p", "q"],
                "responses": ["a", "b"],
                "trajectory_ids": ["t", "t"],
            },
            {},
        ),
        ({"prompts": None, "responses": ["a"]}, {}),
    ],
)
def test_what_belongs_to_no_rollout_is_counted(
    columns: dict[str, Any], drops: dict[str, int]
) -> None:
    run = MemoryRun()

    log_generations(run, **columns)

    assert run.drops == drops
