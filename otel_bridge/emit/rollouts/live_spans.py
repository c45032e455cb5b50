"""Private tracer of a run: real SDK spans, each appended when it ends. Nothing global is touched.

Imported at the first live rollout only, because it imports the OTel SDK.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    SpanLimits,
    TracerProvider,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    INVALID_SPAN_ID,
    INVALID_TRACE_ID,
    Link,
    Span,
    SpanKind,
    Tracer,
)

from otel_bridge import semconv
from otel_bridge.content.otlp import apply_to_span
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.conversations.conversation import MessageLimits, content_of
from otel_bridge.emit.emit_run import EmitRun, current_run, report_missing_run
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.sdk_text import well_formed
from otel_bridge.emit.encode.span import ExtraAttributes, Utf8
from otel_bridge.emit.rollouts.child_spans import token_counts
from otel_bridge.emit.rollouts.open_trace import (
    OpenTrace,
    SpanBlock,
    current_rollout,
    with_rollout,
)
from otel_bridge.emit.rollouts.rollout import mapping_or, metadata_of
from otel_bridge.emit.rollouts.spans import (
    Pairs,
    closing_fields,
    free_facts,
    json_array,
)
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.frames import Signal
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.values.plain import dumps


class UrandomIdGenerator(IdGenerator):
    """Generates ids from the kernel: seeded generators of a program stay untouched, and ids never collide by seed.

    An id of zero is invalid in OpenTelemetry, so that a draw of zero becomes one.
    """

    def __init__(self) -> None:
        # Of each thread: another one may start a trace at the same time.
        self._given = threading.local()

    def give_trace_id(self, trace_id: int) -> None:
        """Use *trace_id* for the next trace that this thread starts."""
        self._given.trace_id = trace_id

    def generate_span_id(self) -> int:
        """Return a random span id."""
        return int.from_bytes(os.urandom(8), "big") or INVALID_SPAN_ID + 1

    def generate_trace_id(self) -> int:
        """Return the id given, else a random one."""
        next_trace_id: int | None = getattr(self._given, "trace_id", None)
        if next_trace_id is not None:
            del self._given.trace_id
            return next_trace_id
        return int.from_bytes(os.urandom(16), "big") or INVALID_TRACE_ID + 1


def encoded_span(span: Span, extra: ExtraAttributes, run: EmitRun) -> bytes:
    """Encode *span*, and what *extra* adds to it, as one ``ScopeSpans``.

    What others have set has the content policy of the run; texts that it cuts without knowing their
    names are counted as ``unknown_text``. What the SDK's encoder raises is raised, also for a span
    that is not the SDK's: `LiveTracer.end` counts it as ``rollout_span``.
    """
    request = encode_spans([well_formed(cast("ReadableSpan", span))])
    scope_spans = request.resource_spans[0].scope_spans[0]
    sent = scope_spans.spans[0]
    # What others set; the additions of otel-bridge have passed the policy before.
    if sent.attributes or sent.events or sent.status.message:
        unknown = apply_to_span(sent, run.rollout_options.limits.policy)
        if unknown:
            run.count_drop("unknown_text", unknown)
    # Parsing merges: the attributes of the SDK's own span stay.
    sent.MergeFromString(extra.fields)
    return scope_spans.SerializeToString() + extra.spans


_LIMITS = {
    **dict.fromkeys(
        (
            "max_attributes", "max_span_attributes", "max_events", "max_event_attributes", "max_links",
            "max_link_attributes",
        ),
        128,
    ),
    # It would cut JSON in half; content has limits of its own.
    "max_attribute_length": SpanLimits.UNSET,
    "max_span_attribute_length": SpanLimits.UNSET,
}  # fmt: skip
"""All of them, the numbers as the SDK has them: what is not given here, a variable gives."""


class _Provider(TracerProvider):
    """Provides tracers without the environment: OTEL_SDK_DISABLED is intended for the program's own provider."""

    def __init__(self, ids: UrandomIdGenerator) -> None:
        """Make a provider to which the program's variables for its own SDK do not apply.

        Its sampler, limits, ids and switch are given here.
        """
        super().__init__(
            sampler=ALWAYS_ON,
            resource=Resource({}),
            shutdown_on_exit=False,
            id_generator=ids,
            span_limits=SpanLimits(**_LIMITS),
        )
        self._disabled = False


