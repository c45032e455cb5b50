"""Live rollouts: ``with run.rollout(…) as rollout`` and the ``chat`` and ``tool`` spans inside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.encode.span import ExtraAttributes
from otel_bridge.emit.live_registry import closed, open_steps, opened, register, unregister
from otel_bridge.emit.messages.limits import Content
from otel_bridge.emit.rollouts.batch import (
    RolloutDefaults,
    annotate_rollouts,
    defaults_of,
    track_of,
)
from otel_bridge.emit.rollouts.context import with_rollout
from otel_bridge.emit.rollouts.events import SampledColumns, append_sampled_out
from otel_bridge.emit.rollouts.kept import note_kept
from otel_bridge.emit.rollouts.live_spans import ChatSpan, ToolSpan, random_span_id
from otel_bridge.emit.rollouts.rollout import Rollout, rollout_of
from otel_bridge.emit.rollouts.spans import (
    BAD_FIELD,
    CallContext,
    SpanParent,
    child_count,
    child_spans,
    failure,
    identity_attributes,
    rollout_content,
    root_attributes,
    trace_id_bytes,
    without_traceback,
)
from otel_bridge.errors import any_error
from otel_bridge.semconv import SPAN_COUNT

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun, RolloutTracer


class LiveRollout(Rollout):
    """Records a rollout in progress; `Run.rollout` returns it.

    Every field of `Rollout` may be set until the block ends, except the times: they are those of
    the block. Use the object once as a context manager. The rollout is always a trace of its own
    that links the caller's span. Inside the block it is the current span, so that spans of any OTel
    instrumentation become its children, in asyncio tasks too. In other threads use ``with
    rollout.attach():``.

    An exception of the block passes through, and the rollout is recorded with it as its `error`, a
    text after the block. Apart from that nothing raises: what cannot be recorded is left out and
    counted.

    Attributes:
        id: The user's id, else `trace_id`. Pass it to `Run.log_reward` for an evaluation that comes
            later.
        trace_id: Id of the trace, 32 hex digits.
    """

    # Many attributes beside the public ones, because users set the fields of the rollout on this
    # object itself.
    def __init__(self, run: EmitRun, fields: Mapping[str, object]) -> None:
        """Prepare a rollout.

        Args:
            run: The run.
            fields: Fields of `Rollout`, and ``role``; other keys become metadata.
        """
        super().__init__()
        self.__dict__.update(
            vars(rollout_of({key: value for key, value in fields.items() if key != "role"}))
        )
        defaults = defaults_of(run, self.step, self.split, fields.get("role"))
        self.step = defaults.step
        rollout_id = coerce.name(self.id)
        self.trace_id = (
            os.urandom(16) if rollout_id is None else trace_id_bytes(run.id, rollout_id)
        ).hex()
        self.id = rollout_id or self.trace_id
        note_kept(bytes.fromhex(self.trace_id))
        self._carried = False
        self._instrumented = False
        self._run = run
        self._options = run.rollout_options
        self._role = defaults.role
        # Guards the numbers of children, which other threads open and end too.
        self._lock = threading.Lock()
        self._children = 0
        self._open_children = 0
        self._pid = os.getpid()
        self._span: trace.Span = trace.INVALID_SPAN
        self._tracer: RolloutTracer | None = None
        self._token: Token[Context] | None = None
        self._track = track_of(run, defaults)
        self._number = opened(run, self.id, self._track, defaults.step)

    @property
    def run(self) -> EmitRun:
        """Return the run of the rollout."""
        return self._run

    @property
    def recording(self) -> bool:
        """Return whether the open rollout makes spans.

        ``False`` before the block, and when ``OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP`` is 0 for its
        split. Then only the reward is counted.
        """
        return self._tracer is not None

    @property
    def span(self) -> trace.Span:
        """Return the root of the rollout as an OTel span, invalid before the block."""
        return self._span

    def chat(
        self, model: str | None = None, *_: object, **fields: Any
    ) -> ChatSpan:  # fields of ChatSpan
        """Open a ``chat`` span, one turn of a model, below this rollout, from any thread.

        Args:
            model: Name of the model; default: the rollout's ``model``.
            fields: Fields of `ChatSpan` (``input``, ``output``, …); other keys become metadata.
        """
        return ChatSpan(self, model or self.model, fields)

    def tool(self, name: str = "tool", *_: object, **fields: Any) -> ToolSpan:  # fields of ToolSpan
        """Open an ``execute_tool`` span, one call of a tool, below this rollout, from any thread.

        Args:
            name: Name of the tool.
            fields: Fields of `ToolSpan` (``arguments``, ``result``, …); other keys become metadata.
        """
        return ToolSpan(self, name, fields)

    def attach(self) -> AbstractContextManager[LiveRollout]:
        """Make this rollout current in another thread: ``with rollout.attach():``."""
        return _Attached(self)

    def mark_instrumented(self) -> None:
        """Note that an instrumentation made a span in this trace: how many there will be is not known."""
        self._instrumented = True

    def mark_carried(self) -> None:
        """Note that the context was passed to another process, which may add spans."""
        self._carried = True

    # --- open and close ---------------------------------------------------------------------------
    def __enter__(self) -> LiveRollout:
        self.start_unix_ns = self.start_unix_ns or time.time_ns()
        self._number = opened(
            self._run, self.id or self.trace_id, self._track, self.step, self._number
        )
        try:
            self._open()
        except any_error():  # nothing of otel-bridge may end a training run
            self._run.count_drop(INTERNAL_ERROR)
        return self

    def _open(self) -> None:
        caller = trace.get_current_span().get_span_context()
        if self._options.cap_of(coerce.name(self.split)) > 0:
            tracer = self._run.live_tracer
            self._span = tracer.start_root(
                int(self.trace_id, 16), [trace.Link(caller)] if caller.is_valid else []
            )
            # After the start: a rollout whose root cannot start makes no spans.
            self._tracer = tracer
            register(self)
        else:
            # Not sampled: spans that join from other processes are not recorded either.
            ids = (int(self.trace_id, 16), random_span_id())
            self._span = trace.NonRecordingSpan(trace.SpanContext(*ids, is_remote=False))
        self._token = otel_context.attach(self.context(otel_context.get_current()))

    def context(self, base: Context) -> Context:
        """Return *base* with this rollout as the current rollout."""
        return with_rollout(self, trace.set_span_in_context(self._span, base))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # First: what follows the block is not part of the rollout, even if its end fails.
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        if error is not None:
            self.error = error
        self._end()
        self.error = without_traceback(self.error)

    def _end(self) -> None:
        """Record the rollout once, in the process that opened it."""
        if os.getpid() != self._pid:  # forked inside: the rollout belongs to the parent
            return
        unregister(self)
        if not closed(self._number):  # the run ended meanwhile, and counted the rollout
            return
        now = time.time_ns()
        try:
            self._close(now)
        except any_error():  # what a user put into its fields
            self._run.count_drop("rollout_unreadable")
            self._end_bare(now)
        if self.turns:
            self._annotate()

    def _annotate(self) -> None:
        """Record the tokens that its turns carry, whether trackers show the rollout or not."""
        defaults = defaults_of(self._run, self.step, self.split, self._role)
        try:
            annotate_rollouts(self._run, [self], defaults)
        except any_error():  # what a user put into the turns
            self._run.count_drop("token_unreadable")

    def _end_bare(self, now: int) -> None:
        """End the root with its id alone, because its children need the root."""
        if self._tracer is not None:
            pairs = identity_attributes(
                self._context(RolloutDefaults(None)), coerce.name(self.id) or self.trace_id
            )
            self._tracer.end(
                self._span,
                ExtraAttributes(b"".join(span_encoding.span_attributes(pairs).parts)),
                now,
            )

    def _context(self, defaults: RolloutDefaults) -> CallContext:
        return CallContext(
            self._run.id,
            defaults.step,
            defaults.split,
            role=None if defaults.role == self._run.role else defaults.role,
            options=self._options,
            open_steps=open_steps(self._track),
        )

    def _close(self, now: int) -> None:
        """End the root with all that is known of the rollout.

        Raises what the program's own objects raise.
        """
        defaults = defaults_of(self._run, self.step, self.split, self._role)
        if self.reward is not None and coerce.number(self.reward) is None:
            self._run.count_drop("rollout_reward")
        if self._tracer is None:
            self._count_as_sampled_out(defaults)
            return
        content = rollout_content(self, self._options.limits)
        if content.conversation.unread:
            self._run.count_drop("rollout_message", content.conversation.unread)
        pairs = identity_attributes(self._context(defaults), coerce.name(self.id) or self.trace_id)
        pairs += root_attributes(self, content, self._options.limits)
        spans = self._spans_of_messages(content, now)
        losses = content.content_filter.losses
        if self.turns and not spans:
            losses.add(BAD_FIELD, len(self.turns), "turns")
        if self._is_number_of_spans_known():
            pairs.append((SPAN_COUNT, 1 + self._children + len(spans)))
        packed = b"".join(span_encoding.span_attributes(pairs).parts)
        if self.error is not None:
            packed += span_encoding.failure_fields(
                now, *failure(self.error, content.content_filter)
            )
        losses.report(self._run.count_drop)
        self._tracer.end(
            self._span, ExtraAttributes(packed, b"".join(span_encoding.spans_field(spans))), now
        )

    def _is_number_of_spans_known(self) -> bool:
        """Return whether all spans of the trace were made here, and have ended."""
        is_open = self._carried or self._instrumented or self._open_children > 0
        return not is_open and not _program_makes_spans()

    def _spans_of_messages(self, content: Content, now: int) -> list[span_encoding.Pieces]:
        """Make the children from the messages.

        Nothing if the open rollout got spans, here or elsewhere.
        """
        if self._children or self._instrumented or self._carried:
            return []
        context = self._span.get_span_context()
        parent = SpanParent(
            context.trace_id.to_bytes(16, "big"),
            context.span_id.to_bytes(8, "big"),
            getattr(self._span, "start_time", None) or now,
            now,
        )
        ids = (os.urandom(8) for _ in range(child_count(content.messages)))
        return child_spans(self, content, parent, ids)

    def _count_as_sampled_out(self, defaults: RolloutDefaults) -> None:
        columns = SampledColumns(
            [0],
            [coerce.number(self.reward)],
            [coerce.name(self.group)],
            versions=[self.policy_version],
            ids=[self.id],
            datasets=[self.dataset],
        )
        append_sampled_out(self._run, columns, [], self._context(defaults))

    # --- children ---------------------------------------------------------------------------------
    def start_child(self, name: str, kind: trace.SpanKind) -> trace.Span | None:
        """Start a child of the current span when this span belongs to the rollout, else of the root."""
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
        return self._tracer.start_child(name, context if inside else self.context(context), kind)

    def end_child(self, span: trace.Span, extra: ExtraAttributes, end_unix_ns: int) -> None:
        """End a child."""
        with self._lock:
            self._open_children -= 1
        if self._tracer is not None:
            self._tracer.end(span, extra, end_unix_ns)


class _Attached:
    """Makes a live rollout current in another thread, as a context manager."""

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
    """Return whether the program has a tracer provider, whose spans may reach the trace another way."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def chat(model: str | None = None, *_: object, **fields: Any) -> ChatSpan:  # fields of ChatSpan
    """Open a ``chat`` span, one turn of a model: ``with otel_bridge.chat(model) as chat:``.

    The span belongs to the current rollout. Outside of a rollout it belongs to the current trace;
    without one it is a rollout of its own, which has no step. Without a run nothing is recorded.

    Args:
        model: Name of the model.
        fields: Fields of `ChatSpan` (``input``, ``output``, …); other keys become metadata.
    """
    return ChatSpan(None, model, fields)


def tool(name: str = "tool", *_: object, **fields: Any) -> ToolSpan:  # fields of ToolSpan
    """Open an ``execute_tool`` span, one call of a tool: ``with otel_bridge.tool("calculator") as tool:``.

    The span belongs to the current rollout. Outside of a rollout it belongs to the current trace;
    without one it is a rollout of its own, which has no step. Without a run nothing is recorded.

    Args:
        name: Name of the tool.
        fields: Fields of `ToolSpan` (``arguments``, ``result``, …); other keys become metadata.
    """
    return ToolSpan(None, name, fields)
