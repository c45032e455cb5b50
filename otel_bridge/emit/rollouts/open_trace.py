"""Trace of one live rollout while it is open: its root, and what is known of the spans below it."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_bridge.emit.encode.span import ExtraAttributes, span_attributes
from otel_bridge.emit.rollouts.spans import without_traceback
from otel_bridge.semconv import ROLLOUT_START, SPAN_COUNT

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun, RolloutTracer
    from otel_bridge.emit.encode.protobuf import Attribute
    from otel_bridge.emit.rollouts.spans import Pairs


_KEY = "otel_bridge.rollout"
_open_traces: dict[int, OpenTrace] = {}
"""Open traces of this process by their ids."""


def current_rollout() -> OpenTrace | None:
    """Return the trace of the live rollout of the current context in this process.

    ``None`` outside of one.
    """
    return cast("OpenTrace | None", otel_context.get_value(_KEY))


def with_rollout(rollout: OpenTrace | None, context: Context) -> Context:
    """Return *context* with *rollout* as its current rollout."""
    return otel_context.set_value(_KEY, rollout, context)


def mark_instrumented(trace_id: int) -> None:
    """Note that an instrumentation started a span in the trace *trace_id*.

    Nothing for a trace that is not a rollout of this process.
    """
    open_trace = _open_traces.get(trace_id)
    if open_trace is not None:
        open_trace.expect_other_spans()


_is_attached: ContextVar[bool] = ContextVar("otel_bridge.attached", default=False)


class AttachedContext:
    """Makes an OTel context the current one, from its constructor on until `detach`."""

    def __init__(self, context: Context) -> None:
        self._here = _is_attached.set(True)
        self._token = otel_context.attach(context)

    def detach(self) -> None:
        """Restore the context of before.

        Nothing where another asyncio task ends the block, as it closes an asynchronous generator
        that was left early: there this context is not the current one. Nothing either the second
        time.
        """
        try:
            _is_attached.reset(self._here)
        except (ValueError, RuntimeError):
            # OTel's own detach() would log this with its traceback.
            return
        otel_context.detach(self._token)


class SpanBlock(ABC):
    """Records the block of a ``with`` statement as a span. Nothing of it ends the program.

    Attributes:
        error: Error of the block; an exception sets this field. A text after the block.
    """

    error: str | BaseException | None
    _attached: AttachedContext | None = None
    _pid: int = 0

    @abstractmethod
    def _end(self) -> None:
        """Record the span, in the process that opened it."""

    def _make_current(self, context: Context) -> None:
        """Make *context* the current one until the block ends."""
        self._pid = os.getpid()
        self._attached = AttachedContext(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record the span in the process that opened it.

        An exception of the block passes through, and is its `error`. What cannot be recorded is
        counted by `_end`.
        """
        # First: what follows the block is not part of the span, even if its end fails.
        if self._attached is not None:
            self._attached.detach()
            self._attached = None
        if error is not None:
            self.error = error
        # Forked inside: the span belongs to the parent.
        if os.getpid() == self._pid:
            self._pid = 0  # a second end would record the span twice
            self._end()
        self.error = without_traceback(self.error)


