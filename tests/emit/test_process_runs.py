"""The process's runs: which one an adapter has announced, and which names complete those of a captured program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.process_runs import ProcessRuns, runs
from otel_bridge.emit.run import Run
from support.trainers.emit_samples import environment_of, held


@dataclass(eq=False)
class Announced:
    project: str | None = "math"
    name: str | None = "one"

    def begin(self) -> Run | None:
        return None

    def chosen_names(self) -> tuple[str | None, str | None]:
        return self.project, self.name


def test_the_run_that_was_announced_last_is_taken_once() -> None:
    first, second, third = Announced(), Announced(), Announced()
    registry = ProcessRuns()
    for announced in (first, second, third):
        registry.announce(announced)

    registry.withdraw(third)

    assert [registry.take_announced() for _ in range(3)] == [second, first, None]


def test_a_run_whose_adapter_is_gone_is_not_taken() -> None:
    kept = Announced()
    registry = ProcessRuns()
    registry.announce(kept)
    registry.announce(Announced())

    assert registry.take_announced() is kept


@pytest.mark.parametrize(
    ("announced", "given", "completed"),
    [
        (Announced(), (None, None), ("math", "one")),
        (Announced(), ("huggingface", None), ("math", "one")),
        (Announced(), ("lightning_logs", "two"), ("math", "two")),
        (Announced(), ("own", None), ("own", "one")),
        (Announced(), ("own", "two"), ("own", "two")),
        (Announced(None, None), ("huggingface", "two"), ("huggingface", "two")),
    ],
)
def test_names_of_an_adapter_complete_those_that_a_captured_program_does_not_choose(
    tmp_path: Path,
    announced: Announced,
    given: tuple[str | None, str | None],
    completed: tuple[str, str],
) -> None:
    with environment_of(held(tmp_path)):
        runs.announce(announced)
        run = runs.begin(
            RunRequest(captured="trackio", project=given[0], name=given[1])
        )
        run.finish()

        assert (run.project, run.name) == completed
        assert runs.take_announced() is None


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_default_project_of_a_framework_gives_way_to_the_users_variable(
    tmp_path: Path, tracker: str
) -> None:
    with environment_of(held(tmp_path, OTEL_BRIDGE_PROJECT="chosen")):
        run = runs.begin(
            RunRequest(captured=tracker, project="huggingface", name="one")
        )
        run.finish()

        assert run.project == "chosen"
