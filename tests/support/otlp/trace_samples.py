"""Spans as producers send them, small and readable, for the tests of rollouts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from otel_bridge.records import Evaluation, Record, RolloutRecord, Row
from otel_bridge.translation.decode.resources import Producer, producer_of
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import OtherTraces, TranslationOptions, counted
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import TranslationState
from support.otlp.memory_state import MemoryState

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
OURS = producer_of({"rl.run.id": "r1", "rl.role": "explorer", "rl.instance.id": "i1"})
FOREIGN = producer_of({"service.name": "agent"})


def value(of: Any) -> AnyValue:
    if isinstance(of, bool):
        return AnyValue(bool_value=of)
    if isinstance(of, int):
        return AnyValue(int_value=of)
    if isinstance(of, float):
        return AnyValue(double_value=of)
    if isinstance(of, bytes):
        return AnyValue(bytes_value=of)
    if isinstance(of, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=pairs(of)))
    if isinstance(of, str):
        return AnyValue(string_value=of)
    return (
        AnyValue()
        if of is None
        else AnyValue(array_value=ArrayValue(values=[value(entry) for entry in of]))
    )


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value(of)) for key, of in attributes.items()]


def trace_id(name: str) -> str:
    return hashlib.md5(name.encode()).hexdigest()


def span(
    trace: str,
    number: int,
    name: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    parent: int | None = 1,
    start_ns: int | None = None,
    error: str | None = None,
) -> Span:
    start = NOW + number if start_ns is None else start_ns
    return Span(
        trace_id=bytes.fromhex(trace_id(trace)),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big")
        if parent is not None and number != 1
        else b"",
        name=name,
        start_time_unix_nano=start,
        end_time_unix_nano=start + 100,
        attributes=pairs(attributes or {}),
        status=Status(code=Status.STATUS_CODE_ERROR, message=error)
        if error is not None
        else None,
    )


def text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def rollout_spans(
    trace: str,
    *,
    step: int | None = 1,
    reward: float | None = 1.0,
    counted: bool = True,
    **attributes: Any,
) -> list[Span]:
    """A rollout of two turns and a tool call: root, chat, tool, chat."""
    call = {"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"x": "1+1"}}
    result = {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}],
    }
    question, asks, answer = (
        text("user", f"what? {trace}"),
        {"role": "assistant", "parts": [call]},
        text("assistant", "2"),
    )
    root = {
        "rl.rollout.id": trace_id(trace),
        "rl.step": step,
        "rl.reward": reward,
        "rl.rollout.spans": 4 if counted else None,
        "gen_ai.input.messages": json.dumps([question, asks, result]),
        "gen_ai.output.messages": json.dumps([answer]),
        **{key.replace("__", "."): of for key, of in attributes.items()},
    }
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "policy"}
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "calc",
        "gen_ai.tool.call.id": "c1",
    }
    return [
        span(
            trace, 1, "rollout", {key: of for key, of in root.items() if of is not None}
        ),
        span(trace, 2, "chat policy", chat | _messages([question], [asks])),
        span(
            trace,
            3,
            "execute_tool calc",
            tool
            | {
                "gen_ai.tool.call.arguments": '{"x":"1+1"}',
                "gen_ai.tool.call.result": "2",
            },
        ),
        span(
            trace,
            4,
            "chat policy",
            chat | {"gen_ai.usage.output_tokens": 7} | _messages([result], [answer]),
        ),
    ]


def _messages(given: Sequence[Any], made: Sequence[Any]) -> dict[str, str]:
    return {
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.output.messages": json.dumps(made),
    }


def scope_spans(spans: Sequence[Span], scope: str = "otel_bridge") -> ScopeSpans:
    return ScopeSpans(scope=InstrumentationScope(name=scope), spans=spans)


def evaluation(
    trace: str,
    name: str,
    score: float | None,
    *,
    seq: int | None = 1,
    at_ns: int = NOW,
    **more: Any,
) -> LogRecord:
    attributes = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.value": score,
        "rl.event.seq": seq,
    }
    attributes |= {
        f"gen_ai.evaluation.{key}".replace("__", "."): of for key, of in more.items()
    }
    return LogRecord(
        trace_id=bytes.fromhex(trace_id(trace)),
        time_unix_nano=at_ns,
        event_name="gen_ai.evaluation.result",
        attributes=pairs({key: of for key, of in attributes.items() if of is not None}),
    )


def message_event(trace: str, number: int) -> LogRecord:
    """A user's message that an instrumentation logs for the span of that number."""
    return LogRecord(
        trace_id=bytes.fromhex(trace_id(trace)),
        span_id=number.to_bytes(8, "big"),
        time_unix_nano=NOW,
        event_name="gen_ai.user.message",
        body=value({"content": "and now?"}),
    )


