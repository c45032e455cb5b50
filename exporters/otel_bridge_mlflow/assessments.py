"""Rewards, their parts and late values -> feedback assessments of MLflow traces.

An assessment's id is made of the trace and the name, so that the same value again changes nothing and a later one
replaces it. MLflow answers a second creation with an internal error that names a constraint; its client would repeat
that for minutes, which is why its retries are off.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.records import LateValue, Rollout
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.spans import clean_text, trace_id_of

_log = logging.getLogger(__name__)
REWARD = "reward"
_SOURCE = "otel-bridge"
_THERE_ALREADY = "constraint violation"
_NAME_LENGTH = 250


@dataclass(frozen=True, slots=True)
class _Feedback:
    rollout_id: str
    name: str
    value: float | str
    time_unix_ns: int
    rationale: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        text = f"{self.rollout_id}\0{self.name}"
        return f"a-{hashlib.md5(text.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()}"


class AssessmentWriter:
    """Writes assessments to the traces of one store; they must be there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, rollouts: Sequence[Rollout]) -> None:
        """Give each of *rollouts* its reward and its parts; what is there already stays.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        for rollout in rollouts:
            try:
                for feedback in _rewards(rollout):
                    self._create(feedback)
            except Refused as exc:  # noqa: PERF203  # a request each; the trace was deleted meanwhile
                _log.warning("rollout %s: %s", rollout.id, exc)
            except ExporterError as exc:
                exc.position = rollout.position
                raise

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Set *values*; a later one of a name replaces the earlier.

        Raises:
            PermanentError: The trace of a value is not there.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        for value in values:
            feedback = _late(value)
            try:
                if not self._create(feedback):
                    self._update(feedback)
            except Refused as exc:
                said = f"{value.name} of rollout {value.rollout_id}: {exc}"
                raise PermanentError(said, position=value.position) from exc
            except ExporterError as exc:
                exc.position = value.position
                raise

    def _create(self, feedback: _Feedback) -> bool:
        """Create an assessment; return whether it was not there before."""
        made = self._entity(feedback)
        try:
            if self._connection.settings.remote:
                path = f"/api/3.0/mlflow/traces/{made.trace_id}/assessments"
                body = {"assessment": made.to_dictionary()}
                self._connection.request("POST", path, json=body, missing_is_refused=True)
            else:
                with as_bridge_errors(f"assessing trace {made.trace_id}", missing_is_refused=True):
                    self._connection.store.create_assessment(made)
        except RetryableError as exc:
            if _THERE_ALREADY not in str(exc):
                raise
            return False
        return True

    def _update(self, feedback: _Feedback) -> None:
        made = self._entity(feedback)
        with as_bridge_errors(f"assessing trace {made.trace_id}", missing_is_refused=True):
            self._connection.store.update_assessment(
                made.trace_id,
                made.assessment_id,
                feedback=made.feedback,
                rationale=made.rationale,
                metadata=made.metadata,
            )

    def _entity(self, feedback: _Feedback) -> Any:
        entities = self._connection.entities
        made = entities.Feedback(
            name=feedback.name,
            value=feedback.value,
            source=entities.AssessmentSource(source_type="CODE", source_id=_SOURCE),
            trace_id=trace_id_of(feedback.rollout_id),
            metadata=dict(feedback.metadata) or None,
            create_time_ms=feedback.time_unix_ns // 1_000_000,
            last_update_time_ms=feedback.time_unix_ns // 1_000_000,
            rationale=feedback.rationale,
        )
        made.assessment_id = feedback.id
        return made


def _rewards(rollout: Rollout) -> Iterator[_Feedback]:
    if rollout.reward is not None:
        yield _Feedback(rollout.id, REWARD, _value(rollout.reward), rollout.end_unix_ns)
    for part, value in rollout.rewards.items():
        name = part if part and part != REWARD else f"rewards.{part}"
        yield _Feedback(rollout.id, _name(name), _value(value), rollout.end_unix_ns)


def _late(late: LateValue) -> _Feedback:
    metadata = [("late", late.id)]
    if late.value is not None and late.label:
        metadata.append(("label", clean_text(late.label)))
    return _Feedback(
        rollout_id=late.rollout_id,
        name=_name(late.name or "value"),
        value=clean_text(late.label or "") if late.value is None else _value(late.value),
        time_unix_ns=late.time_unix_ns,
        rationale=None if late.explanation is None else clean_text(late.explanation),
        metadata=tuple(metadata),
    )


def _value(value: float) -> float | str:
    # A protobuf Value refuses what is not finite.
    return value if math.isfinite(value) else str(value)


def _name(name: str) -> str:
    return clean_text(name)[:_NAME_LENGTH]
