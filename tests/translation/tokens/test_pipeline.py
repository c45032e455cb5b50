"""Tests of tokens in translation: the row of a step over all processes, and the figures of each rollout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge import Rollout
from otel_bridge.emit.tokens.annotate import annotate
from otel_bridge.records import Evaluation, Record, RolloutRecord, Row, trace_id_of
from otel_bridge.translation import step_rows
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import RUN, Bench, any_value
from support.otlp.phase_samples import rank, rows_of, values_of
from support.trainers.emit_rollout_doubles import MemoryRun, log_rollouts

TRAINER = rank(0)
EXPLORER = rank(5, "explorer")
FIGURES = (
    "mismatch/k1",
    "mismatch/k3",
    "mismatch/mean",
    "mismatch/max",
    "mismatch/beyond",
)


def token_rows(
    records: Sequence[Record], role: str = "trainer"
) -> dict[int | None, dict[str, float]]:
    """Values of the last row of each step."""
    rows = [
        row
        for row in rows_of(records)
        if row.role == role and any("tokens/" in key for key in row.values)
    ]
    return {
        row.step: {
            key.removeprefix("tokens/"): value for key, value in values_of(row).items()
        }
        for row in rows
    }


def figures_shown(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Figures of each rollout that trackers show, by trace id, as they end up there."""
    figures: dict[str, dict[str, float]] = {}
    for record in records:
        if isinstance(record, RolloutRecord):
            parts = {
                key: value
                for key, value in record.rewards.items()
                if key.startswith("tokens/")
            }
            figures.setdefault(record.id, {}).update(parts)
        elif (
            isinstance(record, Evaluation)
            and record.name.startswith("tokens/")
            and record.value is not None
        ):
            figures.setdefault(record.rollout_id, {})[record.name] = record.value
    return figures


def deliver(
    bench: Bench, frames: Sequence[tuple[SegmentInfo, tuple[int, bytes]]]
) -> None:
    for sender, (signal, payload) in frames:
        bench.records += bench.translator.frame(
            sender, signal, payload, False, bench.now_ns, bench.now_ns
        )


def sent(
    run: MemoryRun, sender: SegmentInfo = TRAINER
) -> list[tuple[SegmentInfo, tuple[int, bytes]]]:
    """The frames that *run* has appended since."""
    frames, run.records = run.records, []
    return [(sender, frame) for frame in frames]


def truth(
    engine: np.ndarray[Any, Any], trainer: np.ndarray[Any, Any]
) -> dict[str, float]:
    delta = trainer.astype("f8") - engine.astype("f8")
    return {
        "mismatch/k1": float((-delta).mean()),
        "mismatch/k3": float((np.exp(delta) - 1 - delta).mean()),
        "mismatch/mean": float(abs(delta).mean()),
        "mismatch/max": float(abs(delta).max()),
        "mismatch/beyond": float((abs(delta) > 0.5).mean()),
    }


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.open(TRAINER, EXPLORER)
    return bench


@pytest.fixture
def run() -> MemoryRun:
    return MemoryRun(RUN)