def left_out(
    step: int,
    body: Mapping[str, Any],
    number: int,
    *,
    seq: int = 1,
    split: str = "train",
    ids: str = "",
    rewards: str = "",
) -> LogRecord:
    more = {"rl.rollouts.ids": ids} if ids else {}
    if rewards:
        more["rl.rollouts.rewards"] = rewards
    return LogRecord(
        time_unix_nano=NOW,
        event_name="rl.rollouts",
        body=value(body),
        attributes=pairs(
            {
                "rl.step": step,
                "rl.split": split,
                "rl.rollouts.count": number,
                "rl.event.seq": seq,
                **more,
            }
        ),
    )


def rollout_pipeline(
    state: TranslationState,
    options: TranslationOptions,
    axes: StepAxes | None = None,
    other_traces: Callable[[], OtherTraces] = counted,
) -> RolloutPipeline:
    """The pipeline of a run that knows no process, with the axes of *state* unless there are others."""
    run = RunContext(
        state,
        options,
        axes or StepAxes(state, options.max_keys),
        {},
        ReceiveClock(0, 0),
    )
    return RolloutPipeline(run, other_traces)


class Bench:
    """A `RolloutPipeline` with its state, that can be killed and started again."""

    def __init__(self, **options: Any) -> None:
        self.options = TranslationOptions(**options)
        self.state = MemoryState()
        self.now = NOW
        self._begin()

    def _begin(self) -> None:
        self.rollouts = rollout_pipeline(self.state, self.options)

    def restart(self) -> None:
        self.state = MemoryState(json_round_trip(self.state.snapshot()))
        self._begin()

    def send(
        self,
        *spans: Span,
        producer: Producer = OURS,
        scope: str = "otel_bridge",
    ) -> list[Record]:
        return self.rollouts.spans(producer, "i1", scope_spans(spans, scope), self.now)

    def evaluate(self, event: LogRecord, instance: str = "i1") -> list[Record]:
        return self.rollouts.evaluation(OURS, instance, event, self.now)

    def leave_out(self, event: LogRecord) -> list[Record]:
        return self.rollouts.sampled_out(OURS, "i1", event, self.now)

    def after(self, seconds: float) -> list[Record]:
        self.now += int(seconds * SECOND)
        return self.rollouts.tick(self.now)

    def close(self) -> list[Record]:
        return self.rollouts.close(self.now)

    def counted(self, prefix: str = "drop/") -> dict[str, object]:
        return {key.removeprefix(prefix): of for key, of in self.state.items(prefix)}


def json_round_trip(values: Mapping[str, object]) -> dict[str, Any]:
    """What a ledger gives back after a restart: bytes as they were, everything else through JSON."""
    return {
        key: of if isinstance(of, bytes) else json.loads(json.dumps(of))
        for key, of in values.items()
    }


def rollouts_in(records: Sequence[Record]) -> list[RolloutRecord]:
    return [record for record in records if isinstance(record, RolloutRecord)]


def rows_in(records: Sequence[Record]) -> list[Row]:
    return [record for record in records if isinstance(record, Row)]


def late_in(records: Sequence[Record]) -> list[Evaluation]:
    return [record for record in records if isinstance(record, Evaluation)]
