"""The tables of versions: which cells a name chooses, and what of a resolve is not as it is said to be."""

from __future__ import annotations

import pytest

from otel_bridge.exporter import load
from versions import resolve
from versions.cells import CELLS, CONTRACT, MORE, Cell, chosen
from versions.run import ROOT, Result, page


def test_floor_and_newest_are_two_versions_of_each_tracker() -> None:
    trackers = [cell.tracker for cell in chosen("floor-newest")]

    assert sorted(trackers) == [
        "mlflow",
        "mlflow",
        "trackio",
        "trackio",
        "wandb",
        "wandb",
    ]


def test_every_cell_is_chosen_once_by_its_name_and_a_wrong_name_says_which_there_are() -> (
    None
):
    names = [cell.name for cell in CELLS]

    assert len({*names}) == len(names)
    assert chosen(",".join(names)) == chosen("all") == [*CELLS]
    with pytest.raises(
        SystemExit,
        match=r"'trackio-9': no cell is called so; choose from all, floor, floor-newest, trackio-0",
    ):
        chosen("trackio-9")


def test_every_suite_of_the_cells_is_there() -> None:
    suites = [
        suite
        for table in (CONTRACT, MORE)
        for listed in table.values()
        for suite in listed
    ]

    assert [suite for suite in suites if not (ROOT / suite).is_file()] == []


@pytest.mark.parametrize("tracker", ["trackio", "wandb", "mlflow"])
def test_each_tracker_of_the_cells_is_an_exporter_with_its_package(
    tracker: str,
) -> None:
    assert load(tracker).requires == (tracker,)


def test_a_framework_that_no_longer_resolves_and_one_that_does_by_now_are_both_said() -> (
    None
):
    found = dict.fromkeys(
        [(name, extra) for name in resolve.frameworks() for extra in resolve.EXTRAS], ""
    )
    found |= dict.fromkeys(resolve.EXPECTED, "no solution")

    assert resolve.unexpected(found) == []
    assert resolve.unexpected({**found, ("skyrl", ""): "no solution"}) == [
        "skyrl [core]: no solution"
    ]
    assert resolve.unexpected({**found, ("axolotl", "trackio"): ""}) == [
        "axolotl [trackio] resolves now: take it out of EXPECTED"
    ]


def test_the_page_says_what_was_installed_what_passed_and_what_is_less() -> None:
    result = Result(
        Cell("trackio", "==0.36.0", ("huggingface_hub<1.27",), "somebody"),
        "0.36.0",
        ["spans as text"],
    )
    result.counts = {"passed": 40, "failed": 1, "skipped": 3}
    found = dict.fromkeys(
        [(name, extra) for name in resolve.frameworks() for extra in resolve.EXTRAS], ""
    )

    text = page([result], found)

    assert (
        "| trackio | 0.36.0 | `huggingface_hub<1.27` | somebody | 40 of 41 | spans as text |"
        in text
    )
    assert "| verl | yes | yes | yes | yes |" in text
