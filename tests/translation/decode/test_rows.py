from __future__ import annotations

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.emit.encode.row import RowEncoder
from otel_bridge.translation.decode.rows import RowDecoder, RowFragment
from support.otlp.otlp_samples import SCOPE, T0, row

KEYS = st.lists(
    st.text(min_size=1, max_size=12).filter(lambda key: key != "rl.row"),
    min_size=1,
    max_size=6,
    unique=True,
)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.floats(allow_nan=True) | INTEGERS
STEPS = st.integers(0, 300) | INTEGERS
NUMBERS = st.integers(1, (1 << 62))
TIMES = st.integers(1, (1 << 63) - 1)


def written(piece: RowFragment) -> tuple[object, ...]:
    """All of a row, NaN and the type of a number included."""
    bits = [
        (
            key,
            type(value),
            struct.pack("<d", value) if isinstance(value, float) else value,
        )
        for key, value in piece.values.items()
    ]
    return (piece.role, piece.step, piece.time_ns, piece.seq, bits)


def fast(decoder: RowDecoder, payload: bytes) -> tuple[object, ...] | None:
    found = decoder.fast(payload)
    if found is None:
        return None
    learned, (time_ns, step, seq, values) = found
    return written(RowFragment(learned.role, step, time_ns, seq, len(values), values))


def slow(payload: bytes, role: str | None, rank: int) -> list[tuple[object, ...]]:
    return [written(piece) for piece in RowDecoder(role, rank).slow(payload)[0]]


@given(
    st.data(),
    KEYS,
    st.none() | st.text(max_size=5),
    st.none() | st.text(min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_fast_reads_what_slow_reads_or_nothing(
    data: st.DataObject, keys: list[str], role: str | None, other: str | None, rank: int
) -> None:
    decoder = RowDecoder(role or None, rank)
    encode = RowEncoder().encode
    payloads = [
        encode(
            {key: data.draw(VALUES) for key in keys},
            data.draw(TIMES),
            data.draw(STEPS),
            other,
            data.draw(NUMBERS),
        )
        for _ in range(3)
    ]

    for payload in payloads:
        decoder.slow(payload)

    for payload in payloads:
        assert fast(decoder, payload) in (None, *slow(payload, role or None, rank))


def test_a_shape_that_came_once_is_read_fast_with_other_values_times_steps_and_numbers() -> (
    None
):
    decoder = RowDecoder("trainer", 0)
    encode = RowEncoder().encode
    decoder.slow(encode({"loss": 1.0, "tokens": 3, "lr": 0.0}, T0, 300, None, 7))

    found = fast(
        decoder,
        encode(
            {"loss": float("nan"), "tokens": -5, "lr": 1e-9}, T0 + 9, 16_000, None, 100
        ),
    )

    nan = struct.pack("<d", float("nan"))
    values = [
        ("trainer/loss", float, nan),
        ("trainer/tokens", int, -5),
        ("trainer/lr", float, struct.pack("<d", 1e-9)),
    ]
    assert found == ("trainer", 16_000, T0 + 9, 100, values)


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
def test_another_shape_is_left_to_protobuf(other: pb.ScopeMetrics) -> None:
    decoder = RowDecoder(None, 0)
    decoder.slow(row(5, {"loss": 1.0, "lr": 2.0}).SerializeToString())

    assert decoder.fast(other.SerializeToString()) is None


def test_a_frame_whose_points_differ_in_time_or_step_is_left_to_protobuf() -> None:
    decoder = RowDecoder(None, 0)
    one = row(5, {"loss": 1.0, "lr": 2.0})
    decoder.slow(one.SerializeToString())
    later, stepped = pb.ScopeMetrics(), pb.ScopeMetrics()
    later.CopyFrom(one)
    later.metrics[1].gauge.data_points[0].time_unix_nano += 1
    stepped.CopyFrom(one)
    stepped.metrics[0].gauge.data_points[0].attributes[0].value.int_value += 1

    assert decoder.fast(one.SerializeToString()) is not None
    assert [decoder.fast(scope.SerializeToString()) for scope in (later, stepped)] == [
        None,
        None,
    ]


def test_a_frame_with_its_number_before_its_step_is_left_to_protobuf() -> None:
    decoder = RowDecoder(None, 0)
    scope = row(5, {"loss": 1.0})
    attributes = scope.metrics[-1].gauge.data_points[0].attributes
    attributes.sort(key=lambda pair: pair.key != "rl.seq")
    payload = scope.SerializeToString()

    fragments, _ = decoder.slow(payload)

    assert [(piece.step, piece.seq, piece.values) for piece in fragments] == [
        (5, 5, {"loss": 1.0})
    ]
    assert decoder.fast(payload) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_of_a_frame_with_a_changed_byte_fast_reads_what_slow_reads_or_nothing(
    place: int, change: int
) -> None:
    payload = bytearray(
        RowEncoder().encode(
            {"loss": 1.5, "tokens": 3, "actor/lr": 1e-6}, T0, 300, "judge", 200
        )
    )
    decoder = RowDecoder("trainer", 0)
    decoder.slow(bytes(payload))
    payload[place % len(payload)] ^= change

    found = fast(decoder, bytes(payload))

    if found is not None:
        assert [found] == slow(bytes(payload), "trainer", 0)


def test_ever_new_shapes_take_no_more_than_the_bound() -> None:
    decoder = RowDecoder(None, 0, max_bytes=20_000, max_shapes=8)
    shapes = [
        row(1, {f"key-{number}": 1.0}).SerializeToString() for number in range(50)
    ]

    for payload in shapes:
        decoder.slow(payload)

    fast_ones = [
        number
        for number, payload in enumerate(shapes)
        if decoder.fast(payload) is not None
    ]
    assert fast_ones == list(range(42, 50))


def test_shapes_that_never_come_again_are_not_learned_for_ever() -> None:
    decoder = RowDecoder(None, 0)
    shapes = [
        row(1, {f"key-{number}": 1.0}).SerializeToString() for number in range(300)
    ]

    for payload in shapes:
        decoder.slow(payload)

    assert sum(decoder.fast(payload) is not None for payload in shapes[200:]) == 0


def test_a_row_of_ten_thousand_keys_is_read_fast_too() -> None:
    decoder = RowDecoder(None, 0, max_bytes=8 << 20)
    first = row(
        1, {f"expert/{number}/load": float(number) for number in range(10_000)}
    ).SerializeToString()
    second = row(
        2, {f"expert/{number}/load": -float(number) for number in range(10_000)}
    ).SerializeToString()

    decoder.slow(first)

    assert [fast(decoder, second)] == slow(second, None, 0)


def test_bytes_that_are_not_message_are_refused() -> None:
    with pytest.raises(DecodeError):
        RowDecoder(None, 0).slow(b"\x0a\xff")


def test_a_message_of_many_rows_is_read_as_many_rows_in_the_order_of_their_times() -> (
    None
):
    merged = pb.ScopeMetrics(
        scope=SCOPE, metrics=[*row(2, {"a": 2.0}).metrics, *row(1, {"a": 1.0}).metrics]
    )

    pieces, others = RowDecoder("trainer", 0).slow(merged.SerializeToString())

    assert pieces == [
        RowFragment("trainer", seq, T0 + seq, seq, 1, {"trainer/a": float(seq)})
        for seq in (1, 2)
    ]
    assert list(others) == []
