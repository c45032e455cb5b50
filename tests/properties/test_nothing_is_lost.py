"""When `drops` is empty, everything that a program handed over is in the exporter; else what is not is counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.capture.trackio_sdk import TrackioRecording
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.emit.run import Run
from otel_bridge.journal.frames import Signal
from support.values.drawn_values import (
    MISSING,
    WIRE_KEYS,
    Marks,
    Node,
    drawn,
    flat,
    leaves,
    mappings,
    nested,
    row_values,
    wire,
)
from support.values.recorded_run import Recorded, RunRecorder

EXAMPLES = settings(
    max_examples=5,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRecorder]:
    recorder = RunRecorder(tmp_path_factory.mktemp("runs"))
    with recorder.prepared():
        yield recorder


def check(
    runs: RunRecorder,
    nodes: list[Node],
    record: Callable[[Run, Any], None],
    *names: str,
) -> None:
    """Record each of *nodes* in one run: each mark is in ``file``, or was counted with a key above it."""
    marks = Marks()
    values = [drawn(node, marks) for node in nodes]
    found = runs.recorded(lambda run: [record(run, value.value) for value in values])
    require_counted(
        found, [value.uncounted(found.text, found.dropped, names) for value in values]
    )


FIELD = leaves().filter(lambda node: node.kind != "beyond 64 bits")
"""Numbers of fields are doubles."""


def check_fields(
    runs: RunRecorder,
    nodes: dict[str, Node],
    record: Callable[[Run, dict[str, Any]], None],
    *names: str,
) -> None:
    """Record one value of each field: its marks are in ``file``, or it was counted with the field."""
    marks = Marks()
    values = {name: drawn(node, marks) for name, node in nodes.items()}
    found = runs.recorded(
        lambda run: record(run, {name: value.value for name, value in values.items()})
    )
    require_counted(
        found,
        [
            # A column is counted by the name of the field that it fills, which is in the singular.
            value.uncounted(
                found.text, found.dropped, [name, name.removesuffix("s"), *names]
            )
            for name, value in values.items()
        ],
    )


def require_counted(found: Recorded, lost: list[list[str]]) -> None:
    """Nothing is lost, and the drops have a key, unless their reason names the field."""
    shown = f"{found.drops}, {found.first_keys}\n{found.text}"
    assert not any(lost), f"{lost} are lost; {shown}"
    assert {
        name for name in found.drops if not name.startswith(_OF_FIELDS)
    } <= found.first_keys.keys(), shown
    assert "internal_error" not in found.drops, shown


_OF_FIELDS = ("rollout_", "evaluation_")


def several(values: st.SearchStrategy[Node]) -> st.SearchStrategy[list[Node]]:
    return st.lists(mappings(values, ("dict",)), min_size=1, max_size=10)


FACTS = nested().filter(lambda node: node.kind not in MISSING)
"""A fact that is missing is not a fact."""


def rollout(**fields: Any) -> dict[str, Any]:
    return {"messages": "hi", **fields}


def tool_call(arguments: Any) -> dict[str, Any]:
    call = {
        "id": "call",
        "type": "function",
        "function": {"name": "search", "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def text_part(fact: Any) -> dict[str, Any]:
    return {"type": "text", "text": "hi", "fact": fact}


def call_with(fact: Any) -> dict[str, Any]:
    return {**tool_call({})["tool_calls"][0], "fact": fact}


def tool_answer(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call", "content": content}


def log_messages(run: Run, *messages: Any) -> None:
    run.log_rollouts([{"messages": [{"role": "user", "content": "hi"}, *messages]}])


def record_live(run: Run, **fields: Any) -> None:
    with run.rollout(**fields) as live:
        live.messages = "hi"


def record_chat(run: Run, **fields: Any) -> None:
    with run.rollout() as live, live.chat("model", **fields):
        pass


def record_tool(run: Run, **fields: Any) -> None:
    with run.rollout() as live, live.tool("search", **fields):
        pass


NESTED: dict[str, Callable[[Run, Any], None]] = {
    "config": lambda run, value: run.log_config(value),
    "metadata": lambda run, value: run.log_rollouts([rollout(metadata=value)]),
    "tools": lambda run, value: run.log_rollouts([rollout(tools=value)]),
    "fact of a message": lambda run, value: log_messages(
        run, {"role": "user", "content": "hi", "fact": value}
    ),
    "content of a message": lambda run, value: log_messages(
        run, {"role": "user", "content": value}
    ),
    "fact of a part": lambda run, value: log_messages(
        run, {"role": "user", "content": [text_part(value)]}
    ),
    "fact of a call": lambda run, value: log_messages(
        run, {**tool_call({}), "tool_calls": [call_with(value)]}
    ),
    "part of a message": lambda run, value: log_messages(
        run, {"role": "user", "content": [value]}
    ),
    "arguments of a call": lambda run, value: log_messages(run, tool_call(value)),
    "answer of a tool": lambda run, value: log_messages(
        run, tool_call({}), tool_answer(value)
    ),
    "metadata of generations": lambda run, value: run.log_generations(
        prompts=["q"], responses=["a"], metadata=[value]
    ),
    "tools of generations": lambda run, value: run.log_generations(
        prompts=["q"], responses=["a"], tool_facts=[value]
    ),
    "fact of a live rollout": lambda run, value: record_live(run, fact=value),
    "input of a live chat": lambda run, value: record_chat(run, input=[value]),
    "output of a live chat": lambda run, value: record_chat(run, output=[value]),
    "fact of a live chat": lambda run, value: record_chat(run, fact=value),
    "arguments of a live tool": lambda run, value: record_tool(run, arguments=value),
    "result of a live tool": lambda run, value: record_tool(run, result=value),
    "fact of a live tool": lambda run, value: record_tool(run, fact=value),
}


@pytest.mark.parametrize(
    "entry",
    [
        # A third of the doors at each change, the others with the long tests.
        pytest.param(entry, marks=pytest.mark.long if index % 3 else ())
        for index, entry in enumerate(NESTED)
    ],
)
@EXAMPLES
@given(nodes=several(FACTS))
def test_every_nested_leaf_is_found_or_counted(
    runs: RunRecorder, entry: str, nodes: list[Node]
) -> None:
    check(runs, nodes, NESTED[entry])


@EXAMPLES
@given(nodes=several(flat()))
def test_every_value_of_a_summary_is_found_or_counted(
    runs: RunRecorder, nodes: list[Node]
) -> None:
    check(runs, nodes, lambda run, value: run.summary(value))


@EXAMPLES
@given(nodes=several(row_values()))
def test_every_value_of_a_row_is_found_or_counted(
    runs: RunRecorder, nodes: list[Node]
) -> None:
    check(runs, nodes, lambda run, value: run.log(value))


FIELDS = (
    "id", "group", "trajectory_id", "prompt_index", "sample", "batch_index", "reward", "advantage", "policy_version",
    "dataset", "dataset_index", "model", "finish_reason", "error", "split", "step", "input_tokens", "output_tokens",
)  # fmt: skip
COLUMNS = (
    "groups", "trajectory_ids", "rewards", "advantages", "finish_reasons", "policy_versions", "datasets",
    "dataset_indices", "states", "ids", "errors",
)  # fmt: skip


@EXAMPLES
@given(
    nodes=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, FIELD)),
        min_size=1,
        max_size=4,
    )
)
def test_every_field_of_a_rollout_is_found_or_counted(
    runs: RunRecorder, nodes: list[dict[str, Node]]
) -> None:
    for node in nodes:
        check_fields(
            runs, node, lambda run, fields: run.log_rollouts([rollout(**fields)])
        )


@EXAMPLES
@given(
    nodes=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, FIELD)),
        min_size=1,
        max_size=4,
    )
)
def test_every_field_of_a_live_rollout_is_found_or_counted(
    runs: RunRecorder, nodes: list[dict[str, Node]]
) -> None:
    for node in nodes:
        check_fields(runs, node, lambda run, fields: record_live(run, **fields))


@EXAMPLES
@given(nodes=st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, FIELD)))
def test_every_column_of_generations_is_found_or_counted(
    runs: RunRecorder, nodes: dict[str, Node]
) -> None:
    def record(run: Run, columns: dict[str, Any]) -> None:
        run.log_generations(
            prompts=["q"],
            responses=["a"],
            **{name: [value] for name, value in columns.items()},
        )

    check_fields(runs, nodes, record)


@EXAMPLES
@given(
    nodes=st.fixed_dictionaries(
        dict.fromkeys(("id", "value", "name", "explanation"), FIELD)
    )
)
def test_every_evaluation_is_found_or_counted(
    runs: RunRecorder, nodes: dict[str, Node]
) -> None:
    def record(run: Run, fields: dict[str, Any]) -> None:
        rollout_id = fields.pop("id")
        run.log_rollouts([rollout(id=rollout_id)])
        run.log_reward(rollout_id, fields.pop("value"), **fields)

    check_fields(runs, nodes, record, "evaluation_")  # one record, counted as a whole


def wandb_table(value: Any) -> Any:
    import wandb

    table = wandb.Table(columns=["prompt", "response", "fact"], allow_mixed_types=True)
    table.data.append(["q", "a", value])
    return table


def set_summary(run: Run, values: Any) -> None:
    from wandb.sdk.wandb_summary import Summary

    recording = WandbRecording(run)
    summary = Summary(lambda: recording.last.values)
    summary._set_update_callback(recording.summary_callback)
    summary.update(values)


def log_trace(run: Run, value: Any) -> None:
    import trackio

    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    TrackioRecording(run).log(
        {"trace": trackio.Trace(messages=messages, metadata={"fact": value})}
    )


CAPTURED_ROW = row_values(left_out=frozenset({"None"}))
"""A captured ``None`` is a gap: there is nothing to record."""
CAPTURED: dict[str, tuple[Callable[[Run, Any], None], st.SearchStrategy[Node]]] = {
    "wandb.log": (lambda run, value: WandbRecording(run).log(value), CAPTURED_ROW),
    "wandb.summary": (
        set_summary,
        flat(),
    ),
    "wandb.config": (lambda run, value: WandbRecording(run).config(value), nested()),
    "wandb.Table": (
        lambda run, value: WandbRecording(run).log({"samples": wandb_table(value)}),
        FACTS,
    ),
    "trackio.log": (lambda run, value: TrackioRecording(run).log(value), CAPTURED_ROW),
    "trackio.Trace": (log_trace, FACTS),
}


@pytest.mark.parametrize("entry", CAPTURED)
@EXAMPLES
@given(data=st.data())
def test_every_captured_value_is_found_or_counted(
    runs: RunRecorder, entry: str, data: st.DataObject
) -> None:
    record, values = CAPTURED[entry]
    check(runs, data.draw(several(values)), record)


def any_value(value: Any) -> AnyValue:
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    if isinstance(value, list):
        return AnyValue(
            array_value=ArrayValue(values=[any_value(item) for item in value])
        )
    kinds = {
        str: "string_value",
        bool: "bool_value",
        int: "int_value",
        float: "double_value",
    }
    return AnyValue(**{kinds[type(value)]: value})


def attributes(values: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def append_span(run: Run, value: Any) -> None:
    span = Span(
        name="of another library",
        trace_id=os.urandom(16),
        span_id=os.urandom(8),
        attributes=attributes(value),
    )
    span.start_time_unix_nano = span.end_time_unix_nano = time.time_ns()
    spans = ScopeSpans(scope=InstrumentationScope(name="another library"), spans=[span])
    run.append(int(Signal.TRACES), spans.SerializeToString())


@EXAMPLES
@given(nodes=st.lists(mappings(wire(), ("dict",), WIRE_KEYS), min_size=1, max_size=10))
def test_every_attribute_of_a_span_of_another_library_is_found(
    runs: RunRecorder, nodes: list[Node]
) -> None:
    check(runs, nodes, append_span)
