"""Tests of live rollouts: their own trace, children in threads, tasks and other processes, failures, forks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

from otel_bridge import semconv
from otel_bridge.emit.rollouts.context import attach_context, get_context
from otel_bridge.emit.rollouts.live import LiveRollout, chat, tool
from otel_bridge.records import trace_id_of
from support.trainers.emit_rollout_doubles import (
    CONVERSATION,
    MemoryRun,
    attributes,
    message,
    open_rollout,
    plain,
    span_messages,
)
from support.trainers.emit_samples import run_in, seen_in


def opened(run: MemoryRun, **fields: Any) -> LiveRollout:
    rollout = open_rollout(run, **fields)
    assert isinstance(rollout, LiveRollout)
    return rollout


def by_name(run: MemoryRun) -> dict[str, Span]:
    return {span.name: span for span in run.spans}


def test_spans_inside_become_children_and_the_root_comes_last() -> None:
    run = MemoryRun()

    with opened(run, step=3, group="g", split="train", model="policy") as rollout:
        with chat("policy", input="2 + 2?") as turn:
            turn.output = "4"
            turn.input_tokens, turn.output_tokens = 5, 1
            with tool(
                "calculator", call_id="c1", arguments={"expression": "2 + 2"}
            ) as call:
                call.result = 4
        rollout.messages = CONVERSATION
        rollout.reward = 1.0
        rollout.rewards["format"] = 0.5

    assert [span.name for span in run.spans] == [
        "execute_tool calculator",
        "chat policy",
        "rollout",
    ]
    called, turned, root = run.spans
    assert (called.parent_span_id, turned.parent_span_id, root.parent_span_id) == (
        turned.span_id,
        root.span_id,
        b"",
    )
    assert {span.trace_id.hex() for span in run.spans} == {rollout.id}
    assert attributes(called) == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "calculator", "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"expression":"2 + 2"}', "gen_ai.tool.call.result": "4",
        "rl.rollout.start": {
            "rl.rollout.id": rollout.id, "rl.step": 3, "rl.split": "train", "rl.group.id": "g",
            "gen_ai.request.model": "policy",
        },
    }  # fmt: skip
    assert (span_messages(turned).input, span_messages(turned).output) == (
        [message("user", "2 + 2?")],
        [message("assistant", "4")],
    )
    found = attributes(root)
    assert (found["rl.step"], found["rl.reward"], found["rl.rewards.format"]) == (
        3,
        1.0,
        0.5,
    )
    assert found["rl.rollout.spans"] == 3


def test_the_first_child_alone_has_what_the_root_was_at_its_start() -> None:
    run = MemoryRun()

    with opened(run, step=3, group="g", id="mine", sample=object()) as rollout:
        rollout.group = "changed"
        for _ in range(2):
            with chat("policy"):
                pass

    first, second, root = run.spans
    start = {"rl.rollout.id": "mine", "rl.step": 3, "rl.group.id": "g"}
    assert attributes(first)["rl.rollout.start"] == start
    assert "rl.rollout.start" not in {**attributes(second), **attributes(root)}
    # What cannot be read counts once, at the end.
    assert run.drops == {"rollout_field": 1}


def test_a_rollout_without_child_spans_gets_them_from_its_messages_in_one_record() -> (
    None
):
    run = MemoryRun()

    with opened(run, step=3) as rollout:
        rollout.messages = CONVERSATION

    [spans] = run.frames
    assert [span.name for span in spans] == [
        "rollout",
        "chat",
        "execute_tool calculator",
        "chat",
    ]
    assert attributes(spans[0])["rl.rollout.spans"] == 4
    assert {span.parent_span_id for span in spans[1:]} == {spans[0].span_id}


def test_a_rollout_is_a_trace_of_its_own_that_links_its_caller() -> None:
    run = MemoryRun()
    tracer = TracerProvider().get_tracer("app")

    with (
        tracer.start_as_current_span("app") as app,
        opened(run),
        opened(run, id="mine") as inner,
    ):
        pass

    mine, outer = run.roots
    assert (mine.trace_id.hex(), inner.id) == (trace_id_of("run1", "mine"), "mine")
    assert [one.span_id for one in outer.links] == [
        app.get_span_context().span_id.to_bytes(8, "big")
    ]
    assert [one.span_id for one in mine.links] == [outer.span_id]
    assert (
        len(
            {
                app.get_span_context().trace_id.to_bytes(16, "big"),
                mine.trace_id,
                outer.trace_id,
            }
        )
        == 3
    )


@pytest.mark.parametrize(
    "error", [ValueError("no more tokens"), KeyboardInterrupt(), SystemExit(3)]
)
def test_an_exception_marks_it_failed_and_passes(error: BaseException) -> None:
    run = MemoryRun()

    with pytest.raises(type(error)), opened(run) as rollout, rollout.tool("sandbox"):
        raise error

    assert {span.name: span.status.code for span in run.spans} == {
        "execute_tool sandbox": Status.STATUS_CODE_ERROR,
        "rollout": Status.STATUS_CODE_ERROR,
    }
    events = [
        [plain(pair.value) for pair in event.attributes]
        for event in by_name(run)["rollout"].events
    ]
    assert events == [[type(error).__name__, str(error)]]


def test_hundreds_of_concurrent_tasks_keep_their_children_apart() -> None:
    run = MemoryRun()

    async def one(number: int) -> None:
        with opened(run, sample=number, group=str(number % 8)):
            for _ in range(2):
                await asyncio.sleep(0)
                with chat("policy"):
                    await asyncio.gather(
                        *(
                            asyncio.create_task(asyncio.to_thread(use_tool))
                            for _ in range(1)
                        )
                    )

    def use_tool() -> None:
        with tool("python"):
            pass

    async def many() -> None:
        await asyncio.gather(*(one(number) for number in range(200)))

    asyncio.run(many())

    assert len(run.roots) == 200
    children: dict[bytes, list[str]] = {}
    for span in run.spans:
        children.setdefault(span.trace_id, []).append(span.name)
    assert {tuple(sorted(names)) for names in children.values()} == {
        (
            "chat policy",
            "chat policy",
            "execute_tool python",
            "execute_tool python",
            "rollout",
        )
    }
    assert [attributes(root)["rl.rollout.spans"] for root in run.roots] == [5] * 200


@pytest.mark.parametrize("kind", ["rollout", "attach", "carrier"])
def test_an_asynchronous_generator_that_is_left_early_ends_its_block_without_a_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = MemoryRun()
    rollout = opened(run, id="r")
    carrier = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    blocks: dict[str, Any] = {
        "rollout": rollout,
        "attach": rollout.attach(),
        "carrier": attach_context(carrier),
    }

    async def agent() -> Any:
        with blocks[kind]:
            yield "turn 1"
            yield "turn 2"

    async def job() -> None:
        async for _ in agent():
            break

    asyncio.run(job())

    assert caplog.text == ""
    assert len(run.roots) == (kind == "rollout")


def test_threads_join_by_the_rollout_itself_or_by_attaching_it() -> None:
    run = MemoryRun()

    def work(rollout: LiveRollout) -> None:
        with rollout.chat("by object"):
            pass
        with rollout.attach(), chat("attached"):
            pass

    with opened(run) as rollout, ThreadPoolExecutor(1) as pool:
        pool.submit(work, rollout).result()

    spans = by_name(run)
    root = spans["rollout"]
    assert {
        spans[name].parent_span_id for name in ("chat by object", "chat attached")
    } == {root.span_id}


_WORKER = """
import json, sys
from support.trainers.emit_rollout_doubles import MemoryRun
from otel_bridge.emit.emit_run import set_current_run
from otel_bridge.emit.rollouts import live
from otel_bridge.emit.rollouts.context import attach_context
run = MemoryRun(role="tools")
set_current_run(run)
with attach_context(json.loads(sys.argv[1])):
    with live.tool("remote"):
        pass
