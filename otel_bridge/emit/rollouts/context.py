"""Rollouts across threads and processes: the current rollout of a context, and its W3C trace context."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, cast

from otel_bridge.values.reading import entries_of
from otel_bridge.values.scalars import any_text

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts.open_trace import AttachedContext


_MAX_FIELDS = 1_000
"""Most headers that are read of a carrier."""


def get_context() -> dict[str, str]:
    """Return the current rollout's W3C trace context, for `attach_context` in another process.

    The rollout counts as carried from then on: other processes may add spans, so its root announces
    no number of spans.

    Returns:
        Headers, ``traceparent`` and in some cases ``tracestate``; empty outside of a rollout and of
        any other span.
    """
    # Nothing here has made a span, and the import would cost.
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    from otel_bridge.emit.rollouts.open_trace import current_rollout  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    rollout = current_rollout()
    if rollout is not None and carrier:
        rollout.expect_other_spans()
    return carrier


class attach_context:  # noqa: N801  # read as a verb: with otel_bridge.attach_context(carrier):
    """Joins the spans made inside to the rollout of *carrier*; an empty carrier changes nothing.

    Args:
        carrier: Result of `get_context` in another process, or HTTP headers with this result.
    """

    def __init__(self, carrier: Mapping[str, str] | None) -> None:
        self._carrier = carrier
        # Of each block: one object may be used in several, also inside one another.
        self._attached: list[AttachedContext] = []

    def __enter__(self) -> None:
        """Make the span of the carrier the current one.

        Nothing happens without a ``traceparent`` that can be read.
        """
        fields = _fields(self._carrier)
        if not fields:
            return
        from opentelemetry.context import get_current  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        from otel_bridge.emit.rollouts.open_trace import (  # noqa: PLC0415
            AttachedContext,
            with_rollout,
        )

        # The carrier may belong to another rollout than the open one of this process.
        context = with_rollout(None, get_current())
        joined = TraceContextTextMapPropagator().extract(fields, context=context)
        self._attached.append(AttachedContext(joined))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the context from before the block; an exception of the block passes through."""
        if self._attached:
            self._attached.pop().detach()


def _fields(carrier: object) -> dict[str, str]:
    """Return the entries of *carrier* by lower-case names: HTTP servers give names in any case, or as bytes.

    Empty when *carrier* is not a mapping, or has no ``traceparent``: then the block joins nothing.
    """
    if not isinstance(carrier, Mapping):
        return {}
    fields: dict[str, str] = {}
    entries = entries_of(cast("Mapping[object, object]", carrier), _MAX_FIELDS)
    for name, value in entries:
        fields[any_text(name).lower()] = any_text(value)
    if "traceparent" in fields:
        return fields
    return {}
