"""Tests of phases at emission: nesting, decorators, tasks, threads, forks, and what is counted."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

import otel_bridge
from otel_bridge import Phase
from otel_bridge.emit import emit_run
from otel_bridge.emit.live_registry import forget_unclosed
from otel_bridge.emit.phases import phase as phase_module
from support.trainers.emit_rollout_doubles import MemoryRun, attributes
from support.trainers.emit_samples import run_in, seen_in


def names(run: MemoryRun) -> list[tuple[object, object, object]]:
    """Name, phase around and step of every phase, in the order of their ends."""
    phases = map(attributes, run.spans)
    return [
        (phase["rl.phase.name"], phase.get("rl.phase.outer"), phase["rl.step"])
        for phase in phases
    ]


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_a_phase_inside_another_is_its_child_and_has_its_step() -> None:
    run = MemoryRun()
    before_ns = time.time_ns()

    with Phase(run, "train", 3), Phase(run, "forward"):
        time.sleep(0.002)

    inner, outer = run.spans
    assert names(run) == [("forward", "train", 3), ("train", None, 3)]
    assert (inner.parent_span_id, inner.trace_id) == (outer.span_id, outer.trace_id)
    assert (outer.parent_span_id, outer.name, len(outer.trace_id)) == (
        b"",
        "rl.phase",
        16,
    )
    assert (
        outer.start_time_unix_nano
        <= inner.start_time_unix_nano
        < inner.end_time_unix_nano
    )
    assert 0.002 <= seconds(inner) <= seconds(outer) < 1.0
    assert abs(outer.start_time_unix_nano - before_ns) < 1_000_000_000


def test_without_a_step_a_phase_has_that_of_the_next_row() -> None:
    run = MemoryRun(last=7)
    first = MemoryRun(last=None)

    with Phase(run, "generate"), Phase(first, "generate"):
        pass

    assert (names(run), names(first)) == (
        [("generate", None, 8)],
        [("generate", None, 0)],
    )


def test_a_phase_of_another_step_or_role_than_the_one_around_it_counts_as_outermost() -> (
    None
):
    run = MemoryRun()

    with (
        Phase(run, "epoch", 0),
        Phase(run, "train", 5),
        Phase(run, "judge", 5, "judge"),
    ):
        pass

    assert names(run) == [("judge", None, 5), ("train", None, 5), ("epoch", None, 0)]
    assert attributes(run.spans[0])["rl.role"] == "judge"


def test_nested_phases_of_one_name_and_one_object_are_each_recorded() -> None:
    run = MemoryRun()
    phase = Phase(run, "retry", 1)

    with phase, phase, phase:
        pass

    assert names(run) == [
        ("retry", "retry", 1),
        ("retry", "retry", 1),
        ("retry", None, 1),
    ]
    assert len({span.span_id for span in run.spans}) == 3


def test_a_phase_of_a_second_run_inside_leaves_the_phases_of_the_first_as_they_are() -> (
    None
):
    run, second = MemoryRun(), MemoryRun("run2")

    with Phase(run, "train", 3):
        with Phase(second, "judge", 9), Phase(run, "forward"), Phase(second, "score"):
            pass
        with Phase(run, "backward"):
            pass

    assert names(run) == [
        ("forward", "train", 3),
        ("backward", "train", 3),
        ("train", None, 3),
    ]
    assert names(second) == [("score", "judge", 9), ("judge", None, 9)]


def test_an_exception_of_the_block_passes_through_and_the_phase_has_failed() -> None:
    run = MemoryRun()

    with pytest.raises(ValueError, match="mine"), Phase(run, "train", 1):
        raise ValueError("mine")

    assert (run.spans[0].status.code, run.spans[0].status.message) == (
        Status.STATUS_CODE_ERROR,
        "ValueError",
    )


def test_functions_and_coroutine_functions_are_decorated() -> None:
    run = MemoryRun()

    @Phase(run, "score", 2)
    def score(depth: int) -> int:
        return depth if depth == 0 else score(depth - 1)

    @Phase(run, "generate", 2)
    async def generate(number: int) -> int:
        async with Phase(run, "sample"):
            await asyncio.sleep(0)
        return number

    async def both() -> list[int]:
        return await asyncio.gather(generate(1), generate(2))

    assert (score(1), asyncio.run(both())) == (0, [1, 2])
    assert (score.__name__, generate.__name__) == ("score", "generate")
    assert names(run) == [
        ("score", "score", 2), ("score", None, 2),
        ("sample", "generate", 2), ("generate", None, 2), ("sample", "generate", 2), ("generate", None, 2),
    ]  # fmt: skip
    assert len({span.trace_id for span in run.spans}) == 3


def test_a_decorator_without_parentheses_names_the_phase_by_the_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = MemoryRun(last=7)
    monkeypatch.setattr(emit_run._Current, "run", run)

    def score(number: int) -> int:
        return number + 1

    async def generate(number: int) -> int:
        return number + 2

    bare = cast("Any", otel_bridge.phase)  # type checkers refuse it

    assert (bare(score)(1), asyncio.run(bare(generate)(1))) == (2, 3)
    assert names(run) == [("score", None, 8), ("generate", None, 8)]


def test_threads_and_tasks_that_share_one_object_each_end_their_own_phase() -> None:
    run = MemoryRun()
    shared = Phase(run, "sample", 4)
    begun = threading.Barrier(2)
    ended = threading.Event()

    def first() -> None:
        with shared:
            begun.wait()
        ended.set()
        with Phase(run, "after the first", 4):
            pass

    def second() -> None:
        with shared:
            begun.wait()
            ended.wait()
        with Phase(run, "after the second", 4):
            pass

    async def sample() -> None:
        async with shared:
            await asyncio.sleep(0)  # the other tasks begin theirs
        with Phase(run, "after a task", 4):
            pass

    async def step() -> None:
        await asyncio.gather(sample(), sample(), sample())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(step())

    assert {(name, outer) for name, outer, _ in names(run)} == {
        ("sample", None),
        ("after the first", None),
        ("after the second", None),
        ("after a task", None),
    }
    assert len(run.spans) == 10


def test_threads_have_phases_of_their_own_and_tasks_those_of_their_creator() -> None:
    run = MemoryRun()

    def work() -> None:
        with Phase(run, "reward", 4):
            pass

    async def step() -> None:
        async with Phase(run, "rollouts", 4):
            await asyncio.create_task(sample())

    async def sample() -> None:
        with Phase(run, "sample"):
            pass

    with Phase(run, "wait", 4):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    asyncio.run(step())

    assert names(run) == [
        ("reward", None, 4), ("wait", None, 4), ("sample", "rollouts", 4), ("rollouts", None, 4),
    ]  # fmt: skip


def test_a_phase_that_has_ended_is_around_nothing_that_its_tasks_and_generators_begin() -> (
    None
):
    run = MemoryRun(last=7)

    async def work(may_go: asyncio.Event) -> None:
        await may_go.wait()
        with Phase(run, "generate"):
            pass

    async def main() -> None:
        may_go = asyncio.Event()
        with Phase(run, "train", 3), Phase(run, "warm_up"):
            task = asyncio.create_task(work(may_go))
        may_go.set()
        await task

    asyncio.run(main())

    def samples() -> Iterator[int]:
        with Phase(run, "load", 3):
            yield 0
        yield 1

    loader = samples()
    next(loader)
    with Phase(run, "optimize", 3):
        next(loader)  # ends "load" inside the phase that was begun in it
    inside = phase_module.is_inside()
    with Phase(run, "save"):
        pass

    assert names(run)[2:] == [
        ("generate", None, 8),
        ("load", None, 3),
        ("optimize", "load", 3),
        ("save", None, 8),
    ]
    assert not inside


def test_odd_names_and_steps_are_counted_and_nothing_raises() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("mine")

    run = MemoryRun()

    for name, step in (
        (None, 1),
        (Odd(), 1),
        ("", 1),
        (7, "8"),
        ("x" * 300, 2.0),
        ("train", object()),
        ("train", 1 << 64),
        ("train", 7.5),
    ):
        with Phase(run, name, step):
            pass
    Phase(run, "never entered").__exit__(None, None, None)

    assert names(run) == [
        ("phase", None, 1), ("phase", None, 1), ("phase", None, 1), ("7", None, 8), ("x" * 128, None, 2),
        ("train", None, 8), ("train", None, 8), ("train", None, 7),
    ]  # fmt: skip
    assert run.drops == {"phase_name": 3, "bad_step": 2, "fractional_step": 1}


def test_a_phase_does_not_jump_with_the_clock_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = MemoryRun()

    with Phase(run, "train", 1):
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        monkeypatch.setattr(phase_module, "time_ns", lambda: 0)

    assert 0 <= seconds(run.spans[0]) < 60


def test_steps_that_go_back_are_recorded_as_they_are() -> None:
    run = MemoryRun()

    for step in (5, 3, -1):
        with Phase(run, "train", step):
            pass

    assert [step for _, _, step in names(run)] == [5, 3, -1]


def test_a_phase_that_is_open_at_the_end_of_the_run_is_counted_once(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run, run.phase("train", 1):
        with otel_bridge.phase("forward"):
            pass
        run.finish(timeout_s=0)
        with run.phase("late", 1):
            pass

    (process,) = seen_in(tmp_path)
    dropped = process.event("rl.dropped")
    assert dropped.body == {"phase_unfinished": 1}
    assert dropped.attributes["rl.dropped.keys"] == {"phase_unfinished": "train"}


def test_a_phase_that_begins_while_the_run_ends_is_counted(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.call_before_end(lambda ending_run: ending_run.phase("save", 1)(int)())
        run.finish(timeout_s=0)

    (process,) = seen_in(tmp_path)
    assert process.event("rl.dropped").body == {"ended": 1}


def test_unknown_arguments_are_counted(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        with run.phase("train", 1, "more", global_step=3, colour="red"):
            pass
        run.finish(timeout_s=0)

    (process,) = seen_in(tmp_path)
    assert process.event("rl.dropped").body == {"unknown_argument": 3}


def test_a_forked_child_has_phases_of_its_own_and_leaves_the_open_one_to_its_parent() -> (
    None
):
    run = MemoryRun()
    read, write = os.pipe()

    with Phase(run, "train", 1):
        child = os.fork()
        if child == 0:
            # As a run does after a fork.
            forget_unclosed()
            with Phase(run, "load", 1):
                pass
            os.write(write, repr((names(run), run.spans[0].parent_span_id)).encode())
            os._exit(0)
        os.waitpid(child, 0)

    assert os.read(read, 1000).decode() == repr(([("load", None, 1)], b""))
    assert names(run) == [("train", None, 1)]


def test_without_a_run_or_with_one_that_records_nothing_a_phase_does_nothing(
    tmp_path: Path,
) -> None:
    @otel_bridge.phase("train")
    def train() -> int:
        return 3

    assert train() == 3
    with run_in(tmp_path, exporters="none") as run:
        with run.phase("generate", step=1) as phase:
            assert isinstance(phase, Phase)
        assert train() == 3
    assert seen_in(tmp_path) == []
