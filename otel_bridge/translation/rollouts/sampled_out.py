"""Statistics of rollouts that emitters sampled out (event ``rl.rollouts``) -> counts and sums of a step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from struct import unpack

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import Json, trace_id_of
from otel_bridge.translation.decode.attributes import (
    as_int,
    as_ints,
    as_name,
    int_in,
    mapping_of,
    value_of,
)
from otel_bridge.translation.generated_rollouts import GeneratedRollout
from otel_bridge.translation.rollouts.assembly import TRAIN
from otel_bridge.translation.state import TranslationState, named

_SAMPLED = "sampled/"
_HALF = 8
"""Bytes of a trace id that are remembered; a chance collision within a run is practically
impossible."""


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

    Lists of another length than that of the ids are ignored: they cannot be matched to them. An
    event without a number is identified by its time, and one without a split is of ``train``.

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
    return SampledOut(
        id=f"{instance_id}:{seq if seq is not None else log_record.time_unix_nano}",
        role=as_name(attributes.get(semconv.ROLE)) or role,
        split=as_name(attributes.get(semconv.SPLIT)) or TRAIN,
        step=step,
        rollouts=number,
        sums=sums,
        sender_ns=sender_ns,
        staleness=_staleness(attributes.get(semconv.ROLLOUTS_STALENESS)),
        generated=generated,
        open_steps=as_ints(attributes.get(semconv.ROLLOUTS_OPEN_STEPS)),
    )


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
    """Return *number* little-endian numbers of eight bytes; ``None`` for each if *value*, hex digits, holds another number.

    Packed, because a step may have thousands of rollouts, and an attribute value is a text.
    """
    if isinstance(value, str) and len(value) == 16 * number:
        # Else a text of another producer.
        with suppress(ValueError):
            return unpack(f"<{number}{kind}", bytes.fromhex(value))
    return [None] * number


class SampledOutTraces:
    """Remembers the last *limit* traces of rollouts that emitters sampled out and users named, in the state.

    Args:
        state: Key space ``sampled/``: for each event, the first half of each trace id.
        limit: Most traces that are remembered. The oldest events are forgotten first; the last
            event stays whole.
    """

    def __init__(self, state: TranslationState, limit: int) -> None:
        self._state = state
        self._limit = limit
        ids = named(state, _SAMPLED)
        self._events = {
            number: _halves(bytes.fromhex(ids[str(number)]))
            for number in sorted(map(int, ids))
        }
        self._traces = Counter[bytes]()
        for halves in self._events.values():
            self._traces.update(halves)

    def add(self, trace_ids: Iterable[str]) -> None:
        """Remember the traces of one event.

        Nothing for an event without ids, as of an emitter whose user names no rollouts.
        """
        halves = [bytes.fromhex(trace_id[: 2 * _HALF]) for trace_id in trace_ids]
        if not halves:
            return
        number = max(self._events, default=0) + 1
        self._state.set(f"{_SAMPLED}{number}", b"".join(halves).hex())
        self._events[number] = halves
        self._traces.update(halves)
        # The last event stays, or its own rollouts would be unknown at once.
        while len(self._traces) > self._limit and len(self._events) > 1:
            oldest = min(self._events)
            self._state.delete(f"{_SAMPLED}{oldest}")
            self._traces -= Counter(self._events.pop(oldest))

    def __contains__(self, trace_id: object) -> bool:
        """Return whether a trace, named by hex digits, is one of those.

        Else raises `ValueError`.
        """
        return (
            isinstance(trace_id, str)
            and bytes.fromhex(trace_id[: 2 * _HALF]) in self._traces
        )


def _halves(ids: bytes) -> list[bytes]:
    return [ids[start : start + _HALF] for start in range(0, len(ids), _HALF)]
