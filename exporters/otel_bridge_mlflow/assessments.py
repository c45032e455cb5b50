"""Rewards, their parts and late values -> feedback assessments of MLflow traces.

An assessment's id is made of the trace and the name, so that the same value again changes nothing and a later one
replaces it. MLflow answers a second creation with an internal error that names a constraint; its client would repeat
that for minutes, which is why its retries are off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.exporter import Memory
from otel_bridge.records import LateValue, Rollout
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.feedback import Feedback, Waiting, feedback_of, rewards_of
from otel_bridge_mlflow.spans import trace_id_of

_log = logging.getLogger(__name__)
_SOURCE: Final = "otel-bridge"
_THERE_ALREADY: Final = "constraint violation"
_SLICE: Final = 4
"""Requests of one `AssessmentWriter.catch_up`: a row that comes meanwhile waits for no more than these, about 30 ms."""
_MOST_WAITING: Final = 20_000
"""Values that may wait, about 2 MB of memory; beyond it rollouts wait for their rewards."""


class AssessmentWriter:
    """Writes assessments to the traces of one store; they must be there.

    Args:
        connection: The store.
        memory: Where rewards wait.
    """

    def __init__(self, connection: Connection, memory: Memory) -> None:
        self._connection = connection
        self._waiting = Waiting(memory)

    def put_off(self, rollouts: Sequence[Rollout]) -> None:
        """Let the rewards of *rollouts*, and their parts, wait for `catch_up`.

        Raises:
            RetryableError: As `Connection.request`, when too many wait.
            BlockedError: As `Connection.request`, when too many wait.
        """
        self._waiting.add([feedback for rollout in rollouts for feedback in rewards_of(rollout)])
        while len(self._waiting) > _MOST_WAITING:
            self.catch_up()

    @property
    def waiting(self) -> int:
        """How many values wait for `catch_up`."""
        return len(self._waiting)

    def catch_up(self) -> bool:
        """Write a few of those that wait; what is there already stays. Return whether none is left.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        done: list[Feedback] = []
        try:
            for feedback in self._waiting.first(_SLICE):
                try:
                    self._create(feedback)
                except Refused as exc:  # the trace was deleted meanwhile
                    _log.warning("%s of rollout %s: %s", feedback.name, feedback.rollout_id, exc)
                done.append(feedback)
        finally:
            self._waiting.forget(done)
        return not len(self._waiting)

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Set *values*; a later one of a name replaces the earlier.

        Raises:
            PermanentError: The trace of a value is not there.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        for value in values:
            feedback = feedback_of(value)
            try:
                self._waiting.forget([feedback])
                if not self._create(feedback):
                    self._update(feedback)
            except Refused as exc:
                said = f"{value.name} of rollout {value.rollout_id}: {exc}"
                raise PermanentError(said, position=value.position) from exc
            except ExporterError as exc:
                exc.position = value.position
                raise

    def _create(self, feedback: Feedback) -> bool:
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

    def _update(self, feedback: Feedback) -> None:
        made = self._entity(feedback)
        with as_bridge_errors(f"assessing trace {made.trace_id}", missing_is_refused=True):
            self._connection.store.update_assessment(
                made.trace_id,
                made.assessment_id,
                feedback=made.feedback,
                rationale=made.rationale,
                metadata=made.metadata,
            )

    def _entity(self, feedback: Feedback) -> Any:
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
