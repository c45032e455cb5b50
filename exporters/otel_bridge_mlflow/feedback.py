"""Rewards, their parts and late values, as feedback on traces; and those that wait to be written. No MLflow here.

An assessment costs a server about 7 ms, twice what its trace costs, and there is no call that takes several. So the
values of a rollout wait in the destination's memory, where a kill leaves them, until no row or rollout waits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

from otel_bridge.exporter import Memory
from otel_bridge.records import LateValue, Rollout
from otel_bridge_mlflow.spans import clean_text

REWARD: Final = "reward"
_NAME_LENGTH: Final = 250
_SLOT: Final = "feedback/"
_BATCH: Final = 64
"""Values of one entry of the memory: it is written again whenever a few of them are done."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """One value of one trace; its id is made of both, so that the same value again is the same assessment."""

    rollout_id: str
    name: str
    value: float | str
    time_unix_ns: int
    rationale: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """The assessment's id."""
        text = f"{self.rollout_id}\0{self.name}"
        return f"a-{hashlib.md5(text.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()}"


def rewards_of(rollout: Rollout) -> Iterator[Feedback]:
    """Yield the reward of *rollout* and its parts."""
    if rollout.reward is not None:
        yield Feedback(rollout.id, REWARD, _value(rollout.reward), rollout.end_unix_ns)
    for part, value in rollout.rewards.items():
        name = part if part and part != REWARD else f"rewards.{part}"
        yield Feedback(rollout.id, _name(name), _value(value), rollout.end_unix_ns)


def feedback_of(late: LateValue) -> Feedback:
    """Return *late* as feedback."""
    metadata = [("late", late.id)]
    if late.value is not None and late.label:
        metadata.append(("label", clean_text(late.label)))
    return Feedback(
        rollout_id=late.rollout_id,
        name=_name(late.name or "value"),
        value=clean_text(late.label or "") if late.value is None else _value(late.value),
        time_unix_ns=late.time_unix_ns,
        rationale=None if late.explanation is None else clean_text(late.explanation),
        metadata=tuple(metadata),
    )


class Waiting:
    """Rewards that wait to be written, oldest first; what `add` returned from survives a kill.

    Args:
        memory: The destination's memory: an entry for each batch of an `add`, until all of it is done.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._batches = {key: _decoded(value) for key, value in memory.items(_SLOT)}
        self._next = 1 + max((int(key.removeprefix(_SLOT)) for key in self._batches), default=0)

    def __len__(self) -> int:
        return sum(map(len, self._batches.values()))

    def add(self, values: Sequence[Feedback]) -> None:
        """Let *values* wait."""
        for start in range(0, len(values), _BATCH):
            key = f"{_SLOT}{self._next:012d}"
            self._next += 1
            self._batches[key] = {value.id: value for value in values[start : start + _BATCH]}
            self._store(key)

    def first(self, count: int) -> list[Feedback]:
        """Return the *count* that wait longest, or fewer."""
        return list(islice((value for batch in self._batches.values() for value in batch.values()), count))

    def forget(self, values: Sequence[Feedback]) -> None:
        """Take *values* out, and whatever else waits under their trace and name."""
        ids = {value.id for value in values}
        for key, batch in list(self._batches.items()):
            if ids.isdisjoint(batch):
                continue
            self._batches[key] = {name: value for name, value in batch.items() if name not in ids}
            self._store(key)

    def _store(self, key: str) -> None:
        batch = self._batches[key]
        if not batch:
            del self._batches[key]
            self._memory.delete(key)
            return
        rows = [(value.rollout_id, value.name, value.value, value.time_unix_ns) for value in batch.values()]
        self._memory.put(key, json.dumps(rows).encode())


def _decoded(data: bytes) -> dict[str, Feedback]:
    rows = cast("list[tuple[str, str, float | str, int]]", json.loads(data))
    values = [Feedback(rollout_id, name, value, time_unix_ns) for rollout_id, name, value, time_unix_ns in rows]
    return {value.id: value for value in values}


def _value(value: float) -> float | str:
    # A protobuf Value refuses what is not finite.
    return value if math.isfinite(value) else str(value)


def _name(name: str) -> str:
    return clean_text(name)[:_NAME_LENGTH]
