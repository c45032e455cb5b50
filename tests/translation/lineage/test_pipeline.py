"""Tests of lineage: what a training step consumed, as its row, and as the steps of each rollout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge import Rollout
from otel_bridge.emit.lineage.train_on import train_on
from otel_bridge.records import (
    Distribution,
    End,
    Evaluation,
    Record,
    RolloutRecord,
    Row,
    trace_id_of,
)
from otel_bridge.translation import step_rows
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import RUN, Bench, end, row
from support.otlp.phase_samples import rank, rows_of, values_of
from support.trainers.emit_rollout_doubles import MemoryRun, log_reward, log_rollouts

SENDER = rank(0)


def rollout(number: int, step: int, **fields: object) -> Rollout:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    return Rollout(
        messages, id=f"{step}-{number}", step=step, policy_version=step - 1, **fields
    )  # type: ignore[arg-type]


def deliver(
    bench: Bench, run: MemoryRun, order: Sequence[int] | None = None
) -> list[Record]:
    """Translate what *run* has appended since, in *order*, each frame of it as often as it is named."""
    frames, run.records = run.records, []
    records: list[Record] = []
    for index in range(len(frames)) if order is None else order:
        signal, payload = frames[index]
        records += bench.translator.frame(
            SENDER, signal, payload, False, bench.now_ns, bench.now_ns
        )
    bench.records += records
    return records


@pytest.fixture
def run() -> MemoryRun:
    return MemoryRun(RUN)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.open(SENDER)
    return bench


def lineage_rows(records: Sequence[Record]) -> dict[int | None, Row]:
    """The last row of each training step."""
    return {
        row.step: row
        for row in rows_of(records)
        if any("lineage/" in key for key in row.values)
    }


def trained_on(records: Sequence[Record]) -> dict[str, str | None]:
    """Training steps of each rollout that trackers show, by trace id, as they end up there."""
    steps: dict[str, str | None] = {}
    for record in records:
        if isinstance(record, RolloutRecord) and "trained_step" in record.rewards:
            steps[record.id] = str(record.metadata["trained_step.label"])
        if isinstance(record, Evaluation) and record.name == "trained_step":
            steps[record.rollout_id] = record.label
    return steps


def test_the_row_of_a_step_compares_what_it_consumed_with_what_was_generated(
    bench: Bench, run: MemoryRun
) -> None:
    rewards = [0.0, 1.0, 2.0, 5.0]
    rollouts = [
        rollout(i, 4, reward=reward, dataset="math" if i else "code")
        for i, reward in enumerate(rewards)
    ]
    log_rollouts(run, rollouts)
    train_on(run, 6, rollouts[:2])

    deliver(bench, run)
    values = values_of(lineage_rows(bench.close())[6])

    histogram = values.pop("lineage/staleness/distribution")
    assert isinstance(histogram, Distribution)
    assert (histogram.count, histogram.edges, histogram.counts) == (2, (2.5, 3.5), (2,))
    ages = values.pop("lineage/age_s/mean"), values.pop("lineage/age_s/max")
    assert 0 <= ages[0] <= ages[1] < 60
    assert values == {
        "lineage/consumed": 2, "lineage/staleness/mean": 3, "lineage/staleness/max": 3, "lineage/uses/mean": 1,
        "lineage/uses/max": 1, "lineage/reward/consumed": 0.5, "lineage/reward/generated": 2.0,
        "lineage/dataset/code": 0.5, "lineage/dataset/math": 0.5,
    }  # fmt: skip


def test_staleness_of_any_size_has_a_distribution(bench: Bench, run: MemoryRun) -> None:
    # Far apart, and beyond what a double counts in ones.
    versions = [5, 700697131100614406, -3343666090948625808, -2376853843478256548]
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    log_rollouts(
        run,
        [
            Rollout(messages, id=f"r{version}", step=6, policy_version=version)
            for version in versions
        ],
    )
    train_on(run, 6, [f"r{version}" for version in versions])

    deliver(bench, run)
    histogram = values_of(lineage_rows(bench.close())[6])[
        "lineage/staleness/distribution"
    ]

    assert isinstance(histogram, Distribution)
    assert (histogram.count, sum(histogram.counts)) == (4, 4)
    assert len(histogram.edges) == len(histogram.counts) + 1 <= 65


def test_what_training_passed_without_a_use_has_its_reason(
    bench: Bench, run: MemoryRun
) -> None:
    for step in (0, 1):
        log_rollouts(
            run,
            [rollout(i, step, reward=1.0) for i in range(8)],
        )
    train_on(
        run,
        0,
        [f"0-{i}" for i in range(4)],
        unused={"filtered": ["0-4", "0-5"], "stale": ["0-6"]},
    )
    train_on(run, 1, [f"1-{i}" for i in range(8)])

    deliver(bench, run)
    rows = lineage_rows(bench.close())

    assert "lineage/unused" not in values_of(rows[0])
    unused = {
        key: value for key, value in values_of(rows[1]).items() if "unused" in key
    }
    assert unused == {
        "lineage/unused": 0.5, "lineage/unused/filtered": 0.25, "lineage/unused/stale": 0.125,
        "lineage/unused/unknown": 0.125,
    }  # fmt: skip


def test_a_rollout_shows_every_step_that_consumed_it_also_hours_later(
    bench: Bench, run: MemoryRun
) -> None:
    log_rollouts(run, [rollout(0, 0), rollout(1, 0)])
    deliver(bench, run)
    train_on(run, 0, ["0-0"])
    deliver(bench, run)
    shown = bench.tick(60)
    assert trained_on(shown) == {trace_id_of(RUN, "0-0"): "0"}

    bench.restart(away_s=7200)
    train_on(run, 9, ["0-0", "0-1"])
    (first, second) = deliver(bench, run)

    assert isinstance(first, Evaluation)
    assert isinstance(second, Evaluation)
    assert (first.label, first.value, first.rollout_id) == (
        "0,9",
        9.0,
        trace_id_of(RUN, "0-0"),
    )
    assert (second.label, second.value) == ("9", 9.0)
    assert values_of(lineage_rows(bench.tick(60))[9])["lineage/uses/mean"] == 1.5


def test_a_rollout_may_arrive_after_the_step_that_consumed_it(
    bench: Bench, run: MemoryRun
) -> None:
    train_on(run, 3, ["3-0", "3-1"], unused={"cap": ["3-2"]})
    deliver(bench, run)
    first = values_of(lineage_rows(bench.tick(60))[3])
    log_rollouts(run, [rollout(i, 3, reward=1.0) for i in range(3)])
    deliver(bench, run)
    bench.tick(1)
    later = values_of(lineage_rows(bench.tick(60))[3])

    assert first == {"lineage/consumed": 2, "lineage/unknown": 2}
    assert (
        later["lineage/consumed"],
        later["lineage/reward/consumed"],
        "lineage/unknown" in later,
    ) == (2, 1.0, False)
    assert trained_on(bench.records) == {
        trace_id_of(RUN, name): "3" for name in ("3-0", "3-1")
    }


def test_the_row_of_a_step_does_not_come_due_while_no_bridge_receives(
    bench: Bench, run: MemoryRun
) -> None:
    train_on(run, 3, ["3-0"])
    deliver(bench, run)
    bench.restart(away_s=7200)

    assert lineage_rows(bench.tick(2)) == {}
    log_rollouts(run, [rollout(0, 3, reward=1.0)])
    deliver(bench, run)
    bench.tick(1)
    assert "lineage/unknown" not in values_of(lineage_rows(bench.tick(600))[3])


def test_a_rollout_that_arrives_just_before_a_kill_is_shown_with_the_step_that_consumed_it(
    bench: Bench, run: MemoryRun
) -> None:
    train_on(run, 3, ["3-0"])
    deliver(bench, run)
    bench.tick(60)
    log_rollouts(run, [rollout(0, 3, reward=1.0)])
    deliver(bench, run)

    bench.restart()
    bench.tick(1)
    bench.close()

    assert trained_on(bench.records) == {trace_id_of(RUN, "3-0"): "3"}
    assert values_of(lineage_rows(bench.records)[3])["lineage/reward/consumed"] == 1.0


def test_a_rollout_that_is_complete_only_when_the_run_ends_is_in_the_last_row_of_its_step(
    bench: Bench, run: MemoryRun
) -> None:
    train_on(run, 3, ["3-0"])
    log_rollouts(run, [rollout(0, 3, reward=1.0)])
    signal, payload = run.records[-1]
    scope = ScopeSpans.FromString(payload)
    del scope.spans[1:]
    run.records[-1] = (signal, scope.SerializeToString())
    deliver(bench, run)

    bench.logs(SENDER, end("finished", 1))
    bench.tick(600)

    assert values_of(lineage_rows(bench.records)[3])["lineage/reward/consumed"] == 1.0
    assert trained_on(bench.records) == {trace_id_of(RUN, "3-0"): "3"}
    assert isinstance(bench.records[-1], End)


def test_a_rollout_that_no_step_used_is_in_the_last_row_of_a_step_however_late_it_arrives(
    bench: Bench, run: MemoryRun
) -> None:
    log_rollouts(run, [rollout(0, 3, reward=1.0)])
    train_on(run, 3, ["3-0"])
    deliver(bench, run)
    train_on(run, 4, ["3-0"])
    deliver(bench, run)
    first = values_of(lineage_rows(bench.tick(60))[3])
    log_rollouts(run, [rollout(1, 3, reward=0.0), rollout(0, 2, reward=0.0)])

    deliver(bench, run)
    bench.tick(1)
    bench.restart()
    still_open = lineage_rows(bench.tick(60))
    last = values_of(lineage_rows(bench.close())[3])

    assert first["lineage/reward/generated"] == 1.0
    assert "lineage/unused" not in first
    # Once, at the end: a worker that is behind would else correct many rows again and again.
    assert still_open == {}
    assert (last["lineage/reward/generated"], last["lineage/unused"]) == (0.5, 1.0)


def test_a_reward_that_a_newer_one_has_overtaken_does_not_count(
    bench: Bench, run: MemoryRun
) -> None:
    log_rollouts(run, [rollout(0, 3)])
    train_on(run, 3, ["3-0"])
    deliver(bench, run)
    log_reward(run, "3-0", 0.25)
    log_reward(run, "3-0", 0.75)

    deliver(bench, run, [1, 0])

    assert values_of(lineage_rows(bench.close())[3])["lineage/reward/consumed"] == 0.75


def test_rollouts_of_an_evaluation_are_not_among_those_that_training_left_unused(
    bench: Bench, run: MemoryRun
) -> None:
    log_rollouts(run, [rollout(i, 0) for i in range(2)], split="eval")
    log_rollouts(run, [rollout(9, 1)])
    train_on(run, 1, ["1-9"])

    deliver(bench, run)

    assert "lineage/unused" not in values_of(lineage_rows(bench.close())[1])


def test_a_key_of_the_users_own_rows_is_theirs(bench: Bench, run: MemoryRun) -> None:
    bench.metrics(SENDER, row(1, {"lineage/consumed": 7.0}, step=0))
    train_on(run, 0, ["a", "b"])

    deliver(bench, run)
    records = bench.close()

    assert all("trainer/lineage/consumed" not in row.values for row in rows_of(records))
    assert bench.counts()["same_key"] == 1


def test_a_span_without_step_or_links_is_counted(bench: Bench, run: MemoryRun) -> None:
    train_on(run, 1, ["a"])
    _, payload = run.records[0]
    run.records = [(2, payload.replace(b"rl.step", b"rl.stop"))]

    assert deliver(bench, run) == []
    assert bench.counts() == {"lineage/invalid": 1}


def test_of_too_many_steps_the_one_that_got_no_spans_for_the_longest_time_is_forgotten(
    bench: Bench, run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rows, "MAX_STEPS", 2)
    for number, step in enumerate((1, 2, 1, 3, 2, 1)):
        train_on(run, step, [str(number)])
        deliver(bench, run)
        bench.tick(1)

    rows = lineage_rows(bench.close())

    assert {step: values_of(row)["lineage/consumed"] for step, row in rows.items()} == {
        1: 3,
        3: 1,
    }
    assert bench.counts() == {"lineage/late": 1}
    assert bench.state.get("dropkey/lineage/late") == "2"


def test_spans_beyond_the_limit_of_a_step_are_counted_and_the_others_stay(
    bench: Bench, run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rows, "MAX_DATA", 7)
    train_on(run, 1, ["a", "b", "c"], unused={"stale": ["d"]})
    train_on(run, 1, ["e"])
    train_on(run, 2, ["e"])

    deliver(bench, run, [0, 1, 2, 0, 3])

    assert bench.counts() == {"lineage/too_many": 1}
    assert bench.state.get("dropkey/lineage/too_many") == "1"
    rows = lineage_rows(bench.close())
    assert [values_of(rows[step])["lineage/consumed"] for step in (1, 2)] == [3, 1]


@dataclass
class Truth:
    """What a job did: facts of each rollout, and the rollouts of each training step."""

    rewards: dict[str, float]
    versions: dict[str, int]
    consumed: dict[int, list[str]]


def step_of(name: str) -> int:
    """The step that a rollout of `replay_job` was generated for."""
    return int(name.partition("-")[0])


def replay_job(run: MemoryRun, seed: int) -> Truth:
    """A job with a replay buffer: most rollouts are sampled out, some are used up to four times, two steps behind."""
    draw = random.Random(seed)
    truth = Truth({}, {}, {})
    for step in range(12):
        rollouts = [
            rollout(i, step, reward=draw.random(), group=f"{step}-{i // 8}")
            for i in range(64)
        ]
        truth.rewards |= {str(each.id): float(each.reward) for each in rollouts}  # type: ignore[arg-type]
        truth.versions |= {
            str(each.id): int(each.policy_version or 0) for each in rollouts
        }
        log_rollouts(run, rollouts)
        if step >= 2:
            ids = [name for name in truth.rewards if step_of(name) >= step - 4]
            truth.consumed[step] = draw.sample(ids, 48)
            for start in range(0, 48, 16):  # three ranks
                train_on(run, step, truth.consumed[step][start : start + 16])
    return truth


@pytest.mark.parametrize("seed", range(6))
def test_each_row_equals_what_the_job_did_in_any_order_with_repeats_and_restarts(
    seed: int,
) -> None:
    run = MemoryRun(RUN, MAX_ROLLOUTS_PER_STEP="4")
    truth = replay_job(run, seed)
    draw = random.Random(seed)
    order = [*range(len(run.records)), *draw.sample(range(len(run.records)), 20)]
    draw.shuffle(order)
    bench = Bench(TranslationOptions(run_id=RUN, max_rollouts=4))
    bench.open(SENDER)
    frames = list(run.records)

    for start in range(0, len(order), 10):
        run.records = list(frames)
        deliver(bench, run, order[start : start + 10])
        if draw.random() < 0.5:
            bench.restart()
        bench.tick(draw.choice([0, 5, 40]))
        if draw.random() < 0.5:
            bench.restart()
    bench.close()

    rows = lineage_rows(bench.records)
    assert sorted(map(int, filter(None, rows))) == sorted(truth.consumed)
    for step, consumed in truth.consumed.items():
        values = values_of(rows[step])
        lags = np.array([step - truth.versions[name] for name in consumed])
        uses = np.array(
            [
                sum(name in truth.consumed[past] for past in range(2, step + 1))
                for name in consumed
            ]
        )
        assert values["lineage/consumed"] == 48
        assert values["lineage/staleness/mean"] == pytest.approx(lags.mean())
        assert values["lineage/staleness/max"] == lags.max()
        assert values["lineage/uses/mean"] == pytest.approx(uses.mean())
        assert values["lineage/reward/consumed"] == pytest.approx(
            np.mean([truth.rewards[name] for name in consumed])
        )
        steps = {step_of(name) for name in consumed}
        of_same_steps = [
            reward for name, reward in truth.rewards.items() if step_of(name) in steps
        ]
        assert values["lineage/reward/generated"] == pytest.approx(
            np.mean(of_same_steps)
        )
        used = {
            name
            for past in truth.consumed
            if past <= step
            for name in truth.consumed[past]
        }
        older = [name for name in truth.rewards if step_of(name) < min(steps)]
        unused = values.get("lineage/unused")
        if older:
            assert unused == pytest.approx(
                np.mean([name not in used for name in older])
            )
        else:
            assert unused is None
    kept = {record.id for record in bench.records if isinstance(record, RolloutRecord)}
    expected = {
        trace_id_of(RUN, name): ",".join(
            str(step) for step in sorted(truth.consumed) if name in truth.consumed[step]
        )
        for name in truth.rewards
    }
    assert trained_on(bench.records) == {
        key: steps for key, steps in expected.items() if steps and key in kept
    }
