from __future__ import annotations

import math

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import Distribution, Row, Value
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    RUN,
    T0,
    Bench,
    S,
    gauge,
    metrics_request,
    pairs,
    third_party,
)

APP = {"rl.run.id": RUN, "service.name": "megatron"}
DELTA, CUMULATIVE = (
    pb.AGGREGATION_TEMPORALITY_DELTA,
    pb.AGGREGATION_TEMPORALITY_CUMULATIVE,
)


def sent(
    bench: Bench, *metrics: pb.Metric, who: dict[str, object] = APP
) -> list[tuple[object, ...]]:
    """Role, step, time after `T0` and values of the rows that a request of these metrics makes."""
    rows = bench.request(metrics_request((who, [third_party(*metrics)])))
    return [
        (r.role, r.step, r.time_unix_ns - T0, dict(r.values))
        for r in rows
        if isinstance(r, Row)
    ]


def total(
    name: str, value: float, time_ns: int, temporality: int, **attributes: object
) -> pb.Metric:
    point = pb.NumberDataPoint(
        attributes=pairs(attributes), time_unix_nano=time_ns, as_double=value
    )
    return pb.Metric(
        name=name,
        sum=pb.Sum(
            data_points=[point], aggregation_temporality=temporality, is_monotonic=True
        ),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attributes", "step", "suffix"),
    [
        ({"rl.step": 3}, 3, ""),
        ({"dl.iteration": 4}, 4, ""),
        ({"step": 5}, 5, ""),
        ({"rl.step": 3, "step": 9}, 3, "/step:9"),
        ({"step": 5.0}, 5, ""),
        ({"step": "6"}, 6, ""),
        ({"step": "warm-up"}, None, "/step:warm-up"),
        ({"step": 5.5}, None, "/step:5.5"),
        ({"step": True}, None, "/step:true"),
        ({}, None, ""),
    ],
)
def test_the_step_is_found_where_producers_keep_it(
    attributes: dict[str, object], step: int | None, suffix: str
) -> None:
    bench = Bench()

    assert sent(bench, gauge("loss", 0.5, T0 + 7, attributes)) == [
        ("megatron", step, 7, {f"megatron/loss{suffix}": 0.5})
    ]


def test_a_row_without_a_step_has_no_axis_and_its_key_is_bound_to_none() -> None:
    bench = Bench()

    sent(bench, gauge("power", 300.0, T0, {}))
    bench.translator.flush()

    assert [(row.axis, row.steps) for row in bench.records if isinstance(row, Row)] == [
        (None, {})
    ]
    assert (bench.state.items("key/"), bench.state.items("axis/")) == ([], [])


def test_remaining_attributes_and_ranks_report_series_apart() -> None:
    bench = Bench()

    rows = sent(
        bench,
        gauge("mem", 1.0, T0, {"step": 1, "gpu": 0, "rl.role": "explorer"}),
        gauge("mem", 2.0, T0, {"step": 1, "gpu": 1, "rl.role": "explorer"}),
        who={**APP, "rl.rank": 2},
    )

    assert rows == [
        (
            "explorer",
            1,
            0,
            {"explorer/mem/gpu:0/rank2": 1.0, "explorer/mem/gpu:1/rank2": 2.0},
        )
    ]


def test_a_role_that_is_not_a_text_reports_series_apart() -> None:
    rows = sent(
        Bench(),
        *(
            gauge("mem", 1.0 + role, T0, {"step": 1, "rl.role": role})
            for role in (0, 1)
        ),
    )

    assert [row[3] for row in rows] == [
        {"megatron/mem/rl.role:0": 1.0, "megatron/mem/rl.role:1": 2.0}
    ]


