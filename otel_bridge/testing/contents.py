"""What a tracker holds of one run, in one shape for all trackers, so that two of them can be compared.

Filled by the reading function of a tracker's own tests (its own API, never the writer's memory),
compared by the contract in `otel_bridge.testing.contract`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from otel_bridge.records import Json, Status

INFINITE = 1.797e308
"""From here on a tracker's number stands for an infinity (MLflow keeps ±1.7976931348623157e308)."""


@dataclass(frozen=True, slots=True)
class HeldScalar:
    """Holds one number of the run.

    Attributes:
        key: Full key as the tracker has it.
        step: Step on the key's own axis; where a row had none, whatever the tracker shows.
        value: As the tracker has it; the contract knows how infinities may look.
        time_unix_ms: When the tracker says it happened; ``None`` when it keeps no time.
    """

    key: str
    step: int | None
    value: float
    time_unix_ms: int | None = None

    @property
    def triple(self) -> tuple[str, int | None, str]:
        """Key, step and the value as text, so that ``nan`` equals itself and every infinity looks alike."""
        return self.key, self.step, value_text(self.value)


@dataclass(frozen=True, slots=True)
class HeldDistribution:
    """Holds one distribution of the run; ``count`` is ``None`` when the tracker keeps none."""

    key: str
    step: int | None
    min: float
    max: float
    count: int | None = None


@dataclass(frozen=True, slots=True)
class HeldRollout:
    """Holds one rollout; what a tracker does not keep is ``None``.

    Attributes:
        id: Trace id, 32 hex digits.
        reward: As the tracker has it.
        messages: Number of messages of the conversation.
        spans: Number of spans, the root included.
        parts: Named parts of the reward; values that arrived before the rollout was written are
            among them.
    """

    id: str
    reward: float | None = None
    messages: int | None = None
    spans: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict[str, float], compare=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """Holds all that a tracker has of one run; doubles are listed as often as they exist.

    Attributes:
        scalars: In the tracker's own order of each key (by step where it orders by step, else by
            time).
        evaluations: Evaluations, ``(rollout id, name, value)``.
        config: As `flat_config` makes it, e.g. ``{"trainer/actor/lr": "0.1"}``.
        alerts: Title and level of each alert, doubles as often as they are there.
        summary: Last values of keys beside the rows, as `scalar_text` makes them; a tracker may add
            others.
        status: How the run ended; ``None`` while it is running, or when the tracker keeps no
            status.
    """

    scalars: list[HeldScalar] = field(default_factory=list[HeldScalar])
    distributions: list[HeldDistribution] = field(
        default_factory=list[HeldDistribution]
    )
    rollouts: list[HeldRollout] = field(default_factory=list[HeldRollout])
    evaluations: list[tuple[str, str, float]] = field(
        default_factory=list[tuple[str, str, float]]
    )
    config: dict[str, str] = field(default_factory=dict[str, str])
    status: Status | None = None
    alerts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    summary: dict[str, str] = field(default_factory=dict[str, str])

    def triples(self) -> Iterator[tuple[str, int | None, str]]:
        """Yield `HeldScalar.triple` of each scalar, in their order."""
        for scalar in self.scalars:
            yield scalar.triple

    def values(self) -> Iterator[float]:
        """Yield the value of each scalar, in their order."""
        for scalar in self.scalars:
            yield scalar.value


def value_text(value: float) -> str:
    """Return *value* as text in which ``nan``, infinities and equal ints and floats look alike."""
    # NaN is not equal to itself, and a Counter would count each apart.
    if math.isnan(value):
        return "nan"
    if abs(value) >= INFINITE:
        if value > 0:
            return "inf"
        return "-inf"
    return repr(float(value))


def scalar_text(value: Json) -> str:
    """Return a value of a summary as text; of numbers as `value_text` makes it."""
    # bool is an int in Python, and trackers show it as a word.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value_text(value)
    return str(value)


def flat_config(config: Mapping[str, Json], prefix: str = "") -> dict[str, str]:
    """Flatten nested maps with ``/`` and turn leaves into text, ``str(leaf)``.

    An empty map is not a leaf.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_config(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def flat_configs(
    configs: Iterable[tuple[str | None, Mapping[str, Json]]],
) -> dict[str, str]:
    """Flatten the configs of several roles: ``<role>/…``, without a role as they are."""
    flat: dict[str, str] = {}
    for role, config in configs:
        flat |= flat_config(config, f"{role}/" if role else "")
    return flat
