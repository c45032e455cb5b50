"""Statistics of rollouts that emitters sampled out (event ``rl.rollouts``) -> counts and sums of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from struct import error, unpack

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import TRAIN, Json, is_evaluation, trace_id_of
from otel_bridge.translation.decode.attributes import (
    as_int,
    as_ints,
    as_name,
    int_in,
    mapping_of,
    value_of,
)
from otel_bridge.translation.generated_rollouts import GeneratedRollout


@dataclass(frozen=True, slots=True)
class SampledOut:
    """Holds rollouts of one step that no process sent.

    Attributes:
        id: Id of the event, the same at every redelivery.
        rollouts: Number of rollouts.
        sums: Statistics of the rollouts, by group.
        sender_ns: Time of the event.
        staleness: Count, sum and maximum of step less policy version; ``None``: no rollout names a
            version.
        generated: Facts of the rollouts with ids given by users, by trace id. A training step may
            consume such a rollout by its id, although no tracker shows it.
    """

    id: str
    role: str | None
    split: str
    step: int | None
    rollouts: int
    sums: Mapping[str, Json]
    sender_ns: int
    staleness: tuple[int, int, int] | None = None
    generated: Mapping[str, GeneratedRollout] = field(
        default_factory=dict[str, GeneratedRollout]
    )
    open_steps: tuple[int, ...] | None = None


def read_sampled_out(
    log_record: LogRecord, instance_id: str, role: str | None, *, run_id: str = ""
) -> SampledOut | None:
    """Read an event.

    Return ``None`` when the event holds no statistics, or a negative number of rollouts.

    An event without a number is identified by its time, and one without a split is of ``train``.

    The caller counts an event that holds none: its rollouts are then missing from the statistics.

    Args:
        log_record: The event.
        instance_id: Process that sent the event.
        role: Role of the sender, for an event that names no role.
        run_id: The run.
    """
    attributes = mapping_of(log_record.attributes)
    sums = value_of(log_record.body)
    number = int_in(attributes, semconv.ROLLOUTS_COUNT) or 0
    if not isinstance(sums, dict) or number < 0:
        return None
    seq = int_in(attributes, semconv.EVENT_SEQ)
    step = int_in(attributes, semconv.STEP)
    sender_ns = log_record.time_unix_nano or log_record.observed_time_unix_nano
    split = as_name(attributes.get(semconv.SPLIT)) or TRAIN
    # Training consumes no rollouts of an evaluation, whose steps it does not pass.
    generated_step = None if is_evaluation(split) else step
    return SampledOut(
        id=f"{instance_id}:{seq if seq is not None else log_record.time_unix_nano}",
        role=as_name(attributes.get(semconv.ROLE)) or role,
        split=split,
        step=step,
        rollouts=number,
        sums=sums,
        sender_ns=sender_ns,
        staleness=_staleness(attributes.get(semconv.ROLLOUTS_STALENESS)),
        generated=_generated(attributes, run_id, generated_step, sender_ns),
        open_steps=as_ints(attributes.get(semconv.ROLLOUTS_OPEN_STEPS)),
    )


def _generated(
    attributes: Mapping[str, Json], run_id: str, step: int | None, sender_ns: int
) -> dict[str, GeneratedRollout]:
    """Return the facts of each rollout with an id given by users, by trace id; empty without such ids.

    A list of facts that the event lacks, or of another length, gives none for each.
    """
    ids = _lines(attributes.get(semconv.ROLLOUTS_IDS))
    rewards = _unpacked(attributes.get(semconv.ROLLOUTS_REWARDS), "d", len(ids))
    versions = _unpacked(
        attributes.get(semconv.ROLLOUTS_POLICY_VERSIONS), "q", len(ids)
    )
    datasets = _lines(attributes.get(semconv.ROLLOUTS_DATASETS))
    # Lists of different lengths cannot be matched.
    if len(datasets) != len(ids):
        datasets = [""] * len(ids)
    generated: dict[str, GeneratedRollout] = {}
    for rollout_id, version, reward, dataset in zip(
        ids, versions, rewards, datasets, strict=True
    ):
        generated[trace_id_of(run_id, rollout_id)] = GeneratedRollout(
            step,
            None if version == semconv.NO_VERSION else as_int(version),
            reward if reward is not None and isfinite(reward) else None,
            sender_ns,
            dataset,
            is_sampled_out=True,
        )
    return generated


def _staleness(value: Json) -> tuple[int, int, int] | None:
    """Return number, sum and highest value.

    ``None`` if one is missing, or beyond what JSON numbers hold exactly.

    The rest of the event counts without it, since any producer may send one.
    """
    if not isinstance(value, dict):
        return None
    number = as_int(value.get("count"))
    total = as_int(value.get("sum"))
    highest = as_int(value.get("max"))
    if number is None or total is None or highest is None:
        return None
    is_in_range = 0 < number < 1 << 53 and abs(total) < 1 << 62
    if is_in_range:
        return (number, total, highest)
    return None


def _lines(value: Json) -> list[str]:
    if not isinstance(value, str) or not value:
        return []
    # Each id is remembered, so that their number has a limit, whatever was sent.
    return value.split("\n")[: semconv.MAX_ROLLOUTS_IDS]


def _unpacked(value: Json, kind: str, number: int) -> Sequence[float | None]:
    """Return *number* little-endian numbers of eight bytes, written as hex digits.

    ``None`` for each when *value* is not a text of so many numbers.

    Packed, because a step may have thousands of rollouts, and an attribute value is a text.
    """
    if isinstance(value, str) and len(value) == 16 * number:
        # Else a text of another producer: of other digits, or with spaces, which `fromhex` skips.
        with suppress(ValueError, error):
            return unpack(f"<{number}{kind}", bytes.fromhex(value))
    return [None] * number
