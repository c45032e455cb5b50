"""The registry in semconv/, the page that is made of it, and what is on the wire are the same."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from docs_site import semconv_page
from otel_bridge import semconv
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.segment import read_segment
from support.collector.service_process import service
from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    statuses,
    until,
)

REGISTRY = semconv_page.load()
GROUPS = {group["id"]: group for group in REGISTRY.groups()}
OF_HTTP_AND_GRPC = {semconv.SCOPE_NAME, semconv.HEADER_RUN_ID, semconv.HEADER_SERVER}
OF_TRACKERS = {semconv.ROLES, semconv.BRIDGE_VERSION}
"""Tags of a tracker's run: no producer sends them."""
NO_ATTRIBUTES = {semconv.ENGINE_ROLE, semconv.REDUCE_PREFIX}
"""A value of a role, and the begin of a metric's name."""
OF_A_BRIDGE = "event.rl.alive"
LEVELS = {"required", "conditionally_required", "recommended", "opt_in"}
KINDS = {
    "string": {"string_value"},
    "int": {"int_value"},
    "double": {"double_value"},
    "boolean": {"bool_value"},
    "any": {
        "bytes_value",
        "string_value",
        "int_value",
        "double_value",
        "bool_value",
        "array_value",
        "kvlist_value",
    },
}
PROGRAM = """
    import otel_bridge
    run = otel_bridge.init(
        "gsm8k", role="trainer", config={"lr": 0.1}, group="g", tags=["a"], notes="n", job_type="j", entity="e", rank=0
    )
    run.log({"loss": 0.5, "count": 3, "lengths": [1, 2, 3], "text": "dropped"}, step=7)
    run.log({"score": 0.5}, step=7, role="judge")
    conversation = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4" * 2000},
        {"role": "assistant", "content": "4"},
    ]
    rollout = otel_bridge.Rollout(
        conversation, reward=1.0, rewards={"correct": 1.0}, advantage=0.4, finish_reason="stop", id="mine", group="p",
        sample=3, trajectory_id="t", prompt_index=1, batch_index=2, policy_version=6, dataset="d", dataset_index=5,
        model="policy", tools={"calls": 1, "runtimes": [0.1]}, turns=[{"reward": 0.5, "output_tokens": 3}, {}],
        input_tokens=3, output_tokens=4, metadata={"level": "hard"}, error=ValueError("no"),
    )
    run.log({"loss": 1.0}, step=7, time_unix_ns=1754000000000000000)
    run.alert("kl", "too large", level="error", role="judge")
    run.summary({"best": 0.9, "note": "n", "ok": True}, role="judge")
    run.recorder.event("rl.metric.summary", {"rl.role": "judge"}, {"acc/*": "min,max"})  # as a captured define_metric()
    run.recorder.event("rl.run.config", {"rl.config.replace": True}, {"lr": 1.0})  # as a captured config.update()
    run.log_rollouts([rollout], step=7, split="eval")
    run.log_rollouts([rollout] * 40, step=8)
    with run.rollout(step=9) as live:
        with otel_bridge.chat("policy", input="2 + 2?") as turn:
            turn.output, turn.input_tokens, turn.finish_reason = "4", 3, "stop"
        with otel_bridge.tool("add", arguments={"a": 2}) as tool:
            tool.result, tool.call_id = 4, "c1"
        with run.rollout(step=10):
            live.reward = 1.0
    run.train_on(7, ["mine"], unused={"stale": ["other"]}, role="judge")
    tokens = {"logprobs": [-1.0, -2.0], "trainer_logprobs": [-1.5, -2.0], "token_ids": [1, 2], "tokens": ["4", "."]}
    run.annotate("mine", 7, role="judge", **tokens)
    with run.phase("train", step=7, role="judge"), run.phase("forward"):
        pass
    run.log({"notes": [otel_bridge.Text("x" * (1 << 20)), otel_bridge.Text("y", caption="a letter")]})
    run.log_reward("mine", 0.7, name="judge", explanation="right")
    run.log_reward("mine", "good", name="label", role="judge")
    run.finish()
    from otel_bridge.capture.wandb.arguments import rename
    from otel_bridge.emit.config.run_request import RunRequest
    from otel_bridge.emit.process_runs import runs
    captured = runs.begin(RunRequest(captured="wandb", project="gsm8k"))
    rename(captured, "later")
    captured.finish()
"""


