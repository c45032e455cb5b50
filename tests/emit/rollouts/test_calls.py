"""Tests of finished rollouts: what one record holds, what leaves a call, and bad input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Status

from otel_bridge import semconv
from otel_bridge.emit.rollouts.live import chat
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.records import trace_id_of
from support.trainers.emit_rollout_doubles import (
    ANSWER,
    CALL,
    CONVERSATION,
    QUESTION,
    MemoryRun,
    SpanMessages,
    attributes,
    log_generations,
    log_reward,
    log_rewards,
    log_rollouts,
    message,
    open_rollout,
    plain,
    span_messages,
)


def rollout(reward: object = 1.0, **fields: Any) -> Rollout:
    return Rollout(messages=CONVERSATION, reward=reward, **fields)  # type: ignore[arg-type]


def test_a_row_of_a_table_may_have_arrays_for_rewards_tools_and_turns() -> None:
    run = MemoryRun()
    row = {
        "messages": np.array(CONVERSATION, dtype=object),
        "rewards": np.array([0.25, 0.5]),
        "tools": np.array(["search", "calculator"]),
        "turns": np.array([{"reward": 0.25}, {"reward": 0.5}], dtype=object),
    }

    log_rollouts(run, [row], step=3)

    root, first, _, second = run.spans
    facts = attributes(root)
    assert facts["rl.rewards.rewards"] == 0.75
    assert facts["rl.tool.calls"] == ["search", "calculator"]
    assert attributes(first)["rl.reward"] == 0.25
    assert attributes(second)["rl.reward"] == 0.5
    assert run.drops == {}


@pytest.mark.parametrize(
    "time_in_another_unit",
    [
        2,
        True,
        1_796_000_000,
        1_796_000_000.5,
        1_796_000_000_000,
        "2026-11-29T00:00:00Z",
    ],
)
def test_a_time_of_a_rollout_in_another_unit_is_counted_and_missing(
    time_in_another_unit: Any,
) -> None:
    run = MemoryRun()
    end = 1_796_000_000_000_000_000
    started = rollout(start_unix_ns=time_in_another_unit, end_unix_ns=end)
    ended = rollout(start_unix_ns=np.int64(end), end_unix_ns=time_in_another_unit)

    log_rollouts(run, [started, ended], step=3)

    first, second = run.roots
    assert 0 < end - first.start_time_unix_nano < 100
    # Its end is now, which the clock of this machine may have before the start.
    assert second.end_time_unix_nano > 1_700_000_000_000_000_000
    assert run.drops == {"bad_time": 2}


def test_a_rollout_whose_generator_of_messages_raises_is_counted() -> None:
    run = MemoryRun()

    def broken() -> Iterator[object]:
        yield QUESTION
        raise RuntimeError

    log_rollouts(run, [{"messages": broken()}, rollout()], step=3)

    assert (len(run.roots), run.drops) == (1, {"rollout_unreadable": 1})


def test_one_record_holds_the_root_with_the_whole_conversation_and_a_span_for_each_answer_and_tool_call() -> (
    None
):
    run = MemoryRun()

    log_rollouts(
        run, [rollout(model="policy", finish_reason="stop")], step=3, split="train"
    )

    [spans] = run.frames
    root, first, tool, second = spans
    assert [span.name for span in spans] == [
        "rollout",
        "chat policy",
        "execute_tool calculator",
        "chat policy",
    ]
    assert span_messages(root).output == [message("assistant", "It is 4.")]
    assert [entry["role"] for entry in span_messages(root).input] == [
        "user",
        "assistant",
        "tool",
    ]
    assert (
        attributes(first)["rl.message.index"],
        attributes(second)["rl.message.index"],
    ) == (1, 3)
    assert span_messages(first) == span_messages(second) == SpanMessages()
    assert attributes(tool) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "calculator",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"expression":"2 + 2"}',
        "gen_ai.tool.call.result": "4",
    }
    assert {span.parent_span_id for span in spans[1:]} == {root.span_id}
    assert (
        root.start_time_unix_nano
        <= first.start_time_unix_nano
        < tool.start_time_unix_nano
    )
    assert second.end_time_unix_nano <= root.end_time_unix_nano


def test_every_long_text_leaves_once() -> None:
    run = MemoryRun()
    names = "question", "thought", "result", "answer"
    question, thought, result, answer = (f"{name} " * 1000 for name in names)
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "python", "arguments": f'{{"code":"{thought}"}}'},
    }
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
        {"role": "assistant", "content": answer},
    ]

    log_rollouts(run, [Rollout(messages)])

    [(_, payload)] = run.records
    assert [payload.count(f"{name} {name} ".encode()) for name in names] == [500] * 4
    assert "rl.message.index" in attributes(run.spans[2])


def test_the_root_says_where_a_rollout_belongs_and_what_became_of_it() -> None:
    run = MemoryRun()

    log_rollouts(
        run,
        [
            rollout(
                rewards={"format": 0.5}, advantage=[1.0, 3.0], finish_reason="length", id="r1", group=17, sample=2,
                trajectory_id="t1", prompt_index=4, batch_index=9, policy_version=8, dataset="gsm8k", dataset_index=11,
                tools={"calls": 1, "runtimes": [0.5]}, metadata={"level": "hard", "tries": 2},
            )
        ],
        step=3,
        split="train",
    )  # fmt: skip

    [root] = run.roots
    found = {
        key: value
        for key, value in attributes(root).items()
        if not key.endswith(".messages")
    }
    assert root.trace_id.hex() == trace_id_of("run1", "r1")
    assert found == {
        "rl.rollout.id": "r1", "rl.step": 3, "rl.split": "train", "rl.group.id": "17", "rl.trajectory.id": "t1",
        "rl.prompt.index": 4, "rl.sample.index": 2, "rl.batch.index": 9, "rl.reward": 1.0, "rl.rewards.format": 0.5,
        "rl.advantage": 2.0, "rl.policy.version": 8, "rl.dataset": "gsm8k", "rl.dataset.index": 11,
        "rl.tool.calls": 1, "rl.tool.runtimes": [0.5], "rl.metadata.level": "hard", "rl.metadata.tries": 2,
        "gen_ai.response.finish_reasons": ["length"], "rl.rollout.spans": 4,
    }  # fmt: skip


def test_a_trace_id_given_as_id_is_the_trace_id() -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(id="0123456789ABCDEF0123456789abcdef")])

    assert [root.trace_id.hex() for root in run.roots] == [
        "0123456789abcdef0123456789abcdef"
    ]


def test_a_failed_rollout_has_the_status_and_the_event_of_its_error() -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(error=TimeoutError("sandbox gone"))])

    [root] = run.roots
    assert (root.status.code, root.status.message) == (
        Status.STATUS_CODE_ERROR,
        "sandbox gone",
    )
    [event] = root.events
    assert {pair.key: plain(pair.value) for pair in event.attributes} == {
        "exception.type": "TimeoutError",
        "exception.message": "sandbox gone",
    }


def test_a_row_of_a_trainer_with_prompt_and_completion_has_the_messages_of_both() -> (
    None
):
    run = MemoryRun()
    rows = [
        {"prompt": [QUESTION], "completion": [ANSWER], "level": 3},
        {"prompt": [1, 2], "completion": [3]},
    ]

    log_rollouts(run, rows, step=1)

    row, token_ids = run.roots
    assert span_messages(row).input == [message("user", QUESTION["content"])]
    assert [sent["role"] for sent in span_messages(row).output] == ["assistant"]
    assert attributes(row)["rl.metadata.level"] == 3
    assert "rl.metadata.prompt" not in attributes(row)
    assert attributes(token_ids)["rl.metadata.completion"] == [3]


def test_mappings_are_taken_too_and_unknown_keys_are_metadata() -> None:
    run = MemoryRun()

    log_rollouts(run, [{"messages": "Hello", "reward": 0.5, "difficulty": 3}], step=1)

    [root] = run.roots
    found = attributes(root)
    assert (found["rl.reward"], found["rl.metadata.difficulty"]) == (0.5, 3)
    assert span_messages(root).input == [message("user", "Hello")]
    assert span_messages(root).output == []


def test_without_a_step_it_is_the_last_of_the_role_and_another_role_is_named() -> None:
    run = MemoryRun(role="trainer", last=41)

    log_rollouts(run, [rollout()], role="explorer")

    found = attributes(run.roots[0])
    assert (found["rl.step"], found["rl.role"]) == (41, "explorer")


def test_at_most_the_cap_leaves_and_the_statistics_of_the_others_by_group() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="2")
    finished = [rollout(float(index), group=f"g{index // 3}") for index in range(6)]

    log_rollouts(run, finished, step=3, split="train")

    assert sorted(attributes(root)["rl.reward"] for root in run.roots) == [0.0, 5.0]
    [event] = run.events
    assert event.event_name == "rl.rollouts"
    assert attributes(event) == {
        "rl.step": 3,
        "rl.split": "train",
        "rl.rollouts.count": 4,
        "rl.event.seq": 1,
    }
    assert plain(event.body) == {
        "g0": {"count": 2, "sum": 3.0, "sum_squares": 5.0, "min": 1.0, "max": 2.0},
        "g1": {"count": 2, "sum": 7.0, "sum_squares": 25.0, "min": 3.0, "max": 4.0},
    }


def test_no_seats_leave_the_statistics() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="0")

    log_rollouts(run, [rollout(2.0), rollout(None)], step=3)

    assert run.roots == []
    assert attributes(run.events[0])["rl.rollouts.count"] == 2
    assert plain(run.events[0].body) == {
        "": {"count": 1, "sum": 2.0, "sum_squares": 4.0, "min": 2.0, "max": 2.0}
    }


def test_each_step_and_split_of_a_call_has_its_own_seats() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="1", MAX_ROLLOUTS_PER_STEP_EVAL="2")
    finished = [
        rollout(step=step, split=split)
        for step in (1, 2)
        for split in ("train", "eval")
        for _ in range(3)
    ]

    log_rollouts(run, finished)

    kept = [
        (found["rl.step"], found["rl.split"]) for found in map(attributes, run.roots)
    ]
    assert sorted(kept) == [
        (1, "eval"),
        (1, "eval"),
        (1, "train"),
        (2, "eval"),
        (2, "eval"),
        (2, "train"),
    ]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (True, 1.0),
        (3, 3.0),
        ([0.0, 0.5, 0.25], 0.75),
        ({"format": 0.5, "answer": 1.0}, 1.5),
        ({"reward": 2.0, "format": 0.5}, 2.0),
        (None, None),
    ],
)
def test_a_reward_may_be_a_number_a_list_by_token_or_parts_by_name(
    given: object, kept: float | None
) -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(given)])

    assert attributes(run.roots[0]).get("rl.reward") == kept
    assert run.drops == {}


@pytest.mark.parametrize(
    "bad",
    [math.nan, math.inf, "high", object(), [math.nan], 10**400, np.clongdouble(1 + 2j)],
)
def test_a_reward_that_is_not_a_number_is_left_out_and_the_rollout_stays(
    bad: object,
) -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(bad)])

    assert "rl.reward" not in attributes(run.roots[0])
    assert run.drops == {"rollout_reward": 1}


def test_entries_that_are_not_rollouts_are_counted_and_messages_in_no_shape_are_kept_as_text() -> (
    None
):
    run = MemoryRun()

    log_rollouts(
        run, [3, rollout(), None, Rollout(messages=[QUESTION, "text", 7, {}, ANSWER])]
    )  # type: ignore[list-item]

    # A text is a message; a number is kept as text and counted; an empty mapping holds nothing.
    assert [len(span_messages(root).input) for root in run.roots] == [3, 3]
    assert run.drops == {"rollout_no_mapping": 2, "rollout_message": 1}


@pytest.mark.parametrize("nothing", [None, [], (), iter([])])
def test_nothing_gives_nothing(nothing: Any) -> None:
    run = MemoryRun()

    log_rollouts(run, nothing, step=1)

    assert (run.records, run.drops) == ([], {})


class Hostile:
    """An object whose every use fails."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")


