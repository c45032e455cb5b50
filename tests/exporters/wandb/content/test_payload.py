"""Rows to lines: names, values, limits."""

from __future__ import annotations

import math
from typing import cast

import pytest

from otel_bridge.errors import PermanentError
from otel_bridge.records import Distribution, Row, Value
from otel_bridge.testing import samples
from otel_bridge_wandb.axes import WandbAxes
from otel_bridge_wandb.content.payload import MAX_LINE_BYTES, bins_of, payload_of

TIME_S = samples.START_UNIX_NS / 1e9


class Bins:
    """The part of a ``wandb.Histogram`` that its length is taken from."""

    def __init__(self, counts: list[int], edges: list[float]) -> None:
        del edges
        self.histogram = counts


def histogram(counts: list[int], edges: list[float]) -> object:
    return ("histogram", counts, edges)


def row(
    values: dict[str, Value], *, step: int | None = 3, role: str | None = "trainer"
) -> Row:
    return samples.placed([samples.row(step, values, role=role)], 9)[0]


def test_a_row_has_its_values_its_axis_and_its_time() -> None:
    line = payload_of(
        row({"loss": 0.5, "n": 3, "on": True, "nan": math.inf}), histogram
    )

    assert line == {
        "trainer/loss": 0.5, "trainer/n": 3, "trainer/on": 1, "trainer/nan": math.inf, "trainer/step": 3,
        "_timestamp": TIME_S + 3,
    }  # fmt: skip


def test_a_row_without_a_step_has_its_time_alone_and_one_without_values_is_not_a_line() -> (
    None
):
    assert payload_of(row({"loss": 0.5}, step=None), histogram) == {
        "trainer/loss": 0.5,
        "_timestamp": TIME_S,
    }
    assert payload_of(row({}), histogram) is None


def test_keys_that_are_the_axis_or_wandbs_own_are_shown_under_another_name() -> None:
    line = payload_of(
        row({"step": 7.0, "_step": 1.0, "_timestamp": 2.0}, role=None), histogram
    )

    assert line == {
        "step_value": 7.0,
        "_step_value": 1.0,
        "_timestamp_value": 2.0,
        "step": 3,
        "_timestamp": TIME_S + 3,
    }


@pytest.mark.parametrize("value", ["text", None, 1j, object(), 10**400])
def test_a_value_that_is_not_a_number_costs_its_row(value: object) -> None:
    with pytest.raises(PermanentError, match="the record: 'trainer/odd'") as refused:
        payload_of(row({"loss": 1.0, "odd": cast("float", value)}), histogram)

    assert refused.value.position == 9


def test_a_row_beyond_wandbs_line_limit_is_refused_instead_of_skipped_in_silence() -> (
    None
):
    fits = {f"{n:06}{'k' * 400}": float(n) for n in range(20_000)}
    beyond = {f"{n:06}{'k' * 400}": float(n) for n in range(26_000)}

    assert len(payload_of(row(fits), histogram) or {}) == 20_002
    # A control character is six bytes of JSON.
    for too_long in (beyond, {"\x01" * 2_000_000: 1.0}):
        with pytest.raises(PermanentError, match=f"more than {MAX_LINE_BYTES} bytes"):
            payload_of(row(too_long), histogram)


def test_the_names_of_the_parts_of_many_histograms_count_as_part_of_the_line() -> None:
    edges = (-1.2345678901234567e-300, 1.2345678901234567e-300)
    few = Distribution(2, 3.0, *edges)
    values = {f"{n:06}": few for n in range(90_000)}

    with pytest.raises(PermanentError, match="W&B's limit of a row"):
        payload_of(row(cast("dict[str, Value]", values)), Bins)


@pytest.mark.parametrize(
    ("distribution", "counts", "edges"),
    [
        (samples.distribution(), [4, 3, 3], [0.5, 2.0, 4.0, 5.5]),
        (Distribution(3, 6.0, 1.0, 3.0), [3], [1.0, 3.0]),
        (Distribution(0, 0.0, math.nan, math.nan), [0], [0.0, 0.0]),
        (
            Distribution(2, 3.0, math.nan, math.nan, (0.0, 1.0, 2.0, 3.0), (0, 2, 0)),
            [2],
            [1.0, 2.0],
        ),
    ],
)
def test_a_distribution_shows_its_minimum_and_maximum(
    distribution: Distribution, counts: list[int], edges: list[float]
) -> None:
    assert bins_of(distribution) == (counts, edges)


def test_a_distribution_of_many_buckets_is_merged_to_what_wandb_takes() -> None:
    many = Distribution(
        1500, 0.0, 0.25, 1499.5, tuple(map(float, range(1501))), (1,) * 1500
    )

    counts, edges = bins_of(many)

    assert (len(counts), len(edges), sum(counts), edges[0], edges[-1]) == (
        500,
        501,
        1500,
        0.25,
        1499.5,
    )
    assert edges[1:4] == [3.0, 6.0, 9.0]


class Defined:
    def __init__(self) -> None:
        self.names: list[tuple[str, str | None]] = []

    def __call__(self, name: str, axis: str | None) -> None:
        self.names.append((name, axis))

    def send_definitions(self, *, now: bool = False) -> None:
        """All is given at once."""


def test_each_key_is_bound_once_to_a_hidden_axis_declared_first() -> None:
    definer = Defined()
    axes = WandbAxes(definer)

    axes.bind_all({"a/x": "a/step", "a/step": "a/step"})
    axes.bind({"a/x": 1, "a/y": 2, "a/step": 3, "_timestamp": 4.0}, "a/step")
    axes.bind({"z": 1}, "step")

    assert definer.names == [
        ("a/step", None), ("a/x", "a/step"), ("a/step_value", "a/step"), ("a/y", "a/step"),
        ("step", None), ("z", "step"),
    ]  # fmt: skip
