"""Rows of all ranks become one row a step, equal to numpy's results over the ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from otel_bridge.records import Config, Distribution, Record, Row
from otel_bridge.translation.processes.producers import SegmentInfo
from otel_bridge.translation.ranks import _joined
from support.otlp.otlp_samples import Bench, end, metrics_request, resource, row, who

WORLD = 8


def rank_of(number: int, world: int = WORLD, instance: str = "i") -> SegmentInfo:
    attributes = {
        **who(f"{instance}{number}"),
        "rl.rank": number,
        "rl.ranks": "merge",
        "rl.world_size": world,
    }
    payload = resource(attributes).SerializeToString()
    return SegmentInfo(f"{instance}{number}", "process", payload, "trainer")


def started(world: int = WORLD) -> tuple[Bench, list[SegmentInfo]]:
    bench = Bench()
    ranks = [rank_of(number, world) for number in range(world)]
    bench.open(*ranks)
    return bench, ranks


def rows(records: list[Record]) -> list[tuple[int | None, dict[str, Any]]]:
    return [
        (record.step, dict(record.values))
        for record in records
        if isinstance(record, Row)
    ]


def test_a_step_of_eight_ranks_equals_numpy() -> None:
    bench, ranks = started()
    draw = random.Random(7)
    loss = [[draw.gauss(0, 1) for _ in ranks] for _ in range(3)]
    tokens = [[draw.randrange(1, 900) for _ in ranks] for _ in range(3)]
    for step in range(3):
        for number in draw.sample(range(WORLD), WORLD):
            values = {
                "loss": loss[step][number], "rl.reduce/mean/loss": float(tokens[step][number]),
                "tokens": tokens[step][number], "rl.reduce/sum/tokens": 1.0,
                "lr": 0.5,
            }  # fmt: skip
            bench.metrics(ranks[number], row(step + 1, values))

    bench.close()

    assert [step for step, _ in rows(bench.records)] == [1, 2, 3]
    for step, values in rows(bench.records):
        losses, counts = loss[step - 1], tokens[step - 1]  # type: ignore[operator]
        assert values == pytest.approx(
            {
                "trainer/ranks": WORLD,
                "trainer/loss": np.average(losses, weights=counts), "trainer/loss/min": np.min(losses),
                "trainer/loss/max": np.max(losses), "trainer/loss/sum": np.sum(losses),
                "trainer/tokens": np.sum(counts), "trainer/tokens/mean": np.mean(counts),
                "trainer/tokens/min": np.min(counts), "trainer/tokens/max": np.max(counts),
                "trainer/lr": 0.5, "trainer/lr/min": 0.5, "trainer/lr/max": 0.5, "trainer/lr/sum": 4.0,
            },
            rel=1e-12,
        )  # fmt: skip


def test_a_row_comes_once_every_rank_has_passed_its_step() -> None:
    bench, (first, second) = started(2)
    bench.metrics(first, row(1, {"loss": 1.0}), row(2, {"loss": 3.0}))
    bench.metrics(second, row(1, {"loss": 2.0}))
    assert rows(bench.records) == []

    released = bench.metrics(second, row(2, {"loss": 5.0}))

    assert [(step, values["trainer/loss"]) for step, values in rows(released)] == [
        (1, 1.5)
    ]


def test_a_rank_that_dies_is_not_awaited() -> None:
    bench, (first, second) = started(2)
    bench.metrics(second, row(1, {"loss": 2.0}))
    bench.metrics(first, row(1, {"loss": 1.0}), row(2, {"loss": 3.0}))
    bench.logs(second, end("killed", 1, last_row=1))

    released = bench.tick(1)

    assert [(step, values["trainer/ranks"]) for step, values in rows(released)] == [
        (1, 2)
    ]


def test_after_the_watermark_a_row_shows_how_many_ranks_it_holds_and_a_late_rank_gives_a_further_one() -> (
    None
):
    bench, (first, second) = started(2)
    bench.metrics(first, row(1, {"loss": 1.0}))

    early = bench.tick(29)
    on_time = bench.tick(2)
    late = bench.metrics(second, row(1, {"loss": 3.0})) + bench.tick(31)

    assert rows(early) == []
    assert [
        (step, v["trainer/ranks"], v["trainer/loss"])
        for step, v in rows(on_time + late)
    ] == [
        (1, 1, 1.0),
        (1, 2, 2.0),
    ]
    assert len({record.id for record in on_time + late}) == 2


def test_rows_of_one_step_are_put_together() -> None:
    bench, (first, second) = started(2)
    for rank in (first, second):
        bench.metrics(
            rank, row(1, {"loss": 1.0}, step=1), row(2, {"reward": 2.0}, step=1)
        )

    bench.close()

    ((step, values),) = rows(bench.records)
    assert (
        step,
        values["trainer/loss"],
        values["trainer/reward"],
        values["trainer/ranks"],
    ) == (
        1,
        1.0,
        2.0,
        2,
    )


def test_a_kill_of_the_bridge_changes_nothing() -> None:
    undisturbed, killed = started(), started()
    for bench, ranks in (undisturbed, killed):
        for number, rank in enumerate(ranks):
            bench.metrics(rank, row(1, {"loss": 1.0 * number}))
            if bench is killed[0]:
                bench.restart()
        bench.close()

    assert undisturbed[0].records == killed[0].records


def test_ranks_on_many_machines_are_merged_by_the_receiver() -> None:
    bench = Bench()
    for number in range(2):
        attributes = {
            **who(f"i{number}"),
            "rl.rank": number,
            "rl.ranks": "merge",
            "rl.world_size": 2,
        }
        request = metrics_request((attributes, [row(1, {"loss": 1.0 + number})]))
        bench.request(request)
        bench.request(request)

    bench.close()

    ((_, values),) = rows(bench.records)
    assert values == {
        "trainer/ranks": 2, "trainer/loss": 1.5, "trainer/loss/min": 1.0, "trainer/loss/max": 2.0,
        "trainer/loss/sum": 3.0,
    }  # fmt: skip


def test_a_rank_with_nan_makes_every_result_nan_as_in_numpy() -> None:
    bench, (first, second) = started(2)
    bench.metrics(first, row(1, {"loss": float("nan")}))
    bench.metrics(second, row(1, {"loss": 1.0}))

    bench.close()

    ((_, values),) = rows(bench.records)
    assert all(
        np.isnan(values[f"trainer/loss{ending}"])
        for ending in ("", "/min", "/max", "/sum")
    )


def test_a_rank_of_weight_0_does_not_count_in_the_mean_even_with_nan() -> None:
    bench, (first, second) = started(2)
    weight = "rl.reduce/mean/loss"
    bench.metrics(first, row(1, {"loss": float("nan"), weight: 0.0}))
    bench.metrics(second, row(1, {"loss": 2.0, weight: 3.0}))

    bench.close()

    ((_, values),) = rows(bench.records)
    assert values["trainer/loss"] == 2.0
    assert np.isnan(values["trainer/loss/max"])


def test_infinities_of_both_signs_stay_the_extremes_as_in_numpy() -> None:
    bench, (first, second) = started(2)
    bench.metrics(first, row(1, {"loss": float("inf")}))
    bench.metrics(second, row(1, {"loss": float("-inf")}))

    bench.close()

    ((_, values),) = rows(bench.records)
    assert values["trainer/loss/min"] == float("-inf")
    assert values["trainer/loss/max"] == float("inf")
    assert np.isnan(values["trainer/loss/sum"])


def test_distributions_are_added_up() -> None:
    one = Distribution(3, 6.0, 0.0, 4.0, (0.0, 2.0, 4.0), (1, 2))
    other = Distribution(2, 3.0, 1.0, 2.0, (1.0, 2.0), (2,))

    assert _joined(one, other) == Distribution(
        5, 9.0, 0.0, 4.0, (0.0, 2.0, 4.0), (3, 2)
    )


def test_the_config_names_a_further_attempt_before_its_first_merged_row() -> None:
    bench, ranks = started(2)
    for rank in ranks:
        bench.metrics(
            rank, row(1, {"loss": 1.0}, step=1), row(2, {"loss": 1.0}, step=2)
        )
    bench.tick(1)
    for rank in ranks:
        bench.logs(rank, end("killed", 2, time_ns=bench.now_ns))
    bench.tick(1)
    again = [rank_of(number, 2, "again") for number in range(2)]
    bench.open(*again)

    for rank in again:
        bench.metrics(rank, row(1, {"loss": 2.0}, step=2))
    bench.close()

    shown = [
        record.config if isinstance(record, Config) else record.attempt
        for record in bench.records
        if isinstance(record, (Config, Row))
    ]
    assert shown == [1, 1, {"attempt": 2}, 2]
    *_, (_, values) = rows(bench.records)
    assert values == {
        "trainer/attempt": 2, "trainer/ranks": 2, "trainer/loss": 2.0, "trainer/loss/min": 2.0,
        "trainer/loss/max": 2.0, "trainer/loss/sum": 4.0,
    }  # fmt: skip


def test_a_value_that_the_program_itself_names_attempt_is_merged_as_any_other() -> None:
    bench, ranks = started(2)
    for number, rank in enumerate(ranks):
        bench.metrics(rank, row(1, {"attempt": 3.0 + number}))

    bench.close()

    ((_, values),) = rows(bench.records)
    assert values["trainer/attempt"] == 3.5