def test_values_that_break_cost_only_themselves() -> None:
    run = MemoryRun()
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    hostile = Rollout(
        messages=[QUESTION, ANSWER], reward=1.0, metadata={"cyclic": cyclic, "hostile": Hostile(), "nan": math.nan},
        policy_version="v\ud800", dataset_index=2**80,  # type: ignore[arg-type]
    )  # fmt: skip

    log_rollouts(run, [hostile, rollout(2.0)], step=1)

    first, second = (attributes(root) for root in run.roots)
    assert (first["rl.metadata.hostile"], first["rl.metadata.nan"]) == (
        "[unreadable]",
        "nan",
    )
    assert first["rl.metadata.cyclic"] == {"self": "[cycle]"}
    assert (first["rl.policy.version"], first["rl.dataset.index"]) == ("v?", str(2**80))
    assert second["rl.reward"] == 2.0


def test_a_text_of_two_signs_is_not_a_number() -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(sample="--5", dataset_index="--5")], step=1)

    assert [attributes(root)["rl.dataset.index"] for root in run.roots] == ["--5"]
    assert run.drops == {"rollout_field": 1}


def test_lone_surrogates_in_text_become_question_marks() -> None:
    run = MemoryRun()

    log_rollouts(
        run,
        [Rollout(messages=[{"role": "user", "content": "a\ud83db"}, CALL], reward=1.0)],
    )

    assert span_messages(run.roots[0]).input == [message("user", "a?b")]


