"""Defines the records that the bridge delivers: rows, rollouts, evaluations, media, configs, summaries and ends.

Translation produces each record once, the ledger stores them in one order, and every writer gets them in this form.
Times are Unix nanoseconds unless a name states another unit. Pure data: no I/O.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar, cast

Position: TypeAlias = int
"""Number of a record in the run's order, from 1; 0 in a record that has none yet.

A dead letter that is tried again has none either: its place in the order is past."""

_MeaningT = TypeVar("_MeaningT")
Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


TRAIN = "train"
"""Split of the rollouts that training consumes, and of those that name none."""
_EVAL = "eval"


def is_evaluation(split: str | None) -> bool:
    """Return whether *split* is ``eval``, or what a state sets apart from it, such as ``eval/stale``."""
    return split is not None and split.partition("/")[0] == _EVAL


class Status(str, Enum):
    """Names how a process or a run ended, from good to bad."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


_STATUS_WORDS = {
    Status.FINISHED: "finished success succeeded completed complete done ok",
    Status.FAILED: "failed failure error errored crashed",
    Status.KILLED: "killed aborted cancelled canceled interrupted",
}
_LEVEL_WORDS = {
    "info": "info debug",
    "warn": "warn warning",
    "error": "error critical fatal",
}
DEFAULT_LEVEL = "warn"
"""Level of an alert that names none, or an unknown one."""


def status_named(word: str) -> Status | None:
    """Return the status that a program or tracker names by *word*, in any case.

    ``None`` for an unknown word.
    """
    return _named(word, _STATUS_WORDS)


def level_named(word: str) -> str | None:
    """Return the level of an alert that a program or tracker names by *word*; as `status_named`."""
    return _named(word, _LEVEL_WORDS)


def _named(word: str, table: Mapping[_MeaningT, str]) -> _MeaningT | None:
    for meaning, words in table.items():
        if word.strip().lower() in words.split():
            return meaning
    return None


NARROW = 1e-9
"""Width, relative to its lower edge, of a bucket whose numbers are all equal; trackers cannot draw a width of 0."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Summarises many numbers of one key at one step.

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
        """Return the mean, ``nan`` when there are no numbers."""
        if self.count:
            return self.sum / self.count
        return math.nan

    def quantile(self, q: float) -> float:
        """Return the *q* quantile (0 to 1), linear within its bucket, within min and max; ``nan`` without buckets.

        Where all numbers of a bucket are equal, its width is only for drawing.
        """
        total = sum(self.counts)
        if not total:
            return math.nan
        below, rank = 0, q * total
        for low, high, count in zip(self.edges, self.edges[1:], self.counts):  # noqa: B905  # edges has one more
            if count and below + count >= rank:
                width = high - low
                if math.isclose(width, max(abs(low), 1.0) * NARROW, rel_tol=1e-6):
                    width = 0.0
                value = low + width * max(rank - below, 0) / count
                return self._clamped(value)
            below += count
        return self._clamped(self.edges[-1])

    def closed_bins(self) -> tuple[list[int], list[float]]:
        """Return counts, shape (n,), and edges, shape (n + 1,), as trackers draw them.

        Empty outer buckets are left out, and the outer edges are at minimum and maximum. Without
        any number in a bucket, it is one bucket; its edges are 0 where nothing is known.
        """
        filled = [index for index, count in enumerate(self.counts) if count]
        if not filled:
            low = _finite(self.min, _finite(self.mean, 0.0))
            return [self.count], [low, _finite(self.max, _finite(self.mean, 0.0))]
        first = filled[0]
        last = filled[-1]
        edges = list(self.edges[first : last + 2])
        # Never across the next edge: a producer's minimum may be rounded.
        edges[0] = min(_finite(self.min, edges[0]), edges[1])
        edges[-1] = max(_finite(self.max, edges[-1]), edges[-2])
        return list(self.counts[first : last + 1]), edges

    def _clamped(self, value: float) -> float:
        """Return *value* within minimum and maximum. One that is NaN bounds nothing."""
        low = value if math.isnan(self.min) else max(value, self.min)
        if math.isnan(self.max):
            return low
        return min(low, self.max)


def _finite(value: float, otherwise: float) -> float:
    """Return *value*, or *otherwise* for NaN and infinity. Trackers draw neither."""
    if math.isfinite(value):
        return value
    return otherwise


Value: TypeAlias = int | float | Distribution


@dataclass(frozen=True, slots=True)
class Row:
    """Holds the values of one ``log()`` call, or those that a third-party producer sent for one time and step.

    Attributes:
        position: Number in the ledger.
        id: Unique in the run and the same at every redelivery, e.g. ``m:<instance>:<seq>``.
        role: Role of the sender; ``None`` without a role.
        step: The role's own counter; ``None`` when the producer has none, and the row is ordered by time.
        axis: Key of the step axis, ``<role>/step`` or ``step``; ``None`` without a step.
        time_unix_ns: Time of the ``log()`` call.
        values: Full key (``<role>/<key>``) to value.
        steps: Every axis known so far to its last step, this row's own included (``{"trainer/step": 3, …}``).
        attempt: Attempt of the role that sent the row, from 1.
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

    @property
    def is_derived(self) -> bool:
        """Whether the translation made the row of other data of a step."""
        return bool(self.derived_from)

    @property
    def derived_from(self) -> str:
        """Data of which the translation made the row; empty for one that a producer logged."""
        return _DERIVED_FROM.get(self.id[:2], "")

    @property
    def of_statistics(self) -> bool:
        """Whether the row holds the statistics of a step's rollouts, made by the translation."""
        return self.id.startswith(STATISTICS_ID)

    @property
    def charted_values(self) -> Mapping[str, Value]:
        """Values without the numbers of a step's rollouts.

        They follow from the configuration of most jobs, and their charts would be of constants.
        """
        if not self.of_statistics:
            return self.values
        charted: dict[str, Value] = {}
        for key, value in self.values.items():
            if not _NUMBERS_OF_ROLLOUTS.search(key):
                charted[key] = value
        return charted


