"""OTLP messages in few words: attributes, points, native rows, spans, events. Deterministic; times are nanoseconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Distribution, Json, Value

OURS = InstrumentationScope(name=semconv.SCOPE_NAME)
CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = pb.AGGREGATION_TEMPORALITY_DELTA


def any_value(value: Json) -> AnyValue:
    """Return *value* as OTLP has it."""
    match value:
        case bool():
            made = AnyValue(bool_value=value)
        case int():
            made = AnyValue(int_value=value)
        case float():
            made = AnyValue(double_value=value)
        case str():
            made = AnyValue(string_value=value)
        case dict():
            made = AnyValue(kvlist_value=KeyValueList(values=pairs(value)))
        case list():
            made = AnyValue(
                array_value=ArrayValue(values=[any_value(item) for item in value])
            )
        case None:
            made = AnyValue()
    return made


def pairs(attributes: Mapping[str, Json]) -> list[KeyValue]:
    """Return attributes as OTLP has them."""
    return [
        KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()
    ]


def resource(attributes: Mapping[str, Json]) -> Resource:
    """Return a resource."""
    return Resource(attributes=pairs(attributes))


def gauge(
    name: str, value: float, time_ns: int, attributes: Mapping[str, Json]
) -> pb.Metric:
    """Return a gauge of one point."""
    return pb.Metric(
        name=name, gauge=pb.Gauge(data_points=[_number(value, time_ns, attributes)])
    )


def counter(
    name: str,
    value: float,
    time_ns: int,
    *,
    delta: bool,
    attributes: Mapping[str, Json],
) -> pb.Metric:
    """Return a monotonic sum of one point."""
    temporality = DELTA if delta else CUMULATIVE
    points = [_number(value, time_ns, attributes)]
    return pb.Metric(
        name=name,
        sum=pb.Sum(
            data_points=points, aggregation_temporality=temporality, is_monotonic=True
        ),
    )


def _number(
    value: float, time_ns: int, attributes: Mapping[str, Json]
) -> pb.NumberDataPoint:
    point = pb.NumberDataPoint(attributes=pairs(attributes), time_unix_nano=time_ns)
    if isinstance(value, int):
        point.as_int = int(value)
    else:
        point.as_double = value
    return point


def exponential(
    name: str, numbers: Sequence[float], time_ns: int, attributes: Mapping[str, Json]
) -> pb.Metric:
    """Return the exponential histogram (scale 0) of positive *numbers*."""
    indexes = [math.ceil(math.log2(number)) - 1 for number in numbers]
    counts = [indexes.count(index) for index in range(min(indexes), max(indexes) + 1)]
    point = pb.ExponentialHistogramDataPoint(
        attributes=pairs(attributes), time_unix_nano=time_ns, count=len(numbers), sum=math.fsum(numbers),
        min=min(numbers), max=max(numbers), scale=0,
        positive=pb.ExponentialHistogramDataPoint.Buckets(offset=min(indexes), bucket_counts=counts),
    )  # fmt: skip
    return pb.Metric(
        name=name, exponential_histogram=pb.ExponentialHistogram(data_points=[point])
    )


def explicit(
    name: str, numbers: Sequence[float], time_ns: int, attributes: Mapping[str, Json]
) -> pb.Metric:
    """Return the histogram of *numbers* with one bound between its smallest and largest."""
    bound = (min(numbers) + max(numbers)) / 2
    below = sum(number <= bound for number in numbers)
    point = pb.HistogramDataPoint(
        attributes=pairs(attributes), time_unix_nano=time_ns, count=len(numbers), sum=math.fsum(numbers),
        min=min(numbers), max=max(numbers), explicit_bounds=[bound], bucket_counts=[below, len(numbers) - below],
    )  # fmt: skip
    return pb.Metric(
        name=name,
        histogram=pb.Histogram(data_points=[point], aggregation_temporality=CUMULATIVE),
    )


def summary(
    name: str,
    total: tuple[int, float],
    quantiles: Mapping[float, float],
    time_ns: int,
    attributes: Mapping[str, Json],
) -> pb.Metric:
    """Return a summary of one point; *total* is count and sum."""
    listed = [
        pb.SummaryDataPoint.ValueAtQuantile(quantile=q, value=value)
        for q, value in quantiles.items()
    ]
    point = pb.SummaryDataPoint(
        attributes=pairs(attributes),
        time_unix_nano=time_ns,
        count=total[0],
        sum=total[1],
        quantile_values=listed,
    )
    return pb.Metric(name=name, summary=pb.Summary(data_points=[point]))


def row(
    seq: int,
    step: int,
    values: Mapping[str, Value],
    time_ns: int,
    *,
    role: str | None = None,
) -> list[pb.Metric]:
    """Return one native row, a metric a value and ``rl.row``; *role* only when it differs from the resource's."""
    where: dict[str, Json] = {
        semconv.STEP: step,
        **({semconv.ROLE: role} if role else {}),
    }
    metrics = [
        exponential(key, _spread(value), time_ns, where)
        if isinstance(value, Distribution)
        else gauge(key, value, time_ns, where)
        for key, value in values.items()
    ]
    return [
        *metrics,
        gauge(semconv.ROW, len(values), time_ns, {**where, semconv.SEQ: seq}),
    ]