class LiveTracer:
    """Traces the live rollouts of one run.

    Args:
        run: The run that records the spans.
    """

    def __init__(self, run: EmitRun) -> None:
        self._run = run
        self._ids = UrandomIdGenerator()
        self._tracer: Tracer = _Provider(self._ids).get_tracer(semconv.SCOPE_NAME)

    def start_root(self, trace_id: int, links: Sequence[Link]) -> Span:
        """Start a rollout's root, always as a trace of its own."""
        self._ids.give_trace_id(trace_id)
        return self._tracer.start_span(
            semconv.ROLLOUT_SPAN, context=Context(), links=links
        )

    def start_child(self, name: str, context: Context, kind: SpanKind) -> Span:
        """Start a span below the current span of *context*."""
        return self._tracer.start_span(name, context=context, kind=kind)

    def end(self, span: Span, extra: ExtraAttributes, end_unix_ns: int) -> None:
        """End *span*, and append it with its additions, on the thread that ends it.

        One that cannot be encoded is counted as ``rollout_span``. It is appended at once, so that a
        kill inside a rollout loses no child that has ended.
        """
        # The program may have ended it itself.
        if span.is_recording():
            span.end(end_unix_ns)
        try:
            payload = encoded_span(span, extra, self._run)
        except any_error_but_signals():  # nothing of otel-bridge may end a training run
            self._run.count_drop("rollout_span")
            return
        self._run.append(Signal.TRACES, payload)


# Spans inside a live rollout: a model's turn and a tool's call.

S = TypeVar("S", bound="ChildSpan")


class ChildSpan(SpanBlock):
    """Records a span of a rollout, once, as a context manager.

    Nothing without a run, or when its rollout has no spans.

    Attributes:
        metadata: Free facts.
        error: Error of the call; an exception sets this field. A text after the block.
    """

    _call_name: ClassVar[str]
    """Name of the function that returns such a span, for a message."""

    def __init__(self, rollout: OpenTrace | None, fields: Mapping[str, Any]) -> None:
        """Take the known ones of *fields*; other keys become metadata, beside those given as such.

        Subclasses set their fields first: these decide which keys are known.
        """
        self.metadata: dict[str, Any] = {}
        self.error = None
        field_names = {key for key in vars(self) if not key.startswith("_")}
        other_fields: dict[str, Any] = {}
        for key, value in fields.items():
            if key in field_names:
                setattr(self, key, value)
            else:
                other_fields[key] = value
        if other_fields:
            self.metadata = mapping_or(self.metadata, "metadata") | other_fields
        self._fields = {*field_names, "metadata", "error"}
        self._rollout = rollout
        self._run: EmitRun | None = None
        self._span: trace.Span | None = None

    @property
    def span(self) -> trace.Span:
        """Return the OTel span, which is invalid when nothing is recorded."""
        return self._span or trace.INVALID_SPAN

    @abstractmethod
    def _title(self) -> tuple[str, trace.SpanKind]: ...

    @abstractmethod
    def _pairs(self, limits: MessageLimits, content_filter: ContentFilter) -> Pairs: ...

    def __enter__(self: S) -> S:
        """Open the span.

        A failure is counted as ``internal_error``, and the block runs without it.
        """
        try:
            self._open()
        except any_error_but_signals():  # nothing of otel-bridge may end a training run
            if self._run is not None:
                self._run.count_drop(INTERNAL_ERROR)
        return self

    def _open(self) -> None:
        """Start the span below its rollout, else below the current span, and make it current.

        Nothing without a run, when the rollout makes no spans, or below a span that is not sampled.
        """
        rollout = self._rollout or current_rollout()
        self._rollout = rollout
        self._run = current_run() if rollout is None else rollout.run
        if self._run is None:
            report_missing_run(self._call_name)
            return
        context = otel_context.get_current()
        name, kind = self._title()
        if rollout is not None:
            self._span = rollout.start_child(name, kind)
        elif _sampled(context):
            self._span = self._run.live_tracer.start_child(name, context, kind)
        if self._span is not None:
            self._make_current(
                with_rollout(rollout, trace.set_span_in_context(self._span, context))
            )

    def _end(self) -> None:
        """End the span, if one was opened.

        One that fails is lost, counted as ``internal_error``.
        """
        if self._span is None or self._run is None:
            return
        try:
            self._close(self._span, self._run)
        except any_error_but_signals():
            self._run.count_drop(INTERNAL_ERROR)

    def _close(self, span: trace.Span, run: EmitRun) -> None:
        """End the span with its attributes, under the content policy.

        Facts that do not fit are counted as ``clipped``. What the program's own objects raise is
        raised: the caller counts it as ``internal_error``, and the span is lost.
        """
        options = run.rollout_options
        content_filter = ContentFilter(
            options.limits.policy, options.limits.rollout_bytes
        )
        pairs = self._pairs(options.limits, content_filter)
        pairs += free_facts(
            semconv.METADATA_PREFIX,
            metadata_of(self, self._fields),
            content_filter,
            options.limits.rollout_bytes,
        )
        now = time.time_ns()
        packed = closing_fields(pairs, self.error, now, content_filter)
        content_filter.losses.report(run.count_drop)
        extra = ExtraAttributes(packed)
        if self._rollout is None:
            run.live_tracer.end(span, extra, now)
        else:
            self._rollout.end_child(span, extra, now)