Message: TypeAlias = dict[str, Json]
"""One message in OpenAI's chat format: ``role``, ``content``, and where they apply ``tool_calls``, ``tool_call_id``."""


@dataclass(frozen=True, slots=True)
class Span:
    """Describes one span of a rollout.

    Attributes:
        id: 16 hex digits.
        parent_id: 16 hex digits; ``None`` for the root.
        name: As sent, e.g. ``chat policy`` or ``execute_tool calculator``.
        kind: ``generation``, ``tool`` or ``span``.
        attributes: As sent, without messages and tool arguments, which `input` and `output` hold.
        input: Messages, tool arguments or any input.
        output: Messages, tool result or any output.
        error: The error's text when its status is an error.
        otlp: The span as it arrived, serialised ``opentelemetry.proto.trace.v1.Span``.
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
class RolloutRecord:
    """Holds one complete trace: a root (prompt, answer, reward …) and its spans.

    Attributes:
        id: The trace id, 32 hex digits.
        key: Key under which trackers show it, ``<role>/rollouts``.
        steps: Every axis known so far to its last step.
        messages: The conversation in OpenAI's chat format.
        spans: The root first, then by start time.
        incomplete: Whether the root never arrived.
        clipped_bytes: Bytes of content that were truncated.
        metadata: Free metadata of the user.
        remarks: Name of an evaluation that is merged into this rollout to its label and explanation; also in
            `metadata`.
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
    remarks: Mapping[str, Sequence[str | None]] = field(
        default_factory=dict[str, Sequence[str | None]]
    )
    position: Position = 0

    @property
    def timed(self) -> bool:
        """Return whether its times were measured.

        Without a start, each span has a duration of one nanosecond.
        """
        return self.end_unix_ns - self.start_unix_ns >= max(len(self.spans), 1)

    @property
    def staleness(self) -> int | None:
        """Return how many steps the policy that generated it is behind the step that consumes it.

        ``None`` without a step or a version of the policy, and for an evaluation.
        """
        # An evaluator counts its own steps, which are not comparable with the policy's version.
        if (
            self.step is None
            or self.policy_version is None
            or is_evaluation(self.split)
        ):
            return None
        return self.step - self.policy_version


@dataclass(frozen=True, slots=True)
class PlainTrace:
    """Holds a trace that is not a rollout, or spans that arrived after their rollout was emitted.

    Attributes:
        id: The trace id, 32 hex digits.
        role: Role of the sender, of the first span.
        name: Name of the root, else of the first span.
        spans: The root first, then by start time.
        rollout_key: Key under which trackers show the rollout that the spans complete; empty: not a rollout.
        step: Step of that rollout.
    """

    id: str
    role: str | None
    name: str
    start_unix_ns: int
    end_unix_ns: int
    spans: Sequence[Span] = ()
    rollout_key: str = ""
    step: int | None = None
    position: Position = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Holds a value for a rollout that was already written: a reward, an advantage, a judgement.

    Attributes:
        rollout_id: Trace id of the rollout, 32 hex digits.
        rollout_key: Key under which trackers show the rollout.
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
class MediaItem:
    """Holds one image, table, text, sound or film.

    Attributes:
        kind: ``image``, ``table``, ``text``, ``markdown``, ``html``, ``audio`` or ``video``.
        mime_type: E.g. ``image/png``.
        data: Its bytes. A table is JSON: ``{"columns": […], "rows": [[…], …]}``; a cell ``{"media": 0}`` stands for
            the first of `MediaRecord.cells`.
        digest: SHA-256 of `data`, 64 hex digits.
    """

    kind: str
    mime_type: str
    data: bytes
    digest: str
    caption: str = ""


TableCell: TypeAlias = bool | int | float | str | MediaItem | None


