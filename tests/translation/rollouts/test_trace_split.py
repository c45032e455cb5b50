"""Several rollouts in one trace: below one span of an application, or given one id."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import PlainTrace, Record
from otel_bridge.translation.rollouts import publish
from otel_bridge.translation.rollouts.trace_split import sub_trace_id
from support.otlp import trace_samples as sample
from support.otlp.trace_samples import SECOND, Bench, late_in, rollouts_in, rows_in

TRACE = sample.trace_id("job")


def span_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def rollout_below(
    number: int, *, parent: int = 1, reward: float | None = None, **attributes: object
) -> list[Span]:
    """A rollout with a chat span, which ends before it."""
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt": f"q{number}",
        "gen_ai.completion": f"a{number}",
    }
    said = {
        "rl.reward": number / 10 if reward is None else reward,
        **{k.replace("__", "."): v for k, v in attributes.items()},
    }
    return [
        sample.span("job", number * 10 + 1, "chat m", chat, parent=number * 10),
        sample.span("job", number * 10, "rollout", said, parent=parent),
    ]


def ambient(**attributes: object) -> Span:
    return sample.span(
        "job", 1, "train", {k.replace("__", "."): v for k, v in attributes.items()}
    )


def send(bench: Bench, *spans: Span) -> list[Record]:
    return bench.send(*spans, producer=sample.FOREIGN, scope="agents")


def id_of(number: int) -> str:
    return TRACE if number == 1 else sub_trace_id(TRACE, span_id(number * 10))


def shown(
    records: list[Record],
) -> list[tuple[str, float | None, list[str], list[object]]]:
    return sorted(
        (
            one.id,
            one.reward,
            [span.name for span in one.spans],
            [message["content"] for message in one.messages],
        )
        for one in rollouts_in(records)
    )


def expected(*numbers: int) -> list[tuple[str, float | None, list[str], list[object]]]:
    return sorted(
        (
            id_of(number),
            number / 10,
            ["train", "rollout", "chat m"] if number == 1 else ["rollout", "chat m"],
            [f"q{number}", f"a{number}"],
        )
        for number in numbers
    )


def judged(number: int, score: float, *, seq: int | None = None) -> LogRecord:
    value = sample.evaluation("job", "reward", score, seq=seq)
    value.span_id = span_id(number)
    return value


def test_each_rollout_below_one_span_of_an_application_is_a_record_of_its_own() -> None:
    bench = Bench(trace_grace_ns=2 * SECOND)
    for number in range(1, 9):
        send(bench, *rollout_below(number))

    send(bench, ambient(rl__step=7))
    bench.after(2)
    records = bench.close()

    assert shown(records) == expected(*range(1, 9))
    assert {one.step for one in rollouts_in(records)} == {7}
    assert rows_in(records)[0].values["agent/rollouts/total"] == 8
    assert bench.counted() == {}
    assert bench.counted("trace/meta/") == bench.counted("trace/spans/") == {}


def test_a_rollout_of_its_own_has_no_parent_names_its_trace_and_links_the_one_it_was_in() -> (
    None
):
    bench = Bench(selection="first")

    send(bench, ambient(), *rollout_below(1), *rollout_below(2))
    [second] = [one for one in rollouts_in(bench.close()) if one.id != TRACE]

    spans = [Span.FromString(span.otlp) for span in second.spans]
    assert {span.trace_id.hex() for span in spans} == {id_of(2)}
    assert [span.parent_id for span in second.spans] == [None, span_id(20).hex()]
    assert [(link.trace_id.hex(), link.span_id) for link in spans[0].links] == [
        (TRACE, span_id(1))
    ]
    assert not second.incomplete


def test_one_rollout_in_a_trace_is_what_it_was() -> None:
    bench = Bench(selection="first")

    send(bench, ambient(rl__step=7), *rollout_below(1))

    [rollout] = rollouts_in(bench.close())
    assert (rollout.id, rollout.step, [span.name for span in rollout.spans]) == (
        TRACE,
        7,
        ["train", "rollout", "chat m"],
    )


def test_a_rollout_inside_a_rollout_belongs_to_it() -> None:
    bench = Bench(selection="first")

    send(
        bench,
        ambient(),
        *rollout_below(1),
        *rollout_below(2, parent=11),
        *rollout_below(3),
    )

    assert {one.id: len(one.spans) for one in rollouts_in(bench.close())} == {
        TRACE: 5,
        id_of(3): 2,
    }


def test_spans_side_by_side_that_name_one_rollout_are_one() -> None:
    bench = Bench(selection="first")
    turns = [
        sample.span("job", number, "turn", {"rl.rollout.id": name, "rl.reward": 0.5})
        for number, name in ((2, "a"), (3, "b"), (4, "a"), (5, "b"))
    ]

    send(bench, ambient(), *turns)

    found = {
        one.id: [span.parent_id for span in one.spans]
        for one in rollouts_in(bench.close())
    }
    root, second = span_id(1).hex(), span_id(3).hex()
    assert found == {
        TRACE: [None, root, root],
        sub_trace_id(TRACE, span_id(3)): [None, second],
    }


@pytest.mark.parametrize("restart", [False, True])
def test_a_value_for_a_span_goes_to_the_rollout_of_that_span_before_and_after(
    restart: bool,
) -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    for number, about in ((1, 10), (2, 20), (3, 31)):
        bench.evaluate(judged(about, number * 1.5, seq=number))
    send(
        bench,
        *(span for number in (1, 2, 3) for span in rollout_below(number)),
        ambient(),
    )
    if restart:
        bench.restart()

    rollouts = rollouts_in(bench.after(2))
    later = late_in(
        [
            *bench.evaluate(judged(20, 9.0, seq=4)),
            *bench.evaluate(sample.evaluation("job", "reward", 8.0, seq=5)),
        ]
    )

    assert {one.id: one.reward for one in rollouts} == {
        id_of(1): 1.5,
        id_of(2): 3.0,
        id_of(3): 4.5,
    }
    assert [(value.rollout_id, value.value) for value in later] == [
        (id_of(2), 9.0),
        (TRACE, 8.0),
    ]
    assert [key for key in bench.counted("evaluation/") if "." in key] == []


def test_a_value_for_a_span_of_a_trace_that_never_came_names_the_trace() -> None:
    bench = Bench()
    bench.evaluate(judged(20, 9.0))

    assert [(value.rollout_id, value.value) for value in late_in(bench.close())] == [
        (TRACE, 9.0)
    ]


def test_rollouts_that_follow_in_a_trace_that_is_complete_are_rollouts_too() -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    send(bench, *rollout_below(1), ambient())
    first = bench.after(2)
    chat2, root2 = rollout_below(2)
    chat3, root3 = rollout_below(3)

    waits = send(bench, chat2, chat3) + bench.after(10) + send(bench, root2)
    bench.restart()
    second = bench.after(2)
    third = send(bench, root3) + bench.after(2)
    again = (
        send(bench, *rollout_below(1), chat2, root2, chat3, root3, ambient())
        + bench.close()
    )

    assert (waits, rollouts_in(again)) == ([], [])
    assert shown(first + second + third) == expected(1, 2, 3)
    assert bench.counted() == {}


def test_an_application_whose_span_never_ends_shows_its_rollouts_all_the_same() -> None:
    bench = Bench(
        selection="first", trace_timeout_ns=600 * SECOND, trace_grace_ns=2 * SECOND
    )
    records: list[Record] = []
    for number in range(1, 20):
        records += send(bench, *rollout_below(number)) + bench.after(100)

    ids = [one.id for one in rollouts_in(records)]
    assert sorted(ids) == sorted(id_of(number) for number in range(1, 20))


def test_spans_of_a_further_rollout_that_never_comes_are_counted_in_the_end() -> None:
    bench = Bench(
        selection="first", trace_grace_ns=2 * SECOND, trace_timeout_ns=600 * SECOND
    )
    send(bench, *rollout_below(1), ambient())
    bench.after(2)

    send(bench, rollout_below(2)[0])
    waiting = bench.rollouts.waiting()
    records = bench.after(600)

    assert (waiting, rollouts_in(records), bench.rollouts.waiting()) == (
        (1, 0),
        [],
        (0, 0),
    )
    assert bench.counted() == {"span/late": 1}


@pytest.mark.parametrize("scope", ["agents", "tools"])
def test_late_spans_that_came_before_those_above_them_reach_their_rollout_from_any_scope(
    scope: str,
) -> None:
    bench = Bench(
        selection="first", trace_grace_ns=2 * SECOND, trace_timeout_ns=600 * SECOND
    )
    send(bench, *rollout_below(1), ambient())
    bench.after(2)
    lowest, middle, upper = (
        sample.span("job", number, f"execute_tool {number}", parent=parent)
        for number, parent in ((14, 13), (13, 12), (12, 11))
    )

    send(bench, lowest)
    bench.send(middle, producer=sample.FOREIGN, scope=scope)
    records = send(bench, upper) + bench.after(600)

    late = [record for record in records if isinstance(record, PlainTrace)]
    assert {span.id for trace in late for span in trace.spans} == {
        span_id(number).hex() for number in (12, 13, 14)
    }
    assert bench.counted() == {}


@pytest.mark.parametrize("restart", [False, True])
def test_the_rest_of_a_further_trace_waits_no_longer_than_its_time(
    restart: bool,
) -> None:
    bench = Bench(
        selection="first", trace_grace_ns=2 * SECOND, trace_timeout_ns=600 * SECOND
    )
    send(bench, *rollout_below(1), ambient())
    bench.after(2)
    send(bench, *rollout_below(2), rollout_below(3)[0])

    second = bench.after(2)
    if restart:
        bench.restart()
    waiting = bench.rollouts.waiting()
    rest = bench.after(600)

    assert (shown(second), waiting) == (expected(2), (1, 0))
    assert (rollouts_in(rest), bench.rollouts.waiting(), bench.counted()) == (
        [],
        (0, 0),
        {"span/late": 1},
    )


def test_the_rest_of_a_further_trace_is_released_when_the_run_ends() -> None:
    bench = Bench(
        selection="first", trace_grace_ns=2 * SECOND, trace_timeout_ns=600 * SECOND
    )
    send(bench, *rollout_below(1), ambient())
    bench.after(2)
    send(bench, *rollout_below(2), rollout_below(3)[0])

    records = bench.close()

    assert (shown(records), bench.rollouts.waiting()) == (expected(2), (0, 0))
    assert bench.counted() == {"span/late": 1}


def test_a_rollout_that_waits_is_not_begun_again_once_its_trace_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_ENDED_LIMIT", 0)
    bench = Bench(max_rollouts_eval=0)
    first = rollout_below(1, rl__split="eval", rl__rollout__spans=2)
    second = rollout_below(2, rl__rollout__spans=2)
    send(bench, *first, *second, ambient(rl__step=7))

    send(bench, *first, *second)
    records = bench.close()

    assert [(one.id, one.step) for one in rollouts_in(records)] == [(id_of(2), 7)]


def test_a_span_that_comes_late_finds_its_rollout_while_that_waits_for_its_step() -> (
    None
):
    bench = Bench(trace_grace_ns=2 * SECOND)
    send(bench, *rollout_below(1), *rollout_below(2), ambient())
    bench.after(2)
    late = sample.span("job", 25, "execute_tool x", parent=21)

    send(bench, late)
    bench.restart()
    send(bench, late)

    assert {one.id: len(one.spans) for one in rollouts_in(bench.close())} == {
        TRACE: 3,
        id_of(2): 3,
    }


@pytest.mark.parametrize("restart", [False, True])
def test_what_comes_after_a_further_rollout_was_written_belongs_to_that_rollout(
    restart: bool,
) -> None:
    bench = Bench(selection="first", trace_grace_ns=2 * SECOND)
    send(bench, *rollout_below(1), *rollout_below(2), ambient())
    bench.after(2)
    if restart:
        bench.restart()
    late = sample.span("job", 25, "execute_tool x", parent=21)

    traces = [record for record in send(bench, late) if isinstance(record, PlainTrace)]
    values = late_in(bench.evaluate(judged(25, 9.0, seq=1)))
    again = send(bench, late, *rollout_below(2)) + bench.after(600)

    assert [(trace.id, len(trace.spans)) for trace in traces] == [(id_of(2), 1)]
    assert [value.rollout_id for value in values] == [id_of(2)]
    assert (again, bench.counted()) == (rows_in(again), {})


SPANS = [span for number in (1, 2, 3) for span in rollout_below(number)] + [ambient()]


@given(
    order=st.permutations(SPANS + SPANS),
    cuts=st.sets(st.integers(1, 13)),
    restarts=st.sets(st.integers(0, 13)),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_in_any_order_in_pieces_twice_and_with_kills_it_is_the_same_rollouts(
    order: list[Span], cuts: set[int], restarts: set[int]
) -> None:
    bench = Bench(trace_grace_ns=60 * SECOND)
    records: list[Record] = []
    bounds = [0, *sorted(cuts), len(order)]
    for number, (low, high) in enumerate(itertools.pairwise(bounds)):
        records += send(bench, *order[low:high]) + bench.after(1)
        if number in restarts:
            bench.restart()

    records += bench.close()
    records += send(bench, *order) + bench.close()

    assert shown(records) == expected(1, 2, 3)


# --- one id for two ---------------------------------------------------------------------------------------------------
def renumbered(spans: list[Span], by: int) -> list[Span]:
    found: list[Span] = []
    for span in spans:
        copy = Span.FromString(span.SerializeToString())
        copy.span_id = span_id(int.from_bytes(span.span_id, "big") + by)
        if span.parent_span_id:
            copy.parent_span_id = span_id(
                int.from_bytes(span.parent_span_id, "big") + by
            )
        copy.start_time_unix_nano += by
        found.append(copy)
    return found


@pytest.mark.parametrize("selection", ["first", "stratified"])
def test_two_rollouts_with_one_id_are_two_records_and_values_go_to_the_first(
    selection: str,
) -> None:
    bench = Bench(selection=selection)
    one = sample.rollout_spans("a", step=1, reward=0.25)
    two = renumbered(sample.rollout_spans("a", step=2, reward=0.75), 100)

    records = bench.send(*one) + bench.send(*two) + bench.send(*two, *one)
    bench.restart()
    records += bench.send(*two) + bench.send(*one) + bench.close()
    late = late_in(bench.evaluate(sample.evaluation("a", "reward", 0.5)))

    other = sub_trace_id(sample.trace_id("a"), span_id(101))
    assert [(r.id, r.step, r.reward, len(r.spans)) for r in rollouts_in(records)] == [
        (sample.trace_id("a"), 1, 0.25, 4),
        (other, 2, 0.75, 4),
    ]
    assert [r.metadata for r in rollouts_in(records)] == [
        {},
        {"rollout_id": sample.trace_id("a")},
    ]
    assert [value.rollout_id for value in late] == [sample.trace_id("a")]


def test_a_large_rollout_that_comes_again_is_not_treated_as_another_of_its_id() -> None:
    bench = Bench(selection="first")
    root, *children = sample.rollout_spans("a", counted=False)
    many = [
        root,
        *children,
        *(sample.span("a", number, "step") for number in range(10, 400)),
    ]
    first = bench.send(*many) + bench.close()

    again = bench.send(*many) + bench.send(*many[5:]) + bench.close()

    assert [len(one.spans) for one in rollouts_in(first)] == [394]
    assert again == []


def test_a_live_rollout_with_the_id_of_another_is_whole_too() -> None:
    bench = Bench(selection="first")
    first = rollouts_in(bench.send(*sample.rollout_spans("a")))
    root, *children = renumbered(sample.rollout_spans("a", step=5), 100)

    records: list[Record] = []
    for span in (*children, root):
        records += bench.send(span)

    assert [(one.step, len(one.spans)) for one in (*first, *rollouts_in(records))] == [
        (1, 4),
        (5, 4),
    ]
