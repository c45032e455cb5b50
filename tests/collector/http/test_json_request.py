from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError
from otel_bridge_collector.http.json_request import message_of

_IDS = {"traceId", "spanId", "parentSpanId"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
DOUBLES = st.floats().map(
    lambda value: math.nan if math.isnan(value) else value
)  # JSON has one NaN
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
VALUES = st.recursive(
    st.one_of(
        st.just({}),
        st.fixed_dictionaries({"string_value": TEXT}),
        st.fixed_dictionaries({"bool_value": st.booleans()}),
        st.fixed_dictionaries({"int_value": INT64}),
        st.fixed_dictionaries({"double_value": DOUBLES}),
        st.fixed_dictionaries({"bytes_value": st.binary(max_size=5)}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {
                "array_value": st.fixed_dictionaries(
                    {"values": st.lists(inner, max_size=3)}
                )
            }
        ),
        st.fixed_dictionaries(
            {
                "kvlist_value": st.fixed_dictionaries(
                    {
                        "values": st.lists(
                            st.fixed_dictionaries({"key": TEXT, "value": inner}),
                            max_size=2,
                        )
                    }
                )
            }
        ),
    ),
    max_leaves=4,
)
ATTRIBUTES = st.lists(st.fixed_dictionaries({"key": TEXT, "value": VALUES}), max_size=2)
NUMBERS = st.fixed_dictionaries(
    {"time_unix_nano": UINT64, "attributes": ATTRIBUTES},
    optional={"flags": st.integers(0, 2**32 - 1), "start_time_unix_nano": UINT64},
).flatmap(
    lambda base: st.one_of(
        st.just(base),
        DOUBLES.map(lambda x: {**base, "as_double": x}),
        INT64.map(lambda x: {**base, "as_int": x}),
    )
)
HISTOGRAMS = st.fixed_dictionaries(
    {
        "count": UINT64,
        "bucket_counts": st.lists(UINT64, max_size=3),
        "explicit_bounds": st.lists(DOUBLES, max_size=3),
    },
    optional={"sum": DOUBLES, "min": DOUBLES, "max": DOUBLES},
)
EXPONENTIAL = st.fixed_dictionaries(
    {
        "scale": st.integers(-(2**31), 2**31 - 1),
        "zero_count": UINT64,
        "positive": st.fixed_dictionaries(
            {
                "offset": st.integers(-99, 99),
                "bucket_counts": st.lists(UINT64, max_size=3),
            }
        ),
    }
)
KINDS = st.one_of(
    st.fixed_dictionaries(
        {"gauge": st.fixed_dictionaries({"data_points": st.lists(NUMBERS, max_size=3)})}
    ),
    st.fixed_dictionaries(
        {
            "sum": st.fixed_dictionaries(
                {
                    "data_points": st.lists(NUMBERS, max_size=2),
                    "is_monotonic": st.booleans(),
                    "aggregation_temporality": st.integers(0, 2),
                }
            )
        }
    ),
    st.fixed_dictionaries(
        {
            "histogram": st.fixed_dictionaries(
                {"data_points": st.lists(HISTOGRAMS, max_size=2)}
            )
        }
    ),
    st.fixed_dictionaries(
        {
            "exponential_histogram": st.fixed_dictionaries(
                {"data_points": st.lists(EXPONENTIAL, max_size=2)}
            )
        }
    ),
)
METRICS = st.tuples(TEXT, KINDS).map(lambda pair: {"name": pair[0], **pair[1]})
SPANS = st.fixed_dictionaries(
    {
        "trace_id": st.binary(min_size=16, max_size=16),
        "span_id": st.binary(min_size=8, max_size=8),
        "parent_span_id": st.one_of(st.just(b""), st.binary(min_size=8, max_size=8)),
        "name": TEXT,
        "kind": st.integers(0, 5),
        "attributes": ATTRIBUTES,
        "status": st.fixed_dictionaries({"code": st.integers(0, 2), "message": TEXT}),
        "links": st.lists(
            st.fixed_dictionaries({"trace_id": st.binary(min_size=16, max_size=16)}),
            max_size=1,
        ),
    }
)
LOGS = st.fixed_dictionaries(
    {"body": VALUES, "severity_number": st.integers(0, 24), "event_name": TEXT}
)


def resources(
    name: str, scope: str, items: str, one: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    scopes = st.lists(
        st.fixed_dictionaries({items: st.lists(one, max_size=3)}), max_size=2
    )
    resource = st.fixed_dictionaries({"attributes": ATTRIBUTES})
    return st.fixed_dictionaries(
        {
            name: st.lists(
                st.fixed_dictionaries({"resource": resource, scope: scopes}), max_size=2
            )
        }
    )


def as_otlp_json(message: Message) -> bytes:
    """By protobuf's own JSON, changed where OTLP says so."""

    def otlp(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: _hex(item) if key in _IDS else otlp(item)
                for key, item in value.items()
            }
        return [otlp(item) for item in value] if isinstance(value, list) else value

    raw = json_format.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(otlp(raw)).encode()


def _hex(base: str) -> str:
    return base64.b64decode(base).hex()


@settings(max_examples=150)
@given(
    st.one_of(
        st.tuples(
            st.just(ExportMetricsServiceRequest),
            resources("resource_metrics", "scope_metrics", "metrics", METRICS),
        ),
        st.tuples(
            st.just(ExportTraceServiceRequest),
            resources("resource_spans", "scope_spans", "spans", SPANS),
        ),
        st.tuples(
            st.just(ExportLogsServiceRequest),
            resources("resource_logs", "scope_logs", "log_records", LOGS),
        ),
    )
)
def test_json_says_the_same_as_protobuf(
    case: tuple[type[Message], dict[str, Any]],
) -> None:
    kind, fields = case
    message = kind(**fields)

    read = message_of(kind, as_otlp_json(message))

    # Bytes, for NaN is not equal to itself.
    assert read.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )


def points(text: str) -> Any:
    body = f'{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"gauge":{{"dataPoints":[{text}]}}}}]}}]}}]}}'
    request = message_of(ExportMetricsServiceRequest, body.encode())
    return request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0]