def test_the_page_is_fresh() -> None:
    assert semconv_page.PAGE.read_text("utf-8") == semconv_page.page(), (
        "run `make docs`"
    )


def test_every_name_on_the_wire_is_in_the_registry_and_no_other() -> None:
    texts = {
        value
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str)
    }
    names = {name.removesuffix(".") for name in (*texts, *semconv.THIRD_PARTY_STEPS)}
    constants = names - OF_HTTP_AND_GRPC - OF_TRACKERS - NO_ATTRIBUTES
    of_opentelemetry = set(REGISTRY.attributes) - REGISTRY.own

    assert constants - REGISTRY.names() == set()
    assert REGISTRY.names() - constants - of_opentelemetry == set()
    assert all(not name.startswith("rl.") for name in of_opentelemetry)
    assert [
        name for name in OF_HTTP_AND_GRPC if f"`{name}" not in semconv_page.page()
    ] == []


def test_every_attribute_of_the_registry_is_in_a_table_with_a_level_and_an_example() -> (
    None
):
    used = {
        one["ref"] for group in GROUPS.values() for one in group.get("attributes", ())
    }

    assert set(REGISTRY.attributes) == used
    for group in GROUPS.values():
        refs = [one["ref"] for one in group.get("attributes", ())]
        levels = [one["requirement_level"] for one in group.get("attributes", ())]
        assert len(refs) == len(set(refs))
        assert {
            level if isinstance(level, str) else next(iter(level)) for level in levels
        } <= LEVELS
        assert group["type"] == "attribute_group" or group["stability"] == "development"
    assert [
        name
        for name, one in REGISTRY.attributes.items()
        if not one.get("examples") or not one["brief"]
    ] == []
    assert {REGISTRY.attributes[name]["stability"] for name in REGISTRY.own} == {
        "development"
    }