class ChatSpan(ChildSpan):
    """Records one turn of a model: ``with rollout.chat("policy", input=messages) as chat: chat.output = answer``.

    `LiveRollout.chat` and `otel_bridge.chat` return it. Use it once, as a context manager. Every
    field may be set until the block ends; the times of the span are those of the block. An
    exception of the block is recorded and passes through. Apart from that nothing raises.

    Attributes:
        model: Name of the model.
        input: Input since the model's last answer: text, a message, or messages.
        output: Answer of the model: text, a message, or messages.
        finish_reason: Reason for which the generation stopped.
        input_tokens: Number of tokens of the input.
        output_tokens: Number of tokens of the output.
        metadata: Free facts of the call.
        error: Error of the call, a text or an exception; an exception of the block sets it. A text
            after the block.
    """

    _call_name = "chat"

    def __init__(
        self, rollout: OpenTrace | None, model: str | None, fields: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.input: Any = None
        self.output: Any = None
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        super().__init__(rollout, fields)

    def _title(self) -> tuple[str, trace.SpanKind]:
        model = coerce.name(self.model)
        if model:
            name = f"{semconv.OPERATION_CHAT} {model}"
        else:
            name = semconv.OPERATION_CHAT
        return name, trace.SpanKind.CLIENT

    def _pairs(self, limits: MessageLimits, content_filter: ContentFilter) -> Pairs:
        """Return the attributes of a turn.

        Fields that cannot be read are counted as ``rollout_field``. Messages have the limits of a
        rollout's. With policy ``off`` there are none.
        """
        pairs: Pairs = [
            (semconv.GEN_AI_OPERATION, semconv.OPERATION_CHAT),
            (semconv.GEN_AI_REQUEST_MODEL, coerce.name(self.model)),
        ]
        if (reason := coerce.name(self.finish_reason)) is not None:
            pairs.append((semconv.GEN_AI_FINISH_REASONS, [reason]))
        pairs += token_counts(vars(self), content_filter.losses)
        conversations = (
            (semconv.GEN_AI_INPUT_MESSAGES, self.input, "user"),
            (semconv.GEN_AI_OUTPUT_MESSAGES, self.output, "assistant"),
        )
        for key, messages, role in conversations:
            if messages is not None and not content_filter.off:
                content = content_of(messages, limits, role)
                content_filter.clipped_bytes += content.content_filter.clipped_bytes
                content_filter.losses.merge(content.content_filter.losses)
                pairs.append((key, json_array(content.messages)))
        if content_filter.clipped_bytes:
            pairs.append((semconv.CLIPPED, content_filter.clipped_bytes))
        return pairs


class ToolSpan(ChildSpan):
    """Records a call of a tool: ``with rollout.tool("calculator", arguments={…}) as tool: tool.result = 4``.

    `LiveRollout.tool` and `otel_bridge.tool` return it. Use it as a `ChatSpan`.

    Attributes:
        name: Name of the tool.
        call_id: Id of the call in the model's message.
        arguments: Arguments of the call: a text, or anything that JSON can hold.
        result: Result of the call: a text, or anything that JSON can hold.
        metadata: Free facts of the call.
        error: Error of the call, a text or an exception; an exception of the block sets it. A text
            after the block.
    """

    _call_name = "tool"

    def __init__(
        self, rollout: OpenTrace | None, name: str, fields: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.call_id: str | None = None
        self.arguments: Any = None
        self.result: Any = None
        super().__init__(rollout, fields)

    def _title(self) -> tuple[str, trace.SpanKind]:
        return (
            f"{semconv.OPERATION_TOOL} {coerce.name(self.name) or 'tool'}",
            trace.SpanKind.INTERNAL,
        )

    # A tool's text has the limit of the filter.
    def _pairs(self, limits: MessageLimits, content_filter: ContentFilter) -> Pairs:  # noqa: ARG002
        """Return the attributes of a call of a tool.

        With policy ``off`` without its arguments and result.
        """
        pairs: Pairs = [
            (semconv.GEN_AI_OPERATION, semconv.OPERATION_TOOL),
            (semconv.GEN_AI_TOOL_NAME, coerce.name(self.name) or "tool"),
            (semconv.GEN_AI_TOOL_CALL_ID, coerce.name(self.call_id)),
        ]
        if not content_filter.off:
            texts = (
                (semconv.GEN_AI_TOOL_ARGUMENTS, self.arguments),
                (semconv.GEN_AI_TOOL_RESULT, self.result),
            )
            for key, value in texts:
                if value is not None:
                    pairs.append((key, _text(value, content_filter)))
        return pairs


def _text(value: object, content_filter: ContentFilter) -> Utf8:
    """Return arguments or a result under the content policy.

    A text stays as it is: as JSON it would be quoted.
    """
    if isinstance(value, str):
        return Utf8(content_filter.text(value).encode("utf-8", "replace"))
    return Utf8(dumps(content_filter.json(value)))


def _sampled(context: Context) -> bool:
    """Return whether to record spans below the current span of *context*, also where there is none.

    The root of a rollout without seats is not sampled, and its context may have come from another
    process.
    """
    current = trace.get_current_span(context).get_span_context()
    return not current.is_valid or current.trace_flags.sampled
