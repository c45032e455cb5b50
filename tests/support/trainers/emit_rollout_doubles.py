"""What the tests of rollouts at emission share: a run in memory, and what it was given as spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.content.user_function import count_refused_with
from otel_bridge.emit.config.snapshot import RolloutOptions
from otel_bridge.emit.conversations.conversation import Content
from otel_bridge.emit.rollouts.live_spans import LiveTracer
from otel_bridge.emit.run import Run


def unread(content: Content) -> int:
    """The number of values in no known shape, which are kept as text."""
    return content.content_filter.losses.counts.get("rollout_message", 0)


@dataclass
class Facts:
    """As `otel_bridge.emit.run.RunStart` has it."""

    env: dict[str, str]


class MemoryRun:
    """A run that keeps what is appended."""

    recording = True

    def __init__(
        self,
        run_id: str = "run1",
        role: str | None = "trainer",
        last: int | None = 7,
        **env: str,
    ) -> None:
        self.id, self.role, self._last = run_id, role, last
        self.records: list[tuple[int, bytes]] = []
        self.drops: dict[str, int] = {}
        self.keyed_drops: list[tuple[str, int, str]] = []
        self._events = 0
        # An environment of its own, never empty.
        self.facts = Facts(
            {
                "OTEL_BRIDGE_QUIET": "1",
                **{f"OTEL_BRIDGE_{key}": value for key, value in env.items()},
            }
        )

    @cached_property
    def rollout_options(self) -> RolloutOptions:
        count_refused_with(self.count_drop)
        return RolloutOptions.read(self.facts.env)

    @cached_property
    def live_tracer(self) -> LiveTracer:
        return LiveTracer(self)

    def append(
        self,
        signal: int,
        payload: bytes,
        *,
        time_unix_ns: int | None = None,
        whole: bool = False,
    ) -> None:
        self.records.append((int(signal), payload))

    def last_step(self, role: str | None = None) -> int | None:
        return self._last

    def next_step(self, role: str | None = None) -> int:
        return 0 if self._last is None else self._last + 1

    def count_drop(self, reason: str, n: int = 1, key: str = "") -> None:
        self.drops[reason] = self.drops.get(reason, 0) + n
        self.keyed_drops.append((reason, n, key))

    def count_after_end(self) -> None:
        self.count_drop("ended")

    def next_event_seq(self) -> int:
        self._events += 1
        return self._events

    # --- what was appended --------------------------------------------------------------------------------------------
    @property
    def frames(self) -> list[list[Span]]:
        return [
            list(ScopeSpans.FromString(payload).spans)
            for signal, payload in self.records
            if signal == 2
        ]

    @property
    def spans(self) -> list[Span]:
        return [span for frame in self.frames for span in frame]

    @property
    def roots(self) -> list[Span]:
        return [span for span in self.spans if not span.parent_span_id]

    @property
    def events(self) -> list[LogRecord]:
        return [
            record
            for signal, payload in self.records
            if signal == 3
            for record in ScopeLogs.FromString(payload).log_records
        ]


# The calls of a run itself, given a run in memory.
open_rollout: Any = Run.rollout
log_rollouts: Any = Run.log_rollouts
log_generations: Any = Run.log_generations
log_reward: Any = Run.log_reward
log_rewards: Any = Run.log_rewards


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in value.kvlist_value.values}
    return None if kind is None else getattr(value, kind)


def attributes(item: Span | LogRecord) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in item.attributes}


@dataclass
class SpanMessages:
    """Messages of a span, parsed."""

    input: Any = None
    output: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


def span_messages(span: Span) -> SpanMessages:
    found = attributes(span)
    texts = (found.get("gen_ai.input.messages"), found.get("gen_ai.output.messages"))
    return SpanMessages(
        *(None if text is None else orjson.loads(text) for text in texts)
    )


def message(role: str, text: str) -> dict[str, Any]:
    """A message in the GenAI form."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


QUESTION = {"role": "user", "content": "What is 2 + 2?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "calculator", "arguments": '{"expression": "2 + 2"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}
ANSWER = {"role": "assistant", "content": "It is 4."}
CONVERSATION = [QUESTION, CALL, RESULT, ANSWER]
