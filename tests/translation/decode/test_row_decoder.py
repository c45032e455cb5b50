from __future__ import annotations

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.translation.decode import row_decoder
from otel_bridge.translation.decode.row_decoder import RowDecoder
from otel_bridge.translation.decode.rows import RowFragment, fragments_of
from support.encoded_rows import encode_row
from support.otlp.otlp_samples import T0, row

KEYS = st.text(min_size=1, max_size=12).filter(lambda key: key != "rl.row")
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.floats(allow_nan=True) | INTEGERS


class NoProtobuf:
    @staticmethod
    def FromString(payload: bytes) -> pb.ScopeMetrics:
        raise AssertionError(f"read by protobuf: {payload!r}")


def content(fragment: RowFragment) -> tuple[object, ...]:
    """Return all of a row, with the bits of its numbers, since NaN equals nothing."""
    bits = [
        (key, struct.pack("<d", value) if isinstance(value, float) else value)
        for key, value in fragment.values.items()
    ]
    return (
        fragment.role,
        fragment.step,
        fragment.time_ns,
        fragment.seq,
        fragment.value_count,
        fragment.own_ns,
        bits,
    )


def by_protobuf(payload: bytes, role: str | None, rank: int) -> list[object]:
    message = pb.ScopeMetrics.FromString(payload)
    return [*map(content, fragments_of(message, role, rank)[0])]


@given(
    st.data(),
    st.lists(KEYS, min_size=1, max_size=6, unique=True),
    st.sampled_from([None, "trainer"]),
    st.none() | st.text(min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_a_frame_is_read_as_protobuf_reads_it_whatever_was_learned(
    data: st.DataObject, keys: list[str], role: str | None, other: str | None, rank: int
) -> None:
    decoder = RowDecoder(role, rank)
    for _ in range(4):
        payload = encode_row(
            {key: data.draw(VALUES) for key in keys},
            data.draw(st.integers(1, (1 << 63) - 1)),
            data.draw(st.integers(0, 300) | INTEGERS),
            other,
            data.draw(st.integers(1, 300) | st.integers(1, 1 << 62)),
        )
        rows, others = decoder.read(payload)
        assert [*map(content, rows)] == by_protobuf(payload, role, rank)
        assert list(others) == []


def test_a_shape_that_came_once_is_read_without_protobuf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = RowDecoder("trainer", 0)
    nan = float("nan")
    decoder.read(encode_row({"loss": nan, "tokens": 3, "lr": 0.0}, T0, 300, None, 7))
    monkeypatch.setattr(row_decoder, "ScopeMetrics", NoProtobuf)

    payload = encode_row(
        {"loss": nan, "tokens": -5, "lr": 1e-9}, T0 + 9, 16_000, None, 100
    )
    rows, _ = decoder.read(payload)

    assert [*map(content, rows)] == by_protobuf(payload, "trainer", 0)


@pytest.mark.parametrize(
    "other",
    [
        row(9, {"loss": 1.0, "lr": 2}),
        row(9, {"loss": 1.0, "lR": 2.0}),
        row(200, {"loss": 1.0, "lr": 2.0}),
        row(9, {"loss": 1.0, "lr": 2.0}, step=200),
        row(9, {"loss": 1.0, "lr": 2.0}, role="judge"),
        row(9, {"loss": 1.0}),
    ],
)
def test_another_shape_is_read_by_protobuf(other: pb.ScopeMetrics) -> None:
    decoder = RowDecoder(None, 0)
    decoder.read(row(5, {"loss": 1.0, "lr": 2.0}).SerializeToString())
    payload = other.SerializeToString()

    rows, _ = decoder.read(payload)

    assert [*map(content, rows)] == by_protobuf(payload, None, 0)


def test_points_that_differ_in_time_or_step_are_not_joined() -> None:
    decoder = RowDecoder(None, 0)
    learned = row(5, {"loss": 1.0, "lr": 2.0})
    decoder.read(learned.SerializeToString())
    later = pb.ScopeMetrics()
    later.CopyFrom(learned)
    later.metrics[1].gauge.data_points[0].time_unix_nano += 1
    stepped = pb.ScopeMetrics()
    stepped.CopyFrom(learned)
    stepped.metrics[0].gauge.data_points[0].attributes[0].value.int_value += 1

    for scope in (later, stepped):
        payload = scope.SerializeToString()
        rows, _ = decoder.read(payload)
        assert [*map(content, rows)] == by_protobuf(payload, None, 0)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_frame_with_a_changed_byte_is_read_as_protobuf_reads_it_or_refused(
    place: int, change: int
) -> None:
    values = {"loss": 1.5, "tokens": 3, "actor/lr": 1e-6}
    payload = bytearray(encode_row(values, T0, 300, "judge", 200))
    decoder = RowDecoder("trainer", 0)
    decoder.read(bytes(payload))
    payload[place % len(payload)] ^= change

    try:
        rows, _ = decoder.read(bytes(payload))
    except DecodeError:
        return

    assert [*map(content, rows)] == by_protobuf(bytes(payload), "trainer", 0)


def test_what_is_learned_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [row(1, {f"key-{n}": 1.0}).SerializeToString() for n in range(10, 20)]
    monkeypatch.setattr(row_decoder, "_MAX_LEARNED_BYTES", 3 * len(frames[0]))
    decoder = RowDecoder(None, 0)
    for payload in frames:
        decoder.read(payload)
    monkeypatch.setattr(row_decoder, "ScopeMetrics", NoProtobuf)

    for payload in frames[:3]:
        decoder.read(payload)
    with pytest.raises(AssertionError, match="read by protobuf"):
        decoder.read(frames[3])


def test_bytes_that_are_not_message_are_refused() -> None:
    with pytest.raises(DecodeError):
        RowDecoder(None, 0).read(b"\x0a\xff")