def test_points_of_one_role_step_and_time_make_one_row_and_others_make_others() -> None:
    bench = Bench()

    rows = sent(
        bench,
        gauge("a", 1.0, T0, {"step": 1}),
        gauge("b", 2.0, T0, {"step": 1}),
        gauge("a", 3.0, T0, {"step": 2}),
        gauge("a", 4.0, T0 + 1, {"step": 3}),
        gauge("a", 5.0, T0, {"step": 1}),
    )

    assert rows == [
        ("megatron", 1, 0, {"megatron/a": 1.0, "megatron/b": 2.0}),
        ("megatron", 2, 0, {"megatron/a": 3.0}),
        ("megatron", 3, 1, {"megatron/a": 4.0}),
        ("megatron", 1, 0, {"megatron/a": 5.0}),
    ]


def test_a_cumulative_producer_that_sends_all_points_at_each_collection_gives_each_point_once() -> (
    None
):
    bench = Bench()

    for collection in range(1, 11):
        points = [
            gauge("loss", float(step), T0 + collection * S, {"step": step})
            for step in range(collection * 10)
        ]
        sent(bench, *points)

    assert [
        (row.step, row.time_unix_ns) for row in bench.records if isinstance(row, Row)
    ] == [(step, T0 + (step // 10 + 1) * S) for step in range(100)]


def test_the_same_value_at_the_same_step_is_one_point_and_another_value_another() -> (
    None
):
    bench = Bench()

    first = sent(bench, gauge("loss", 1.0, T0, {"step": 1}))
    same = sent(bench, gauge("loss", 1.0, T0 + 5, {"step": 1}))
    other = sent(bench, gauge("loss", 1.5, T0 + 5, {"step": 1}))

    assert (len(first), same, other) == (
        1,
        [],
        [("megatron", 1, 5, {"megatron/loss": 1.5})],
    )


def test_a_step_that_goes_back_to_a_former_value_shows_the_last_one_and_what_alternates_is_counted() -> (
    None
):
    bench = Bench()

    rows = [
        sent(bench, gauge("loss", value, T0 + time_ns, {"step": 1}))
        for value, time_ns in (
            (1.0, 0),
            (1.5, 5),
            (1.5, 6),
            (1.5, 5),
            (1.0, 0),
            (1.0, 7),
            (1.0, 8),
            (1.0, 7),
            (1.5, 5),
        )
    ]
    alternating = [
        sent(bench, gauge("loss", value, T0 + time_ns, {"step": 1}))
        for value, time_ns in ((1.5, 9), (1.0, 10))
    ]

    shown = [(row[0][2], row[0][3]["megatron/loss"]) for row in rows if row]  # type: ignore[index]
    assert shown == [(0, 1.0), (5, 1.5), (7, 1.0)]
    assert [len(one) for one in alternating] == [1, 0]
    assert bench.counts() == {"point/alternating": 1}


def test_an_older_value_that_comes_late_does_not_replace_the_one_of_its_step() -> None:
    bench = Bench()

    rows = [
        sent(bench, gauge("loss", value, T0 + time_ns, {"step": 1}))
        for value, time_ns in ((1.5, 5), (1.0, 3), (1.5, 6))
    ]

    assert rows == [[("megatron", 1, 5, {"megatron/loss": 1.5})], [], []]
    assert bench.counts() == {"point/late": 1}


def test_without_a_step_the_time_reports_points_apart() -> None:
    bench = Bench()

    rows = [sent(bench, gauge("power", 300.0, T0 + second, {})) for second in (0, 1, 0)]

    assert rows == [
        [("megatron", None, 0, {"megatron/power": 300.0})],
        [("megatron", None, 1, {"megatron/power": 300.0})],
        [],
    ]


def test_not_a_number_is_one_point_too() -> None:
    bench = Bench()

    rows = [sent(bench, gauge("loss", math.nan, T0, {"step": 1})) for _ in range(2)]

    assert [len(each) for each in rows] == [1, 0]


def test_the_oldest_points_are_forgotten_but_not_those_that_are_still_sent() -> None:
    bench = Bench(options=TranslationOptions(run_id=RUN, seen_limit=3_000))
    steady = [
        gauge("steady", float(number), T0, {"step": number}) for number in range(100)
    ]

    for batch in range(20):
        sent(
            bench,
            *steady,
            *(
                gauge("new", 1.0, T0, {"step": batch * 300 + number})
                for number in range(300)
            ),
        )
        bench.restart()

    rows = [row for row in bench.records if isinstance(row, Row)]
    assert sum("megatron/steady" in row.values for row in rows) == 100
    assert len(b"".join(value for _, value in bench.state.items("seen/"))) <= 8 * (
        3_000 + 1_024
    )  # type: ignore[misc]


def test_a_cumulative_sum_is_shown_as_sent_and_a_delta_sum_is_added_up() -> None:
    bench = Bench()

    rows = [
        sent(
            bench,
            total("sent", value, T0 + second, CUMULATIVE),
            total("got", value, T0 + second, DELTA, peer="a"),
        )
        for second, value in enumerate((10.0, 15.0, 17.0))
    ]
    bench.restart()
    rows.append(
        sent(
            bench,
            total("got", 1.0, T0 + 3, DELTA, peer="a"),
            total("got", 1.0, T0 + 3, DELTA, peer="a"),
        )
    )

    assert [row[0][3] for row in rows] == [
        {"megatron/sent": 10.0, "megatron/got/peer:a": 10.0},
        {"megatron/sent": 15.0, "megatron/got/peer:a": 25.0},
        {"megatron/sent": 17.0, "megatron/got/peer:a": 42.0},
        {"megatron/got/peer:a": 43.0},
    ]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_total_of_over_64_bits_becomes_a_double(sign: int) -> None:
    bench = Bench()

    def delta(time_ns: int) -> pb.Metric:
        point = pb.NumberDataPoint(time_unix_nano=time_ns, as_int=sign << 62)
        return pb.Metric(
            name="bytes",
            sum=pb.Sum(data_points=[point], aggregation_temporality=DELTA),
        )

    rows = [sent(bench, delta(T0 + number)) for number in range(4)]
    bench.restart()
    rows.append(sent(bench, delta(T0 + 4)))

    totals = [row[0][3]["megatron/bytes"] for row in rows]  # type: ignore[index]
    assert totals == [sign * number * 2.0**62 for number in range(1, 6)]
    assert [type(total) for total in totals[2:]] == [float] * 3


def test_two_scopes_with_a_metric_of_one_name_both_add_to_it() -> None:
    bench = Bench()
    added = total("requests", 5.0, T0 + 1, DELTA)

    def histogram(counts: list[int]) -> pb.Metric:
        point = pb.HistogramDataPoint(
            time_unix_nano=T0 + 1,
            count=sum(counts),
            explicit_bounds=[1.0],
            bucket_counts=counts,
        )
        return pb.Metric(
            name="duration",
            histogram=pb.Histogram(
                data_points=[point], aggregation_temporality=CUMULATIVE
            ),
        )

    sent_once = metrics_request(
        (
            APP,
            [
                third_party(added, histogram([3, 1]), scope="requests"),
                third_party(added, histogram([2, 0]), scope="urllib3"),
            ],
        )
    )
    records = [*bench.request(sent_once), *bench.request(sent_once)]

    rows = [record.values for record in records if isinstance(record, Row)]
    assert [row["megatron/requests"] for row in rows] == [5.0, 10.0]
    durations = [row["megatron/duration"] for row in rows]
    assert [value.count for value in durations if isinstance(value, Distribution)] == [
        4,
        2,
    ]


def test_a_delta_sum_with_a_step_belongs_to_its_step() -> None:
    bench = Bench()

    rows = [
        sent(bench, total("tokens", 100.0, T0, DELTA, step=step)) for step in (1, 2)
    ]

    assert [row[0][3] for row in rows] == [{"megatron/tokens": 100.0}] * 2


def test_histograms_become_distributions_and_summaries_their_numbers() -> None:
    explicit = pb.HistogramDataPoint(
        time_unix_nano=T0,
        count=3,
        sum=6.0,
        min=0.5,
        max=4.0,
        explicit_bounds=[1.0],
        bucket_counts=[1, 2],
    )
    exponential = pb.ExponentialHistogramDataPoint(
        time_unix_nano=T0, count=1, sum=3.0, min=3.0, max=3.0,
        positive=pb.ExponentialHistogramDataPoint.Buckets(offset=1, bucket_counts=[1]),
    )  # fmt: skip
    quantiles = [
        pb.SummaryDataPoint.ValueAtQuantile(quantile=q, value=v)
        for q, v in ((0, 1), (0.5, 2), (0.999, 8), (1, 9))
    ]
    summary = pb.SummaryDataPoint(
        time_unix_nano=T0, count=4, sum=20.0, quantile_values=quantiles
    )
    bench = Bench()

    rows = sent(
        bench,
        pb.Metric(
            name="wait",
            histogram=pb.Histogram(
                data_points=[explicit], aggregation_temporality=CUMULATIVE
            ),
        ),
        pb.Metric(
            name="size",
            exponential_histogram=pb.ExponentialHistogram(data_points=[exponential]),
        ),
        pb.Metric(name="rtt", summary=pb.Summary(data_points=[summary])),
    )

    values: dict[str, Value] = {
        "megatron/wait": Distribution(3, 6.0, 0.5, 4.0, (0.5, 1.0, 4.0), (1, 2)),
        "megatron/size": Distribution(1, 3.0, 3.0, 3.0, (3.0, 4.0), (1,)),
        "megatron/rtt/count": 4, "megatron/rtt/sum": 20.0, "megatron/rtt/min": 1.0, "megatron/rtt/p50": 2.0,
        "megatron/rtt/p99.9": 8.0, "megatron/rtt/max": 9.0,
    }  # fmt: skip
    assert rows == [("megatron", None, 0, values)]


def test_points_without_a_value_are_passed_over_and_those_without_a_time_get_the_time_of_append() -> (
    None
):
    empty = gauge("empty", 1.0, T0, {"step": 1})
    empty.gauge.data_points[0].flags = pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    nothing = pb.Metric(
        name="nothing",
        gauge=pb.Gauge(data_points=[pb.NumberDataPoint(time_unix_nano=T0)]),
    )
    bench = Bench(now_ns=T0 + 9)

    assert sent(
        bench,
        empty,
        nothing,
        pb.Metric(name="none"),
        gauge("timeless", 1.0, 0, {"step": 1}),
    ) == [("megatron", 1, 9, {"megatron/timeless": 1.0})]


@pytest.mark.parametrize("attributes", [{}, {"step": 1}])
def test_points_without_a_time_may_return_to_a_former_value(
    attributes: dict[str, object],
) -> None:
    bench = Bench()
    shown: list[object] = []

    for value in (1.0, 2.0, 1.0):
        bench.tick(10)
        shown += [row[3] for row in sent(bench, gauge("a", value, 0, attributes))]

    assert shown == [{"megatron/a": value} for value in (1.0, 2.0, 1.0)]


def test_a_service_without_a_name_has_no_role() -> None:
    bench = Bench()

    rows = sent(
        bench,
        gauge("loss", 1.0, T0, {"step": 1}),
        who={"rl.run.id": RUN, "service.name": "unknown_service:python"},
    )

    assert rows == [(None, 1, 0, {"loss": 1.0})]


def test_the_id_of_a_foreign_row_is_the_same_at_every_delivery() -> None:
    first, second = Bench(), Bench(now_ns=T0 + 77)

    for bench in (first, second):
        sent(bench, gauge("a", 1.0, T0, {"step": 1}), gauge("b", 2.0, T0, {"step": 1}))

    assert [r.id for r in first.records if isinstance(r, Row)] == [
        r.id for r in second.records if isinstance(r, Row)
    ]
    assert first.records == second.records
