"""Spans inside a live rollout: a model's turn and a tool's call."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_bridge import semconv
from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.content import Cutter, dumps
from otel_bridge.emit.context import current_rollout, with_rollout
from otel_bridge.emit.conversation import Limits, content_of
from otel_bridge.emit.emit_run import EmitRun, options_of
from otel_bridge.emit.live_spans import Extra, LiveTracer, tracer_of
from otel_bridge.emit.rollout_root import Pairs, failure, free_facts, json_array
from otel_bridge.emit.span_encoding import Utf8

if TYPE_CHECKING:
    from otel_bridge.emit.live import LiveRollout

S = TypeVar("S", bound="ChildSpan")


class ChildSpan:
    """A span of a rollout, a context manager, once. Without a run, or outside of what is recorded, it does nothing.

    Attributes:
        metadata: Free facts.
        error: What went wrong; an exception sets it.
    """

    def __init__(self, rollout: LiveRollout | None, fields: Mapping[str, Any]) -> None:
        self.metadata: dict[str, Any] = {}
        self.error: str | BaseException | None = None
        for key, value in fields.items():
            if key in vars(self) and not key.startswith("_"):
                setattr(self, key, value)
            else:
                self.metadata[key] = value
        self._rollout = rollout
        self._run: EmitRun | None = None
        self._tracer: LiveTracer | None = None
        self._span: trace.Span | None = None
        self._token: Token[Context] | None = None
        self._pid = 0

    @property
    def span(self) -> trace.Span:
        """The OTel span; an invalid one when nothing is recorded."""
        return self._span or trace.INVALID_SPAN

    def _title(self) -> tuple[str, trace.SpanKind]:
        raise NotImplementedError

    def _pairs(self, limits: Limits, cutter: Cutter) -> Pairs:
        raise NotImplementedError

    def __enter__(self: S) -> S:
        try:
            self._open()
        except Exception:  # noqa: BLE001  # nothing of ours may end a training run
            if self._run is not None:
                self._run.count_drop("internal_error")
        return self

    def _open(self) -> None:
        self._pid = os.getpid()
        self._run = _run_of(self._rollout)
        self._rollout = rollout = self._rollout or current_rollout()
        if self._run is None:
            return
        here = otel_context.get_current()
        name, kind = self._title()
        if rollout is not None:
            self._span = rollout.start_child(name, kind)
        elif _sampled(here):
            self._tracer = tracer_of(self._run)
            self._span = self._tracer.start_child(name, here, kind)
        if self._span is not None:
            self._token = otel_context.attach(with_rollout(rollout, trace.set_span_in_context(self._span, here)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        if error is not None:
            self.error = error
        if self._span is None or self._run is None or os.getpid() != self._pid:
            return
        try:
            self._close(self._span, self._run)
        except Exception:  # noqa: BLE001
            self._run.count_drop("internal_error")

    def _close(self, span: trace.Span, run: EmitRun) -> None:
        options = options_of(run)
        cutter = Cutter(options.limits.policy, options.limits.rollout_bytes)
        pairs = self._pairs(options.limits, cutter)
        pairs += free_facts(semconv.METADATA_PREFIX, self.metadata, cutter, options.limits.rollout_bytes)
        now = time.time_ns()
        packed = b"".join(span_encoding.span_attributes(pairs).parts)
        if self.error is not None:
            packed += span_encoding.failure_fields(now, *failure(self.error, cutter))
        extra = Extra(packed)
        if self._rollout is not None:
            self._rollout.end_child(span, extra, now)
        elif self._tracer is not None:
            self._tracer.end(span, extra, now)


class ChatSpan(ChildSpan):
    """One turn of a model: ``with rollout.chat("policy", input=messages) as chat: chat.output = answer``.

    Attributes:
        model: Its name.
        input: What it was told since its last answer: text, a message, or messages.
        output: What it said: text, a message, or messages.
        finish_reason: Why it stopped.
        input_tokens: Tokens of its input.
        output_tokens: Tokens of its output.
    """

    def __init__(self, rollout: LiveRollout | None, model: str | None, fields: Mapping[str, Any]) -> None:
        self.model = model
        self.input: Any = None
        self.output: Any = None
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        super().__init__(rollout, fields)

    def _title(self) -> tuple[str, trace.SpanKind]:
        model = facts.name(self.model)
        name = f"{semconv.OPERATION_CHAT} {model}" if model else semconv.OPERATION_CHAT
        return name, trace.SpanKind.CLIENT

    def _pairs(self, limits: Limits, cutter: Cutter) -> Pairs:
        pairs: Pairs = [(semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT)]
        if (model := facts.name(self.model)) is not None:
            pairs.append((semconv.GEN_AI_REQUEST_MODEL, model))
        if (reason := facts.name(self.finish_reason)) is not None:
            pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
        tokens = (semconv.GEN_AI_INPUT_TOKENS, self.input_tokens), (semconv.GEN_AI_OUTPUT_TOKENS, self.output_tokens)
        pairs += [(key, number) for key, value in tokens if (number := facts.integer(value)) is not None]
        said = (
            (semconv.GEN_AI_INPUT_MESSAGES, self.input, "user"),
            (
                semconv.GEN_AI_OUTPUT_MESSAGES,
                self.output,
                "assistant",
            ),
        )
        for key, messages, role in said:
            if messages is not None and not cutter.off:
                content = content_of(messages, limits, role)
                cutter.clipped_bytes += content.cutter.clipped_bytes
                pairs.append((key, json_array(content.messages)))
        if cutter.clipped_bytes:
            pairs.append((semconv.CLIPPED, cutter.clipped_bytes))
        return pairs


class ToolSpan(ChildSpan):
    """One call of a tool: ``with rollout.tool("calculator", arguments={…}) as tool: tool.result = 4``.

    Attributes:
        name: Its name.
        call_id: Id of the call in the model's message.
        arguments: What it was called with.
        result: What it gave.
    """

    def __init__(self, rollout: LiveRollout | None, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self.call_id: str | None = None
        self.arguments: Any = None
        self.result: Any = None
        super().__init__(rollout, fields)

    def _title(self) -> tuple[str, trace.SpanKind]:
        return f"{semconv.OPERATION_TOOL} {facts.name(self.name) or 'tool'}", trace.SpanKind.INTERNAL

    def _pairs(self, limits: Limits, cutter: Cutter) -> Pairs:  # noqa: ARG002  # a tool's text has the cutter's limit
        pairs: Pairs = [
            (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
            (semconv.GEN_AI_TOOL_NAME, facts.name(self.name) or "tool"),
        ]
        if (call_id := facts.name(self.call_id)) is not None:
            pairs.append((semconv.GEN_AI_TOOL_CALL_ID, call_id))
        if not cutter.off:
            given = (semconv.GEN_AI_TOOL_ARGUMENTS, self.arguments), (semconv.GEN_AI_TOOL_RESULT, self.result)
            pairs += [(key, _text(value, cutter)) for key, value in given if value is not None]
        return pairs


def _text(value: object, cutter: Cutter) -> Utf8:
    if isinstance(value, str):
        return Utf8((cutter.text(value).encode("utf-8", "replace"),))
    return Utf8((dumps(cutter.json(value)),))


def _run_of(rollout: LiveRollout | None) -> EmitRun | None:
    """Return the run of *rollout*, else of the current one, else the process's."""
    owner = rollout or current_rollout()
    if owner is not None:
        return owner.run
    from otel_bridge.emit.api import current_run  # noqa: PLC0415  # the API is above; it is loaded by now

    return cast("EmitRun | None", current_run())


def _sampled(context: Context) -> bool:
    """Tell whether spans below the current one of *context* are wanted: a rollout elsewhere may be switched off."""
    current = trace.get_current_span(context).get_span_context()
    return not current.is_valid or current.trace_flags.sampled
