from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_bridge.records import Row
from otel_bridge.translation.decode.requests import resource_parts
from otel_bridge.translation.decode.rows import RowDecoder
from support.otlp.otlp_samples import (
    T0,
    Bench,
    gauge,
    metrics_request,
    row,
    source,
    third_party,
    who,
)


def rows_of(records: object) -> list[tuple[str, int | None, dict[str, object]]]:
    assert isinstance(records, list)
    return [(one.id, one.step, dict(one.values)) for one in records if isinstance(one, Row)]


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 0x7F | 0x80, number >> 7])


def test_a_request_is_parted_as_protobuf_parts_it() -> None:
    payload = metrics_request(
        (who(), [row(1, {"loss": 1.0}), third_party(gauge("x", 1.0, T0, {"a" * 300: "b"}))]),
        (who("i2"), []),
        ({}, []),
    )

    parts = resource_parts(payload)

    message = ExportMetricsServiceRequest.FromString(payload)
    assert parts == [
        (
            one.resource.SerializeToString(),
            [scope.SerializeToString() for scope in one.scope_metrics],
        )
        for one in message.resource_metrics
    ]


@given(
    st.lists(
        st.sampled_from([0x0A, 0x12, 0x1A, 0x00, 0x02, 0x04, 0x08, 0x80, 0x01]), max_size=24
    ).map(bytes)
)
def test_of_any_bytes_the_parts_are_protobufs_or_none(payload: bytes) -> None:
    parts = resource_parts(payload)

    try:
        message = ExportMetricsServiceRequest.FromString(payload)
    except DecodeError:
        return
    assert parts is None or [len(scopes) for _, scopes in parts] == [
        len(one.scope_metrics) for one in message.resource_metrics
    ]


@pytest.mark.parametrize(
    "unusual",
    [
        b"\x0a",  # cut
        b"\x0a\x05\x0a\x01",  # longer than what there is
        b"\x12\x00",  # a field of a later version
        b"\x0a\x04\x0a\x00\x0a\x00",  # a resource in two pieces
        b"\x08\x01",  # no message
        b"\x0a\xff\xff\xff\xff\xff\xff\x01",
    ],
)
def test_anything_unusual_is_left_to_protobuf(unusual: bytes) -> None:
    assert resource_parts(unusual) is None


@given(st.permutations(range(1, 13)), st.lists(st.integers(1, 12), max_size=6), st.integers(1, 4))
def test_rows_in_requests_are_the_same_in_any_order_cut_and_number(
    order: list[int], again: list[int], size: int
) -> None:
    bench, sent = Bench(), [*order, *again]
    records: list[object] = []

    for start in range(0, len(sent), size):
        scopes = [row(seq, {"loss": seq / 2, "left": 1.0}) for seq in sent[start : start + size]]
        records += bench.request(metrics_request((who(), scopes)))

    assert rows_of(records) == [
        (f"m:i1:{seq}", seq, {"trainer/loss": seq / 2, "trainer/left": 1.0}) for seq in range(1, 13)
    ]


def test_rows_of_a_request_are_read_by_their_learned_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    slow: list[bytes] = []
    monkeypatch.setattr(RowDecoder, "slow", lambda _, payload: (slow.append(payload), [])[1:] * 2)

    records = bench.request(metrics_request((who(), [row(seq, {"loss": 2.0}) for seq in (2, 3)])))

    assert ([one[0] for one in rows_of(records)], slow) == (["m:i1:2", "m:i1:3"], [])


def test_of_a_request_that_cannot_be_decoded_nothing_is_taken() -> None:
    bench = Bench()
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))
    whole = metrics_request((who(), [row(2, {"loss": 2.0})]))
    message = ExportMetricsServiceRequest.FromString(whole).resource_metrics[0].SerializeToString()
    scope = b"\x12\x02\x12\x09"  # one whose metric is longer than it
    damaged = b"\x0a" + varint(len(message) + len(scope)) + message + scope

    refused = bench.request(damaged)
    taken = bench.request(whole)

    assert (refused, [one[0] for one in rows_of(taken)]) == ([], ["m:i1:2"])
    assert bench.state.get("drop/undecodable") == 1


def test_a_process_that_sends_in_requests_of_its_own_segment_keeps_its_number() -> None:
    bench = Bench()
    own = source()

    records = bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])), sender=own)
    records += bench.request(metrics_request((who(), [row(2, {"loss": 2.0})])), sender=own)

    assert [one[0] for one in rows_of(records)] == ["m:i1:1", "m:i1:2"]
