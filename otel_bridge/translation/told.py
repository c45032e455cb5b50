"""What emitters tell of rollouts that they left out (event ``rl.rollouts``) -> counts and sums of one step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.translation import spans as reading
from otel_bridge.translation.assembly import TRAIN
from otel_bridge.translation.attributes import mapping_of, value_of


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rollouts of one step that left no process.

    Attributes:
        id: The same when it comes again.
        rollouts: How many.
        sums: Their statistics by group.
        said_ns: When it was said.
    """

    id: str
    role: str | None
    split: str
    step: int | None
    rollouts: int
    sums: Mapping[str, Json]
    said_ns: int


def read_left_out(log_record: LogRecord, instance_id: str, role: str | None) -> LeftOut | None:
    """Read an event; ``None`` when it holds no statistics, or a negative number.

    Args:
        log_record: The event.
        instance_id: Process that sent it.
        role: Who speaks, where the event does not say whose rollouts they are.
    """
    attributes = mapping_of(log_record.attributes)
    sums = value_of(log_record.body)
    number = reading.as_int(attributes.get(semconv.ROLLOUTS_COUNT)) or 0
    if not isinstance(sums, dict) or number < 0:
        return None
    seq = reading.as_int(attributes.get(semconv.EVENT_SEQ))
    return LeftOut(
        id=f"{instance_id}:{seq if seq is not None else log_record.time_unix_nano}",
        role=reading.as_name(attributes.get(semconv.ROLE)) or role,
        split=reading.as_name(attributes.get(semconv.SPLIT)) or TRAIN,
        step=reading.as_int(attributes.get(semconv.STEP)),
        rollouts=number,
        sums=sums,
        said_ns=log_record.time_unix_nano or log_record.observed_time_unix_nano,
    )
