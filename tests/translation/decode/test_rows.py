from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.translation.decode.rows import RowFragment, fragments_of, full_key
from support.encoded_rows import encode_row
from support.otlp.otlp_samples import SCOPE, T0, row

KEYS = st.text(min_size=1, max_size=12).filter(lambda key: key != "rl.row")
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


def fragments(payload: bytes, role: str | None, rank: int = 0) -> list[RowFragment]:
    rows, others = fragments_of(pb.ScopeMetrics.FromString(payload), role, rank)
    assert list(others) == []
    return rows


@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=6),
    TIMES,
    STEPS,
    NUMBERS,
    st.sampled_from([None, "judge"]),
)
def test_a_row_is_read_as_it_was_logged(
    values: dict[str, float],
    time_ns: int,
    step: int,
    seq: int,
    role: str | None,
) -> None:
    payload = encode_row(values, time_ns, step, role, seq)

    (fragment,) = fragments(payload, "trainer")

    name = role or "trainer"
    logged = {full_key(name, key): value for key, value in values.items()}
    expected = RowFragment(name, step, time_ns, seq, len(values), logged)
    if len(logged) == len(values):
        assert written(fragment) == written(expected)
    assert fragment.whole


def test_a_frame_with_its_number_before_its_step_is_read_too() -> None:
    scope = row(5, {"loss": 1.0})
    attributes = scope.metrics[-1].gauge.data_points[0].attributes
    attributes.sort(key=lambda pair: pair.key != "rl.seq")

    (fragment,) = fragments(scope.SerializeToString(), None)

    assert (fragment.step, fragment.seq, fragment.values) == (5, 5, {"loss": 1.0})


def test_a_message_of_many_rows_is_read_as_many_rows_in_the_order_of_their_times() -> (
    None
):
    merged = pb.ScopeMetrics(
        scope=SCOPE, metrics=[*row(2, {"a": 2.0}).metrics, *row(1, {"a": 1.0}).metrics]
    )

    pieces = fragments(merged.SerializeToString(), "trainer")

    assert pieces == [
        RowFragment("trainer", seq, T0 + seq, seq, 1, {"trainer/a": float(seq)})
        for seq in (1, 2)
    ]


@pytest.mark.parametrize("number", [{"double_value": 7.0}, {"string_value": "7"}])
def test_a_row_is_read_from_a_producer_whose_numbers_are_doubles_or_texts(
    number: dict[str, Any],
) -> None:
    scope = row(7, {"loss": 1.0})
    for metric in scope.metrics:
        for attribute in metric.gauge.data_points[0].attributes:
            attribute.value.CopyFrom(AnyValue(**number))
    scope.metrics[-1].gauge.data_points[0].as_double = 1.0

    (fragment,) = fragments(scope.SerializeToString(), None)

    assert (fragment.step, fragment.seq, fragment.values) == (7, 7, {"loss": 1.0})
    assert fragment.whole


def test_a_value_whose_step_is_not_a_whole_number_belongs_to_no_row() -> None:
    scope = row(7, {"loss": 1.0})
    for metric in scope.metrics:
        metric.gauge.data_points[0].attributes[0].value.double_value = 7.5

    rows, others = fragments_of(scope, None, 0)

    assert (rows, [metric.name for metric in others]) == ([], ["loss", "rl.row"])
