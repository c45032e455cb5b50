"""Rewards, their parts and evaluations -> feedback on traces. Pure: no MLflow here."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from otel_bridge.records import Evaluation, RolloutRecord
from otel_bridge_mlflow.keys import cut_name
from otel_bridge_mlflow.traces.spans import clean_text

REWARD = "reward"
_ADVANTAGE = "advantage"
_NAME_LENGTH = 250
"""Length of the column in MLflow's tables that holds the name of an assessment."""
_TAKEN = re.compile(r"(rewards\.)*(reward)?")
"""Names of parts that get the prefix ``rewards.``, because they are empty or equal to another
assessment's name."""


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
    """Yield the reward of *rollout*, its parts, and other values that have a label or an explanation.

    A part named ``reward`` has no remarks: those of this name belong to the reward itself. Nothing
    for a rollout without any of them.
    """
    remarks = rollout.remarks
    if rollout.reward is not None:
        yield _remarked(rollout, REWARD, rollout.reward, remarks.get(REWARD))
    for part, value in rollout.rewards.items():
        yield _remarked(
            rollout, _name(part), value, remarks.get(part) if part != REWARD else None
        )
    for name, remark in remarks.items():
        if name == REWARD:
            if rollout.reward is None:
                yield _remarked(rollout, REWARD, None, remark)
        elif name not in rollout.rewards:
            advantage = None
            if name == _ADVANTAGE:
                advantage = rollout.advantage
            yield _remarked(rollout, _name(name), advantage, remark)


def _remarked(
    rollout: RolloutRecord,
    name: str,
    value: float | None,
    remark: Sequence[str | None] | None,
) -> Feedback:
    """Return a value of *rollout* with the label and explanation of its evaluation."""
    label, explanation = remark or (None, None)
    return Feedback(
        rollout_id=rollout.id,
        name=name,
        value=_value(value, label),
        time_unix_ns=rollout.end_unix_ns,
        rationale=_cleaned(explanation),
        metadata=_label(value, label),
    )


def feedback_of(evaluation: Evaluation) -> Feedback:
    """Return *evaluation* as feedback, marked ``late``.

    It replaces a value of the same name that came with the rollout, because an equal name gives an
    equal id.
    """
    # "late" is what a user sees: the value arrived after the trace of its rollout.
    late = ("late", evaluation.id)
    name = evaluation.name
    if name != REWARD:
        name = _name(name)
    return Feedback(
        rollout_id=evaluation.rollout_id,
        name=name,
        value=_value(evaluation.value, evaluation.label),
        time_unix_ns=evaluation.time_unix_ns,
        rationale=_cleaned(evaluation.explanation),
        metadata=(late, *_label(evaluation.value, evaluation.label)),
    )


def _value(value: float | None, label: str | None) -> float | str:
    """Return what MLflow can hold of a value: a finite number, else the name of the number, else the label."""
    # Without a number it is shown by its text, since an assessment needs a value.
    if value is None:
        return clean_text(label or "")
    # A protobuf Value refuses numbers that are not finite.
    if math.isfinite(value):
        return value
    return str(value)


def _label(value: float | None, label: str | None) -> tuple[tuple[str, str], ...]:
    """Return the entry of the label beside a number.

    Nothing where the label itself is the value.
    """
    if label and value is not None:
        return (("label", clean_text(label)),)
    return ()


def _cleaned(explanation: str | None) -> str | None:
    if explanation is None:
        return None
    return clean_text(explanation)


def _name(part: str) -> str:
    """Return the name of the assessment of *part*, unique for each part: a changed name gets a hash."""
    name = part
    if _TAKEN.fullmatch(part):
        name = f"rewards.{part}"
    clean_name = clean_text(name)
    if clean_name == name and len(name) <= _NAME_LENGTH:
        return name
    return cut_name(clean_name, _NAME_LENGTH, name)
