from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.emit.encode.histogram import (
    MAX_BUCKETS,
    Buckets,
    HistogramPoint,
    bucket_index,
    distribution_of,
    distribution_of_array,
)

_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def test_numbers_are_counted_by_sign() -> None:
    point = distribution_of([0.0, 1.0, 1.0, -4.0])

    assert point == HistogramPoint(
        count=4,
        sum=-2.0,
        min=-4.0,
        max=1.0,
        scale=20,
        zero_count=1,
        positive=Buckets(-1, (2,)),
        negative=Buckets((2 << 20) - 1, (1,)),
    )


@given(st.lists(_NUMBERS, min_size=1, max_size=100))
def test_every_number_is_in_one_of_at_most_160_buckets_a_sign(
    numbers: list[float],
) -> None:
    point = distribution_of(numbers)

    assert point.zero_count + sum(point.positive.counts) + sum(
        point.negative.counts
    ) == len(numbers)
    assert max(len(point.positive.counts), len(point.negative.counts)) <= MAX_BUCKETS


@given(st.floats(min_value=2.3e-308, allow_infinity=False), st.integers(-10, 20))
def test_a_number_lies_between_the_ends_of_its_bucket(
    number: float, scale: int
) -> None:
    index = bucket_index(number, scale)

    exponent = math.log2(number)
    slack = 1e-9 * max(abs(exponent), 1)
    assert index * 2.0**-scale - slack <= exponent <= (index + 1) * 2.0**-scale + slack


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=100))
def test_an_array_is_counted_as_a_list_is(numbers: list[float]) -> None:
    by_array, by_list = (
        distribution_of_array(np.array(numbers)),
        distribution_of(numbers),
    )

    assert (by_array.count, by_array.min, by_array.max, by_array.zero_count) == (
        by_list.count, by_list.min, by_list.max, by_list.zero_count,
    )  # fmt: skip
    assert by_array.sum == pytest.approx(by_list.sum, rel=1e-9, abs=1e290)
    for one, other in (
        (by_array.positive, by_list.positive),
        (by_array.negative, by_list.negative),
    ):
        assert sum(one.counts) == sum(other.counts)
        assert abs(one.offset - other.offset) <= 1


def test_a_power_of_two_is_the_closed_end_of_its_bucket() -> None:
    assert [bucket_index(4.0, scale) for scale in (-1, 0, 1, 3)] == [0, 1, 3, 15]
    assert [bucket_index(4.000001, scale) for scale in (-1, 0, 1, 3)] == [1, 2, 4, 16]
