"""Rules that watch rows and the passage of time: one alert a cause, whatever flickers, restarts or comes again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, cast

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.alert_rules import alert_rules
from otel_bridge.records import Alert, End, Record, Row
from otel_bridge.translation import alerts
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    RUN,
    T0,
    Bench,
    S,
    end,
    gauge,
    metrics_request,
    row,
    source,
    third_party,
    who,
)
from support.otlp.translation_bench import send

TRAINER = source()


def bench_with(rules: str, **options: Any) -> Bench:
    return Bench(
        TranslationOptions(run_id=RUN, alert_rules=alert_rules(rules), **options)
    )


def raised(records: Iterable[Record]) -> list[tuple[str, int | None]]:
    return [(one.title, one.step) for one in records if isinstance(one, Alert)]


def log(
    bench: Bench, key: str, *values: float, first: int = 1
) -> list[tuple[str, int | None]]:
    """Send one row for each of *values*; return the alerts."""
    return raised(
        bench.metrics(
            TRAINER, *(row(first + n, {key: value}) for n, value in enumerate(values))
        )
    )


def test_a_bound_raises_one_alert_behind_its_row() -> None:
    bench = bench_with("trainer/kl>0.2")

    records = bench.metrics(
        TRAINER, row(1, {"kl": 0.2, "loss": 3.0}), row(2, {"kl": 0.31, "loss": 2.0})
    )

    assert [type(one) for one in records] == [Row, Row, Alert]
    (alert,) = (one for one in records if isinstance(one, Alert))
    digest = alert.id.rpartition(":")[2]
    assert alert == Alert(
        f"a:m:i1:2:{digest}", "trainer", "trainer/kl above 0.2", "trainer/kl is 0.31 at step 2 (rule trainer/kl>0.2)",
        "warn", 2, T0 + 2,
    )  # fmt: skip


def test_a_value_that_flickers_around_a_bound_is_one_cause() -> None:
    bench = bench_with("kl>0.2")

    flicker = log(bench, "kl", *[0.3, 0.1, 0.1, 0.1, 0.1] * 20)
    calm = log(bench, "kl", *[0.1] * alerts.CALM_VALUES, first=101)
    again = log(bench, "kl", 0.3, 0.3, first=201)

    assert (flicker, calm, again) == (
        [("trainer/kl above 0.2", 1)],
        [],
        [("trainer/kl above 0.2", 201)],
    )


def test_nan_and_infinity_raise_one_alert_for_all_keys_of_a_row() -> None:
    bench = bench_with("nan")
    keys = {f"k{number:02}": math.nan for number in range(14)}

    first = bench.metrics(
        TRAINER, row(1, {"loss": 1.0}), row(2, {"loss": math.nan, **keys, "fine": 1.0})
    )
    same = bench.metrics(TRAINER, row(3, {"loss": math.nan, **keys}))
    other = bench.metrics(TRAINER, row(4, {"loss": math.nan, "norm": -math.inf}))
    big = bench.metrics(TRAINER, row(5, {"a": 1e308, "b": 1e308}))

    (alert,) = (one for one in first if isinstance(one, Alert))
    also = ", ".join(f"trainer/k{number:02}" for number in range(10))
    assert (alert.title, alert.level) == ("trainer/loss is NaN", "error")
    assert (
        alert.text
        == f"trainer/loss is NaN at step 2; also {also} and 4 more (rule nan)"
    )
    assert (raised(same), raised(other), raised(big)) == (
        [],
        [("trainer/norm is infinite", 4)],
        [],
    )


def test_alerts_watch_the_keys_that_were_logged_and_not_those_of_the_featured_section() -> (
    None
):
    bench = bench_with("nan", featured=("loss",))

    records = bench.metrics(TRAINER, row(1, {"loss": math.nan}))

    assert [type(one) for one in records] == [Row, Alert]
    assert "0_featured/01 trainer loss" in cast("Row", records[0]).values
    assert cast("Alert", records[1]).text == "trainer/loss is NaN at step 1 (rule nan)"


def test_a_key_that_is_always_nan_hides_no_other() -> None:
    bench = bench_with("nan")

    first = log(bench, "never", *[math.nan] * 10)
    second = raised(
        bench.metrics(TRAINER, row(11, {"never": math.nan, "loss": math.nan}))
    )

    assert (first, second) == (
        [("trainer/never is NaN", 1)],
        [("trainer/loss is NaN", 11)],
    )


def test_nan_ends_no_cause_of_a_bound_and_begins_none() -> None:
    bench = bench_with("kl>0.2")

    assert log(bench, "kl", math.nan, 0.3, *[math.nan] * 20, 0.3) == [
        ("trainer/kl above 0.2", 2)
    ]


def test_the_mean_of_a_histogram_is_judged() -> None:
    bench = bench_with("lengths>5,nan")
    metric = gauge("x", 1.0, T0, {})
    metric.Clear()
    metric.name = "lengths"
    point = metric.histogram.data_points.add(time_unix_nano=T0, count=4, sum=28.0)
    metric.histogram.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_DELTA
    point.explicit_bounds.extend((0.0, 10.0))
    point.bucket_counts.extend((0, 4, 0))

    found = bench.request(
        metrics_request(
            ({"rl.run.id": RUN, "service.name": "app"}, [third_party(metric)])
        )
    )

    assert raised(found) == [("app/lengths above 5", None)]


def test_of_three_workers_of_different_pace_the_cause_ends_when_all_that_had_it_are_calm() -> (
    None
):
    bench = bench_with("kl>0.2")
    workers = [source(name, "explorer") for name in ("i1", "i2", "i3")]

    def step(number: int, *values: float | None) -> list[tuple[str, int | None]]:
        found: list[Record] = []
        for worker, value in zip(workers, values, strict=True):
            found += (
                bench.metrics(worker, row(number, {"kl": value}))
                if value is not None
                else []
            )
        return raised(found)

    begun = step(1, 0.3, 0.3, 0.1)
    fast = [one for number in range(2, 30) for one in step(number, 0.1, None, 0.1)]
    slow = step(
        2, None, 0.3, None
    )  # step 2 of the worker that is behind, which still is beyond the bound
    early = step(30, 0.3, None, 0.1)
    calm = [one for number in range(31, 37) for one in step(number, 0.1, None, 0.1)]
    calm += [one for number in range(3, 9) for one in step(number, None, 0.1, None)]
    again = step(37, 0.1, None, 0.3)

    assert (begun, fast, slow, early, calm) == (
        [("explorer/kl above 0.2", 1)],
        [],
        [],
        [],
        [],
    )
    assert again == [("explorer/kl above 0.2", 37)]


def test_a_process_that_ended_holds_no_cause_open() -> None:
    bench = bench_with("kl>0.2")
    log(bench, "kl", 0.3)
    bench.logs(TRAINER, end("failed", 1, last_row=1))

    second = source("i2")
    calm = bench.metrics(second, row(2, {"kl": 0.1}))
    again = bench.metrics(second, row(3, {"kl": 0.4}, step=3))

    assert (raised(calm), raised(again)) == ([], [("trainer/kl above 0.2", 3)])


def test_a_restart_in_between_changes_nothing() -> None:
    straight, restarted = (
        bench_with("kl>0.2, nan, stalled:60s"),
        bench_with("kl>0.2, nan, stalled:60s"),
    )
    values = [0.1, 0.3, 0.1, math.nan, *[0.1] * 6, 0.3, math.inf, 0.3]

    for number, value in enumerate(values, start=1):
        for bench in (straight, restarted):
            bench.metrics(TRAINER, row(number, {"kl": value}))
        restarted.restart()
    for bench in (straight, restarted):
        for _ in range(20):
            bench.tick(10)
            if bench is restarted:
                bench.restart()

    found = [one for one in straight.records if isinstance(one, Alert)]
    titles = [
        "trainer/kl above 0.2",
        "trainer/kl is NaN",
        "trainer/kl above 0.2",
        "trainer/kl is infinite",
        "trainer sends no rows",
    ]
    assert [one.title for one in found] == titles
    assert [one for one in restarted.records if isinstance(one, Alert)][:4] == found[:4]


def test_rows_that_come_again_raise_nothing() -> None:
    bench = bench_with("kl>0.2")
    request = metrics_request(
        (who(), [row(1, {"kl": 0.3}), *(row(n, {"kl": 0.1}) for n in range(2, 9))])
    )

    bench.request(request)
    for _ in range(3):
        bench.request(request)
        bench.restart()

    assert raised(bench.records) == [("trainer/kl above 0.2", 1)]


def test_rules_that_are_no_longer_set_leave_nothing_behind() -> None:
    bench = bench_with("kl>0.2")
    log(bench, "kl", 0.3)

    bench.options = dataclasses.replace(
        bench.options, alert_rules=alert_rules("kl>0.25")
    )
    bench.restart()
    found = log(bench, "kl", 0.3, first=2)
    bench.translator.flush()

    assert found == [("trainer/kl above 0.25", 2)]
    assert len(list(bench.state.items("alert/cause/"))) == 1


def test_statistics_of_rollouts_are_watched_under_the_keys_that_trackers_show() -> None:
    bench = bench_with("rollouts/total>=2")

    found = [*send(bench, source("e1", "explorer"), 1, 1.0, 1.0), *bench.close()]

    assert raised(found) == [("explorer/rollouts/total at or above 2", 1)]


def test_causes_and_alerts_are_limited_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerts, "_MAX_CAUSES", 3)
    monkeypatch.setattr(alerts, "_MAX_ALERTS", 2)
    bench = bench_with("*>0")

    found = [
        one
        for number in range(1, 6)
        for one in log(bench, f"k{number}", 1.0, first=number)
    ]

    assert found == [("trainer/k1 above 0", 1), ("trainer/k2 above 0", 2)]
    assert bench.counts() == {"alert/too_many_causes": 2, "alert/too_many_by_rules": 1}


def test_the_end_stays_the_last_record() -> None:
    bench = bench_with("kl>0.2")
    held = metrics_request((who(), [row(2, {"kl": 0.3})]))

    bench.request(held)  # waits for row 1
    found = bench.close()

    assert [type(one) for one in found] == [Row, Alert, End]


# --- stalled ----------------------------------------------------------------------------------------------------------
def stalled(bench: Bench, seconds: int) -> list[tuple[str, int | None]]:
    """Let time pass, a second a tick; return the alerts."""
    return raised([one for _ in range(seconds) for one in bench.tick(1)])


def test_a_role_without_a_row_raises_one_alert_until_its_next_row() -> None:
    bench = bench_with("stalled:60s")
    log(bench, "loss", 1.0, 2.0)

    before, after = stalled(bench, 60), stalled(bench, 600)
    log(bench, "loss", 3.0, first=3)
    again = stalled(bench, 70)

    assert (before, after, again) == (
        [], [("trainer sends no rows", 2)], [("trainer sends no rows", 3)],
    )  # fmt: skip
    texts = [one.text for one in bench.records if isinstance(one, Alert)]
    assert texts[0] == (
        "trainer sent no row for 1.08 minutes, and its process has not ended; its last step is 2 (rule stalled:60s)"
    )


def test_a_role_whose_rows_go_on_is_not_stalled_though_another_is() -> None:
    bench = bench_with("stalled:60s:explorer, stalled:300s")
    explorer = source("i2", "explorer")
    bench.metrics(explorer, row(1, {"n": 1}))

    found: list[tuple[str, int | None]] = []
    for number in range(1, 11):
        found += log(bench, "loss", 1.0, first=number)
        found += stalled(bench, 10)

    assert found == [("explorer sends no rows", 1)]


@pytest.mark.parametrize("status", ["finished", "failed", "killed"])
def test_a_role_that_ended_is_not_stalled(status: str) -> None:
    bench = bench_with("stalled:60s")
    bench.metrics(source("i2", "explorer"), row(1, {"n": 1}))
    log(bench, "loss", 1.0)
    bench.logs(TRAINER, end(status, 1, last_row=1))

    assert stalled(bench, 300) == [("explorer sends no rows", 1)]


def test_a_process_that_has_sent_nothing_yet_stalls_too_and_launchers_and_other_ranks_do_not() -> (
    None
):
    bench = bench_with("stalled:60s")
    bench.open(
        source("i1", "trainer"),
        source("i2", "launcher", kind="launcher"),
        source("i3", "worker", rl_rank=1),
    )

    assert stalled(bench, 300) == [("trainer sends no rows", None)]


def test_a_backlog_that_is_read_late_is_not_stalled() -> None:
    bench = bench_with("stalled:60s", watching_since_ns=T0 + 10_000 * S)

    for number in range(
        1, 20
    ):  # 400 s between two rows, read at once by a bridge that began later
        bench.metrics(TRAINER, row(number, {"loss": 1.0}))
        bench.tick(400)
    bench.logs(TRAINER, end("finished", 1, last_row=19))

    assert raised(bench.records) == []


def test_a_stall_that_began_while_no_bridge_ran_is_noticed() -> None:
    bench = bench_with("stalled:60s")
    log(bench, "loss", 1.0)
    bench.options = dataclasses.replace(bench.options, watching_since_ns=T0 + 3_600 * S)

    bench.restart(away_s=3_600)

    assert stalled(bench, 10) == [("trainer sends no rows", 1)]


def test_a_stall_is_raised_once_across_a_restart() -> None:
    bench = bench_with("stalled:60s")
    log(bench, "loss", 1.0)
    first = stalled(bench, 70)
    bench.options = dataclasses.replace(bench.options, watching_since_ns=bench.now_ns)

    bench.restart(away_s=600)

    assert (first, stalled(bench, 300)) == ([("trainer sends no rows", 1)], [])


def test_remote_rows_that_may_be_under_way_when_a_service_returns_have_time_to_arrive() -> (
    None
):
    bench = bench_with("stalled:60s", liveness_timeout_ns=10_000 * S)
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    bench.options = dataclasses.replace(bench.options, watching_since_ns=T0 + 600 * S)
    bench.restart(away_s=600)

    quiet = stalled(bench, 50)
    bench.request(metrics_request((who(), [row(2, {"loss": 1.0})])))
    later = stalled(bench, 60)

    assert (quiet, later, stalled(bench, 10)) == (
        [],
        [],
        [("trainer sends no rows", 2)],
    )


def test_measurements_of_a_machine_do_not_count_as_rows_of_a_run_without_roles() -> (
    None
):
    bench = bench_with("stalled:60s")
    plain = source("i1", None)
    bench.metrics(plain, row(1, {"loss": 1.0}))

    found: list[tuple[str, int | None]] = []
    for second in range(100):
        point = gauge("system/cpu", 0.5, T0 + second * S, {})
        system = {**who("i1", None), "rl.system": True}
        found += raised(
            bench.request(metrics_request((system, [third_party(point)])), sender=plain)
        )
        found += stalled(bench, 1)

    assert found == [("the run sends no rows", 1)]