def test_a_hundred_megabytes_are_clipped_inside_the_text_and_that_is_said() -> None:
    run = MemoryRun(ROLLOUT_BYTES="1MiB")
    huge = {"role": "user", "content": "x" * 100_000_000}

    log_rollouts(run, [Rollout(messages=[QUESTION, huge, ANSWER], reward=1.0)])

    [(_, payload)] = run.records
    assert len(payload) < 1 << 20
    given = span_messages(run.roots[0])
    assert given.input[0] == message("user", "What is 2 + 2?")
    assert given.input[1]["parts"][0]["content"].endswith(" more characters]")
    assert given.output == [message("assistant", "It is 4.")]
    assert attributes(run.roots[0])["rl.clipped"] > 99_000_000


def test_text_that_grows_when_it_is_encoded_still_fits() -> None:
    run = MemoryRun(ROLLOUT_BYTES="100KiB")

    log_rollouts(
        run, [Rollout(messages=[{"role": "user", "content": "\x00é😀" * 100_000}] * 30)]
    )

    [(_, payload)] = run.records
    assert len(payload) < 100 << 10


def test_the_caller_s_rollout_stays_as_it_was() -> None:
    run = MemoryRun()
    mine = rollout(metadata={"level": 1})
    before = repr(mine)

    log_rollouts(run, [mine], step=3)

    assert repr(mine) == before


