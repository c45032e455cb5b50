from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
)
from opentelemetry.sdk.metrics.export import ScopeMetrics as SdkScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_bridge.emit.encode.buckets import BucketPoint, point_of_buckets
from otel_bridge.emit.encode.histogram import HistogramPoint, distribution_of
from otel_bridge.emit.encode.row import RowShape, _layout
from otel_bridge.emit.encode.values import Value
from support.encoded_rows import encode_row

_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
_NUMBERS = st.floats() | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans()
_DISTRIBUTIONS = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20).map(
    distribution_of
)
_BUCKETS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9).map(
    lambda counts: point_of_buckets(
        [1, *counts], range(-1, len(counts) + 1), lambda *_: None
    )
)
_STEPS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 300)
_ROLES = st.none() | st.sampled_from(["explorer", "prüfer"])

_T = 1_754_000_000_000_000_000


def by_the_public_encoder(
    values: dict[str, Value], time_ns: int, step: int, role: str | None, seq: int
) -> bytes:
    attributes: dict[str, str | int] = {
        "rl.step": step,
        **({"rl.role": role} if role else {}),
    }
    metrics = [
        _metric(key, value, attributes, time_ns) for key, value in values.items()
    ]
    metrics.append(
        _metric("rl.row", len(values), {**attributes, "rl.seq": seq}, time_ns)
    )
    scope = SdkScopeMetrics(InstrumentationScope("otel_bridge"), metrics, "")
    data = MetricsData([ResourceMetrics(Resource({}), [scope], "")])
    return encode_metrics(data).resource_metrics[0].scope_metrics[0].SerializeToString()


def _metric(
    key: str, value: Value, attributes: dict[str, str | int], time_ns: int
) -> Metric:
    if isinstance(value, BucketPoint):
        buckets = HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=0,
            time_unix_nano=time_ns,
            count=value.count,
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
            min=value.min,
            max=value.max,
        )
        return Metric(key, "", "", Histogram([buckets], AggregationTemporality.DELTA))
    if not isinstance(value, HistogramPoint):
        number = (
            int(value) if isinstance(value, bool) else value
        )  # protobuf takes no boolean for an integer
        point = NumberDataPoint(
            attributes, start_time_unix_nano=0, time_unix_nano=time_ns, value=number
        )
        return Metric(key, "", "", Gauge([point]))
    histogram = ExponentialHistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=0,
        time_unix_nano=time_ns,
        count=value.count,
        sum=value.sum,
        scale=value.scale,
        zero_count=value.zero_count,
        positive=_buckets(value.positive),
        negative=_buckets(value.negative),
        flags=0,
        min=value.min,
        max=value.max,
    )
    return Metric(
        key, "", "", ExponentialHistogram([histogram], AggregationTemporality.DELTA)
    )


def _buckets(buckets: object) -> object:
    class Sdk:
        offset = buckets.offset  # type: ignore[attr-defined]
        bucket_counts = buckets.counts  # type: ignore[attr-defined]

    return Sdk()


@given(
    st.dictionaries(
        _KEYS, _NUMBERS | _DISTRIBUTIONS | _BUCKETS, min_size=1, max_size=6
    ),
    _STEPS,
    _ROLES,
)
def test_a_row_has_the_bytes_that_the_public_encoder_gives_it(
    values: dict[str, Value], step: int, role: str | None
) -> None:
    packed = encode_row(values, _T, step, role, 7)

    distributions_first = dict(
        sorted(values.items(), key=lambda entry: isinstance(entry[1], (int, float)))
    )
    assert packed == by_the_public_encoder(distributions_first, _T, step, role, 7)


def test_a_wide_row_has_each_of_its_values_once() -> None:
    values: dict[str, Value] = {f"key/{index}": index / 2 for index in range(1_000)}
    values["key/500"] = distribution_of([1.0])

    shape = RowShape(values)
    packed = [shape.encode(values, _T, step, None, 7) for step in (1, 300)]

    distribution = {"key/500": values.pop("key/500")}
    assert packed == [
        by_the_public_encoder({**distribution, **values}, _T, step, None, 7)
        for step in (1, 300)
    ]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(_KEYS, _NUMBERS, min_size=1, max_size=6), _STEPS, _ROLES
        ),
        max_size=4,
    )
)
def test_rows_of_a_process_that_has_encoded_others_have_the_same_bytes(
    rows: list[tuple[dict[str, Value], int, str | None]],
) -> None:
    shapes = [RowShape(values) for values, _, _ in rows]
    seq = 0
    # Twice the same rows, then others of the same shapes, whose steps are of another size.
    for divisor in (1, 1, 200):
        for shape, (values, step, role) in zip(shapes, rows, strict=True):
            seq += 1
            encoded = shape.encode(values, _T, step // divisor, role, seq)
            expected = by_the_public_encoder(values, _T, step // divisor, role, seq)
            assert encoded == expected


def test_nan_and_infinities_are_values() -> None:
    packed = encode_row({"a": math.nan, "b": math.inf, "c": -math.inf}, _T, 1, None, 1)

    points = [
        metric.gauge.data_points[0]
        for metric in ScopeMetrics.FromString(packed).metrics
    ]
    assert [str(point.as_double) for point in points[:3]] == ["nan", "inf", "-inf"]


def test_ever_new_keys_do_not_grow_the_cache() -> None:
    for index in range(3_000):
        encode_row(
            {f"key_{index}_{number}": 0.5 for number in range(5)}, _T, 1, None, index
        )

    assert 0 < _layout.cache_info().currsize <= 128


def test_a_row_of_many_keys_takes_no_more_than_its_share_of_the_cache() -> None:
    _layout.cache_clear()
    encode_row({f"key_{number}": 0.5 for number in range(1_000)}, _T, 1, None, 1)

    assert _layout.cache_info().currsize == 1_000 // 128 + 1


def test_ever_larger_steps_do_not_grow_the_cache() -> None:
    for digits in range(1, 19):
        encode_row({"loss": 0.5}, _T, 10**digits, f"role-{digits}", 1)

    assert _layout.cache_info().currsize <= 128


def test_a_step_beyond_64_bit_is_masked() -> None:
    packed = encode_row({"a": 1.0}, _T, (1 << 64) + 5, None, 1)

    (metric, _) = ScopeMetrics.FromString(packed).metrics
    assert metric.gauge.data_points[0].attributes[0].value.int_value == 5