for signal, payload in run.records:
    print(payload.hex())
"""


def test_another_process_joins_by_trace_context() -> None:
    run = MemoryRun()

    with opened(run) as rollout:
        rollout.messages = CONVERSATION
        carrier = get_context()
        code = [
            sys.executable,
            "-c",
            _WORKER,
            __import__("json").dumps({"TraceParent": carrier["traceparent"]}),
        ]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        output = subprocess.run(
            code, capture_output=True, text=True, check=True, env=env
        ).stdout
    run.records.append((2, bytes.fromhex(output.strip())))

    spans = by_name(run)
    assert sorted(spans) == ["execute_tool remote", "rollout"]
    assert spans["execute_tool remote"].trace_id == spans["rollout"].trace_id
    assert spans["execute_tool remote"].parent_span_id == spans["rollout"].span_id
    # Others may add spans: their number is not known here, and none is made up.
    assert "rl.rollout.spans" not in attributes(spans["rollout"])


class _NoMapping(dict[str, object]):
    def keys(self) -> Any:
        raise ValueError("odd")

    __iter__ = items = keys  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    "carrier",
    [
        None,
        {},
        {"traceparent": "nonsense"},
        {b"traceparent": b"00-zz"},
        3,
        _NoMapping(a=1),
    ],
)
def test_a_carrier_that_carries_nothing_changes_nothing(carrier: Any) -> None:
    with attach_context(carrier):
        assert not trace.get_current_span().get_span_context().is_valid


def test_one_carrier_joins_blocks_inside_one_another() -> None:
    joined = attach_context({"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
    before = trace.get_current_span()

    with joined:
        outside = trace.get_current_span().get_span_context()
        with joined:
            inside = trace.get_current_span().get_span_context()

    assert outside == inside
    assert trace.get_current_span() is before


def test_switched_off_rollouts_cost_their_statistics_only_and_switch_off_what_joins() -> (
    None
):
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="0")

    with (
        opened(run, step=3, group="g") as rollout,
        chat("policy"),
        rollout.tool("python"),
    ):
        carrier = get_context()
        rollout.reward = 0.5
    with attach_context(carrier), tool("remote"):
        pass

    assert run.spans == []
    assert carrier["traceparent"].endswith("-00")
    [event] = run.events
    assert plain(event.body) == {
        "g": {"count": 1, "sum": 0.5, "sum_squares": 0.25, "min": 0.5, "max": 0.5}
    }


def test_a_value_for_a_switched_off_rollout_finds_its_id_among_those_left_out() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="0")

    with opened(run, id="r1"):
        pass
    with opened(run) as generated:
        pass

    assert [attributes(event)["rl.rollouts.ids"] for event in run.events] == [
        "r1",
        generated.trace_id,
    ]


@pytest.mark.parametrize("cap", ["16", "0"])
def test_rollouts_that_never_close_are_counted_when_their_run_ends_and_the_first_is_named(
    tmp_path: Path, cap: str
) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP": cap}) as run:
        run.rollout(id="never entered")
        left = run.rollout(id="left open")
        left.__enter__()
        with run.rollout(id="closed"):
            pass
        run.finish(timeout_s=0)
        left.__exit__(None, None, None)

        (seen,) = seen_in(tmp_path)

    dropped = seen.event("rl.dropped")
    assert dropped.body == {"rollout_unfinished": 2}
    assert dropped.attributes["rl.dropped.keys"] == {
        "rollout_unfinished": "never entered"
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_rollout_open_at_a_fork_is_counted_in_the_parent_only(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        rollout = run.rollout(id="r1")
        with rollout:
            child = os.fork()
            if child == 0:
                run.log({"a": 1.0})
                run.finish(timeout_s=0)
                os._exit(0)
            os.waitpid(child, 0)
        run.finish(timeout_s=0)

        seen = seen_in(tmp_path)

    assert [
        event.name for one in seen for event in one.events if event.name == "rl.dropped"
    ] == []


def test_child_spans_without_a_run_do_nothing() -> None:
    with chat("policy") as turn, tool("python") as call:
        turn.output = "x"
        call.result = 1

    assert not turn.span.is_recording()


def test_a_model_without_a_truth_value_never_reaches_the_caller() -> None:
    run = MemoryRun()

    with opened(run, model="policy") as rollout, rollout.chat(np.array(["a", "b"])):  # type: ignore[arg-type]
        pass

    assert [span.name for span in run.spans if span not in run.roots] == [
        "chat ['a' 'b']"
    ]


def test_fields_that_break_it_never_reach_the_caller() -> None:
    run = MemoryRun()

    with opened(run, step="x", unknown=1, group=None) as rollout:
        rollout.messages = 3
        rollout.metadata = None  # type: ignore[assignment]
        rollout.reward = object()  # type: ignore[assignment]
        rollout.turns = None  # type: ignore[assignment]

    [root] = run.roots
    assert attributes(root)["rl.step"] == 7
    assert run.drops == {"rollout_step": 1, "rollout_message": 1, "rollout_reward": 1}


def test_what_is_set_beside_the_fields_is_metadata() -> None:
    run = MemoryRun()

    with opened(run, step=1, temperature=0.5) as rollout:
        rollout.environment = "maze"  # type: ignore[attr-defined]
        with rollout.tool("search") as tool:
            tool.cost = 3  # type: ignore[attr-defined]

    [root] = run.roots
    facts = attributes(root)
    assert (facts["rl.metadata.temperature"], facts["rl.metadata.environment"]) == (
        0.5,
        "maze",
    )
    [span] = [span for span in run.spans if span.name.startswith("execute_tool")]
    assert attributes(span)["rl.metadata.cost"] == 3
    assert not [key for key in facts if "trace_id" in key]


def test_half_a_surrogate_pair_in_the_name_of_a_model_or_tool_costs_no_span() -> None:
    run = MemoryRun()

    with opened(run), chat("m\ud83d", input="q") as turn:
        turn.output = "a"
        with tool("t\ud83d") as call:
            call.result = 1

    assert run.drops == {}
    assert [span.name for span in run.spans] == [
        "execute_tool t?",
        "chat m?",
        "rollout",
    ]


@pytest.mark.parametrize("metadata", [5, "text", [1]], ids=["int", "str", "list"])
def test_metadata_other_than_a_mapping_is_one_fact(metadata: Any) -> None:
    run = MemoryRun()

    with (
        opened(run),
        chat("m", metadata=metadata, kind="x", output="4") as turn,
        tool("t") as call,
    ):
        call.metadata = metadata
        assert turn.metadata == {"metadata": metadata, "kind": "x"}

    facts = [
        attributes(span).get(f"{semconv.METADATA_PREFIX}metadata") for span in run.spans
    ]
    assert facts == [metadata, metadata, None]
    assert run.drops == {}


@pytest.mark.parametrize("metadata", [None, _NoMapping(a=1)], ids=["none", "odd"])
def test_metadata_that_cannot_be_read_costs_itself_alone(metadata: Any) -> None:
    run = MemoryRun()

    with (
        opened(run),
        chat("m", metadata=metadata, kind="x", output="4"),
        tool("t") as call,
    ):
        call.metadata = metadata

    assert [span.name for span in run.spans] == ["execute_tool t", "chat m", "rollout"]
    assert attributes(run.spans[1])[f"{semconv.METADATA_PREFIX}kind"] == "x"
    assert run.drops == ({} if metadata is None else {"unreadable_value": 2})


def test_a_start_of_any_type_is_replaced_by_that_of_the_block() -> None:
    run = MemoryRun()

    with opened(run, start_unix_ns=np.array([1, 2])) as rollout:
        assert type(rollout.start_unix_ns) is int

    assert run.drops == {}


def broken_generator() -> Iterator[object]:
    yield from CONVERSATION
    raise RuntimeError


def test_a_rollout_that_cannot_be_read_still_ends() -> None:
    run = MemoryRun()

    with opened(run, id="r1") as rollout:
        rollout.messages = broken_generator()

    [root] = run.roots
    assert attributes(root)["rl.rollout.id"] == "r1"
    assert run.drops == {"rollout_unreadable": 1}


def test_turns_that_have_no_truth_value_do_not_end_the_program() -> None:
    run = MemoryRun()

    with opened(run, step=3) as rollout:
        rollout.messages = CONVERSATION
        rollout.turns = np.array([{"reward": 0.25}, {"reward": 0.5}], dtype=object)  # type: ignore[assignment]

    rewards = [attributes(span).get("rl.reward") for span in run.spans]
    assert rewards == [None, 0.25, None, 0.5]
    assert run.drops == {}


def test_the_environment_of_stock_sdks_does_not_switch_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    run = MemoryRun()

    with opened(run, id="long id"), chat("policy"):
        pass

    assert attributes(by_name(run)["rollout"])["rl.rollout.id"] == "long id"
    assert sorted(by_name(run)) == ["chat policy", "rollout"]


def test_the_limits_of_stock_sdks_take_nothing_that_the_program_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limited in ("ATTRIBUTE", "SPAN_ATTRIBUTE", "SPAN_EVENT", "EVENT_ATTRIBUTE"):
        monkeypatch.setenv(f"OTEL_{limited}_COUNT_LIMIT", "1")
    run = MemoryRun()

    with opened(run), chat("policy") as turn:
        turn.span.set_attributes({"own.a": 1, "own.b": 2})
        turn.span.add_event("a", {"x": 1, "y": 2})
        turn.span.add_event("b")

    span = by_name(run)["chat policy"]
    assert {"own.a", "own.b"} <= attributes(span).keys()
    assert [(event.name, len(event.attributes)) for event in span.events] == [
        ("a", 2),
        ("b", 0),
    ]


def test_a_span_that_is_ended_twice_is_recorded_once() -> None:
    run = MemoryRun()

    with opened(run) as rollout:
        turn = rollout.chat("policy")
        turn.__enter__()
        turn.__exit__(None, None, None)
        turn.__exit__(None, None, None)

    assert [span.name for span in run.spans] == ["chat policy", "rollout"]


def test_no_number_is_drawn_from_the_program_s_generator() -> None:
    random.seed(3)
    before = random.getstate()

    with opened(MemoryRun()), chat("policy"):
        pass

    assert random.getstate() == before


def test_nothing_global_is_set() -> None:
    with opened(MemoryRun()):
        pass

    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_inside_leaves_the_root_to_its_parent() -> None:
    run = MemoryRun()
    read, write = os.pipe()

    with opened(run) as rollout:
        pid = os.fork()
        if pid == 0:
            with rollout.tool("forked"):
                pass
            rollout.__exit__(None, None, None)
            os.write(write, ",".join(span.name for span in run.spans).encode())
            os._exit(0)
        os.waitpid(pid, 0)

    assert os.read(read, 100).decode() == "execute_tool forked"
    assert [span.name for span in run.spans] == ["rollout"]


def test_threads_that_race_for_the_first_rollout_share_a_tracer() -> None:
    run = MemoryRun()
    barrier = threading.Barrier(8)

    def one() -> None:
        barrier.wait()
        with opened(run), chat("policy"):
            pass

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(run.roots) == 8
    assert len(run.spans) == 16


def test_what_a_chat_cannot_read_is_kept_as_text_and_counted() -> None:
    run = MemoryRun()

    with opened(run) as rollout, rollout.chat("m", input=[object()]) as turn:
        turn.output = 7

    assert run.drops == {"described": 1, "rollout_message": 2}


class Batch:
    """Stands for what a caller holds while its rollout fails."""


@pytest.mark.parametrize("is_caught_inside", [False, True])
def test_a_failed_block_keeps_none_of_its_callers_locals_alive(
    is_caught_inside: bool,
) -> None:
    run = MemoryRun()

    def failing() -> tuple[weakref.ref[Batch], set[str]]:
        batch = Batch()
        freed = weakref.ref(batch)
        with (
            contextlib.suppress(TimeoutError),
            opened(run) as rollout,
            chat("policy") as turn,
            tool("python") as call,
        ):
            try:
                raise TimeoutError("sandbox gone")
            except TimeoutError as exc:
                rollout.error = turn.error = call.error = exc
                if not is_caught_inside:
                    raise
        return freed, {str(span.error) for span in (rollout, turn, call)}

    gc.disable()
    try:
        freed, errors = failing()
        assert freed() is None
    finally:
        gc.enable()
    assert errors == {"TimeoutError: sandbox gone"}
    assert {span.status.message for span in run.spans} == {"sandbox gone"}
