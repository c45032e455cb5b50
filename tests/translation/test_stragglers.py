"""Tests of alerts about slow ranks: steps in a row, one alert a cause, restarts, corrected rows."""

from __future__ import annotations

from collections.abc import Sequence

from otel_bridge.alert_rules import alert_rules
from otel_bridge.records import Alert
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import RUN, Bench
from support.otlp.phase_samples import phase, rank, send


def job(rules: str, slow: Sequence[int | None], *, restarts: bool = False) -> list[Alert]:
    """Return the alerts of three ranks, of which in each step *slow* takes twice as long in generate."""
    bench = Bench(TranslationOptions(run_id=RUN, alert_rules=alert_rules(rules)))
    bench.open(*map(rank, range(3)))
    for step, slow_rank in enumerate(slow):
        for number in range(3):
            seconds = 2 if number == slow_rank else 1
            send(bench, rank(number), phase("generate", step, step * 10, step * 10 + seconds))
            if restarts:
                bench.restart()
    bench.close()
    return [record for record in bench.records if isinstance(record, Alert)]


def test_a_rank_that_is_slow_for_enough_steps_raises_one_alert() -> None:
    generate, step = job("straggler>1.5x:3", [None, 1, 1, 1, 1, 1])

    assert (generate.title, generate.level, generate.step, generate.role) == (
        "trainer: rank 1 is slow in generate", "warn", 3, "trainer",
    )  # fmt: skip
    assert generate.text == (
        "rank 1 took 2 times as long as the others in generate, for 3 steps in a row, up to step 3 "
        "(rule straggler>1.5x:3)"
    )
    assert step.title == "trainer: rank 1 is slow in step"


def test_another_slow_rank_or_a_good_step_begins_anew() -> None:
    assert job("straggler>1.5x:3", [1, 1, 2, 2, None, 1, 1, None]) == []
    assert len(job("straggler>1.5x:2", [1, 1, None, 1, 1, None])) == 4


def test_a_smaller_ratio_or_another_role_raises_nothing() -> None:
    assert job("straggler>2.5x:2", [1] * 6) == []
    assert job("straggler>1.5x:2:explorer", [1] * 6) == []


def test_a_bridge_that_is_killed_between_steps_raises_the_same_alerts() -> None:
    assert job("straggler>1.5x:3", [1] * 5, restarts=True) == job("straggler>1.5x:3", [1] * 5)
