from __future__ import annotations

import math
from typing import Any

import pytest
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
from otel_bridge.emit.encode.row import RowEncoder
from otel_bridge.emit.encode.values import Value

_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
_NUMBERS = st.floats() | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans()
_DISTRIBUTIONS = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20).map(distribution_of)
_BUCKETS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9).map(
    lambda counts: point_of_buckets([1, *counts], range(-1, len(counts) + 1), lambda *_: None)
)
_STEPS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 300)
_ROLES = st.none() | st.sampled_from(["explorer", "prüfer"])
_T = 1_754_000_000_000_000_000


def by_the_public_encoder(values: dict[str, Value], time_ns: int, step: int, role: str | None, seq: int) -> bytes:
    attributes: dict[str, str | int] = {"rl.step": step, **({"rl.role": role} if role else {})}
    metrics = [_metric(key, value, attributes, time_ns) for key, value in values.items()]
    metrics.append(_metric("rl.row", len(values), {**attributes, "rl.seq": seq}, time_ns))
    scope = SdkScopeMetrics(InstrumentationScope("otel_bridge"), metrics, "")
    data = MetricsData([ResourceMetrics(Resource({}), [scope], "")])
    return encode_metrics(data).resource_metrics[0].scope_metrics[0].SerializeToString()


def _metric(key: str, value: Value, attributes: dict[str, str | int], time_ns: int) -> Metric:
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
        number = int(value) if isinstance(value, bool) else value  # protobuf takes no boolean for an integer
        point = NumberDataPoint(attributes, start_time_unix_nano=0, time_unix_nano=time_ns, value=number)
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
    return Metric(key, "", "", ExponentialHistogram([histogram], AggregationTemporality.DELTA))


def _buckets(buckets: object) -> object:
    class Sdk:
        offset = buckets.offset  # type: ignore[attr-defined]
        bucket_counts = buckets.counts  # type: ignore[attr-defined]

    return Sdk()


@given(st.dictionaries(_KEYS, _NUMBERS | _DISTRIBUTIONS | _BUCKETS, min_size=1, max_size=6), _STEPS, _ROLES)
def test_a_row_has_the_bytes_that_the_public_encoder_gives_it(
    values: dict[str, Value], step: int, role: str | None
) -> None:
    packed = RowEncoder().encode(values, _T, step, role, 7)

    assert packed == by_the_public_encoder(values, _T, step, role, 7)


@given(st.lists(_KEYS, min_size=1, max_size=6, unique=True), st.data())
def test_rows_of_a_template_have_the_bytes_that_the_public_encoder_gives_them(
    keys: list[str], data: st.DataObject
) -> None:
    encoder = RowEncoder()
    for seq in range(1, 4):
        encoder.encode(dict.fromkeys(keys, 0.0), _T, seq, None, seq)

    for _ in range(3):
        values = {key: data.draw(st.floats()) for key in keys}
        step, role, seq = data.draw(_STEPS), data.draw(_ROLES), data.draw(st.integers(1, 1 << 40))
        packed = encoder.encode_known(values, _T, step, role, seq)
        assert packed == by_the_public_encoder(values, _T, step, role, seq)


def test_a_template_is_made_of_a_key_set_seen_three_times_with_floats_only() -> None:
    encoder, row = RowEncoder(), {"loss": 0.5, "lr": 1e-3}

    known = []
    for seq in range(1, 6):
        known.append(encoder.encode_known(row, _T, seq, None, seq) is not None)
        encoder.encode(row, _T, seq, None, seq)

    assert known == [False, False, False, True, True]


def test_an_integer_in_a_row_of_a_template_stays_an_integer() -> None:
    encoder = RowEncoder()
    for seq in range(1, 5):
        encoder.encode({"loss": 0.5, "tokens": 1.0}, _T, seq, None, seq)

    packed = encoder.encode({"loss": 0.5, "tokens": 3}, _T, 5, None, 5)

    points = {metric.name: metric.gauge.data_points[0] for metric in ScopeMetrics.FromString(packed).metrics}
    assert (points["loss"].as_double, points["tokens"].as_int) == (0.5, 3)
    assert points["tokens"].WhichOneof("value") == "as_int"


@pytest.mark.parametrize(
    "values", [{"b": 2.0, "a": 1.0}, {"a": 1.0, "c": 3.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}]
)
def test_behind_a_template_a_row_of_other_names_or_another_order_keeps_its_values(values: dict[str, Value]) -> None:
    encoder = RowEncoder()
    for seq in range(1, 6):
        encoder.encode({"a": 0.5, "b": 0.5}, _T, seq, None, seq)

    packed = encoder.encode(values, _T, 6, None, 6)

    points = {metric.name: metric.gauge.data_points[0].as_double for metric in ScopeMetrics.FromString(packed).metrics}
    assert {name: value for name, value in points.items() if name != "rl.row"} == values


@pytest.mark.parametrize("values", [{}, {1: 0.5, 2: 0.5}])
def test_no_template_fits_a_row_without_names(values: dict[Any, object]) -> None:
    encoder = RowEncoder()
    before = encoder.encode_known(values, _T, 1, None, 1)
    for seq in range(1, 6):
        encoder.encode({"a": 0.5, "b": 0.5}, _T, seq, None, seq)

    assert (before, encoder.encode_known(values, _T, 6, None, 6)) == (None, None)


def test_nan_and_infinities_are_values() -> None:
    packed = RowEncoder().encode({"a": math.nan, "b": math.inf, "c": -math.inf}, _T, 1, None, 1)

    points = [metric.gauge.data_points[0] for metric in ScopeMetrics.FromString(packed).metrics]
    assert [str(point.as_double) for point in points[:3]] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("floats", [True, False])
def test_ever_new_keys_do_not_grow_the_caches(floats: bool) -> None:
    encoder = RowEncoder(cache_bytes=100_000)

    for index in range(3_000):
        row: dict[str, Value] = {f"key_{index}_{number}": 0.5 if floats else 1 for number in range(5)}
        for seq in range(1, 4):
            encoder.encode(row, _T, 1, None, seq)

    assert sum(map(len, encoder._prefixes.values())) < 1_000
    assert len(encoder._templates) < 30
    assert len(encoder._candidates) <= 256


def test_a_step_beyond_64_bit_is_masked() -> None:
    packed = RowEncoder().encode({"a": 1.0}, _T, (1 << 64) + 5, None, 1)

    (metric, _) = ScopeMetrics.FromString(packed).metrics
    assert metric.gauge.data_points[0].attributes[0].value.int_value == 5


def test_a_template_is_not_used_under_a_role_that_makes_two_of_its_names_one_key() -> None:
    encoder = RowEncoder(role="trainer")
    values: dict[str, Value] = {"loss": 1.0, "actor/loss": 2.0}
    for seq in range(4):
        encoder.encode(values, 1_000, 1, None, seq)

    fits = [encoder.encode_known(values, 1_000, 1, role, 5) is not None for role in (None, "critic", "actor")]

    assert fits == [True, True, False]
