"""Live rollouts: ``with run.rollout(…) as rollout`` and the ``chat`` and ``tool`` spans inside."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.conversations.conversation import Content
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode import span as span_encoding
from otel_bridge.emit.encode.span import ExtraAttributes
from otel_bridge.emit.live_registry import closed, opened
from otel_bridge.emit.rollouts.batch import (
    RolloutDefaults,
    annotate_rollouts,
    call_context,
    defaults_of,
    log_rollouts,
    track_of,
)
from otel_bridge.emit.rollouts.child_spans import SpanParent, child_spans
from otel_bridge.emit.rollouts.finished import note_kept
from otel_bridge.emit.rollouts.live_spans import ChatSpan, ToolSpan
from otel_bridge.emit.rollouts.open_trace import (
    AttachedContext,
    OpenTrace,
    SpanBlock,
)
from otel_bridge.emit.rollouts.rollout import (
    FIELDS,
    Rollout,
    metadata_of,
    rollout_of,
    turns_of,
)
from otel_bridge.emit.rollouts.spans import (
    BAD_FIELD,
    CallContext,
    Pairs,
    closing_fields,
    identity_attributes,
    rollout_content,
    root_attributes,
    start_attributes,
    trace_id_bytes,
)
from otel_bridge.errors import any_error_but_signals

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun
    from otel_bridge.emit.encode.protobuf import Attribute

_FIELDS = FIELDS | {"trace_id"}


class LiveRollout(SpanBlock, Rollout):
    """Records a rollout in progress; `Run.rollout` returns it.

    Every field of `Rollout` may be set until the block ends, except the times: they are those of
    the block. What is set beside the fields is metadata. Use the object once as a context manager.
    The rollout is always a trace of its own that links the caller's span. Inside the block it is
    the current span, so that spans of any OTel instrumentation become its children, in asyncio
    tasks too. In other threads use ``with rollout.attach():``.

    An exception of the block passes through, and the rollout is recorded with it as its `error`, a
    text after the block. Apart from that nothing raises: what cannot be recorded is left out and
    counted.

    Attributes:
        id: The user's id, else `trace_id`. Pass it to `Run.log_reward` for an evaluation that comes
            later.
        trace_id: Id of the trace, 32 hex digits.
    """

    def __init__(self, run: EmitRun, fields: Mapping[str, object]) -> None:
        """Prepare a rollout.

        What reading the program's metadata raises is raised: `Run.rollout` then returns a stand-in
        that records nothing.

        Args:
            run: The run.
            fields: Fields of `Rollout`, and ``role``; other keys become metadata.
        """
        super().__init__()
        rollout_fields = dict(fields)
        role = rollout_fields.pop("role", None)
        vars(self).update(vars(rollout_of(rollout_fields)))
        defaults = defaults_of(run, self.step, self.split, role)
        self.step = defaults.step
        rollout_id = coerce.name(self.id)
        if rollout_id is None:
            trace_id = os.urandom(16)
        else:
            trace_id = trace_id_bytes(run.id, rollout_id)
        self.trace_id = trace_id.hex()
        self.id = rollout_id or self.trace_id
        note_kept(trace_id)
        self._run = run
        self._role = defaults.role
        self._trace = OpenTrace(run, self.trace_id)
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
        split: then only its statistics and tokens are recorded. So too where its root could not be
        started: then it is recorded at its end, as a finished rollout.
        """
        return self._trace.recording

    @property
    def span(self) -> trace.Span:
        """Return the root of the rollout as an OTel span, invalid before the block."""
        return self._trace.root

    def chat(
        self, model: str | None = None, *_: object, **fields: Any
    ) -> ChatSpan:  # fields of ChatSpan
        """Open a ``chat`` span, one turn of a model, below this rollout, from any thread.

        Args:
            model: Name of the model; default: the rollout's ``model``.
            fields: Fields of `ChatSpan` (``input``, ``output``, …); other keys become metadata.
        """
        return ChatSpan(self._trace, coerce.name(model) or self.model, fields)

    def tool(
        self, name: str = "tool", *_: object, **fields: Any
    ) -> ToolSpan:  # fields of ToolSpan
        """Open an ``execute_tool`` span, one call of a tool, below this rollout, from any thread.

        Args:
            name: Name of the tool.
            fields: Fields of `ToolSpan` (``arguments``, ``result``, …); other keys become metadata.
        """
        return ToolSpan(self._trace, name, fields)

    @contextmanager
    def attach(self) -> Generator[LiveRollout, None, None]:
        """Make this rollout current in another thread: ``with rollout.attach():``.

        A new thread begins with an empty context, in which spans would become traces of their own.
        An exception of the block passes through.
        """
        attached = AttachedContext(self._trace.context(otel_context.get_current()))
        try:
            yield self
        finally:
            attached.detach()

    # --- open and close ---------------------------------------------------------------------------
    def __enter__(self) -> LiveRollout:
        """Open the root and make it current.

        A failure is counted as ``internal_error``, and the block runs without spans. The rollout is
        registered again where the run has ended, or a fork happened, since it was made.
        """
        self.start_unix_ns = time.time_ns()
        self._number = opened(
            self._run, self.id or self.trace_id, self._track, self.step, self._number
        )
        self._pid = os.getpid()
        try:
            self._open()
        except any_error_but_signals():  # nothing of otel-bridge may end a training run
            self._run.count_drop(INTERNAL_ERROR)
        return self

    def _open(self) -> None:
        """Start the root, or without seats for its split a root that is not sampled, and make it current.

        What starting a span raises is raised: `__enter__` counts it as ``internal_error``.
        """
        if self._run.rollout_options.cap_of(coerce.name(self.split)) > 0:
            caller = trace.get_current_span().get_span_context()
            self._trace.start_root(
                [trace.Link(caller)] if caller.is_valid else [],
                self._start_attributes(),
            )
        else:
            self._trace.leave_out()
        self._make_current(self._trace.context(otel_context.get_current()))

    def _start_attributes(self) -> dict[str, Attribute]:
        """Return what is known of the root now; nothing where a field cannot be read."""
        call = CallContext(
            self._run.id,
            self.step,
            coerce.name(self.split),
            role=None if self._role == self._run.role else self._role,
            options=self._run.rollout_options,
        )
        try:
            return start_attributes(self, call)
        except any_error_but_signals():  # the end of the root counts such a field
            return {}

    def _end(self) -> None:
        """Record the rollout once, with a root whatever its fields hold.

        Nothing when its run has ended meanwhile, which has counted it as ``rollout_unfinished``.
        Without seats only its statistics are recorded; without a root, a finished rollout. A field
        that raises costs all fields but the id (``rollout_unreadable``): the children on the disk
        need the root.
        """
        self._trace.close()
        if not closed(self._number):  # the run ended meanwhile, and counted the rollout
            return
        now = time.time_ns()
        try:
            if not self._trace.recording:
                # As one that is sampled out: its statistics, and its tokens.
                log_rollouts(self._run, [self], role=self._role)
                return
            self._close(now)
        except any_error_but_signals():  # what a user put into its fields
            self._run.count_drop("rollout_unreadable")
            self._end_bare(now)
        self._annotate()

    def _annotate(self) -> None:
        """Record the tokens that its turns carry, after the root.

        What they raise is counted as ``token_unreadable``.
        """
        try:
            if turns_of(self.turns):
                defaults = defaults_of(self._run, self.step, self.split, self._role)
                annotate_rollouts(self._run, [vars(self)], defaults)
        except any_error_but_signals():  # what a user put into the turns
            self._run.count_drop("token_unreadable")

    def _end_bare(self, now: int) -> None:
        """End the root with its id alone, because its children need the root."""
        pairs = self._identity(RolloutDefaults(None))
        packed = span_encoding.span_attributes(pairs)
        self._trace.end_root(ExtraAttributes(packed), now)

    def _identity(self, defaults: RolloutDefaults) -> Pairs:
        call = call_context(self._run, defaults)
        return identity_attributes(call, coerce.name(self.id) or self.trace_id)

    def _close(self, now: int) -> None:
        """End the root with all that is known of the rollout.

        Raises what the program's own objects raise; the caller then ends the root without them.
        Facts of turns are counted as ``rollout_field`` where no span was made of the messages,
        which alone show them.
        """
        self.metadata = metadata_of(self, _FIELDS)
        defaults = defaults_of(self._run, self.step, self.split, self._role)
        if self.reward is not None and coerce.number(self.reward) is None:
            self._run.count_drop("rollout_reward")
        limits = self._run.rollout_options.limits
        content = rollout_content(self, limits)
        pairs = self._identity(defaults)
        pairs += root_attributes(self, content, limits)
        spans = self._spans_of_messages(content, now)
        losses = content.content_filter.losses
        turns = turns_of(self.turns)
        if turns and not spans:
            losses.add(BAD_FIELD, len(turns), "turns")
        pairs += self._trace.span_count(len(spans))
        packed = closing_fields(pairs, self.error, now, content.content_filter)
        losses.report(self._run.count_drop)
        children = span_encoding.spans_field(spans)
        self._trace.end_root(ExtraAttributes(packed, children), now)

    def _spans_of_messages(self, content: Content, now: int) -> list[bytes]:
        """Make the children from the messages.

        Empty if the open rollout got spans, here or elsewhere: each turn would be there twice.
        """
        if self._trace.has_spans:
            return []
        root = self._trace.root
        context = root.get_span_context()
        parent = SpanParent(
            context.trace_id.to_bytes(16, "big"),
            context.span_id.to_bytes(8, "big"),
            getattr(root, "start_time", None) or now,
            now,
        )
        return child_spans(self, content, parent)


def chat(
    model: str | None = None, *_: object, **fields: Any
) -> ChatSpan:  # fields of ChatSpan
    """Open a ``chat`` span, one turn of a model: ``with otel_bridge.chat(model) as chat:``.

    The span belongs to the current rollout. Outside of a rollout it belongs to the current trace;
    without one it is a rollout of its own, which has no step. Without a run nothing is recorded.

    Args:
        model: Name of the model.
        fields: Fields of `ChatSpan` (``input``, ``output``, …); other keys become metadata.
    """
    return ChatSpan(None, model, fields)


def tool(
    name: str = "tool", *_: object, **fields: Any
) -> ToolSpan:  # fields of ToolSpan
    """Open an ``execute_tool`` span, one call of a tool: ``with otel_bridge.tool("calculator") as tool:``.

    The span belongs to the current rollout. Outside of a rollout it belongs to the current trace;
    without one it is a rollout of its own, which has no step. Without a run nothing is recorded.

    Args:
        name: Name of the tool.
        fields: Fields of `ToolSpan` (``arguments``, ``result``, …); other keys become metadata.
    """
    return ToolSpan(None, name, fields)
