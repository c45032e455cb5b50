"""What the bridge delivers: rows, rollouts, configs, late values, ends.

Records are made once by translation, lie in the ledger in one order, and are handed to every writer as they are here.
Times are nanoseconds since the Unix epoch unless a name says otherwise. Pure data: no I/O.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

Position: TypeAlias = int
"""Place of a record in the run's one order, from 1; 0 in a record that has none yet."""

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


class Status(str, Enum):
    """How a process or a run ended, from good to bad."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Many numbers of one key at one step.

    Attributes:
        count: How many numbers.
        sum: Their sum.
        min: The smallest, ``nan`` when unknown.
        max: The largest, ``nan`` when unknown.
        edges: Bucket edges, increasing, shape (n + 1,); empty when there are no buckets.
        counts: Numbers in each bucket, shape (n,).
    """

    count: int
    sum: float
    min: float
    max: float
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        """The mean, ``nan`` when there are no numbers."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Return the *q* quantile (0 to 1), linear within its bucket, kept within min and max; ``nan`` without any."""
        total = sum(self.counts)
        if not total:
            return math.nan
        below, rank = 0, q * total
        for low, high, count in zip(self.edges, self.edges[1:], self.counts):  # noqa: B905  # edges has one more
            if count and below + count >= rank:
                value = low + (high - low) * max(rank - below, 0) / count
                return self._clamped(value)
            below += count
        return self._clamped(self.edges[-1])

    def _clamped(self, value: float) -> float:
        low = value if math.isnan(self.min) else max(value, self.min)
        return low if math.isnan(self.max) else min(low, self.max)


Value: TypeAlias = int | float | Distribution


@dataclass(frozen=True, slots=True)
class Row:
    """Every value of one ``log()`` call, or what a foreign producer sent for one time and step.

    Attributes:
        position: Place in the ledger.
        id: Unique in the run and the same at every redelivery, e.g. ``m:<instance>:<seq>``.
        role: Who speaks; ``None`` without a role.
        step: The role's own counter; ``None`` when the producer has none: then the row is placed by time.
        axis: Key of the step axis, ``<role>/step`` or ``step``; ``None`` without a step.
        time_unix_ns: Instant of ``log()``.
        values: Full key (``<role>/<key>``) to value.
        steps: Every axis known so far to its last step, this row's own included (``{"trainer/step": 3, …}``).
        attempt: Which start of the role this is, from 1.
    """

    id: str
    role: str | None
    step: int | None
    axis: str | None
    time_unix_ns: int
    values: Mapping[str, Value]
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    attempt: int = 1
    position: Position = 0


Message: TypeAlias = dict[str, Json]
"""One message in OpenAI's chat shape: ``role``, ``content``, and where they apply ``tool_calls``, ``tool_call_id``."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a rollout.

    Attributes:
        id: 16 hex digits.
        parent_id: 16 hex digits; ``None`` for the root.
        name: As sent, e.g. ``chat policy`` or ``execute_tool calculator``.
        kind: ``generation``, ``tool`` or ``span``.
        attributes: As sent, less messages and tool arguments, which `input` and `output` hold.
        input: Messages, tool arguments or any input.
        output: Messages, tool result or any output.
        error: The error's text when its status is an error.
        otlp: The span as it came, serialised ``opentelemetry.proto.trace.v1.Span``.
    """

    id: str
    parent_id: str | None
    name: str
    kind: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    input: Json = None
    output: Json = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    otlp: bytes = b""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One complete trace: a root (prompt, answer, reward …) and its spans.

    Attributes:
        id: The trace id, 32 hex digits.
        key: Where trackers show it, ``<role>/rollouts``.
        steps: Every axis known so far to its last step.
        messages: The conversation in OpenAI's chat shape.
        spans: The root first, then by start time.
        incomplete: The root never came.
        clipped_bytes: Content that was cut.
        metadata: Free metadata of the user.
    """

    id: str
    role: str | None
    key: str
    step: int | None
    axis: str | None
    start_unix_ns: int
    end_unix_ns: int
    messages: Sequence[Message] = ()
    spans: Sequence[Span] = ()
    split: str | None = None
    group: str | None = None
    sample: int | None = None
    trajectory_id: str | None = None
    prompt_index: int | None = None
    batch_index: int | None = None
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    advantage: float | None = None
    finish_reason: str | None = None
    policy_version: int | None = None
    dataset: str | None = None
    dataset_index: int | None = None
    tools: Mapping[str, Json] = field(default_factory=dict[str, Json])
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    error: str | None = None
    incomplete: bool = False
    clipped_bytes: int = 0
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    position: Position = 0

    @property
    def timed(self) -> bool:
        """Its times were measured; the spans of one that was handed over without a start have a nanosecond each."""
        return self.end_unix_ns - self.start_unix_ns >= max(len(self.spans), 1)


@dataclass(frozen=True, slots=True)
class OtherTrace:
    """A trace that is no rollout; for the few exporters that show such ones.

    Attributes:
        id: The trace id, 32 hex digits.
        role: Who speaks, of the first span.
        name: Name of the root, else of the first span.
        spans: The root first, then by start time.
    """

    id: str
    role: str | None
    name: str
    start_unix_ns: int
    end_unix_ns: int
    spans: Sequence[Span] = ()
    position: Position = 0


@dataclass(frozen=True, slots=True)
class LateValue:
    """A value for a rollout that was already written: a reward, an advantage, a judgement.

    Attributes:
        rollout_id: Trace id of the rollout, 32 hex digits.
        rollout_key: Where trackers show the rollout.
        name: ``reward``, ``advantage``, or a part's name.
    """

    id: str
    rollout_id: str
    rollout_key: str
    name: str
    value: float | None
    label: str | None
    explanation: str | None
    role: str | None
    step: int | None
    axis: str | None
    time_unix_ns: int
    position: Position = 0


@dataclass(frozen=True, slots=True)
class Config:
    """The merged config of one role (``None``: of the run), as it stands from here on."""

    id: str
    role: str | None
    config: Mapping[str, Json]
    time_unix_ns: int
    position: Position = 0


@dataclass(frozen=True, slots=True)
class End:
    """The run has ended; acted on only when nothing stands behind it in the ledger."""

    id: str
    status: Status
    time_unix_ns: int
    position: Position = 0


Record: TypeAlias = Row | Rollout | OtherTrace | LateValue | Config | End

AXIS: Final = "step"


def axis_of(role: str | None) -> str:
    """Return the key of a role's step axis: ``<role>/step``, without a role ``step``."""
    return f"{role}/{AXIS}" if role else AXIS


def key_of(role: str | None, key: str) -> str:
    """Return the key that trackers show: ``<role>/<key>``, not doubled when the key begins with ``<role>/``."""
    if not role or key.startswith(f"{role}/"):
        return key
    return f"{role}/{key}"


def run_id_of(project: str, name: str) -> str:
    """Return the id of the run *name* of *project*: 16 hex digits, the same in every process and after a restart."""
    return hashlib.md5(f"{project}\0{name}".encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def trace_id_of(run_id: str, rollout_id: str) -> str:
    """Return the trace id (32 hex digits) of a rollout whose id the user gave."""
    return hashlib.md5(f"{run_id}\0{rollout_id}".encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