def test_records_are_canonical_protobuf() -> None:
    run = MemoryRun()

    log_rollouts(run, [rollout(error="bad", metadata={"a": [1, {"b": None}]}, step=-1)])

    [(_, payload)] = run.records
    assert ScopeSpans.FromString(payload).SerializeToString() == payload


# --- evaluations ------------------------------------------------------------------------------------------------------
def test_a_late_reward_is_an_event_with_the_trace_id_of_its_rollout() -> None:
    run = MemoryRun()

    log_reward(run, "r1", 0.5, explanation="two of four tests pass")

    [event] = run.events
    assert (event.event_name, event.trace_id.hex()) == (
        "gen_ai.evaluation.result",
        trace_id_of("run1", "r1"),
    )
    assert attributes(event) == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.explanation": "two of four tests pass",
        "gen_ai.evaluation.score.value": 0.5,
        "rl.event.seq": 1,
    }


def test_a_late_reward_names_its_rollout_by_the_rollout_itself() -> None:
    run = MemoryRun()

    log_reward(run, rollout(id="r1"), 0.5)
    log_reward(run, rollout(), 0.5)

    assert [event.trace_id.hex() for event in run.events] == [trace_id_of("run1", "r1")]
    assert run.drops == {"evaluation_id": 1}


def test_many_evaluations_are_one_record() -> None:
    run = MemoryRun()

    log_rewards(
        run,
        {"r1": 1.0, "r2": [0.5, 0.25], "r3": "wrong", "r4": math.nan, "r5": None},
        name="advantage",
    )

    assert len(run.records) == 1
    found = [attributes(event) for event in run.events]
    assert [
        one.get(
            "gen_ai.evaluation.score.value", one.get("gen_ai.evaluation.score.label")
        )
        for one in found
    ] == [
        1.0,
        0.75,
        "wrong",
    ]
    assert [one["rl.event.seq"] for one in found] == [1, 2, 3]
    assert run.drops == {"evaluation_value": 2}


