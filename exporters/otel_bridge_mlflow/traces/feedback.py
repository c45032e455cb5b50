"""Rewards, their parts and evaluations -> feedback on traces, and the queue of feedback to write. No MLflow here.

An assessment costs a server about 7 ms, twice as much as its trace, and no call accepts several. So the values of a
rollout wait in the destination's memory, where they survive a kill, until no row or rollout waits.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, cast

from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Evaluation, RolloutRecord
from otel_bridge_mlflow.traces.spans import clean_text

REWARD: Final = "reward"
_ADVANTAGE: Final = "advantage"
_NAME_LENGTH: Final = 250
_HASH_DIGITS: Final = 8
_TAKEN: Final = re.compile(r"(rewards\.)*(reward)?")
"""Names of parts that get the prefix ``rewards.``, because they are empty or equal to another assessment's name."""
_Row: TypeAlias = tuple[str, str, float | str, int, str | None, list[tuple[str, str]]]
_SLOT: Final = "feedback/"
_BATCH: Final = 64
"""Values in one entry of the memory, which is stored again whenever some of them are written."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """Holds one value of one trace, with an id derived from both, so that a redelivery is the same assessment."""

    rollout_id: str
    name: str
    value: float | str
    time_unix_ns: int
    rationale: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """Return the assessment's id."""
        text = f"{self.rollout_id}\0{self.name}"
        return f"a-{hashlib.md5(text.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()}"


def rewards_of(rollout: RolloutRecord) -> Iterator[Feedback]:
    """Yield the reward of *rollout*, its parts, and other values that have a label or an explanation."""
    remarks = rollout.remarks
    if rollout.reward is not None:
        yield _remarked(rollout, REWARD, rollout.reward, remarks.get(REWARD))
    for part, value in rollout.rewards.items():
        yield _remarked(rollout, _name(part), value, remarks.get(part) if part != REWARD else None)
    for name, remark in remarks.items():
        if rollout.reward is None if name == REWARD else name not in rollout.rewards:
            also = rollout.advantage if name == _ADVANTAGE else None
            yield _remarked(rollout, REWARD if name == REWARD else _name(name), also, remark)


def _remarked(rollout: RolloutRecord, name: str, value: float | None, remark: Sequence[str | None] | None) -> Feedback:
    """Return a value of *rollout* with the label and explanation of its evaluation."""
    label, explanation = remark or (None, None)
    return Feedback(
        rollout_id=rollout.id,
        name=name,
        value=clean_text(label or "") if value is None else _value(value),
        time_unix_ns=rollout.end_unix_ns,
        rationale=None if explanation is None else clean_text(explanation),
        metadata=(("label", clean_text(label)),) if label and value is not None else (),
    )


def feedback_of(evaluation: Evaluation) -> Feedback:
    """Return *evaluation* as feedback."""
    # "late" is what a user sees: the value arrived after the trace of its rollout.
    metadata = [("late", evaluation.id)]
    if evaluation.value is not None and evaluation.label:
        metadata.append(("label", clean_text(evaluation.label)))
    return Feedback(
        rollout_id=evaluation.rollout_id,
        name=REWARD if evaluation.name == REWARD else _name(evaluation.name),
        value=clean_text(evaluation.label or "") if evaluation.value is None else _value(evaluation.value),
        time_unix_ns=evaluation.time_unix_ns,
        rationale=None if evaluation.explanation is None else clean_text(evaluation.explanation),
        metadata=tuple(metadata),
    )


class PendingFeedback:
    """Queues rewards to be written, oldest first. Values survive a kill once `add` has returned.

    Args:
        memory: The destination's memory: an entry for each batch of an `add`, until all of the batch is written.
    """

    def __init__(self, memory: WriterMemory) -> None:
        self._memory = memory
        self._batches = {key: _decoded(value) for key, value in memory.items(_SLOT)}
        self._next = 1 + max((int(key.removeprefix(_SLOT)) for key in self._batches), default=0)

    def __len__(self) -> int:
        return sum(map(len, self._batches.values()))

    def add(self, values: Sequence[Feedback]) -> None:
        """Append *values* to the queue."""
        for start in range(0, len(values), _BATCH):
            key = f"{_SLOT}{self._next:012d}"
            self._next += 1
            self._batches[key] = {value.id: value for value in values[start : start + _BATCH]}
            self._store(key)

    def first(self, count: int) -> list[Feedback]:
        """Return the *count* oldest values, or fewer."""
        return list(islice((value for batch in self._batches.values() for value in batch.values()), count))

    def forget(self, values: Sequence[Feedback]) -> None:
        """Remove *values*, and all waiting values of the same trace and name."""
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
        rows = [
            (value.rollout_id, value.name, value.value, value.time_unix_ns, value.rationale, value.metadata)
            for value in batch.values()
        ]
        self._memory.put(key, json.dumps(rows).encode())


def _decoded(data: bytes) -> dict[str, Feedback]:
    values = [_restored(row) for row in cast("list[_Row]", json.loads(data))]
    return {value.id: value for value in values}


def _restored(row: _Row) -> Feedback:
    """Return the feedback of a stored entry."""
    rollout_id, name, value, time_unix_ns, rationale, metadata = row
    return Feedback(rollout_id, name, value, time_unix_ns, rationale, tuple((key, text) for key, text in metadata))


def _value(value: float) -> float | str:
    # A protobuf Value refuses numbers that are not finite.
    return value if math.isfinite(value) else str(value)


def _name(part: str) -> str:
    """Return the name of the assessment of *part*, unique for each part: a changed name gets a hash."""
    name = f"rewards.{part}" if _TAKEN.fullmatch(part) else part
    kept = clean_text(name)
    if kept == name and len(name) <= _NAME_LENGTH:
        return name
    digits = hashlib.md5(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:_HASH_DIGITS]
    return f"{kept[: _NAME_LENGTH - _HASH_DIGITS - 1]}-{digits}"
