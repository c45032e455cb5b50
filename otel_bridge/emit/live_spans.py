"""The private tracer of a run: real SDK spans, appended one by one as they end. Nothing global is touched.

Imported at the first live rollout only: it brings the OTel SDK.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import INVALID_SPAN_ID, INVALID_TRACE_ID, Link, Span, SpanKind, Tracer

from otel_bridge import semconv
from otel_bridge.emit.emit_run import options_of
from otel_bridge.emit.otel_content import SdkContent
from otel_bridge.errors import InvalidRecordError

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

TRACES: Final = 2


class Extra(NamedTuple):
    """What is added to a span when it ends: encoded fields of it, and more spans of its ``ScopeSpans``."""

    fields: bytes = b""
    spans: bytes = b""


class KernelIds(IdGenerator):
    """Ids from the kernel: a seeded program draws the same numbers with and without us; equal seeds do not collide."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give_trace_id(self, trace_id: int) -> None:
        """Use *trace_id* for the next trace that this thread starts."""
        self._given.trace_id = trace_id

    def generate_span_id(self) -> int:
        """Return a random span id."""
        return random_span_id()

    def generate_trace_id(self) -> int:
        """Return the id given, else a random one."""
        given: int | None = getattr(self._given, "trace_id", None)
        if given is not None:
            del self._given.trace_id
            return given
        return int.from_bytes(os.urandom(16), "big") or INVALID_TRACE_ID + 1


def random_span_id() -> int:
    """Return a random span id from the kernel."""
    return int.from_bytes(os.urandom(8), "big") or INVALID_SPAN_ID + 1


class _Appender(SpanProcessor):
    """Appends each span as it ends, on the thread that ends it."""

    def __init__(self, run: EmitRun) -> None:
        self._run = run
        self._content = SdkContent(options_of(run).limits.policy)
        self.extras: dict[int, Extra] = {}

    def on_end(self, span: ReadableSpan) -> None:
        """Append *span*."""
        context = span.get_span_context()
        extra = self.extras.pop(context.span_id, Extra()) if context else Extra()
        try:
            payload = encoded_span(span, extra, self._content)
        except Exception:  # noqa: BLE001  # nothing of ours may end a training run
            self._run.count_drop("rollout_span")
            return
        self._run.append(TRACES, payload)


def encoded_span(span: ReadableSpan, extra: Extra, content: SdkContent) -> bytes:
    """Encode *span* as one ``ScopeSpans``: what others set on it as *content* allows, and what is added to it.

    Raises:
        InvalidRecordError: The encoder made none of it.
    """
    for resource_spans in encode_spans([span]).resource_spans:
        for scope_spans in resource_spans.scope_spans:
            if span.attributes or span.events or span.status.description:
                content.span(span, scope_spans.spans[0])
            # Parsing adds to what is there: the attributes of the SDK's own span stay.
            scope_spans.spans[0].MergeFromString(extra.fields)
            return scope_spans.SerializeToString() + extra.spans
    raise InvalidRecordError(f"span {span.name!r}: the encoder made nothing of it")


class _Provider(TracerProvider):
    """A provider that reads nothing from the environment: OTEL_SDK_DISABLED is meant for the program's own."""

    def __init__(self, ids: KernelIds) -> None:
        unset = SpanLimits.UNSET
        super().__init__(
            sampler=ALWAYS_ON,
            resource=Resource({}),
            shutdown_on_exit=False,
            id_generator=ids,
            # A limit would cut JSON in half; content has limits of its own.
            span_limits=SpanLimits(max_attribute_length=unset, max_span_attribute_length=unset),
        )
        self._disabled = False


class LiveTracer:
    """Starts the spans of live rollouts of one run.

    Args:
        run: Where they go.
    """

    def __init__(self, run: EmitRun) -> None:
        self._ids = KernelIds()
        self._appender = _Appender(run)
        provider = _Provider(self._ids)
        provider.add_span_processor(self._appender)
        self._tracer: Tracer = provider.get_tracer(semconv.SCOPE_NAME)

    def start_root(self, trace_id: int, links: Sequence[Link]) -> Span:
        """Start a rollout's root: always a trace of its own."""
        self._ids.give_trace_id(trace_id)
        return self._tracer.start_span(semconv.ROLLOUT_SPAN, context=Context(), links=links)

    def start_child(self, name: str, context: Context, kind: SpanKind) -> Span:
        """Start a span below the current one of *context*."""
        return self._tracer.start_span(name, context=context, kind=kind)

    def end(self, span: Span, extra: Extra, end_unix_ns: int) -> None:
        """End *span* with what is added to it."""
        if span.is_recording():
            self._appender.extras[span.get_span_context().span_id] = extra
            span.end(end_unix_ns)


def tracer_of(run: EmitRun) -> LiveTracer:
    """Return the tracer of *run*, made at its first live rollout."""
    tracer: LiveTracer | None = getattr(run, "_live_tracer", None)
    if tracer is None:
        tracer = LiveTracer(run)
        setattr(run, "_live_tracer", tracer)  # noqa: B010  # a slot of ours on any kind of run
    return tracer
