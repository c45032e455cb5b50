"""Tests of alerts about slow ranks: steps in a row, one alert a cause, restarts, corrected rows."""

from __future__ import annotations

from collections.abc import Sequence

from otel_bridge.alert_rules import alert_rules
from otel_bridge.records import Alert
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import RUN, T0, Bench, S, end
from support.otlp.phase_samples import phase, rank, send


def three_ranks(
    bench: Bench,
    ranks: Sequence[SegmentInfo],
    step: int,
    slow: int | None,
    *,
    start_s: float = 0,
    restarts: bool = False,
) -> None:
    """Send one step of three ranks, of which *slow* takes twice as long in generate."""
    begin_s = start_s + step * 10
    for number, sender in enumerate(ranks):
        send(
            bench,
            sender,
            phase("generate", step, begin_s, begin_s + (2 if number == slow else 1)),
        )
        if restarts:
            bench.restart()


def job(
    rules: str, slow: Sequence[int | None], *, restarts: bool = False
) -> list[Alert]:
    """Return the alerts of three ranks, of which in each step *slow* takes twice as long in generate."""
    bench = Bench(TranslationOptions(run_id=RUN, alert_rules=alert_rules(rules)))
    bench.open(*map(rank, range(3)))
    for step, slow_rank in enumerate(slow):
        three_ranks(
            bench,
            [rank(number) for number in range(3)],
            step,
            slow_rank,
            restarts=restarts,
        )
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


def test_ranks_that_wait_for_the_slow_one_raise_no_alert() -> None:
    bench = Bench(
        TranslationOptions(run_id=RUN, alert_rules=alert_rules("straggler>1.5x:2"))
    )
    bench.open(*map(rank, range(3)))
    for step in range(4):
        begin_s = step * 10
        for number, taken_s in enumerate((1, 3, 1)):
            arrival_s = begin_s + taken_s
            forward = phase("forward", step, begin_s, arrival_s)
            send(
                bench,
                rank(number),
                forward,
                phase("barrier", step, arrival_s, begin_s + 3.1),
            )
    bench.close()

    alerts = [record for record in bench.records if isinstance(record, Alert)]
    assert [alert.title for alert in alerts] == ["trainer: rank 1 is slow in forward"]


def test_another_slow_rank_or_a_good_step_begins_anew() -> None:
    assert job("straggler>1.5x:3", [1, 1, 2, 2, None, 1, 1, None]) == []
    assert len(job("straggler>1.5x:2", [1, 1, None, 1, 1, None])) == 4


def test_a_restart_from_a_checkpoint_repeats_steps_and_the_rank_is_named_all_the_same() -> (
    None
):
    bench = Bench(
        TranslationOptions(run_id=RUN, alert_rules=alert_rules("straggler>1.5x:4"))
    )
    ranks = [rank(number) for number in range(3)]
    bench.open(*ranks)
    for step in range(10):
        three_ranks(bench, ranks, step, slow=2 if step >= 7 else None)
    for each in ranks:
        bench.logs(each, end("failed", 1, time_ns=T0 + 200 * S))
    bench.now_ns += 300 * S
    restarted = [
        rank(number, instance=f"again{number}", began_s=300) for number in range(3)
    ]
    bench.open(*restarted)
    for step in range(5, 9):
        three_ranks(bench, restarted, step, slow=2, start_s=300)
    bench.close()

    alerts = [record for record in bench.records if isinstance(record, Alert)]
    assert {(alert.title, alert.step) for alert in alerts} == {
        ("trainer: rank 2 is slow in generate", 5), ("trainer: rank 2 is slow in step", 5),
    }  # fmt: skip


def test_a_smaller_ratio_or_another_role_raises_nothing() -> None:
    assert job("straggler>2.5x:2", [1] * 6) == []
    assert job("straggler>1.5x:2:explorer", [1] * 6) == []


def test_a_bridge_that_is_killed_between_steps_raises_the_same_alerts() -> None:
    assert job("straggler>1.5x:3", [1] * 5, restarts=True) == job(
        "straggler>1.5x:3", [1] * 5
    )