class OpenTrace:
    """Starts and ends the spans of one live rollout. Thread-safe.

    Args:
        run: The run of the rollout.
        trace_id: Id of the trace, 32 hex digits.

    Attributes:
        root: Root of the trace, invalid before its start.
    """

    def __init__(self, run: EmitRun, trace_id: str) -> None:
        self.run = run
        self.trace_id = trace_id
        self.root: trace.Span = trace.INVALID_SPAN
        self._tracer: RolloutTracer | None = None
        # Guards the numbers of children, which other threads open and end too. Re-entrant for
        # signal handlers.
        self._lock = threading.RLock()
        self._children = 0
        self._open_children = 0
        self._has_others = False
        self._start_attributes: Mapping[str, Attribute] = {}

    @property
    def recording(self) -> bool:
        """Return whether the trace makes spans."""
        return self._tracer is not None

    @property
    def has_spans(self) -> bool:
        """Return whether the trace got spans below its root, here or perhaps elsewhere."""
        return self._children > 0 or self._has_others

    def expect_other_spans(self) -> None:
        """Note that spans which are not counted here may join: of an instrumentation, or of another process."""
        self._has_others = True

    def start_root(
        self, links: Sequence[trace.Link], attributes: Mapping[str, Attribute]
    ) -> None:
        """Start the root, and find the trace again by its id.

        Its *attributes* so far go along with the first child that ends: a root is appended at its
        end, and a kill before it would leave only spans that name no step, group or id.

        What the SDK raises is raised: the rollout then makes no spans.
        """
        tracer = self.run.live_tracer
        self.root = tracer.start_root(int(self.trace_id, 16), links)
        # After the start: a rollout whose root cannot start makes no spans.
        self._tracer = tracer
        self._start_attributes = attributes
        _open_traces[int(self.trace_id, 16)] = self

    def leave_out(self) -> None:
        """Make a root that is not sampled: spans that join from other processes are not recorded either."""
        ids = (int(self.trace_id, 16), int.from_bytes(os.urandom(8), "big") or 1)
        self.root = trace.NonRecordingSpan(trace.SpanContext(*ids, is_remote=False))

    def context(self, base: Context) -> Context:
        """Return *base* with this rollout as the current rollout."""
        return with_rollout(self, trace.set_span_in_context(self.root, base))

    def start_child(self, name: str, kind: trace.SpanKind) -> trace.Span | None:
        """Start a child of the current span when this span belongs to the rollout, else of the root.

        ``None`` when the rollout is not recorded. Another trace's span may be current: that of the
        program's own code around the call, which does not belong to the rollout. What the SDK
        raises is raised; the child then counts as open, so that the root announces no number.
        """
        if self._tracer is None:
            return None
        context = otel_context.get_current()
        current = trace.get_current_span(context)
        inside = current.is_recording() and current.get_span_context().trace_id == int(
            self.trace_id, 16
        )
        with self._lock:
            self._children += 1
            self._open_children += 1
        return self._tracer.start_child(
            name, context if inside else self.context(context), kind
        )

    def end_child(
        self, span: trace.Span, extra: ExtraAttributes, end_unix_ns: int
    ) -> None:
        """End a span that `start_child` started.

        One that cannot be encoded is counted as ``rollout_span``.
        """
        with self._lock:
            self._open_children -= 1
            start = self._start_attributes
            self._start_attributes = {}
        if start:
            fields = span_attributes([(ROLLOUT_START, start)]) + extra.fields
            extra = extra._replace(fields=fields)
        if self._tracer is not None:
            self._tracer.end(span, extra, end_unix_ns)

    def close(self) -> None:
        """Find the trace by its id no longer."""
        trace_id = int(self.trace_id, 16)
        if _open_traces.get(trace_id) is self:
            del _open_traces[trace_id]

    def end_root(self, extra: ExtraAttributes, end_unix_ns: int) -> None:
        """End the root with its additions; nothing happens when it did not start."""
        if self._tracer is not None:
            self._tracer.end(self.root, extra, end_unix_ns)

    def span_count(self, of_messages: int) -> Pairs:
        """Return the number of spans as an attribute, with those *of_messages*.

        A bridge that has them all need not wait. Empty if spans of the trace may be open, or be
        made elsewhere: then a bridge waits for its grace time.
        """
        is_open = self._has_others or self._open_children > 0
        # A tracer provider of the program may add spans that never pass here.
        has_provider = not isinstance(
            trace.get_tracer_provider(), trace.ProxyTracerProvider
        )
        if is_open or has_provider:
            return []
        return [(SPAN_COUNT, 1 + self._children + of_messages)]