def numbers_of(low: float, high: float, count: int) -> Distribution:
    """Return the distribution of *count* numbers evenly from *low* to *high*; see `row`."""
    given = Distribution(count, 0.0, low, high)
    return Distribution(count, math.fsum(_spread(given)), low, high)


def _spread(given: Distribution) -> list[float]:
    width = (given.max - given.min) / max(given.count - 1, 1)
    return [given.min + n * width for n in range(given.count - 1)] + [given.max]


def scope(
    metrics: Iterable[pb.Metric], name: str = semconv.SCOPE_NAME
) -> pb.ScopeMetrics:
    """Return metrics under a scope."""
    return pb.ScopeMetrics(scope=InstrumentationScope(name=name), metrics=list(metrics))


def event(
    name: str,
    time_ns: int,
    attributes: Mapping[str, Json],
    body: Json = None,
    trace_id: str = "",
) -> LogRecord:
    """Return a log event."""
    record = LogRecord(
        time_unix_nano=time_ns, observed_time_unix_nano=time_ns, event_name=name, attributes=pairs(attributes),
        trace_id=bytes.fromhex(trace_id),
    )  # fmt: skip
    if body is not None:
        record.body.CopyFrom(any_value(body))
    return record


def rollout_spans(
    trace_id: str, start_ns: int, facts: Mapping[str, Json], messages: Sequence[str]
) -> list[Span]:
    """Return a rollout: its root with *facts*, and a ``chat`` span below it; *messages* are question and answer."""
    prompt = [{"role": "user", "parts": [{"type": "text", "content": messages[0]}]}]
    answer = [
        {"role": "assistant", "parts": [{"type": "text", "content": messages[1]}]}
    ]
    content: dict[str, Json] = {
        semconv.GEN_AI_INPUT_MESSAGES: json.dumps(prompt), semconv.GEN_AI_OUTPUT_MESSAGES: json.dumps(answer),
    }  # fmt: skip
    chat: dict[str, Json] = {
        semconv.GEN_AI_OPERATION: semconv.OPERATION_CHAT,
        semconv.GEN_AI_REQUEST_MODEL: "policy",
    }
    root: dict[str, Json] = {
        **facts,
        semconv.ROLLOUT_ID: trace_id,
        semconv.SPAN_COUNT: 2,
        **content,
    }
    trace, parent = bytes.fromhex(trace_id), bytes.fromhex(trace_id[:16])
    return [
        Span(
            trace_id=trace, span_id=parent, name=semconv.ROLLOUT_SPAN, start_time_unix_nano=start_ns,
            end_time_unix_nano=start_ns + 2_000_000, attributes=pairs(root),
        ),
        Span(
            trace_id=trace, span_id=bytes.fromhex(trace_id[16:]), parent_span_id=parent, name="chat policy",
            start_time_unix_nano=start_ns + 1_000_000, end_time_unix_nano=start_ns + 1_500_000,
            attributes=pairs({**chat, **content}),
        ),
    ]  # fmt: skip