def test_the_row_of_a_step_equals_numpy_over_all_tokens(
    bench: Bench, run: MemoryRun
) -> None:
    draw = np.random.default_rng(1)
    lengths = [3, 40, 1000, 0, 7]
    engine = [-draw.exponential(0.5, length).astype("f4") for length in lengths]
    trainer = [(row + draw.normal(0, 0.3, len(row))).astype("f4") for row in engine]
    entropies = [draw.exponential(1.0, length) for length in lengths]
    masked = [draw.random(length) < 0.2 for length in lengths]
    ids = list("abcde")
    for part in (slice(0, 2), slice(2, 5)):
        streams = {
            "logprobs": engine[part], "trainer_logprobs": trainer[part], "entropies": entropies[part],
            "is_masked": masked[part], "my_own": entropies[part],
        }  # fmt: skip
        annotate(run, ids[part], streams, step=3)

    deliver(bench, sent(run))
    values = token_rows(bench.close())[3]

    everything = np.concatenate(engine), np.concatenate(trainer)
    expected = truth(*everything) | {
        "entropy": np.concatenate(entropies).mean(), "my_own": np.concatenate(entropies).mean(),
        "masked": np.concatenate(masked).mean(), "count": 1050, "rollouts": 4,
        "logprob/engine": everything[0].mean(), "logprob/trainer": everything[1].mean(),
    }  # fmt: skip
    assert {name: values[name] for name in expected} == pytest.approx(
        expected, rel=1e-5
    )
    for side, numbers in zip(("engine", "trainer"), everything, strict=True):
        for percent in (1, 10, 50, 90, 99):
            # Log-probabilities above 0, which only noise gives, count by their distance from it.
            true = np.quantile(-abs(numbers), percent / 100)
            assert values[f"logprob/{side}/p{percent:02d}"] == pytest.approx(
                true, rel=0.02, abs=0.002
            )
    positions = np.concatenate(
        [10 * np.arange(length) // max(length, 1) for length in lengths]
    )
    for tenth in range(10):
        chosen = np.concatenate(entropies)[positions == tenth]
        assert values[f"entropy/tenth_{tenth + 1:02d}"] == pytest.approx(
            chosen.mean(), rel=1e-5
        )


def test_tokens_that_were_certain_have_a_log_probability_of_zero(
    bench: Bench, run: MemoryRun
) -> None:
    annotate(run, "a", {"logprobs": [0.0, -0.0, -1.0]}, step=3)

    deliver(bench, sent(run))

    assert token_rows(bench.close())[3]["logprob/engine/p90"] == 0.0


def test_engine_and_trainer_of_different_processes_are_joined_by_rollout_in_either_order(
    bench: Bench,
) -> None:
    explorer = MemoryRun(RUN, "explorer")
    trainer = MemoryRun(RUN)
    engine = {"a": [-1.0, -2.0], "b": [-0.5, -0.5, -3.0]}
    late = {"b": [-0.25, -0.5, -2.0], "a": [-1.5, -2.0]}
    annotate(explorer, list(engine), {"logprobs": list(engine.values())}, step=2)
    annotate(trainer, list(late), {"trainer_logprobs": list(late.values())}, step=4)
    first, second = sent(explorer, EXPLORER), sent(trainer)

    for order in ([*first, *second], [*second, *first]):
        other = Bench()
        other.open(TRAINER, EXPLORER)
        deliver(other, order[:1])
        other.restart()
        deliver(other, order[1:])
        rows = token_rows(other.close())
        expected = truth(
            np.array([-1.0, -2.0, -0.5, -0.5, -3.0]),
            np.array([-1.5, -2.0, -0.25, -0.5, -2.0]),
        )
        assert {name: rows[4][name] for name in FIGURES} == pytest.approx(expected)
        assert "mismatch/k1" not in token_rows(other.records, "explorer")[2]
        assert other.counts() == {}


def test_each_shown_rollout_has_the_same_figures_as_the_row_also_when_it_comes_later(
    bench: Bench, run: MemoryRun
) -> None:
    for name, entropy in (("a", 1.0), ("b", 2.0), ("never", 3.0)):
        annotate(run, name, {"entropies": [entropy, entropy]}, step=3)
    deliver(bench, sent(run))
    bench.tick(60)
    log_rollouts(
        run,
        [Rollout("q", id=name, step=3) for name in "ab"],
    )
    deliver(bench, sent(run))
    bench.restart()
    bench.tick(60)
    bench.close()

    shown = figures_shown(bench.records)

    assert {name: shown[trace_id_of(RUN, name)]["tokens/entropy"] for name in "ab"} == {
        "a": 1.0,
        "b": 2.0,
    }
    assert set(shown) == {trace_id_of(RUN, name) for name in "ab"}
    assert token_rows(bench.records)[3]["entropy"] == 2.0


def test_rollouts_that_are_annotated_twice_in_a_step_count_once_and_are_counted(
    bench: Bench, run: MemoryRun
) -> None:
    annotate(run, ["a", "b"], {"entropies": [[1.0], [2.0]]}, step=3)
    annotate(run, ["b", "c"], {"entropies": [[50.0], [3.0]]}, step=3)
    annotate(run, ["b"], {"advantages": [[1.0]]}, step=3)
    annotate(run, ["b"], {"entropies": [[7.0]]}, step=4)

    deliver(bench, sent(run))
    rows = token_rows(bench.close())

    assert (rows[3]["entropy"], rows[3]["rollouts"], rows[3]["advantage"]) == (
        2.0,
        3,
        1.0,
    )
    assert rows[4]["entropy"] == 7.0
    assert bench.counts() == {"tokens/twice": 1}


def test_halves_of_another_length_are_counted_and_named(
    bench: Bench, run: MemoryRun
) -> None:
    annotate(run, ["a", "b"], {"logprobs": [[-1.0], [-1.0]]}, step=3)
    annotate(run, ["a", "b"], {"trainer_logprobs": [[-1.0, -1.0], [-1.25]]}, step=3)

    deliver(bench, sent(run))
    values = token_rows(bench.close())[3]

    assert values["mismatch/k1"] == 0.25
    assert bench.counts() == {"tokens/length": 1}
    assert bench.state.get("dropkey/tokens/length") == trace_id_of(RUN, "a")


def test_streams_beyond_the_limit_are_forgotten_and_a_half_that_waits_is_counted(
    run: MemoryRun,
) -> None:
    bench = Bench(TranslationOptions(run_id=RUN, token_bytes=3_000))
    bench.open(TRAINER)
    for name in "abcd":
        annotate(run, name, {"trainer_logprobs": [-1.0] * 100}, step=3)
    annotate(run, ["a", "d"], {"logprobs": [[-1.5] * 100] * 2}, step=3)

    deliver(bench, sent(run))
    values = token_rows(bench.close())[3]

    assert bench.counts()["tokens/evicted"] >= 1
    assert values["mismatch/k1"] == -0.5
    assert values["logprob/trainer"] == -1.0


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"rl.step", b"rl.stop"), (b"rl.tokens.figures.", b"rl.tokens.figures!")],
    ids=["no step", "unknown attribute"],
)
def test_a_span_that_cannot_be_read_is_counted_and_an_unknown_attribute_is_ignored(
    bench: Bench, run: MemoryRun, old: bytes, new: bytes
) -> None:
    annotate(run, ["a"], {"entropies": [[1.0, 2.0]]}, step=1)
    ((signal, payload),) = run.records
    run.records = [(signal, payload.replace(old, new))]

    deliver(bench, sent(run))
    rows = token_rows(bench.close())

    if new == b"rl.stop":
        assert (rows, bench.counts()) == ({}, {"tokens/invalid": 1})
    else:  # the bridge makes the figures of the streams itself
        assert (rows[1]["entropy"], bench.counts()) == (1.5, {})


