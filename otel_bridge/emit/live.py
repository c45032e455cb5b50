"""Live rollouts: ``with run.rollout(…) as rollout`` and the ``chat`` and ``tool`` spans inside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_bridge.emit import facts, span_encoding
from otel_bridge.emit.batch import LOGS, Defaults, place_of
from otel_bridge.emit.context import with_rollout
from otel_bridge.emit.conversation import Content, content_of
from otel_bridge.emit.encoding import Frame, place_attributes, trace_id_bytes
from otel_bridge.emit.left_out import left_out_event
from otel_bridge.emit.live_children import ChatSpan, ToolSpan
from otel_bridge.emit.live_registry import forget, remember
from otel_bridge.emit.live_spans import Extra, LiveTracer, random_span_id, tracer_of
from otel_bridge.emit.rollout import Rollout, rollout_of
from otel_bridge.emit.rollout_children import Place, child_count, child_spans
from otel_bridge.emit.rollout_options import RolloutOptions
from otel_bridge.emit.rollout_root import failure, root_attributes
from otel_bridge.semconv import SPAN_COUNT

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun


class LiveRollout(Rollout):
    """A rollout while it happens: every field of `Rollout` may be set until it closes.

    A context manager, once. It is always a trace of its own that links the caller's span, and the current span inside,
    so that the spans of any OTel instrumentation become its children, in asyncio tasks too; in other threads inside
    ``with rollout.attach():``. An exception marks it failed; it is recorded nevertheless.

    Args:
        run: The run.
        options: What the settings say.
        fields: Fields of `Rollout`, and ``role``; other keys become metadata.
    """

    def __init__(self, run: EmitRun, options: RolloutOptions, fields: Mapping[str, object]) -> None:
        super().__init__()
        self.__dict__.update(vars(rollout_of({key: value for key, value in fields.items() if key != "role"})))
        place = place_of(run, self.step, self.split, fields.get("role"))
        self.step = place.step
        given = facts.name(self.id)
        self.trace_id = (os.urandom(16) if given is None else trace_id_bytes(run.id, given)).hex()
        self.id = given or self.trace_id
        self.carried = False
        """Whether its context was handed to another process."""
        self.foreign = False
        """Whether an instrumentation made spans inside."""
        self._run, self._options, self._role = run, options, place.role
        self._lock = threading.Lock()
        self._children = self._open_children = 0
        self._pid = os.getpid()
        self._span: trace.Span = trace.INVALID_SPAN
        self._tracer: LiveTracer | None = None
        self._token: Token[Context] | None = None

    @property
    def run(self) -> EmitRun:
        """The run it belongs to."""
        return self._run

    @property
    def recording(self) -> bool:
        """False when rollouts of this split are switched off: then only its reward is counted."""
        return self._tracer is not None

    @property
    def span(self) -> trace.Span:
        """The root as an OTel span."""
        return self._span

    def chat(self, model: str | None = None, **fields: Any) -> ChatSpan:  # fields of ChatSpan
        """Open a ``chat`` span below this rollout, from any thread; see `ChatSpan`."""
        return ChatSpan(self, model or self.model, fields)

    def tool(self, name: str, **fields: Any) -> ToolSpan:  # fields of ToolSpan
        """Open an ``execute_tool`` span below this rollout, from any thread; see `ToolSpan`."""
        return ToolSpan(self, name, fields)

    def attach(self) -> _Attached:
        """Make this rollout the current one of another thread: ``with rollout.attach():``."""
        return _Attached(self)

    # --- open and close -----------------------------------------------------------------------------------------------
    def __enter__(self) -> LiveRollout:
        self.start_unix_ns = self.start_unix_ns or time.time_ns()
        try:
            self._open()
        except Exception:  # noqa: BLE001  # nothing of ours may end a training run
            self._run.count_drop("internal_error")
        return self

    def _open(self) -> None:
        caller = trace.get_current_span().get_span_context()
        if self._options.cap_of(facts.name(self.split)) > 0:
            tracer = tracer_of(self._run)
            self._span = tracer.start_root(int(self.trace_id, 16), [trace.Link(caller)] if caller.is_valid else [])
            self._tracer = tracer
            remember(self)
        else:
            # Not sampled: what joins from elsewhere is not recorded either.
            ids = (int(self.trace_id, 16), random_span_id())
            self._span = trace.NonRecordingSpan(trace.SpanContext(*ids, is_remote=False))
        self._token = otel_context.attach(self.context(otel_context.get_current()))

    def context(self, base: Context) -> Context:
        """Return *base* with this rollout as the current one."""
        return with_rollout(self, trace.set_span_in_context(self._span, base))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        if error is not None:
            self.error = error
        if os.getpid() != self._pid:  # forked inside: the rollout is its parent's
            return
        forget(self)
        now = time.time_ns()
        try:
            self._close(now)
        except Exception:  # noqa: BLE001  # what a user put into its fields
            self._run.count_drop("rollout_unreadable")
            self._end_bare(now)

    def _end_bare(self, now: int) -> None:
        """End the root with its id alone: its children need it."""
        if self._tracer is not None:
            pairs = place_attributes(self._frame(Defaults(None)), facts.name(self.id) or self.trace_id)
            self._tracer.end(self._span, Extra(b"".join(span_encoding.span_attributes(pairs).parts)), now)

    def _frame(self, place: Defaults) -> Frame:
        role = place.role if place.role != self._run.role else None
        return Frame(self._run.id, place.step, place.split, role, self._options)

    def _close(self, now: int) -> None:
        place = place_of(self._run, self.step, self.split, self._role)
        if self.reward is not None and facts.number(self.reward) is None:
            self._run.count_drop("rollout_reward")
        if self._tracer is None:
            self._count_as_left_out(place)
            return
        content = content_of(self.messages, self._options.limits)
        if content.conversation.skipped:
            self._run.count_drop("rollout_message", content.conversation.skipped)
        pairs = place_attributes(self._frame(place), facts.name(self.id) or self.trace_id)
        pairs += root_attributes(self, content, self._options.limits)
        spans = [] if self._children or self.foreign or self.carried else self._from_messages(content, now)
        if not (self.carried or self.foreign or self._open_children or _program_makes_spans()):
            pairs.append((SPAN_COUNT, 1 + self._children + len(spans)))
        packed = b"".join(span_encoding.span_attributes(pairs).parts)
        if self.error is not None:
            packed += span_encoding.failure_fields(now, *failure(self.error, content.cutter))
        self._tracer.end(self._span, Extra(packed, b"".join(span_encoding.spans_field(spans))), now)

    def _from_messages(self, content: Content, now: int) -> list[span_encoding.Pieces]:
        """Make the children that nobody made while it was open."""
        context = self._span.get_span_context()
        trace_id, root_id = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
        ids = (os.urandom(8) for _ in range(child_count(content.messages)))
        start = getattr(self._span, "start_time", None) or now
        return child_spans(self, content, Place(trace_id, root_id, start, now), ids)

    def _count_as_left_out(self, place: Defaults) -> None:
        reward, group = facts.number(self.reward), facts.name(self.group)
        where = (place.step, place.split, self._frame(place).role)
        self._run.append(LOGS, left_out_event([reward], [group], [], where, self._run.next_event_seq()))

    # --- children -----------------------------------------------------------------------------------------------------
    def start_child(self, name: str, kind: trace.SpanKind) -> trace.Span | None:
        """Start a child of the current span when that is of this rollout, else of the root."""
        if self._tracer is None:
            return None
        here = otel_context.get_current()
        current = trace.get_current_span(here)
        inside = current.is_recording() and current.get_span_context().trace_id == int(self.trace_id, 16)
        with self._lock:
            self._children += 1
            self._open_children += 1
        return self._tracer.start_child(name, here if inside else self.context(here), kind)

    def end_child(self, span: trace.Span, extra: Extra, end_unix_ns: int) -> None:
        """End a child."""
        with self._lock:
            self._open_children -= 1
        if self._tracer is not None:
            self._tracer.end(span, extra, end_unix_ns)


class _Attached:
    """A live rollout as the current one of another thread."""

    def __init__(self, rollout: LiveRollout) -> None:
        self._rollout = rollout
        self._token: Token[Context] | None = None

    def __enter__(self) -> LiveRollout:
        self._token = otel_context.attach(self._rollout.context(otel_context.get_current()))
        return self._rollout

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            otel_context.detach(self._token)


def _program_makes_spans() -> bool:
    """Tell whether the program has a tracer provider, whose spans may reach the trace another way."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def chat(model: str | None = None, **fields: Any) -> ChatSpan:  # fields of ChatSpan
    """Open a ``chat`` span below the current rollout: ``with otel_bridge.chat(model) as chat:``; see `ChatSpan`."""
    return ChatSpan(None, model, fields)


def tool(name: str, **fields: Any) -> ToolSpan:  # fields of ToolSpan
    """Open an ``execute_tool`` span below the current rollout; see `ToolSpan`."""
    return ToolSpan(None, name, fields)
