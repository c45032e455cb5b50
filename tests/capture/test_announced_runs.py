"""Runs that adapters announce: which one a captured tracker begins, and which names complete its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from otel_bridge.capture import announced_runs
from otel_bridge.capture.announced_runs import announce, take_announced, with_announced_names, withdraw
from otel_bridge.emit.run import Run


@dataclass(eq=False)
class Announced:
    project: str | None = "math"
    name: str | None = "one"

    def begin(self) -> Run | None:
        return None

    def chosen_names(self) -> tuple[str | None, str | None]:
        return self.project, self.name


@pytest.fixture(autouse=True)
def none_before() -> Iterator[None]:
    announced_runs._announced.clear()
    yield
    announced_runs._announced.clear()


def test_the_run_that_was_announced_last_is_taken_once() -> None:
    first, second, third = Announced(), Announced(), Announced()
    for one in (first, second, third):
        announce(one)

    withdraw(third)

    assert [take_announced(), take_announced(), take_announced()] == [second, first, None]


def test_a_run_whose_adapter_is_gone_is_not_taken() -> None:
    kept = Announced()
    announce(kept)
    announce(Announced())

    assert take_announced() is kept


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ((None, None), ("math", "one")),
        (("huggingface", None), ("math", "one")),
        (("lightning_logs", "two"), ("math", "two")),
        (("own", None), ("own", "one")),
        (("own", "two"), ("own", "two")),
    ],
)
def test_names_complete_those_that_the_program_does_not_choose(
    given: tuple[str | None, str | None], completed: tuple[str | None, str | None]
) -> None:
    announced = Announced()
    announce(announced)

    assert (with_announced_names(*given), with_announced_names(*given)) == (completed, given)


def test_an_adapter_without_names_changes_none() -> None:
    announced = Announced(None, None)
    announce(announced)

    assert with_announced_names("huggingface", None) == ("huggingface", None)
