"""The choice per step, over all workers, through `Rollouts`."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge.records import Row
from otel_bridge.translation.packing import unpacked
from otel_bridge.translation.rollouts.step import SampledStep
from support.otlp import trace_samples as sample
from support.otlp.trace_samples import Bench, late_in, rollouts_in, rows_in
from support.otlp.translation_bench import ids
from support.sampling import Candidate, choose


def filled(
    bench: Bench,
    step: int,
    rewards: list[float | None],
    prefix: str = "",
    **attributes: Any,
) -> list[Any]:
    records: list[Any] = []
    for number, reward in enumerate(rewards):
        records += bench.send(
            *sample.rollout_spans(
                f"{prefix}{step}-{number}", step=step, reward=reward, **attributes
            )
        )
    return records


def test_a_step_closes_when_a_later_one_comes_and_keeps_what_the_rule_chooses() -> None:
    bench = Bench(max_rollouts=3)
    rewards: list[float | None] = [0.1, 0.9, 0.2, 0.3, 0.4, 0.05]

    waiting = filled(bench, 1, rewards)
    closed = filled(bench, 2, [0.5])

    names = {sample.trace_id(f"1-{n}"): reward for n, reward in enumerate(rewards)}
    order = sorted(names)
    candidates = [Candidate(names[one], None, False, False, one) for one in order]
    chosen = {order[n] for n in choose(candidates, 3, rule="stratified", seed="r1/1")}
    assert waiting == []
    assert ids(closed) == chosen
    assert {0.9, 0.05} < {rollout.reward for rollout in rollouts_in(closed)}
    assert bench.rollouts.waiting() == (0, 1)
    assert bench.counted("sampled_out/") == {"rollout": 3}


def test_the_statistics_of_a_closed_step_are_over_all_its_rollouts() -> None:
    bench = Bench(max_rollouts=1)
    bench.leave_out(
        sample.left_out(
            1, {"p": {"count": 2, "sum": 1, "sum_squares": 1, "min": 0, "max": 1}}, 3
        )
    )
    filled(bench, 1, [1.0, 0.0], rl__group__id="q")
    bench.now += 5

    rows = rows_in(filled(bench, 2, [0.5]))

    assert rows == [
        Row(
            id="s:explorer:train:1",
            role="explorer",
            step=1,
            axis="explorer/step",
            time_unix_ns=sample.NOW
            + 101,  # when its last rollout ended, not when it came
            values={
                "explorer/rollouts/total": 5,
                "explorer/rollouts/kept": 1,
                "explorer/rollouts/zero_variance_groups": 0,
                "explorer/rollouts/reward/mean": 0.5,
                "explorer/rollouts/reward/std": 0.5,
                "explorer/rollouts/reward/min": 0.0,
                "explorer/rollouts/reward/max": 1.0,
            },
            steps={"explorer/step": 1},
        )
    ]
    assert bench.state.get("key/explorer/rollouts/total") == "explorer/step"


@pytest.mark.parametrize("restart", [False, True])
def test_a_flood_of_names_of_splits_leaves_no_more_closed_steps_than_are_remembered(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_bridge.translation.rollouts.sampling._REMEMBERED", 5)
    bench = Bench(selection="first", step_watermark_ns=sample.SECOND)
    rows: list[Row] = []
    for number in range(20):
        filled(bench, 1, [1.0], prefix=f"{number}-", rl__split=f"s{number:02}")
        rows += rows_in(bench.after(60))
        if restart:
            bench.restart()

    kept = [key for key, _ in bench.state.items("step/")]
    assert kept == [f"step/explorer/s{number}/1" for number in range(15, 20)]
    assert len(rows) == 20


def test_first_keeps_by_arrival_and_at_once() -> None:
    bench = Bench(max_rollouts=2, selection="first")

    records = filled(bench, 1, [0.1, 0.2, 0.3])

    assert [rollout.reward for rollout in rollouts_in(records)] == [0.1, 0.2]
    assert rows_in(filled(bench, 2, [0.1]))[0].values["explorer/rollouts/total"] == 3


def test_a_step_closes_after_its_time_without_rollouts_and_with_the_run() -> None:
    bench = Bench(step_watermark_ns=30 * sample.SECOND)
    filled(bench, 1, [1.0])

    early, late = bench.after(29), bench.after(1)
    filled(bench, 2, [1.0])
    last = bench.close()

    assert (len(ids(early)), len(ids(late)), len(ids(last))) == (0, 1, 1)
    assert [row.step for row in rows_in(late + last)] == [1, 2]


def test_a_step_that_trickles_on_closes_at_last() -> None:
    bench = Bench(
        step_watermark_ns=30 * sample.SECOND, step_timeout_ns=100 * sample.SECOND
    )

    records: list[Any] = []
    for number in range(12):
        records += filled(bench, 1, [1.0], prefix=f"{number}-")
        records += bench.after(9)

    assert [row.values["explorer/rollouts/total"] for row in rows_in(records)] == [12]


@pytest.mark.parametrize("restart", [False, True])
def test_late_rollouts_fill_the_seats_left_and_correct_the_statistics_once(
    restart: bool,
) -> None:
    bench = Bench(max_rollouts=3)
    filled(bench, 1, [0.1, 0.2])
    filled(bench, 2, [0.5])

    late = filled(bench, 1, [0.3, 0.4], prefix="late")
    if restart:
        bench.restart()
    corrected = bench.after(30)

    assert [rollout.reward for rollout in rollouts_in(late)] == [0.3]
    first = [row for row in rows_in(corrected) if row.step == 1]
    assert [
        (
            row.id,
            row.values["explorer/rollouts/total"],
            row.values["explorer/rollouts/kept"],
        )
        for row in first
    ] == [("s:explorer:train:1:1", 4, 3)]
    assert bench.after(1_000) == []


def test_caps_hold_for_each_role_split_and_step_alone() -> None:
    bench = Bench(max_rollouts=1, max_rollouts_eval=2)
    filled(bench, 1, [1.0] * 3)
    filled(bench, 1, [1.0] * 3, prefix="e", rl__split="eval")
    filled(bench, 1, [1.0] * 3, prefix="r", rl__role="judge")

    records = bench.close()

    kept = sorted(
        (rollout.role or "", rollout.split or "", rollout.key)
        for rollout in rollouts_in(records)
    )
    assert kept == [
        ("explorer", "", "explorer/rollouts"),
        ("explorer", "eval", "explorer/rollouts"),
        ("explorer", "eval", "explorer/rollouts"),
        ("judge", "", "judge/rollouts"),
    ]
    assert "explorer/rollouts/eval/total" in {
        key for row in rows_in(records) for key in row.values
    }


@pytest.mark.parametrize(
    ("given", "of_train", "of_eval"),
    [
        ("", "explorer/samples/train", "explorer/samples/eval"),
        ("{split}", "explorer/train", "explorer/eval"),
        ("explorer/all", "explorer/all", "explorer/all"),
    ],
)
def test_the_key_holds_the_split_and_what_the_rollouts_process_was_reported_goes_before(
    given: str, of_train: str, of_eval: str
) -> None:
    bench = Bench(selection="first", rollout_key="samples/{split}")
    more = {"rl__rollout__key": given} if given else {}

    records = filled(bench, 1, [1.0], "t", **more) + filled(
        bench, 1, [1.0], "e", rl__split="eval", **more
    )
    late = late_in(bench.evaluate(sample.evaluation("e1-0", "judge", 0.5)))

    assert [rollout.key for rollout in rollouts_in(records)] == [of_train, of_eval]
    assert [value.rollout_key for value in late] == [of_eval]


def test_a_later_step_of_another_split_closes_nothing() -> None:
    bench = Bench()
    filled(bench, 1, [1.0])

    assert filled(bench, 2, [1.0], rl__split="eval") == []
    assert bench.rollouts.waiting() == (0, 2)


def test_no_seats_means_no_rollouts_but_statistics() -> None:
    bench = Bench(max_rollouts=0)
    filled(bench, 1, [1.0, 0.0])

    records = bench.close()

    assert rollouts_in(records) == []
    assert rows_in(records)[0].values["explorer/rollouts/total"] == 2
    assert bench.counted("trace/spans/") == {}


def test_rollouts_without_a_step_share_seats_for_one_waiting_time() -> None:
    bench = Bench(max_rollouts=2, step_watermark_ns=30 * sample.SECOND)
    records: list[Any] = []
    for second in range(3):
        for number in range(4):
            records += bench.send(
                *sample.rollout_spans(f"{second}-{number}", step=None)
            )
        records += bench.after(30)

    assert len(rollouts_in(records)) == 6
    assert [(row.id, row.step, row.axis) for row in rows_in(records)] == [
        (f"s:explorer:train:{sample.NOW + 30 * second * sample.SECOND}", None, None)
        for second in range(3)
    ]
    assert bench.counted("step/") == {}


def test_events_of_left_out_rollouts_close_earlier_steps_and_count_once() -> None:
    bench = Bench()
    filled(bench, 1, [1.0])
    event = sample.left_out(
        2, {"p": {"count": 1, "sum": 1, "sum_squares": 1, "min": 1, "max": 1}}, 4
    )

    closed = bench.leave_out(event)
    rest = bench.leave_out(event) + bench.close()

    totals = [
        [(row.step, row.values["explorer/rollouts/total"]) for row in rows_in(part)]
        for part in (closed, rest)
    ]
    assert totals == [[(1, 1)], [(2, 4)]]
    assert bench.counted("sampled_out/") == {"rollout": 4}


def test_an_event_that_cannot_be_read_is_counted() -> None:
    bench = Bench()
    broken = sample.left_out(1, {}, -3)
    bodiless = sample.left_out(1, {}, 3)
    bodiless.ClearField("body")

    assert bench.leave_out(broken) + bench.leave_out(bodiless) + bench.close() == []
    assert bench.counted() == {"rollouts/invalid": 2}


def test_only_the_last_steps_are_remembered_and_the_state_stays_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("otel_bridge.translation.rollouts.sampling._DETAILED", 64)
    bench = Bench(max_rollouts=1)
    for step in range(200):
        filled(bench, step, [1.0], rl__group__id="p")

    records = filled(bench, 3, [0.0], prefix="late", rl__group__id="p")

    assert ids(records) == set()
    groups = [
        list(unpacked(SampledStep, value).statistics.groups)
        for _, value in bench.state.items("step/")
    ]  # type: ignore[index]
    assert groups.count([""]) == 199 - 64 - 1
    assert groups.count(["p"]) == 64


def test_too_many_waiting_rollouts_close_the_oldest_step_early() -> None:
    bench = Bench(max_open_traces=5)
    filled(bench, 2, [1.0] * 3)
    bench.now += 1

    records = filled(bench, 1, [1.0] * 3)

    assert {rollout.step for rollout in rollouts_in(records)} == {2}
    assert bench.rollouts.waiting() == (0, 3)


def test_what_was_emitted_makes_room_again() -> None:
    bench = Bench(max_open_trace_bytes=8_000, max_rollouts=1)

    waiting: list[int] = []
    for step in range(50):
        filled(bench, step, [1.0] * 3)
        waiting.append(bench.rollouts.waiting()[1])

    assert waiting == [3] * 50


def test_each_step_closes_at_its_own_time() -> None:
    bench = Bench(step_watermark_ns=30 * sample.SECOND)
    for seconds, split in ((5, "a"), (15, "b"), (0, "c")):
        filled(bench, 1, [1.0], prefix=split, rl__split=split)
        bench.after(seconds)

    closed = [
        [rollout.split for rollout in rollouts_in(bench.after(seconds))]
        for seconds in (9, 1, 5, 14, 1)
    ]

    assert closed == [[], ["a"], ["b"], [], ["c"]]


def test_after_a_restart_the_statistics_of_rollouts_without_a_step_keep_their_id_and_no_other_has_it() -> (
    None
):
    straight, restarted = Bench(), Bench()
    for bench in (straight, restarted):
        bench.send(
            *sample.rollout_spans("whole", step=None),
            *sample.rollout_spans("rootless", step=None)[1:],
        )
        assert len(rows_in(bench.after(30))) == 1
        bench.after(575)

    restarted.restart()

    expected, found = rows_in(straight.after(100)), rows_in(restarted.after(100))
    assert found == expected
    assert [row.id for row in found] == [
        f"s:explorer:train:{sample.NOW + 600 * sample.SECOND}"
    ]


@pytest.mark.parametrize("restart", [False, True])
def test_statistics_of_rollouts_without_a_step_have_an_id_each_also_at_one_time(
    restart: bool,
) -> None:
    bench = Bench()
    records: list[Any] = []
    for name in ("a", "b", "c"):
        bench.send(*sample.rollout_spans(name, step=None))
        if restart:
            bench.restart()
        records += bench.close()

    at = sample.NOW
    assert [row.id for row in rows_in(records)] == [
        f"s:explorer:train:{number}" for number in (at, at + 1, at + 2)
    ]
    assert [row.values["explorer/rollouts/total"] for row in rows_in(records)] == [
        1,
        1,
        1,
    ]
    assert len(bench.counted("stepless/")) == 1


def test_a_step_waits_for_more_rollouts_after_a_restart_as_long_as_without() -> None:
    bench = Bench(trace_grace_ns=20 * sample.SECOND)
    bench.send(*sample.rollout_spans("a", counted=False))
    bench.after(20)

    bench.restart()
    early, due = bench.after(29), bench.after(1)

    assert (early, ids(due)) == ([], {sample.trace_id("a")})