@pytest.mark.parametrize(
    ("split", "expected"),
    [(None, "filtered"), ("train", "filtered"), ("eval", "eval/filtered")],
)
def test_rollouts_that_the_trainer_does_not_use_are_a_split_of_their_own(
    split: str | None, expected: str
) -> None:
    run = MemoryRun()

    log_rollouts(
        run,
        [rollout(1.0), {"messages": [QUESTION], "split": split}],
        step=1,
        split=split,
        state="filtered",
    )

    assert {attributes(root)[semconv.SPLIT] for root in run.roots} == {expected}


ASKED = [message("user", "2 + 2?"), message("assistant", "4")]


@pytest.mark.parametrize(
    ("turns", "first_key", "number"),
    [
        ([{"reward": "bad"}], "turns.reward", 1),
        ([{"input_tokens": "many"}], "turns.input_tokens", 1),
        ([{"speed": 3}], "turns.speed", 1),
        ([3], "turns", 1),
        ([{"reward": 1.0}, {"reward": 2.0}, {"reward": 3.0}], "turns", 2),
    ],
)
def test_what_turns_hold_and_their_answers_do_not_take_is_counted(
    turns: list[Any], first_key: str, number: int
) -> None:
    run = MemoryRun()
    log_rollouts(run, [Rollout(messages=ASKED, turns=turns)])
    with open_rollout(run, messages=ASKED, turns=turns):
        pass
    assert run.keyed_drops == [("rollout_field", number, first_key)] * 2


def test_turns_of_a_live_rollout_with_spans_of_its_own_are_counted() -> None:
    run = MemoryRun()
    with (
        open_rollout(run, messages=ASKED, turns=[{"reward": 1.0}]),
        chat("policy", input_tokens="many"),
    ):
        pass
    assert run.keyed_drops == [
        ("rollout_field", 1, "input_tokens"),
        ("rollout_field", 1, "turns"),
    ]


def test_bad_parts_of_parallel_rewards_and_facts_that_are_not_mappings_are_not_lost() -> (
    None
):
    run = MemoryRun()

    log_generations(
        run,
        responses=["a", "b"],
        rewards={"acc": [1.0, "bad"], "style": [0.5, 0.5]},
        tool_facts=[3, 0],
    )

    assert [attributes(root)["rl.reward"] for root in run.roots] == [1.5, 0.5]
    assert [attributes(root)["rl.tool.calls"] for root in run.roots] == [3, 0]
    assert run.keyed_drops == [("rollout_reward", 1, "acc")]


def test_what_an_evaluation_cannot_hold_is_counted() -> None:
    run = MemoryRun(ROLLOUT_BYTES="4096")

    log_reward(run, "a", 1.0, step="abc", explanation="x" * 5000)
    log_reward(run, "b", "long " * 100)
    log_reward(run, "c", 1.0, step=7.5)

    assert run.keyed_drops == [
        ("rollout_step", 1, "abc"),
        ("clipped", 1, "explanation"),
        ("clipped", 1, "b"),
        ("fractional_step", 1, "7.5"),
    ]
    assert len(run.events) == 3
