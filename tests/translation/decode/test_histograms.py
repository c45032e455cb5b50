from __future__ import annotations

import math
import sys

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.emit.encode.buckets import encode_buckets, point_of_buckets
from otel_bridge.emit.encode.histogram import distribution_of
from otel_bridge.records import Distribution
from otel_bridge.translation.decode.histograms import explicit, exponential

Buckets = pb.ExponentialHistogramDataPoint.Buckets


def test_the_open_buckets_of_a_histogram_are_closed_by_its_smallest_and_largest_number() -> (
    None
):
    point = pb.HistogramDataPoint(
        count=6,
        sum=21.0,
        min=-2.0,
        max=40.0,
        explicit_bounds=[0.0, 5.0, 10.0],
        bucket_counts=[1, 2, 0, 3],
    )

    assert explicit(point) == Distribution(
        6, 21.0, -2.0, 40.0, (-2.0, 0.0, 5.0, 10.0, 40.0), (1, 2, 0, 3)
    )


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=70).filter(any))
def test_a_histogram_that_is_logged_counted_has_its_buckets_again(
    counts: list[int],
) -> None:
    point = point_of_buckets(
        counts, [number / 4 - 3 for number in range(len(counts) + 1)], lambda *_: None
    )
    assert point is not None

    metric = pb.Metric.FromString(encode_buckets(point, 7, b""))

    found = explicit(metric.histogram.data_points[0])
    used = [index for index, count in enumerate(counts) if count]
    first, last = used[0], used[-1] + 1
    assert found.edges == tuple(number / 4 - 3 for number in range(first, last + 1))
    assert found.counts == tuple(counts[first:last])
    assert (found.count, found.min, found.max) == (
        sum(counts),
        found.edges[0],
        found.edges[-1],
    )


def test_empty_buckets_at_the_ends_are_left_out() -> None:
    point = pb.HistogramDataPoint(
        count=2,
        sum=15.0,
        min=6.0,
        max=9.0,
        explicit_bounds=[0.0, 5.0, 10.0, 20.0],
        bucket_counts=[0, 0, 2, 0, 0],
    )

    assert explicit(point) == Distribution(2, 15.0, 6.0, 9.0, (6.0, 9.0), (2,))


def test_without_minimum_and_maximum_the_ends_get_the_width_of_their_neighbours() -> (
    None
):
    point = pb.HistogramDataPoint(
        count=3, sum=9.0, explicit_bounds=[0.0, 5.0], bucket_counts=[1, 1, 1]
    )

    found = explicit(point)

    assert (found.edges, found.counts) == ((-5.0, 0.0, 5.0, 10.0), (1, 1, 1))
    assert (math.isnan(found.min), math.isnan(found.max)) == (True, True)


def test_numbers_that_are_all_equal_get_a_bucket_of_some_width() -> None:
    point = pb.HistogramDataPoint(
        count=4,
        sum=20.0,
        min=5.0,
        max=5.0,
        explicit_bounds=[5.0, 10.0],
        bucket_counts=[4, 0, 0],
    )

    found = explicit(point)

    assert found.counts == (4,)
    assert found.edges[0] < found.edges[1] <= 5.0


def test_buckets_that_do_not_fit_their_bounds_are_left_out() -> None:
    wrong = [
        pb.HistogramDataPoint(
            count=1, sum=1.0, min=1.0, max=1.0, explicit_bounds=[0.0], bucket_counts=[1]
        ),
        pb.HistogramDataPoint(
            count=1,
            sum=1.0,
            min=1.0,
            max=1.0,
            explicit_bounds=[1.0, 0.0],
            bucket_counts=[1, 0, 0],
        ),
        pb.HistogramDataPoint(count=1, sum=1.0, min=1.0, max=1.0),
    ]

    assert [explicit(point) for point in wrong] == [Distribution(1, 1.0, 1.0, 1.0)] * 3


def test_an_exponential_histogram_has_negative_zero_and_positive_buckets() -> None:
    point = pb.ExponentialHistogramDataPoint(
        count=7, sum=3.0, min=-3.0, max=7.5, scale=0, zero_count=2, zero_threshold=0.25,
        negative=Buckets(offset=0, bucket_counts=[1, 1]), positive=Buckets(offset=1, bucket_counts=[2, 1]),
    )  # fmt: skip

    found = exponential(point)

    assert found.edges == (-3.0, -2.0, -1.0, -0.25, 0.25, 2.0, 4.0, 7.5)
    assert found.counts == (1, 1, 0, 2, 0, 2, 1)


def test_a_fine_scale_gives_fine_edges() -> None:
    point = pb.ExponentialHistogramDataPoint(
        count=1, sum=1.2, min=1.2, max=1.2, scale=1
    )
    point.positive.CopyFrom(Buckets(offset=0, bucket_counts=[1]))

    assert exponential(point).edges == (1.2, 2**0.5)


def test_at_a_scale_beyond_all_floats_the_edge_1_stays() -> None:
    point = pb.ExponentialHistogramDataPoint(count=3, sum=1.0, scale=-2_000)
    point.positive.CopyFrom(Buckets(offset=-1, bucket_counts=[2, 1]))

    assert exponential(point).edges == (0.0, 1.0, sys.float_info.max)


@given(
    st.integers(-10, 20),
    st.integers(-3_000, 3_000),
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.integers(0, 5), max_size=12),
    st.integers(0, 3),
    st.floats(0, 10),
)
@example(scale=-7, offset=8, negative=[], positive=[1], zeros=0, threshold=0.0)
@example(scale=-7, offset=8, negative=[1, 2], positive=[1, 2], zeros=1, threshold=0.0)
@example(scale=0, offset=0, negative=[], positive=[1], zeros=1, threshold=math.inf)
@example(scale=0, offset=-2_000, negative=[1], positive=[], zeros=1, threshold=0.0)
def test_the_edges_of_any_exponential_histogram_rise_and_every_number_stands_in_a_bucket(
    scale: int,
    offset: int,
    negative: list[int],
    positive: list[int],
    zeros: int,
    threshold: float,
) -> None:
    total = sum(negative) + sum(positive) + zeros
    point = pb.ExponentialHistogramDataPoint(
        count=total, sum=0.0, scale=scale, zero_count=zeros, zero_threshold=threshold,
        negative=Buckets(offset=offset, bucket_counts=negative),
        positive=Buckets(offset=offset, bucket_counts=positive),
    )  # fmt: skip

    found = exponential(point)

    assert sum(found.counts) == total
    assert all(
        low < high for low, high in zip(found.edges, found.edges[1:], strict=False)
    )
    assert all(abs(edge) <= sys.float_info.max for edge in found.edges)
    assert "-0.0" not in map(str, found.edges)
    assert len(found.edges) == (len(found.counts) + 1 if total else 0)


def test_quantiles_among_numbers_that_all_stand_at_one_place_are_that_number() -> None:
    numbers = distribution_of([0.0] * 50 + [1.0] * 50)
    point = pb.ExponentialHistogramDataPoint(
        count=numbers.count,
        sum=numbers.sum,
        min=numbers.min,
        max=numbers.max,
        scale=numbers.scale,
        zero_count=numbers.zero_count,
        positive=Buckets(
            offset=numbers.positive.offset, bucket_counts=numbers.positive.counts
        ),
    )

    assert [exponential(point).quantile(q) for q in (0.0, 0.25, 0.5, 1.0)] == [
        0.0,
        0.0,
        0.0,
        1.0,
    ]