@pytest.mark.parametrize(
    ("key", "kind", "number"),
    [
        ("rl.tokens.figures.logprob/engine", "<f8", float("nan")),
        ("rl.tokens.figures.logprob/engine", "<f8", float("inf")),
        ("rl.tokens.figures.logprob/engine", "<f8", 1e30),
        ("rl.tokens.figures.logprob/engine", "<f8", -1.0),
        ("rl.tokens.deciles.logprob/engine", "<f8", float("nan")),
        ("rl.tokens.buckets.logprob/engine", "<i8", -1),
        ("rl.tokens.buckets.logprob/engine", "<i8", 1 << 40),
    ],
)
def test_sums_of_which_no_row_can_be_made_are_counted_and_other_spans_arrive(
    bench: Bench, run: MemoryRun, key: str, kind: str, number: float
) -> None:
    annotate(run, ["a"], {"logprobs": [[-1.0, -2.0]]}, step=1)
    signal, payload = run.records.pop()
    scope = ScopeSpans.FromString(payload)
    (pair,) = (pair for pair in scope.spans[0].attributes if pair.key == key)
    numbers = np.frombuffer(pair.value.bytes_value, kind).copy()
    numbers[0] = number
    pair.value.bytes_value = numbers.tobytes()
    run.records.append((signal, scope.SerializeToString()))
    annotate(run, ["b"], {"logprobs": [[-0.5]]}, step=1)

    deliver(bench, sent(run))
    values = token_rows(bench.close())[1]

    assert (values["logprob/engine"], values["rollouts"]) == (-0.5, 1)
    assert bench.counts() == {"tokens/invalid": 1}


