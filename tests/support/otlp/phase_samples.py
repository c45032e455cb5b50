"""Phases of steps as processes send them, for the tests of translation and of the timeline."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.records import Record, Row
from otel_bridge.translation.translator import SegmentInfo
from support.otlp.otlp_samples import SCOPE, T0, TRACES, Bench, S, pairs, resource, who


def phase(
    name: str,
    step: int,
    start_s: float,
    end_s: float,
    outer: str | None = None,
    role: str | None = None,
) -> Span:
    """One phase, at seconds after `T0`."""
    named: dict[str, object] = {"rl.phase.name": name, "rl.step": step}
    named |= {} if outer is None else {"rl.phase.outer": outer}
    named |= {} if role is None else {"rl.role": role}
    start_ns, end_ns = T0 + round(start_s * S), T0 + round(end_s * S)
    # Not hash(), which differs for texts from one run of Python to the next.
    digest = hashlib.sha256(
        repr((name, step, start_ns, end_ns, outer)).encode()
    ).digest()
    return Span(
        trace_id=digest[:16], span_id=digest[:8], name="rl.phase",
        start_time_unix_nano=start_ns, end_time_unix_nano=end_ns, attributes=pairs(named),
    )  # fmt: skip


def rank(
    number: int, role: str = "trainer", instance: str | None = None, began_s: float = 0
) -> SegmentInfo:
    """The segment of one rank, begun *began_s* after `T0`."""
    process = instance or f"i{number}"
    attributes = who(process, role, rl_rank=number) | {
        "rl.instance.start_unix_ns": T0 + round(began_s * S)
    }
    return SegmentInfo(
        process, "process", resource(attributes).SerializeToString(), role
    )


def send(bench: Bench, sender: SegmentInfo, *phases: Span) -> list[Record]:
    """Frames of one process, a phase each."""
    records: list[Record] = []
    for each in phases:
        # Ids of two processes differ, also those of equal phases.
        identity = each.span_id + sender.instance_id.encode()
        sent = Span()
        sent.CopyFrom(each)
        sent.span_id = hashlib.sha256(identity).digest()[:8]
        scope = ScopeSpans(scope=SCOPE, spans=[sent]).SerializeToString()
        records += bench.translator.frame(
            sender, TRACES, scope, False, bench.now_ns, bench.now_ns
        )
    bench.records += records
    return records


def rows_of(records: Iterable[Record]) -> list[Row]:
    return [record for record in records if isinstance(record, Row)]


def values_of(row: Row) -> dict[str, float]:
    """The values of a row, without its role."""
    prefix = f"{row.role}/" if row.role else ""
    return {key.removeprefix(prefix): value for key, value in row.values.items()}  # type: ignore[misc]
