from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError
from otel_bridge_collector.export_request import parts


def varint(number: int) -> bytes:
    return (
        b""
        if number < 0
        else (
            bytes([number])
            if number < 128
            else bytes([number & 127 | 128]) + varint(number >> 7)
        )
    )


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300), max_size=3
)


def request(names: list[str]) -> ExportLogsServiceRequest:
    message = ExportLogsServiceRequest()
    for name in names:
        part = message.resource_logs.add(schema_url="https://example.org/1")
        part.resource.attributes.append(
            KeyValue(key="service.name", value=AnyValue(string_value=name))
        )
        part.scope_logs.add().log_records.add(body=AnyValue(string_value=name * 3))
    return message


@given(TEXTS)
def test_each_resource_is_found_with_the_field_that_holds_all_of_it(
    names: list[str],
) -> None:
    message = request(names)

    found = list(parts(message.SerializeToString()))

    assert [Resource.FromString(resource) for resource, _ in found] == [
        one.resource for one in message.resource_logs
    ]
    assert (
        ExportLogsServiceRequest.FromString(b"".join(part for _, part in found))
        == message
    )


def test_unknown_fields_are_passed_over_and_a_resource_in_two_pieces_is_joined() -> (
    None
):
    first, second = (
        Resource(attributes=[KeyValue(key=key)]).SerializeToString() for key in "ab"
    )
    inner = b"".join(
        (
            b"\x0a",
            bytes([len(first)]),
            first,
            b"\x9d\x01abcd",
            b"\x0a",
            bytes([len(second)]),
            second,
        )
    )
    body = b"".join(
        (
            b"\x98\x01\x05",
            b"\x91\x0112345678",
            b"\x0a",
            bytes([len(inner)]),
            inner,
        )
    )
    ExportLogsServiceRequest.FromString(body)

    ((resource, part),) = parts(body)

    assert [one.key for one in Resource.FromString(resource).attributes] == ["a", "b"]
    assert part == b"\x0a" + bytes([len(inner)]) + inner


@settings(max_examples=300)
@given(st.binary(max_size=30))
def test_any_bytes_are_walked_or_refused(body: bytes) -> None:
    try:
        assert all(part in body for _, part in parts(body))
    except InvalidRecordError:
        return


MANY = 100_001
BOMBS = {
    "resources": b"\x0a\x00" * MANY,
    "scopes": b"\x0a" + varint(2 * MANY) + b"\x12\x00" * MANY,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_more_fields_than_anybody_sends_are_refused_before_they_are_built(
    bomb: str,
) -> None:
    with pytest.raises(TooLargeError, match="more than 100000 resources and scopes"):
        list(parts(BOMBS[bomb]))