@dataclass(frozen=True, slots=True)
class MediaRecord:
    """Holds the media that one ``log()`` call gave for one key.

    Attributes:
        id: Unique in the run and the same at every redelivery.
        key: Full key (``<role>/<key>``).
        items: What is shown under the key; none when the content policy of an exporter allows none of it.
        cells: Media in cells of a table among `items`.
        steps: Every axis known so far to its last step, this record's own included.
    """

    id: str
    role: str | None
    key: str
    step: int | None
    axis: str | None
    time_unix_ns: int
    items: Sequence[MediaItem]
    cells: Sequence[MediaItem] = ()
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    position: Position = 0

    def table(self, item: MediaItem) -> tuple[list[str], list[list[TableCell]]]:
        """Return different names of the columns of *item*, a table, and its rows, with the media that cells hold.

        Of several columns of one name all but the first get a number.
        """
        table: dict[str, Any] = json.loads(item.data)
        names: dict[str, None] = {}
        for column in table["columns"]:
            name = column
            number = 1
            while name in names:
                number += 1
                name = f"{column}_{number}"
            names[name] = None
        rows: list[list[TableCell]] = []
        for row in table["rows"]:
            rows.append([self._cell(cell) for cell in row])
        return [*names], rows

    def _cell(self, cell: Any) -> TableCell:
        """Return the value of a cell, or the medium that it refers to."""
        if isinstance(cell, dict):
            return self.cells[cast("dict[str, int]", cell)["media"]]
        value: TableCell = cell
        return value


@dataclass(frozen=True, slots=True)
class Config:
    """Holds the merged config of one role (``None``: of the run), as it is from this position on."""

    id: str
    role: str | None
    config: Mapping[str, Json]
    time_unix_ns: int
    position: Position = 0


Scalar: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Summary:
    """Holds last values of keys, which trackers show next to the run's curves; later records replace single keys.

    Attributes:
        values: Full key (``<role>/<key>``) to value; only what changed at this position.
    """

    id: str
    role: str | None
    values: Mapping[str, Scalar]
    time_unix_ns: int
    position: Position = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """Holds one alert.

    Attributes:
        level: ``info``, ``warn`` or ``error``.
        step: Last step of the role when it was raised.
    """

    id: str
    role: str | None
    title: str
    text: str
    level: str
    step: int | None
    time_unix_ns: int
    position: Position = 0


@dataclass(frozen=True, slots=True)
class End:
    """Marks the end of the run; it takes effect only while it is the last record of the ledger."""

    id: str
    status: Status
    time_unix_ns: int
    position: Position = 0


Record: TypeAlias = (
    Row
    | RolloutRecord
    | PlainTrace
    | Evaluation
    | MediaRecord
    | Config
    | Summary
    | Alert
    | End
)

AXIS = "step"
STATISTICS_ID = "s:"
"""Beginning of the ids of rows that hold the statistics of rollouts."""
_NUMBERS_OF_ROLLOUTS = re.compile(r"(?:^|/)rollouts/(?:[^/]+/)?(?:total|kept)$")
"""Keys of the numbers of rollouts, of all or of one split."""
PHASES_ID = "p:"
"""Beginning of the ids of rows that hold the times of phases."""
LINEAGE_ID = "t:"
"""Beginning of the ids of rows on the rollouts that a training step consumed."""
ENGINES_ID = "g:"
"""Beginning of the ids of rows on what inference engines measured."""
TOKENS_ID = "k:"
"""Beginning of the ids of rows on the tokens of a step."""
_DERIVED_FROM = {
    STATISTICS_ID: "rollout statistics",
    PHASES_ID: "phases",
    LINEAGE_ID: "consumed rollouts",
    ENGINES_ID: "engines",
    TOKENS_ID: "tokens",
}


def axis_of(role: str | None) -> str:
    """Return the key of a role's step axis: ``<role>/step``, or ``step`` without a role."""
    if role:
        return f"{role}/{AXIS}"
    return AXIS


def key_of(role: str | None, key: str) -> str:
    """Return the key that trackers show: ``<role>/<key>``, not doubled when the key begins with ``<role>/``."""
    if not role or key.startswith(f"{role}/"):
        return key
    return f"{role}/{key}"


def run_id_of(project: str, name: str) -> str:
    """Return the id of the run *name* of *project*: 16 hex digits, the same in every process and after a restart."""
    return hashlib.md5(
        f"{project}\0{name}".encode("utf-8", "surrogatepass"), usedforsecurity=False
    ).hexdigest()[:16]


_HEX_DIGITS = frozenset("0123456789abcdef")
_NO_TRACE = "0" * 32


def trace_id_of(run_id: str, rollout_id: str) -> str:
    """Return the trace id (32 hex digits) of a rollout with the user's own id.

    A valid trace id is kept as it is.
    """
    lowered = rollout_id.lower()
    if len(lowered) == 32 and _HEX_DIGITS.issuperset(lowered) and lowered != _NO_TRACE:
        return lowered
    return hashlib.md5(
        f"{run_id}\0{rollout_id}".encode("utf-8", "surrogatepass"),
        usedforsecurity=False,
    ).hexdigest()
