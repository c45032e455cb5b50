"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from bridge_doubles import Process, options, run_folder, served

from otel_bridge.bridge.garbage import ALLOCATIONS, collect_less_often
from otel_bridge.testing.memory import Recorder


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_process_that_serves_collects_less_often(tmp_path: Path) -> None:
    gc.set_threshold(700, 10, 10)
    folder = run_folder(tmp_path)
    Process.start(folder, "memory").end()

    served(tmp_path, options(("memory", Recorder())))

    assert gc.get_threshold()[:2] == (ALLOCATIONS, 10)


@pytest.mark.parametrize("asked", [0, 50_000])
def test_a_collector_that_is_off_or_runs_less_often_already_stays_as_it_is(asked: int) -> None:
    gc.set_threshold(asked)

    collect_less_often()

    assert gc.get_threshold()[0] == asked
