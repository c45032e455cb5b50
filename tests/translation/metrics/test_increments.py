"""Cumulative histograms of stock SDKs: each row shows what was added since the one before."""

from __future__ import annotations

import math

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import Distribution, Row
from otel_bridge.translation.metrics.increments import Increments
from otel_bridge.translation.options import TranslationOptions
from support.otlp.memory_state import MemoryState
from support.otlp.otlp_samples import (
    RUN,
    T0,
    Bench,
    metrics_request,
    pairs,
    third_party,
)

CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE


def explicit(
    counts: list[int], total: float, at_ns: int, *, high: float, start_ns: int = T0
) -> bytes:
    point = pb.HistogramDataPoint(
        start_time_unix_nano=start_ns, time_unix_nano=at_ns, count=sum(counts), sum=total, bucket_counts=counts,
        explicit_bounds=[1.0, 2.0], min=0.5, max=high,
    )  # fmt: skip
    return request(pb.Metric(name="wait", histogram=pb.Histogram(
        data_points=[point], aggregation_temporality=CUMULATIVE)))  # fmt: skip


def exponential(counts: list[int], scale: int, offset: int, at_ns: int) -> bytes:
    buckets = pb.ExponentialHistogramDataPoint.Buckets(
        offset=offset, bucket_counts=counts
    )
    point = pb.ExponentialHistogramDataPoint(
        start_time_unix_nano=T0, time_unix_nano=at_ns, count=sum(counts), sum=1.0, scale=scale, positive=buckets,
        attributes=pairs({"peer": "a"}),
    )  # fmt: skip
    return request(pb.Metric(name="wait", exponential_histogram=pb.ExponentialHistogram(
        data_points=[point], aggregation_temporality=CUMULATIVE)))  # fmt: skip


def request(metric: pb.Metric) -> bytes:
    return metrics_request(
        ({"service.name": "agent", "rl.run.id": RUN}, [third_party(metric)])
    )


def shown(bench: Bench) -> list[Distribution]:
    values = [
        value
        for record in bench.records
        if isinstance(record, Row)
        for value in record.values.values()
    ]
    return [value for value in values if isinstance(value, Distribution)]


def test_each_point_shows_what_it_adds_and_one_that_adds_nothing_makes_no_row() -> None:
    bench = Bench()

    bench.request(explicit([2, 1, 0], 2.5, T0 + 1, high=1.5))
    bench.restart()
    bench.request(explicit([2, 4, 1], 10.5, T0 + 2, high=3.0))
    bench.request(explicit([2, 4, 1], 10.5, T0 + 3, high=3.0))
    bench.request(
        explicit([2, 1, 0], 2.5, T0 + 1, high=1.5)
    )  # an older one that comes again

    first, second = shown(bench)
    assert (first.count, first.sum, first.min, first.max, first.counts) == (
        3,
        2.5,
        0.5,
        1.5,
        (2, 1),
    )
    assert (second.count, second.sum, second.max, second.counts) == (
        4,
        8.0,
        3.0,
        (3, 1),
    )
    assert math.isnan(second.min)


def test_a_producer_that_began_again_is_shown_whole_and_two_that_look_alike_apart() -> (
    None
):
    bench = Bench()

    bench.request(explicit([2, 0, 0], 1.0, T0 + 1, high=1.0))
    bench.request(explicit([1, 0, 0], 0.5, T0 + 2, high=1.0, start_ns=T0 + 1))
    bench.request(explicit([3, 0, 0], 1.5, T0 + 3, high=1.0))

    assert [one.count for one in shown(bench)] == [2, 1, 1]


def test_an_exponential_histogram_whose_scale_fell_is_compared_at_the_new_scale() -> (
    None
):
    bench = Bench()

    bench.request(exponential([1, 1, 1, 1], 1, 0, T0 + 1))
    bench.request(exponential([3, 2, 5], 0, 0, T0 + 2))

    first, second = shown(bench)
    assert (first.count, second.count, second.counts) == (4, 6, (1, 0, 5))


def test_buckets_beyond_32_bits_are_left_out_and_their_count_stays() -> None:
    bench = Bench()

    bench.request(exponential([1, 1], 0, (1 << 31) - 1, T0 + 1))
    bench.request(exponential([1, 3], 0, (1 << 31) - 1, T0 + 2))

    assert [one.count for one in shown(bench)] == [2, 2]
    assert bench.counts() == {}


def test_by_a_setting_they_are_shown_as_sent() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, cumulative_histograms=True))

    bench.request(explicit([2, 1, 0], 2.5, T0 + 1, high=1.5))
    bench.request(explicit([2, 4, 1], 10.5, T0 + 2, high=3.0))

    assert [one.count for one in shown(bench)] == [3, 7]


def test_after_a_restart_too_the_series_that_was_silent_longest_is_forgotten_at_the_limit() -> (
    None
):
    def point(time_ns: int, count: int) -> pb.HistogramDataPoint:
        return pb.HistogramDataPoint(
            start_time_unix_nano=1,
            time_unix_nano=time_ns,
            count=count,
            sum=count,
            bucket_counts=[count],
        )

    state = MemoryState()
    before = Increments(state, 2)
    before.of("p", "z-silent", point(2, 5))
    before.of("p", "a-active", point(3, 100))

    after = Increments(MemoryState(state.snapshot()), 2)
    after.of("p", "new", point(4, 1))
    added = after.of("p", "a-active", point(5, 101))

    assert added is not None
    assert added.count == 1