def test_what_a_process_sends_is_in_the_registry_with_its_type(tmp_path: Path) -> None:
    path = program(tmp_path, "program.py", PROGRAM)
    trackers = {
        "WANDB_PROJECT": "w",
        "WANDB_TAGS": "a,b",
        "MLFLOW_RUN_ID": "m",
        "TRACKIO_SPACE_ID": "ada/space",
    }
    env = environment(
        tmp_path,
        OTEL_BRIDGE_OFFLINE="1",
        WORLD_SIZE="2",
        TORCHELASTIC_RESTART_COUNT="1",
        **trackers,
    )

    done = call([sys.executable, path], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    sent = list(_sent(tmp_path / ".otel-bridge"))
    signals = {
        name
        for name, group in GROUPS.items()
        if group["type"] in {"metric", "span", "event"}
    }
    assert {group for group, _ in sent} == signals - {OF_A_BRIDGE} | {
        "entity.rl.run",
        "attributes.rl.value",
    }
    assert (
        sorted(
            {
                f"{group}: {wrong}"
                for group, pairs in sent
                for wrong in _wrong(group, pairs)
            }
        )
        == []
    )
    names = {pair.key for _, pairs in sent for pair in pairs}
    assert {
        "rl.message.index",
        "rl.turn.last",
        "rl.rollouts.ids",
        "rl.rollouts.open_steps",
        "rl.attempt",
    } <= names


def _sent(base: Path) -> Iterator[tuple[str, list[KeyValue]]]:
    """Every set of attributes in the segments below *base*, with the group of the registry that it is of."""
    spans = {
        semconv_page.span_name(group).partition(" ")[0]: name
        for name, group in GROUPS.items()
    }
    events = {
        group["name"]: name
        for name, group in GROUPS.items()
        if group["type"] == "event"
    }
    for file in (file for folder in run_folders(base) for file in folder.segments()):
        header, scan = read_segment(file.path, 0, limit_bytes=1 << 30, final=False)
        assert header is not None
        yield "entity.rl.run", list(Resource.FromString(header.resource).attributes)
        for frame in scan.frames:
            if frame.signal is Signal.METRICS:
                for metric in ScopeMetrics.FromString(frame.payload).metrics:
                    kind: Any = getattr(metric, str(metric.WhichOneof("data")))
                    group = (
                        "metric.rl.row"
                        if metric.name == semconv.ROW
                        else "attributes.rl.value"
                    )
                    yield from (
                        (group, list(point.attributes)) for point in kind.data_points
                    )
            elif frame.signal is Signal.TRACES:
                for span in ScopeSpans.FromString(frame.payload).spans:
                    yield spans[span.name.partition(" ")[0]], list(span.attributes)
            elif frame.signal is Signal.LOGS:
                for record in ScopeLogs.FromString(frame.payload).log_records:
                    yield events[record.event_name], list(record.attributes)


def _wrong(group: str, pairs: Iterable[KeyValue]) -> Iterator[str]:
    """What of *pairs* the registry does not have in *group*, and what it requires and is missing."""
    allowed = _attributes(group)
    if group == "entity.rl.run":  # one resource holds both
        allowed |= _attributes("entity.rl.process")
    found = {pair.key: pair.value for pair in pairs}
    for name, value in found.items():
        prefix = next(
            (
                one
                for one in allowed
                if name.startswith(f"{one}.") and _is_template(one)
            ),
            name,
        )
        known = name if name in allowed else prefix
        if known not in allowed:
            yield f"{name} is not in the group"
        elif value.WhichOneof("value") not in _kinds(
            REGISTRY.attributes[known]["type"], value
        ):
            yield f"{name} is {value.WhichOneof('value')}"
    yield from (
        f"{name} is missing"
        for name, level in allowed.items()
        if level == "required" and name not in found
    )


def _attributes(group: str) -> dict[str, Any]:
    """The attributes of a group, and of those that it extends, with their levels."""
    extended = GROUPS[group].get("extends")
    own = {
        one["ref"]: one["requirement_level"]
        for one in GROUPS[group].get("attributes", ())
    }
    return {**(_attributes(extended) if extended else {}), **own}


def _is_template(name: str) -> bool:
    return str(REGISTRY.attributes[name]["type"]).startswith("template[")


def _kinds(kind: object, value: AnyValue) -> set[str]:
    """Which fields of *value* the type *kind* of the registry allows."""
    if not isinstance(kind, str):
        return {"string_value"}
    kind = (
        kind.removeprefix("template[").removesuffix("]")
        if kind.startswith("template[")
        else kind
    )
    if not kind.endswith("[]"):
        return KINDS[kind]
    items = {item.WhichOneof("value") for item in value.array_value.values}
    return {"array_value"} if items <= KINDS[kind.removesuffix("[]")] else set()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_example_of_the_page_is_taken_by_a_bridge_and_becomes_the_row_that_it_shows(
    tmp_path: Path,
) -> None:
    text = semconv_page.PAGE.read_text("utf-8")
    serve, example = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    _, command, *options = serve.split()
    assert command == "serve"
    env = environment(tmp_path)
    with service(tmp_path, env, *options) as running:
        script = example.replace("http://127.0.0.1:4318", running.http)

        done = call(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script], cwd=tmp_path, env=env
        )

        assert (done.returncode, done.stdout, done.stderr) == (0, "{}" * 3, "")
        report = ended(tmp_path / ".otel-bridge")
        folder = only_folder(tmp_path / ".otel-bridge")
        until(lambda: statuses(folder), "the end of the run in the file")
    rows = [
        line
        for line in records(folder)
        if line["kind"] == "row" and "trainer/loss" in line["values"]
    ]
    expected = json.loads(shown)
    assert [{key: row[key] for key in expected} for row in rows] == [expected]
    (rollout,) = (line for line in records(folder) if line["kind"] == "rollout")
    assert (rollout["step"], rollout["reward"], rollout["rewards"]) == (
        7,
        1.0,
        {"judge": 0.7},
    )
    assert rollout["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert [line["config"] for line in records(folder) if line["kind"] == "config"] == [
        {"batch_size": 64}
    ]
    assert (report.project, report.name, report.drops, statuses(folder)) == (
        "gsm8k",
        "from-curl",
        {},
        ["finished"],
    )
    assert "from-curl" in otel_bridge("status", cwd=tmp_path, env=env).stdout
    assert "judge" in otel_bridge("rollouts", cwd=tmp_path, env=env).stdout