def test_buckets_of_rollouts_without_tokens_give_no_value(
    bench: Bench, run: MemoryRun
) -> None:
    annotate(run, ["a"], {"logprobs": [[-1.0, -2.0]]}, step=1)
    signal, payload = run.records.pop()
    scope = ScopeSpans.FromString(payload)
    for pair in scope.spans[0].attributes:
        if pair.key == "rl.tokens.figures.logprob/engine":
            pair.value.bytes_value = bytes(len(pair.value.bytes_value))
    run.records.append((signal, scope.SerializeToString()))

    deliver(bench, sent(run))
    values = token_rows(bench.close())[1]

    assert set(values) == {"rollouts", "count"}


def test_streams_that_the_sender_has_compared_are_not_kept_of_rollouts_that_are_sampled_out(
    run: MemoryRun,
) -> None:
    bench = Bench(TranslationOptions(run_id=RUN, max_rollouts=1))
    bench.open(TRAINER)
    log_rollouts(run, [Rollout("q", id=name, step=3) for name in "ab"])
    log_rollouts(run, [Rollout("q", id="next", step=4)])
    deliver(bench, sent(run))
    bench.tick(600)
    streams = {"logprobs": [[-1.0]] * 2, "trainer_logprobs": [[-1.5]] * 2}
    annotate(run, ["a", "b"], streams, step=3)

    deliver(bench, sent(run))
    bench.translator.flush()

    shown = {record.id for record in bench.records if isinstance(record, RolloutRecord)}
    kept = [key for key, _ in bench.state.items("tokens/streams/")]
    assert len(kept) == 1
    assert kept[0].removeprefix("tokens/streams/") in shown


def with_arrays(payload: bytes) -> bytes:
    """Scope of spans with an array of numbers in place of the bytes of each attribute."""
    scope = ScopeSpans.FromString(payload)
    for pair in (pair for span in scope.spans for pair in span.attributes):
        if pair.value.HasField("bytes_value"):
            kind = {"stream": "<f4", "lengths": "<i8", "buckets": "<i8"}.get(
                pair.key.split(".")[2]
            )
            numbers = np.frombuffer(pair.value.bytes_value, kind or "<f8").tolist()
            pair.value.CopyFrom(any_value(numbers))
    return scope.SerializeToString()


def test_arrays_of_numbers_are_read_as_bytes_since_most_sdks_have_no_bytes(
    run: MemoryRun,
) -> None:
    streams = {
        "logprobs": [[-1.0, -0.5], [-2.0]],
        "trainer_logprobs": [[-1.5, -0.5], [None]],
        "entropies": [[0.5, 1.0], [2.0]],
    }
    annotate(run, ["a", "b"], streams, step=3)
    rows = []

    for convert in (bytes, with_arrays):
        bench = Bench()
        bench.open(TRAINER)
        deliver(
            bench,
            [(TRAINER, (signal, convert(payload))) for signal, payload in run.records],
        )
        rows.append(token_rows(bench.close())[3])

    assert rows[0] == rows[1]
    assert rows[0]["mismatch/k1"] == 0.25


def test_a_step_after_which_many_came_is_forgotten_and_what_is_late_is_counted(
    bench: Bench, run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rows, "MAX_STEPS", 2)
    for step in (1, 2, 3, 1):
        annotate(run, ["a"], {"entropies": [[1.0]]}, step=step)

    deliver(bench, sent(run))
    bench.close()

    assert sorted(filter(None, token_rows(bench.records))) == [1, 2, 3]
    assert bench.counts() == {"tokens/late": 1}


@dataclass
class Truth:
    """What a job did: the log-probabilities of each rollout, and the rollouts of each training step."""

    engine: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    trained: dict[int, dict[str, np.ndarray[Any, Any]]] = field(default_factory=dict)


