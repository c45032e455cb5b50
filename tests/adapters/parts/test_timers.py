"""Timers of verl, SkyRL, TRL and slime become phases, by fakes with the methods of their sources."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_bridge.adapters.parts.timers import (
    time_lightning,
    time_skyrl,
    time_trl,
    time_verl,
)
from otel_bridge.capture import hook
from otel_bridge.emit.emit_run import set_current_run
from support.trainers.emit_rollout_doubles import MemoryRun, attributes


@pytest.fixture
def run() -> Iterator[MemoryRun]:
    run = MemoryRun(last=None)
    set_current_run(run)
    yield run
    set_current_run(None)


def phases(run: MemoryRun) -> list[tuple[object, object, object]]:
    found = map(attributes, run.spans)
    return [
        (phase["rl.phase.name"], phase.get("rl.phase.outer"), phase["rl.step"])
        for phase in found
    ]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> Any:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


class Timer:
    """As SkyRL's."""

    def __init__(
        self, message: str, update_dict: dict[str, float] | None = None
    ) -> None:
        self.message, self.update_dict = message, update_dict

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.update_dict is not None:
            self.update_dict[self.message] = 1.0

    async def __aenter__(self) -> Timer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class ProfilingContext:
    """As TRL's."""

    def __init__(self, name: str, step: int | None) -> None:
        self.name, self.step = name, step

    def __enter__(self) -> ProfilingContext:
        return self

    def __exit__(self, *_: object) -> bool:
        return False


def test_timers_of_verl_are_phases_of_the_trainers_step(
    run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        yield
        timing_raw[name] = timing_raw.get(name, 0) + 1.0

    fake = module(monkeypatch, "verl.utils.profiler.performance", _timer=timer)

    @contextmanager
    def marked_timer(
        name: str, timing_raw: dict[str, float], color: str | None = None
    ) -> Iterator[None]:
        yield from fake._timer(name, timing_raw)

    class Trainer:
        global_steps = 7

        def fit(self) -> dict[str, float]:
            timing: dict[str, float] = {}
            with marked_timer("step", timing), marked_timer("gen", timing, color="red"):
                pass
            return timing

    time_verl()
    time_verl()

    assert Trainer().fit() == {"gen": 1.0, "step": 1.0}
    assert phases(run) == [("gen", "step", 7), ("step", None, 7)]


def test_timers_of_skyrl_are_phases_also_in_tasks(
    run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "skyrl.train.utils.utils", Timer=Timer)

    class Trainer:
        global_step = 3

        async def train(self) -> dict[str, float]:
            timings: dict[str, float] = {}
            async with Timer("step", timings):
                with Timer("generate", timings):
                    pass
            return timings

    time_skyrl()
    time_skyrl()

    assert asyncio.run(Trainer().train()) == {"generate": 1.0, "step": 1.0}
    assert phases(run) == [("generate", "step", 3), ("step", None, 3)]


def test_profiling_contexts_of_trl_are_phases_of_the_step_under_way(
    run: MemoryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "trl.extras.profiling", ProfilingContext=ProfilingContext)
    time_trl()

    with (
        ProfilingContext("GRPOTrainer._prepare_inputs", 4),
        ProfilingContext("GRPOTrainer.vLLM.generate", 4),
    ):
        pass

    assert phases(run) == [
        ("generate", "prepare_inputs", 5),
        ("prepare_inputs", None, 5),
    ]


SLIME_TIMER = """
from contextlib import contextmanager

class Timer:
    def __init__(self):
        self.ended = []

    def start(self, name):
        pass

    def end(self, name):
        self.ended.append(name)

    @contextmanager
    def context(self, name):
        self.start(name)
        try:
            yield
        finally:
            self.end(name)
"""


def test_timers_of_slime_are_phases_of_the_step_that_their_process_has_reached(
    run: MemoryRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "slime" / "observability"
    package.mkdir(parents=True)
    (package / "timer.py").write_text(SLIME_TIMER)
    monkeypatch.syspath_prepend(tmp_path)
    hook.capture("slime")
    slime_timer = importlib.import_module("slime.observability.timer")
    hook.release()
    timer: Any = slime_timer.Timer()

    class Actor:
        def train(self, rollout_id: int) -> None:
            with timer.context("data_preprocess"):
                pass
            timer.end("train_wait")
            with timer.context("train"):
                pass
            timer.start("train_wait")

        def update_weights(self) -> None:
            with timer.context("update_weights"):
                pass

    actor = Actor()
    timer.start("train_wait")
    for step in (4, 5):
        actor.train(step)
        actor.update_weights()
    timer.end("train_wait")
    timer.end("older than the capture")

    of_step_5 = [(name, outer) for name, outer, step in phases(run) if step == 5]
    assert of_step_5 == [
        ("data_preprocess", None), ("train", None), ("update_weights", "train_wait"), ("train_wait", None)
    ]  # fmt: skip
    assert [(name, step) for name, _, step in phases(run)][:3] == [
        ("data_preprocess", 4), ("train_wait", 0), ("train", 4)
    ]  # fmt: skip
    assert timer.ended.count("train_wait") == 3


def test_an_exception_and_a_process_without_a_run_pass_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module(monkeypatch, "trl.extras.profiling", ProfilingContext=ProfilingContext)
    time_trl()

    with (
        pytest.raises(ValueError, match="mine"),
        ProfilingContext("GRPOTrainer.train", None),
    ):
        raise ValueError("mine")


def test_a_profiler_of_another_shape_costs_its_phases_and_raises_nothing() -> None:
    time_lightning(SimpleNamespace(profiler=object()))
