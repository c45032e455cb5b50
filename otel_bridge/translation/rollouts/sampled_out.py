"""Statistics of rollouts that emitters sampled out (event ``rl.rollouts``) -> counts and sums of a step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
        trace_ids: Trace ids of the rollouts with ids given by users.
        rewards: Reward of each of these; empty when the event does not name them.
        policy_versions: Policy version of each of these, or empty.
        datasets: Dataset of each of these, or empty.
    """

    id: str
    role: str | None
    split: str
    step: int | None
    rollouts: int
    sums: Mapping[str, Json]
    sender_ns: int
    staleness: tuple[int, int, int] | None = None
    trace_ids: tuple[str, ...] = ()
    rewards: tuple[float | None, ...] = ()
    policy_versions: tuple[int | None, ...] = ()
    datasets: tuple[str, ...] = ()
    open_steps: tuple[int, ...] | None = None

    def generated(self) -> Iterator[tuple[str, GeneratedRollout]]:
        """Return the trace id and the facts of each rollout with an id given by users.

        None without such ids. A list of facts that the event lacks gives ``None`` for each.

        A training step may consume such a rollout by its id, although no tracker shows it.
        """
        for index, trace_id in enumerate(self.trace_ids):
            yield (
                trace_id,
                GeneratedRollout(
                    self.step,
                    self.policy_versions[index] if self.policy_versions else None,
                    self.rewards[index] if self.rewards else None,
                    self.sender_ns,
                    self.datasets[index] if self.datasets else "",
                    is_sampled_out=True,
                ),
            )


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
    ids = _lines(attributes.get(semconv.ROLLOUTS_IDS))
    datasets = _lines(attributes.get(semconv.ROLLOUTS_DATASETS))
    return SampledOut(
        id=f"{instance_id}:{seq if seq is not None else log_record.time_unix_nano}",
        role=as_name(attributes.get(semconv.ROLE)) or role,
        split=as_name(attributes.get(semconv.SPLIT)) or TRAIN,
        step=int_in(attributes, semconv.STEP),
        rollouts=number,
        sums=sums,
        sender_ns=log_record.time_unix_nano or log_record.observed_time_unix_nano,
        staleness=_staleness(attributes.get(semconv.ROLLOUTS_STALENESS)),
        trace_ids=tuple(trace_id_of(run_id, rollout_id) for rollout_id in ids),
        rewards=_rewards(attributes.get(semconv.ROLLOUTS_REWARDS), len(ids)),
        policy_versions=_versions(
            attributes.get(semconv.ROLLOUTS_POLICY_VERSIONS), len(ids)
        ),
        # Lists of different lengths cannot be matched.
        datasets=datasets if len(datasets) == len(ids) else (),
        open_steps=as_ints(attributes.get(semconv.ROLLOUTS_OPEN_STEPS)),
    )


def _rewards(value: Json, number: int) -> tuple[float | None, ...]:
    rewards = _unpacked(value, "d", number)
    return tuple(reward if isfinite(reward) else None for reward in rewards)


def _versions(value: Json, number: int) -> tuple[int | None, ...]:
    versions = _unpacked(value, "q", number)
    return tuple(
        None if version == semconv.NO_VERSION else int(version) for version in versions
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


def _lines(value: Json) -> tuple[str, ...]:
    if not isinstance(value, str) or not value:
        return ()
    # Each id is remembered, so that their number has a limit, whatever was sent.
    return tuple(value.split("\n")[: semconv.MAX_ROLLOUTS_IDS])


def _unpacked(value: Json, kind: str, number: int) -> tuple[float, ...]:
    """Return *number* little-endian numbers of eight bytes; none when *value*, hex digits, holds another number.

    Packed, because a step may have thousands of rollouts, and an attribute value is a text.
    """
    if not isinstance(value, str) or len(value) != 16 * number:
        return ()
    try:
        return unpack(f"<{number}{kind}", bytes.fromhex(value))
    except ValueError:  # a text of another producer
        return ()


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