def test_numbers_come_as_text_or_number_and_unknown_keys_are_passed_over() -> None:
    assert points('{"asInt":"-5","timeUnixNano":7}').as_int == -5
    assert points('{"asInt":5.0,"timeUnixNano":7,"new":{"a":[1]}}').as_int == 5
    assert (
        points('{"asDouble":3,"timeUnixNano":"18446744073709551615"}').time_unix_nano
        == 2**64 - 1
    )
    assert math.isnan(points('{"asDouble":"NaN"}').as_double)
    assert points('{"asDouble":"-Infinity"}').as_double == -math.inf
    assert points('{"asDouble":null}').WhichOneof("value") is None


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ('{"asInt":"x"}', "dataPoints field: Failed to parse asInt field: .*'x'"),
        ('{"asInt":true}', r"True is not acceptable .*dataPoints\[0\]\.asInt"),
        ('{"asInt":1.5}', "parse integer: 1.5"),
        ('{"asInt":99999999999999999999}', "asInt field: .*out of range"),
        ('{"timeUnixNano":-1}', "timeUnixNano field: .*out of range"),
        ('{"asDouble":"1e"}', "parse float: 1e"),
        ('{"asDouble":1,"asInt":2}', 'multiple "value" oneof fields'),
        ('{"attributes":{}}', r"repeated field attributes must be in \[\]"),
        ('{"attributes":["a"]}', r"attributes\[0\]: expected an object, got 'a'$"),
        (
            '{"attributes":[{"value":"text"}]}',
            r"attributes\[0\]\.value: expected an object, got 'text'$",
        ),
        ('{"attributes":[{"key":5}]}', "key field: .*got 'int'"),
        (
            '{"attributes":[{"value":{"bytesValue":"*"}}]}',
            r"bytesValue: expected base64, got '\*'$",
        ),
        ("[]", "expected an object, got list$"),
        ('{"asDouble":NaN}', "not JSON"),
        ('{"asInt":' + "[" * 900 + "]" * 900 + "}", "not 'list'"),
        ('{"asInt":{"a":1,"b":2}}', "not 'dict'"),
        ('{"attributes":' + json.dumps("a" * 100) + "}", r"an object, got 'a{38}…$"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_and_the_reason_says_where(
    point: str, reason: str
) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        points(point)


@pytest.mark.parametrize(
    ("begin", "end", "levels"),
    [
        ('{"arrayValue":{"values":[', "]}}", 60),
        # An object in place of the list: more messages than Python's stack has levels.
        ('{"arrayValue":{"values":', "}}", 500),
    ],
)
def test_messages_that_nest_too_deep_are_refused_for_good(
    begin: str, end: str, levels: int
) -> None:
    value = begin * levels + "{}" + end * levels

    with pytest.raises(TooLargeError, match="nests deeper than 100 messages"):
        points('{"attributes":[{"value":' + value + "}]}")


@pytest.mark.parametrize(
    "span", ['{"traceId":"xyz"}', '{"kind":"SPAN_KIND_OTHER"}', '{"spanId":7}']
)
def test_ids_are_hex_and_an_unknown_enum_is_refused(span: str) -> None:
    body = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}'

    with pytest.raises(InvalidRecordError, match=r"hex|enum"):
        message_of(ExportTraceServiceRequest, body.encode())


def test_a_reason_does_not_repeat_a_large_value() -> None:
    body = json.dumps({"resourceMetrics": [{"schemaUrl": ["a" * 10_000]}]})

    with pytest.raises(InvalidRecordError) as refusal:
        message_of(ExportMetricsServiceRequest, body.encode())

    assert len(str(refusal.value)) < 500


KEYS = st.sampled_from(
    [
        "resourceMetrics",
        "scopeMetrics",
        "metrics",
        "gauge",
        "dataPoints",
        "asInt",
        "attributes",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(KEYS, x, max_size=3)
)


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=40), ANYTHING.map(lambda value: json.dumps(value).encode())
    )
)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read = message_of(ExportMetricsServiceRequest, body)
    except InvalidRecordError:
        return
    assert (
        ExportMetricsServiceRequest.FromString(read.SerializeToString()).ByteSize()
        == read.ByteSize()
    )
