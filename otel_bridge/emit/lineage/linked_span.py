"""Facts about rollouts of any process -> a span of its own trace, with a link to each rollout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from otel_bridge.emit.encode.span import rollout_link, scope_spans, span
from otel_bridge.journal.frames import Signal

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun
    from otel_bridge.emit.encode.span import Pieces


def append_linked_span(
    run: EmitRun, name: str, packed_attributes: Pieces, trace_ids: Iterable[bytes]
) -> None:
    """Append a span that begins and ends now."""
    now = time.time_ns()
    random = os.urandom(24)
    ids = (random[8:], random[:8], None)
    links = b"".join(map(rollout_link, trace_ids))
    packed = span(ids, name, (now, now), packed_attributes, links=links)
    run.append(Signal.TRACES, scope_spans((packed,)), time_unix_ns=now)
