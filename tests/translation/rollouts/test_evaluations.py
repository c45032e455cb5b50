"""Values that come apart from their trace, through `Rollouts`."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge.content.policy import ContentPolicy, limit_of
from otel_bridge.records import Evaluation, trace_id_of
from otel_bridge.translation.rollouts import evaluations
from support.otlp import trace_samples as sample
from support.otlp.trace_samples import Bench, late_in, rollouts_in, rows_in


@pytest.mark.parametrize("restart", [False, True])
def test_a_value_before_its_trace_becomes_part_of_the_rollout(restart: bool) -> None:
    bench = Bench()
    assert bench.evaluate(sample.evaluation("a", "reward", 0.25, explanation="x")) == []
    assert bench.evaluate(sample.evaluation("a", "style", 0.5, seq=2)) == []
    if restart:
        bench.restart()
    bench.send(*sample.rollout_spans("a"))

    records = bench.close()

    [rollout] = rollouts_in(records)
    assert (rollout.reward, rollout.rewards, rollout.metadata) == (
        0.25,
        {"style": 0.5},
        {"reward.explanation": "x"},
    )
    assert rows_in(records)[0].values["explorer/rollouts/reward/mean"] == 0.25
    assert late_in(records) == []


def test_a_value_while_the_rollout_waits_for_its_step_counts_in_the_choice() -> None:
    bench = Bench(max_rollouts=2)
    for number in range(5):
        bench.send(*sample.rollout_spans(f"{number}", reward=0.1))
    bench.send(*sample.rollout_spans("best", reward=None))
    bench.evaluate(sample.evaluation("best", "reward", 5.0))

    kept = rollouts_in(bench.close())

    assert 5.0 in [rollout.reward for rollout in kept]


def test_a_value_after_its_rollout_is_a_record_that_names_it() -> None:
    bench = Bench(selection="first", rollout_key="{split}/samples")
    bench.send(*sample.rollout_spans("a", step=3, rl__split="eval"))

    records = bench.evaluate(
        sample.evaluation(
            "a", "reward", 0.5, seq=4, score__label="ok", explanation="why"
        )
    )

    assert records == [
        Evaluation(
            id="l:i1:4",
            rollout_id=sample.trace_id("a"),
            rollout_key="explorer/eval/samples",
            name="reward",
            value=0.5,
            label="ok",
            explanation="why",
            role="explorer",
            step=3,
            axis="explorer/step",
            time_unix_ns=sample.NOW,
        )
    ]


def test_values_without_a_time_have_that_of_their_arrival_and_the_later_one_counts() -> (
    None
):
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))
    # Of two equal times the ids decide, which are hashes: several, so that one is in the wrong order.
    events = [
        sample.evaluation("a", "judge", float(number), seq=None, at_ns=0)
        for number in range(4)
    ]

    values: list[tuple[float | None, int]] = []
    for event in [*events, events[-1]]:
        bench.now += 1
        for value in late_in(bench.evaluate(event)):
            values.append((value.value, value.time_unix_ns - sample.NOW))

    assert values == [(0.0, 1), (1.0, 2), (2.0, 3), (3.0, 4)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_redelivered_or_overtaken_value_changes_nothing(restart: bool) -> None:
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))
    first = bench.evaluate(sample.evaluation("a", "reward", 0.5, seq=4))
    if restart:
        bench.restart()

    again = [
        *bench.evaluate(sample.evaluation("a", "reward", 0.5, seq=4)),
        *bench.evaluate(sample.evaluation("a", "reward", 0.1, seq=3)),
    ]
    newer = bench.evaluate(sample.evaluation("a", "reward", 0.9, seq=5))

    assert [value.value for value in late_in(first)] == [0.5]
    assert again == []
    assert [(value.id, value.value) for value in late_in(newer)] == [("l:i1:5", 0.9)]


def test_a_value_that_became_part_of_its_rollout_is_not_sent_again() -> None:
    bench = Bench()
    bench.evaluate(sample.evaluation("a", "reward", 0.25, explanation="a long story"))
    bench.send(*sample.rollout_spans("a"))
    bench.close()

    assert (
        bench.evaluate(
            sample.evaluation("a", "reward", 0.25, explanation="a long story")
        )
        == []
    )
    assert "a long story" not in repr(bench.counted("evaluation/"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_two_values_the_higher_number_of_one_process_and_the_later_of_two_holds(
    order: tuple[int, ...],
) -> None:
    bench = Bench()
    events: list[tuple[Any, str]] = [
        (sample.evaluation("a", "reward", 0.1, seq=1, at_ns=50), "i1"),
        (sample.evaluation("a", "reward", 0.2, seq=2, at_ns=10), "i1"),
        (sample.evaluation("a", "reward", 0.3, seq=9, at_ns=30), "i2"),
    ]
    for number in order:
        bench.evaluate(*events[number])
    bench.send(*sample.rollout_spans("a"))

    [rollout] = rollouts_in(bench.close())

    assert rollout.reward == 0.3


def test_values_of_producers_that_number_nothing_are_distinguished_by_what_they_say() -> (
    None
):
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))
    event = sample.evaluation("a", "reward", 0.5, seq=None, at_ns=5)

    records = bench.evaluate(event) + bench.evaluate(event, "i2")
    records += bench.evaluate(sample.evaluation("a", "reward", 0.6, seq=None, at_ns=6))

    assert [value.value for value in late_in(records)] == [0.5, 0.6]


def test_a_value_for_a_rollout_that_was_left_out_is_counted() -> None:
    bench = Bench(max_rollouts=0)
    bench.evaluate(sample.evaluation("a", "reward", 0.5))
    bench.send(*sample.rollout_spans("a"))

    after = bench.evaluate(sample.evaluation("a", "advantage", 0.5, seq=2))

    assert after == []
    assert bench.counted("sampled_out/") == {"evaluation": 2, "rollout": 1}


@pytest.mark.parametrize("restart", [False, True])
def test_values_for_rollouts_that_their_emitter_left_out_are_counted_whenever_they_come(
    restart: bool,
) -> None:
    bench = Bench()
    run_id = sample.OURS.run.id
    early, late = (
        sample.evaluation("a", "judge", 0.5),
        sample.evaluation("b", "judge", 0.5, seq=2),
    )
    for event, rollout in ((early, "r0"), (late, "r1")):
        event.trace_id = bytes.fromhex(trace_id_of(run_id, rollout))
    bench.evaluate(early)
    sums = {"count": 2, "sum": 1.0, "sum_squares": 1.0, "min": 0.0, "max": 1.0}
    bench.leave_out(sample.left_out(3, {"": sums}, 2, ids="r0\nr1"))
    if restart:
        bench.restart()

    records = bench.evaluate(late) + bench.close()

    assert late_in(records) == []
    assert bench.counted("sampled_out/") == {"evaluation": 2, "rollout": 2}


def test_a_value_whose_trace_never_comes_is_sent_by_itself_in_the_end() -> None:
    bench = Bench(trace_timeout_ns=600 * sample.SECOND)
    bench.evaluate(sample.evaluation("elsewhere", "reward", 0.5))

    before, after = bench.after(599), bench.after(1)

    assert before == []
    [value] = late_in(after)
    assert (value.rollout_id, value.rollout_key, value.value) == (
        sample.trace_id("elsewhere"),
        "explorer/rollouts",
        0.5,
    )
    assert bench.evaluate(sample.evaluation("elsewhere", "reward", 0.5)) == []
    assert bench.close() == []


def test_a_value_that_came_since_the_end_is_not_taken_back_from_the_count() -> None:
    bench = Bench()
    bench.evaluate(sample.evaluation("late", "reward", 0.5, seq=1))
    bench.evaluate(sample.evaluation("never", "reward", 0.5, seq=2))
    bench.close()
    bench.evaluate(sample.evaluation("late", "style", 0.5, seq=3))

    bench.send(*sample.rollout_spans("late"))

    assert bench.counted() == {"evaluation/no_rollout": 1}


@pytest.mark.parametrize("restart", [False, True])
def test_values_of_a_rollout_that_has_not_come_at_the_end_are_counted_until_it_comes(
    restart: bool,
) -> None:
    bench = Bench()
    for seq, name in enumerate(("reward", "style"), 1):
        bench.evaluate(sample.evaluation("late", name, 0.5, seq=seq))
    bench.evaluate(sample.evaluation("never", "reward", 0.5, seq=3))
    assert len(late_in(bench.close())) == 3
    bench.close()
    at_the_end = bench.counted()
    if restart:
        bench.restart()
    bench.send(*sample.rollout_spans("late"))
    after_one = bench.counted()
    bench.send(*sample.rollout_spans("never"))

    assert at_the_end == {"evaluation/no_rollout": 3}
    assert after_one == {"evaluation/no_rollout": 1}
    assert bench.counted() == {}
    assert bench.counted("dropkey/") == {}


@pytest.mark.parametrize("restart", [False, True])
def test_a_value_waits_for_an_open_trace_however_long_that_takes(restart: bool) -> None:
    bench = Bench(trace_timeout_ns=600 * sample.SECOND)
    spans = sample.rollout_spans("a")
    bench.evaluate(sample.evaluation("a", "reward", 0.25))
    records: list[Any] = []
    for one in reversed(spans):
        records += bench.send(one) + bench.after(500)
        if restart:
            bench.restart()

    [rollout] = rollouts_in(records)
    assert rollout.reward == 0.25
    assert late_in(records) == []


def test_values_that_wait_for_traces_are_bounded() -> None:
    bench = Bench(max_open_traces=3)

    records: list[Any] = []
    for number in range(5):
        records += bench.evaluate(
            sample.evaluation(f"{number}", "reward", float(number), seq=number)
        )

    assert [value.value for value in late_in(records)] == [0.0, 1.0]


@pytest.mark.parametrize("spoil", ["trace", "name", "value"])
def test_a_value_without_trace_name_or_value_is_counted(spoil: str) -> None:
    bench = Bench()
    event = sample.evaluation(
        "a", "" if spoil == "name" else "reward", None if spoil == "value" else 1.0
    )
    if spoil == "trace":
        event.trace_id = bytes(16)

    assert bench.evaluate(event) == []
    assert bench.counted() == {"evaluation/invalid": 1}


def test_a_value_names_its_rollout_by_hex_digits_of_either_case() -> None:
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))
    event = sample.evaluation("a", "judge", 0.5)
    event.trace_id = b""
    event.attributes.extend(
        sample.pairs({"rl.rollout.id": sample.trace_id("a").upper()})
    )

    [value] = late_in(bench.evaluate(event))

    assert (value.rollout_id, value.value) == (sample.trace_id("a"), 0.5)
    assert bench.counted() == {}


def test_endless_names_for_one_rollout_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluations, "_MAX_VALUES", 100)
    bench = Bench()
    for number in range(103):
        bench.evaluate(sample.evaluation("a", f"part{number}", 1.0, seq=number))

    assert bench.counted() == {"evaluation/too_many": 3}


def test_a_value_of_a_span_beyond_the_most_of_its_rollout_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluations, "_MAX_VALUES", 2)
    bench = Bench(selection="first")
    for number in range(2):
        bench.evaluate(sample.evaluation("a", f"part{number}", 1.0, seq=number))
    of_span = sample.evaluation("a", "answer", 1.0, seq=3)
    of_span.span_id = (2).to_bytes(8, "big")
    bench.evaluate(of_span)

    [rollout] = rollouts_in(bench.send(*sample.rollout_spans("a")))

    assert rollout.rewards == {"part0": 1.0, "part1": 1.0}
    assert bench.counted() == {"evaluation/too_many": 1}


@pytest.mark.parametrize("of_span", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_value_of_a_trace_of_which_only_messages_come_is_sent_by_itself(
    first: bool, of_span: bool
) -> None:
    bench = Bench()
    value = sample.evaluation("a", "reward", 0.5)
    if of_span:
        value.span_id = (2).to_bytes(8, "big")
    message = sample.message_event("a", 2)
    if first:
        bench.evaluate(value)
    bench.rollouts.content(sample.FOREIGN, "i2", message, bench.now)
    if not first:
        bench.evaluate(value)

    records = bench.close()

    assert [(one.rollout_id, one.value) for one in late_in(records)] == [
        (sample.trace_id("a"), 0.5)
    ]
    assert bench.counted() == {"event/no_span": 1, "evaluation/no_rollout": 1}


def test_a_value_of_a_trace_of_which_only_messages_came_is_not_overtaken_by_a_younger_one() -> (
    None
):
    bench = Bench(trace_timeout_ns=600 * sample.SECOND)
    bench.evaluate(sample.evaluation("a", "reward", 0.5))
    message = sample.message_event("a", 2)
    bench.rollouts.content(sample.FOREIGN, "i2", message, bench.now)
    bench.after(300)
    bench.evaluate(sample.evaluation("b", "reward", 1.0))

    first = [*bench.after(300), *bench.after(1)]
    second = bench.after(300)

    assert [value.value for value in late_in(first)] == [0.5]
    assert [value.value for value in late_in(second)] == [1.0]


@pytest.mark.parametrize("spoil", ["zz" * 16, " " * 32])
def test_facts_of_left_out_rollouts_that_are_not_hex_digits_give_none(
    spoil: str,
) -> None:
    bench = Bench()
    sums = {"count": 2, "sum": 1.0, "sum_squares": 1.0, "min": 0.0, "max": 1.0}

    bench.leave_out(sample.left_out(3, {"": sums}, 2, ids="r0\nr1", rewards=spoil))

    assert bench.counted("sampled_out/") == {"rollout": 2}


def test_values_for_a_trace_that_is_not_a_rollout_are_counted() -> None:
    bench = Bench(trace_grace_ns=2 * sample.SECOND)
    bench.evaluate(sample.evaluation("http", "reward", 1.0))
    bench.send(sample.span("http", 1, "GET /"))

    records = (
        bench.after(2)
        + bench.evaluate(sample.evaluation("http", "reward", 2.0, seq=2))
        + bench.close()
    )

    assert records == []
    assert bench.counted() == {"trace/other": 1, "evaluation/other": 2}


def test_an_address_is_redacted_of_a_third_party_evaluation_where_it_is_asked_for() -> (
    None
):
    said = {"score__label": "by ann@example.org", "explanation": "ann@example.org says"}
    judged = sample.evaluation("a", "judge", 0.5, seq=None, **said)
    found = []
    for redact_email in (False, True):
        bench = Bench(selection="first", content=ContentPolicy(email=redact_email))
        bench.send(*sample.rollout_spans("a"))
        found += late_in(bench.evaluate(judged))

    assert [(value.label, value.explanation) for value in found] == [
        ("by ann@example.org", "ann@example.org says"),
        ("by [redacted]", "[redacted] says"),
    ]


@pytest.mark.parametrize(
    ("content", "shown"),
    [("off", ("", None)), ("truncate:4", ("good as", "it s… [+9 characters]"))],
)
def test_the_policy_reaches_evaluations_of_third_party_producers_and_native_ones_come_with_it(
    content: str, shown: Any
) -> None:
    bench = Bench(selection="first", content=ContentPolicy(limit_of(content)))
    bench.send(*sample.rollout_spans("a"))
    said = {"score__label": "good as", "explanation": "it says so it"}

    [unnumbered] = late_in(
        bench.evaluate(sample.evaluation("a", "judge", 0.5, seq=None, **said))
    )
    [ours] = late_in(
        bench.evaluate(sample.evaluation("a", "judge", 0.75, seq=1, **said))
    )

    assert (unnumbered.value, unnumbered.label, unnumbered.explanation) == (0.5, *shown)
    assert (ours.value, ours.label, ours.explanation) == (
        0.75,
        "good as",
        "it says so it",
    )


def test_a_label_that_was_not_to_leave_is_a_value_all_the_same() -> None:
    bench = Bench(selection="first")
    bench.send(*sample.rollout_spans("a"))

    [value] = late_in(
        bench.evaluate(sample.evaluation("a", "judge", None, score__label=""))
    )

    assert (value.name, value.value, value.label) == ("judge", None, "")
    assert bench.counted() == {}


def test_the_policy_reaches_the_spans_of_foreign_producers() -> None:
    bench = Bench(selection="first", content=ContentPolicy(secrets=False, email=True))
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt": "ann@example.org, sk-" + "A1" * 12,
    }

    bench.send(
        sample.span("a", 1, "chat m", said), producer=sample.FOREIGN, scope="app"
    )

    [rollout] = rollouts_in(bench.close())
    assert rollout.messages == [
        {"role": "user", "content": "[redacted], sk-" + "A1" * 12}
    ]
