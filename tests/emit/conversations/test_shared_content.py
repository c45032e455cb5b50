"""Conversations whose lists repeat one another end soon, and what is left out is counted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_bridge.capture.tables import RolloutTable
from otel_bridge.capture.trackio_traces import rollout_of_trace
from otel_bridge.emit.rollouts.live_spans import ChatSpan
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.values.scalars import any_text
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    log_generations,
    log_reward,
    log_rollouts,
    open_rollout,
)


def _array(entries: list[object]) -> object:
    values = np.empty(len(entries), object)
    for index, entry in enumerate(entries):
        values[index] = entry
    return values


def _texts(entries: list[object]) -> object:
    return [{"type": "text", "text": entries}]


def _answers(entries: list[object]) -> object:
    return [{"type": "tool_result", "content": entries}]


def _thoughts(entries: list[object]) -> object:
    return [{"type": "thinking", "thinking": entries}]


_KINDS: dict[str, Callable[[list[object]], Any]] = {
    "list": list, "tuple": tuple, "deque": deque, "array": _array, "texts": _texts, "answers": _answers,
    "thoughts": _thoughts,
}  # fmt: skip


def _nest(
    collection: Callable[[list[object]], object], width: int = 10, levels: int = 10
) -> Any:
    value: object = "x"
    for _ in range(levels):
        value = collection([value] * width)
    return value


def _messages(run: MemoryRun, nest: Any) -> None:
    log_rollouts(run, [Rollout(messages=nest)])


def _contents(run: MemoryRun, nest: Any) -> None:
    log_rollouts(run, [Rollout(messages=[{"role": "user", "content": nest}])])


def _prompts(run: MemoryRun, nest: Any) -> None:
    log_generations(run, prompts=[nest], responses=["a"])


def _responses(run: MemoryRun, nest: Any) -> None:
    log_generations(run, prompts=["p"], responses=[nest])


def _rewards(run: MemoryRun, nest: Any) -> None:
    log_generations(run, prompts=["p"], responses=["a"], rewards=[nest], states=[nest])


def _chat(run: MemoryRun, nest: Any) -> None:
    with open_rollout(run) as rollout, rollout.chat("policy", input=nest) as chat:
        assert isinstance(chat, ChatSpan)
        chat.output = nest


def _trace(run: MemoryRun, nest: Any) -> None:
    trace = SimpleNamespace(
        messages=[nest], metadata={"op": nest}, spans=[{"error": nest}]
    )
    log_rollouts(run, [rollout_of_trace(trace, "key")])


def _table(run: MemoryRun, nest: Any) -> None:
    rows = [[nest, [nest], 1.0]]
    table = RolloutTable.of(["prompt", "completion", "reward"], rows)
    if table is None:  # not a table of prompts and responses
        run.count_drop("no_rollouts")
        return
    for rollouts in table.rollouts(rows, lambda _column, _kind: None):
        log_generations(run, **rollouts.columns)


_CALLS = (_messages, _contents, _prompts, _responses, _rewards, _chat, _trace, _table)

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("kind", _KINDS)
def test_a_conversation_of_lists_that_repeat_one_another_is_clipped_and_counted(
    call: Callable[[MemoryRun, Any], None], kind: str
) -> None:
    run = MemoryRun()
    nest = _nest(_KINDS[kind])
    start_s = time.process_time()
    call(run, nest)
    assert run.drops
    # A tenth of this on a quiet machine; without the bound the call takes minutes.
    assert time.process_time() - start_s < 20


def test_what_lies_deeper_than_the_reader_opens_is_kept_as_text_and_counted() -> None:
    value: object = "deep"
    for _ in range(12):
        value = [value]
    run = MemoryRun()
    log_rollouts(run, [Rollout(messages=value)])
    assert run.drops == {"rollout_message": 1}
    assert "deep" in str(run.roots[0])


@pytest.mark.parametrize("kind", [list, tuple, _array])
def test_texts_and_names_that_are_a_nest_are_bounded(
    kind: Callable[[Iterable[object]], object],
) -> None:
    nest: Any = _nest(kind)
    run = MemoryRun()
    start_s = time.process_time()
    log_reward(run, "a", 1.0, explanation=nest)
    log_generations(
        run, prompts=["p"], responses=["a"], groups=[nest], ids=[nest], errors=[nest]
    )
    assert len(any_text(nest)) < 100_000
    assert len(run.events) == len(run.roots) == 1
    assert time.process_time() - start_s < 20
