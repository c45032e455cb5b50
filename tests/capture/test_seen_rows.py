"""Rows of a table that programs log whole each time: each is new once, and may be completed later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from otel_bridge.capture import seen_rows
from otel_bridge.capture.seen_rows import NewRows, SeenTables

P_R = ("prompt", "response")


class Table:
    """A table of W&B, as far as it is read."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)


class Logged:
    """A program that logs rows under a key, each time as a new table unless it names one."""

    def __init__(self, *columns: str, own_step: bool = False) -> None:
        self._seen = SeenTables()
        self._columns = columns or P_R
        self._own_step = own_step

    def log(
        self,
        rows: Sequence[Sequence[Any]],
        step: int,
        table: Table | None = None,
        key: str = "t",
    ) -> NewRows:
        """Log all rows."""
        table = table or Table(*self._columns)
        return self._seen.new_rows(key, table, rows, step, own_step=self._own_step)


def test_a_table_that_grows_gives_its_new_rows_only() -> None:
    logged = Logged("step", *P_R, own_step=True)
    rows = [[step, "p", f"r{step}"] for step in range(4)]

    assert logged.log(rows[:2], 1).rows == rows[:2]
    assert logged.log(rows[:2], 1).rows == []
    assert logged.log(rows[:4], 2).rows == rows[2:]
    assert logged.log(rows[:3], 3).rows == []
    assert logged.log(rows, 2, key="other").rows == rows


def test_a_window_of_the_last_rows_gives_its_new_rows_only() -> None:
    logged = Logged()
    rows = [["p", [n]] for n in range(6)]

    logged.log(rows[:4], 1)

    assert logged.log(rows[1:5], 2).rows == rows[4:5]
    assert logged.log(rows[2:6], 3).rows == rows[5:]


def test_the_same_rows_of_another_step_are_new_unless_they_hold_their_step_or_are_of_the_very_table() -> (
    None
):
    rows = [["p", "r", math.nan], ["p", "r", -math.nan]]
    logged = Logged(*P_R, "score")

    assert logged.log(rows, 1).rows == rows
    assert logged.log(rows, 1).rows == []
    assert logged.log(rows, 2).rows == rows
    own_step = Logged(*P_R, "score", own_step=True)
    own_step.log(rows, 1)
    assert own_step.log(rows, 3).rows == []
    table = Table(*P_R, "score")
    logged.log(rows, 3, table)
    assert logged.log(rows, 4, table).rows == []


def test_further_columns_and_values_of_empty_cells_complete_the_rows_that_were_there() -> (
    None
):
    logged = Logged()
    first, second = logged.log([["p", "a"], ["p", "b"]], 1).ids

    rows = [["p", 0.5, "a"], ["p", None, "b"], ["p", 1.0, "c"]]
    wider = logged.log(rows, 2, Table("prompt", "score", "response"))

    assert (wider.rows, wider.completed) == (rows[2:], [(first, "score", 0.5)])
    filled = logged.log(
        [["p", 0.5, "a"], ["p", 0.25, "b"], rows[2]],
        3,
        Table("prompt", "score", "response"),
    )
    assert (filled.rows, filled.completed) == ([], [(second, "score", 0.25)])


def test_a_column_that_is_gone_makes_no_row_new() -> None:
    logged = Logged(*P_R, "score")
    logged.log([["p", "a", 1]], 1)

    assert logged.log([["p", "a"], ["p", "b"]], 2, Table(*P_R)).rows == [["p", "b"]]


def test_cells_that_changed_in_the_very_table_complete_its_rows() -> None:
    logged = Logged(*P_R, "score")
    table = Table(*P_R, "score")
    (row_id,) = logged.log([["p", "a", 0]], 1, table).ids

    changed = logged.log([["p", "a", 1], ["p", "b", 2]], 1, table)

    assert (changed.rows, changed.completed) == (
        [["p", "b", 2]],
        [(row_id, "score", 1)],
    )


def test_tables_of_other_columns_have_no_rows_in_common() -> None:
    logged = Logged("prompt", "answer")
    logged.log([["p", "a"]], 1)

    assert logged.log([["p", "a"]], 1, Table("prompt", "output")).rows == [["p", "a"]]


def test_every_row_has_an_id_of_its_own() -> None:
    logged = Logged()
    ids = [*logged.log([["p", "a"]] * 3, 1).ids, *logged.log([["p", "a"]] * 3, 2).ids, *SeenTables().new_rows(
        "t", Table(*P_R), [["p", "a"]], 1, own_step=False
    ).ids]  # fmt: skip

    assert len(set(ids)) == 7
    assert {len(one) for one in ids} == {32}


class Picture:
    """A picture of W&B: another object each time, with a file."""

    def __init__(self, digest: str, caption: str | None = None) -> None:
        self._sha256 = digest
        self._caption = caption


@pytest.mark.parametrize(
    ("cell", "other"),
    [
        (lambda: -1, lambda: -2),
        (lambda: Picture("aa"), lambda: Picture("bb")),
        (lambda: Picture("aa", "left"), lambda: Picture("aa", "right")),
        (lambda: [Picture("aa")], lambda: [Picture("bb")]),
        (
            lambda: np.arange(2_000),
            lambda: np.where(np.arange(2_000) == 1_000, -1, np.arange(2_000)),
        ),
        (lambda: np.float32(0.5), lambda: 0.25),
        (
            lambda: [{"role": "user", "content": "Q"}],
            lambda: [{"role": "user", "content": "A"}],
        ),
    ],
)
def test_rows_are_the_same_by_the_content_of_their_cells(
    cell: Callable[[], object], other: Callable[[], object]
) -> None:
    logged = Logged(*P_R, "cell")

    logged.log([["p", "a", cell()]], 1)

    assert logged.log([["p", "a", cell()]], 1).rows == []
    assert len(logged.log([["p", "a", other()]], 1).rows) == 1


def test_a_window_of_many_rows_is_found_in_linear_time() -> None:
    logged = Logged()
    rows = [["p", number] for number in range(50_000)]
    logged.log(rows[:40_000], 1)
    start_s = time.process_time()

    assert logged.log(rows[10_000:], 2).rows == rows[40_000:]
    assert logged.log([["q", number] for number in range(40_000)], 3).rows[0] == [
        "q",
        0,
    ]
    assert time.process_time() - start_s < 20


def test_rows_that_are_nearly_all_equal_are_compared_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    real = seen_rows._is_same
    monkeypatch.setattr(
        seen_rows, "_is_same", lambda *rows: compared.append(1) or real(*rows)
    )
    logged = Logged()
    wrong = [["p", "no answer"]] * 999
    logged.log([*wrong, ["p", "42"]], 1)

    assert len(logged.log([*wrong, ["p", "no answer"]], 2).rows) == 1_000
    assert len(compared) < 20_000