def asynchronous_job(
    seed: int,
) -> tuple[Truth, list[tuple[SegmentInfo, tuple[int, bytes]]]]:
    """Three trainer ranks and an explorer: half of the ranks know the log-probabilities of the engine, half do not."""
    draw = np.random.default_rng(seed)
    job = Truth()
    frames: list[tuple[SegmentInfo, tuple[int, bytes]]] = []
    explorer = MemoryRun(RUN, "explorer", MAX_ROLLOUTS_PER_STEP="3")
    trainer = MemoryRun(RUN)
    for step in range(6):
        ids = [f"{seed}-{step}-{index}" for index in range(24)]
        rollouts = [
            Rollout("q", id=name, step=step, reward=float(draw.random()))
            for name in ids
        ]
        job.engine |= {
            name: -draw.exponential(0.5, draw.integers(0, 60)).astype("f4")
            for name in ids
        }
        log_rollouts(explorer, rollouts)
        annotate(
            explorer,
            ids,
            {"logprobs": [job.engine[name] for name in ids]},
            step=step,
        )
        frames += sent(explorer, EXPLORER)
        if step < 2:
            continue
        chosen = list(
            draw.choice(
                [name for name in job.engine if int(name.split("-")[1]) >= step - 2],
                36,
                False,
            )
        )
        job.trained[step] = {
            name: (
                job.engine[name] + draw.normal(0, 0.4, len(job.engine[name]))
            ).astype("f4")
            for name in chosen
        }
        for number in range(3):
            part = chosen[12 * number : 12 * number + 12]
            streams: dict[str, object] = {
                "trainer_logprobs": [job.trained[step][name] for name in part]
            }
            if number:
                streams["logprobs"] = [job.engine[name] for name in part]
            annotate(trainer, part, streams, step=step)
            frames += sent(trainer, rank(number))
    return job, frames


@pytest.mark.parametrize("seed", range(6))
def test_each_row_equals_what_the_job_did_in_any_order_with_repeats_and_restarts(
    seed: int,
) -> None:
    job, frames = asynchronous_job(seed)
    draw = random.Random(seed)
    order = [*frames, *draw.sample(frames, 20)]
    draw.shuffle(order)
    bench = Bench(TranslationOptions(run_id=RUN, max_rollouts=3))
    bench.open(EXPLORER, *map(rank, range(3)))

    for start in range(0, len(order), 6):
        deliver(bench, order[start : start + 6])
        if draw.random() < 0.5:
            bench.restart()
        bench.tick(draw.choice([0, 5, 40]))
        if draw.random() < 0.5:
            bench.restart()
    bench.close()

    rows = token_rows(bench.records)
    assert sorted(map(int, filter(None, rows))) == sorted(job.trained)
    for step, trained in job.trained.items():
        engine = np.concatenate([job.engine[name] for name in trained])
        trainer = np.concatenate(list(trained.values()))
        assert {name: rows[step][name] for name in FIGURES} == pytest.approx(
            truth(engine, trainer), rel=1e-4
        )
        assert rows[step]["count"] == len(engine)
    kept = {record.id for record in bench.records if isinstance(record, RolloutRecord)}
    shown = {
        trace_id: figures
        for trace_id, figures in figures_shown(bench.records).items()
        if figures
    }
    names = {trace_id_of(RUN, name): name for name in job.engine}
    trained_last = {
        name: step
        for step, trained in sorted(job.trained.items())
        for name in trained
        if len(trained[name])
    }
    assert {names[trace_id] for trace_id in shown} >= {
        names[trace_id] for trace_id in kept
    } & trained_last.keys()
    assert set(shown) <= kept
    for trace_id, figures in shown.items():
        name = names[trace_id]
        if name in trained_last:
            expected = truth(job.engine[name], job.trained[trained_last[name]][name])
            assert {key: figures[f"tokens/{key}"] for key in FIGURES} == pytest.approx(
                expected, rel=1e-4
            )


def test_rows_of_tokens_are_not_rows_of_the_program(
    bench: Bench, run: MemoryRun
) -> None:
    annotate(run, ["a"], {"entropies": [[1.0]]}, step=1, role="judge")
    deliver(bench, sent(run))

    (row,) = (record for record in bench.close() if isinstance(record, Row))

    assert (row.is_derived, row.role, row.step, row.id) == (
        True,
        "judge",
        1,
        "k:judge:1:a1",
    )
