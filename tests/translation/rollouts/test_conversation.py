from __future__ import annotations

from otel_bridge.records import Message
from otel_bridge.translation.rollouts.conversation import in_order, merged


def said(role: str, content: str | None) -> Message:
    return {"role": role, "content": content}


S, U1, A1, U2, A2 = (
    said("system", "s"),
    said("user", "u1"),
    said("assistant", "a1"),
    said("user", "u2"),
    said("assistant", "a2"),
)


def test_deltas_follow_each_other() -> None:
    assert merged([([S, U1], [A1]), ([U2], [A2])], {}) == [S, U1, A1, U2, A2]


def test_whole_histories_do_not_double() -> None:
    assert merged([([S, U1], [A1]), ([S, U1, A1, U2], [A2])], {}) == [S, U1, A1, U2, A2]


def test_a_history_without_the_reasoning_is_the_same_history() -> None:
    thought: Message = {**A1, "reasoning_content": "hm"}

    assert merged([([U1], [thought]), ([U1, A1, U2], [A2])], {}) == [
        U1,
        thought,
        U2,
        A2,
    ]


def test_a_history_trimmed_in_front_goes_on_behind_the_last_answer() -> None:
    assert merged(
        [([S, U1], [A1]), ([said("system", "summary"), A1, U2], [A2])], {}
    ) == [
        S,
        U1,
        A1,
        U2,
        A2,
    ]
    assert merged([([S, U1], [A1]), ([A1, U2], [A2])], {}) == [S, U1, A1, U2, A2]


def test_one_call_seen_by_two_instrumentations_is_one_turn() -> None:
    assert merged([([U1], [A1]), ([U1], [A1])], {}) == [U1, A1]


def test_a_second_sample_of_the_same_prompt_is_kept_beside_the_first() -> None:
    assert merged([([U1], [A1]), ([U1], [A2])], {}) == [U1, A1, A2]


def test_the_same_question_asked_again_in_a_delta_is_not_lost() -> None:
    assert merged([([U1], [A1]), ([U2], [A2]), ([U2], [A1])], {}) == [
        U1,
        A1,
        U2,
        A2,
        U2,
        A1,
    ]


def test_tool_spans_answer_calls_that_no_message_answers() -> None:
    call: Message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1"}, {"id": "c2"}],
    }
    answered: Message = {"role": "tool", "content": "given", "tool_call_id": "c1"}

    messages = merged(
        [([U1], [call]), ([answered], [A2])], {"c1": "span", "c2": "span"}
    )

    assert messages == [
        U1,
        call,
        {"role": "tool", "content": "span", "tool_call_id": "c2"},
        answered,
        A2,
    ]


def test_what_was_said_after_the_last_answer_stands_behind_it() -> None:
    asks: Message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    result: Message = {"role": "tool", "content": "2", "tool_call_id": "c1"}
    earlier: Message = {"role": "tool", "content": "1", "tool_call_id": "c0"}

    assert in_order([U1, U2], [A1], [([U1], [A1])]) == [U1, A1, U2]
    assert in_order([U1, A1, U2], [A2], [([U1], [A1]), ([U2], [A2])]) == [
        U1,
        A1,
        U2,
        A2,
    ]
    assert in_order([U1, earlier, result], [asks], []) == [U1, earlier, asks, result]
    assert in_order([U1, earlier], [asks], []) == [U1, earlier, asks]
    assert in_order([U1], [], []) == [U1]
