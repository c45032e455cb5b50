"""The contract: rows."""

# ruff: noqa: D102  # the name of a test says what it tests
from __future__ import annotations

import dataclasses
from collections import Counter
from typing import cast

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Distribution, Row, Value
from otel_bridge.testing import samples
from otel_bridge.testing.contents import HeldScalar
from otel_bridge.testing.contract.compare import same, same_scalars, written
from otel_bridge.testing.contract.fixtures import ContractFixtures, Open, ReadBack
from otel_bridge.testing.delivery import deliver


class RowContract(ContractFixtures):
    """Tests that rows arrive whole, once, in order, and that one bad row costs no other."""

    def test_every_value_of_every_row_arrives_with_its_key_and_step(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.placed(
            [
                *samples.rows(5),
                *samples.rows(3, role="explorer"),
                *samples.rows(2, role=None),
                samples.odd_values(),
            ]
        )

        written(opened(), records)

        same_scalars(read_back(run), records)

    def test_odd_keys_arrive_each_under_a_name_of_its_own(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_odd_keys:
            pytest.skip("the tracker does not keep odd keys")
        values = samples.odd_key_values()
        # Two steps: a key must get the same name at each, not only one that differs from the
        # others.
        second = samples.odd_key_values(0.5)

        written(
            opened(), samples.placed([samples.row(1, values), samples.row(2, second)])
        )

        shown: dict[str, list[float]] = {}
        for scalar in read_back(run).scalars:
            shown.setdefault(scalar.key, []).append(scalar.value)
        same(
            Counter(map(tuple, shown.values())),
            Counter(zip(values.values(), second.values(), strict=True)),
            "values by key",
        )

    def test_a_key_has_its_values_in_the_order_of_their_steps(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.placed(samples.loss_rows(range(1, 21)))

        written(opened(), records)

        same(
            list(read_back(run).values()),
            list(range(1, 21)),
            "values in order",
        )

    def test_rows_after_a_rewind_stand_beside_those_before_it(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        first = samples.loss_rows(range(1, 6))
        # A job that goes back to its checkpoint repeats steps with other values.
        second = samples.loss_rows(range(3, 8), offset=0.5, attempt=2)

        written(opened(), samples.placed([*first, *second]))

        rows_before = first if self.keeps_rewound_rows else first[:2]
        same_scalars(read_back(run), [*rows_before, *second])

    def test_a_row_without_a_step_is_placed_by_time(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_stepless:
            pytest.skip("the tracker does not keep rows without a step")
        stepless: list[Row] = []
        for n in range(4):
            row = dataclasses.replace(
                samples.row(None, {"cpu": float(n)}),
                id=f"f:{n}",
                time_unix_ns=samples.START_UNIX_NS + n * samples.SECOND_NS,
            )
            stepless.append(row)

        written(opened(), samples.placed(stepless))

        contents = read_back(run)
        same(list(contents.values()), [0.0, 1.0, 2.0, 3.0], "values in order of time")
        for scalar in contents.scalars:
            same(scalar.key, "trainer/cpu", "their key")

    def test_a_thousand_rows_and_one_of_more_than_a_thousand_keys_go_in_one_call(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        # MLflow takes at most 1,000 metrics in one request.
        records = samples.placed(
            [
                *samples.rows(999, keys=4),
                *samples.rows(1, keys=1050, first_step=1000),
            ]
        )

        written(opened(), records)

        same_scalars(read_back(run), records)

    def test_a_distribution_keeps_its_minimum_and_maximum(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_distributions:
            pytest.skip("the tracker does not keep distributions")
        # Neither has buckets: a producer may send only a count, a sum and the extremes.
        empty = Distribution(count=0, sum=0.0, min=float("nan"), max=float("nan"))
        bare = Distribution(count=3, sum=6.0, min=1.0, max=3.0)
        values: dict[str, Value] = {
            "grad": samples.distribution(),
            "bare": bare,
            "empty": empty,
            "loss": 0.5,
        }
        records = samples.placed(
            [samples.row(1, values), samples.row(2, {"grad": samples.distribution()})]
        )

        written(opened(), records)

        contents = read_back(run)
        extremes: set[tuple[str, int | None, float, float]] = set()
        for stored in contents.distributions:
            if stored.key != "trainer/empty":
                extremes.add((stored.key, stored.step, stored.min, stored.max))
            if stored.key == "trainer/grad":
                same(stored.count in {10, None}, True, "their count is 10")
        same(
            extremes,
            {
                ("trainer/grad", 1, 0.5, 5.5),
                ("trainer/grad", 2, 0.5, 5.5),
                ("trainer/bare", 1, 1.0, 3.0),
            },
            "distributions",
        )
        same(
            list(contents.triples()),
            [("trainer/loss", 1, "0.5")],
            "scalars beside them",
        )

    def test_calls_without_records_change_nothing(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        writer = opened()

        writer.write_rows([])
        writer.write_rollouts([])
        writer.write_evaluations([])
        writer.write_config("trainer", {})
        writer.close()

        contents = read_back(run)
        same(
            (contents.scalars, contents.rollouts, contents.evaluations) == ([], [], []),
            True,
            f"nothing is held: {contents}",
        )

    @pytest.mark.parametrize(
        "hostile",
        ["text", "none", "object", "complex", "huge step", "empty key", "time"],
    )
    def test_one_bad_record_is_named_and_the_others_arrive(
        self, opened: Open, run: RunInfo, read_back: ReadBack, hostile: str
    ) -> None:
        records = samples.placed(
            [*samples.rows(3), _hostile(hostile), *samples.rows(3, first_step=4)]
        )

        writer = opened()
        refused = deliver(writer, records)
        writer.close()

        # A tracker may take the row all the same; no other row may be lost by it.
        same(
            set(refused) <= {4},
            True,
            f"records refused, of which only 4 may be: {refused}",
        )
        good: set[tuple[str, int | None, str]] = set()
        for row in records:
            if row.position != 4:
                for key, value in row.values.items():
                    good.add(HeldScalar(key, row.step, cast("float", value)).triple)
        missing = good.difference(read_back(run).triples())
        same(missing, set[object](), "values of good rows that are missing")


def _hostile(kind: str) -> Row:
    """Return a row that breaks its own types: a tracker takes it or refuses it by its position."""
    row = samples.row(99, {"good": 1.0})
    values: dict[str, object] = {
        "text": "many words", "none": None, "object": object(), "complex": 1j, "empty key": 1.0,
    }  # fmt: skip
    # Beyond 64 bits: Trackio would lose the whole batch, and stop importing its inbox for good.
    if kind == "huge step":
        return dataclasses.replace(row, step=2**70)
    if kind == "time":
        return dataclasses.replace(row, time_unix_ns=-1)
    key = "" if kind == "empty key" else "trainer/hostile"
    return dataclasses.replace(
        row, values=cast("dict[str, Value]", {"trainer/good": 1.0, key: values[kind]})
    )
