"""Rewards, their parts and evaluations -> feedback assessments of MLflow traces.

An assessment's id is derived from the trace and the name. So a redelivered value changes nothing, and a later value
replaces an earlier one. MLflow answers a second creation with an internal error that names a constraint. Its client
would repeat such a request for minutes, which is why MLflow's retries are off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Evaluation, RolloutRecord
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors, is_held
from otel_bridge_mlflow.traces.feedback import Feedback, PendingFeedback, feedback_of, rewards_of
from otel_bridge_mlflow.traces.spans import trace_id_of

_log = logging.getLogger(__name__)
_SOURCE: Final = "otel-bridge"
_SLICE: Final = 4
"""Requests of one `AssessmentWriter.process_backlog`, about 30 ms: the longest that a new row waits."""
_MOST_WAITING: Final = 20_000
"""Values that may wait, about 2 MB of memory; beyond that, rollouts wait for their rewards."""


class AssessmentWriter:
    """Writes assessments to existing traces of one store.

    Args:
        connection: The store.
        memory: Memory that keeps waiting rewards.
    """

    def __init__(self, connection: Connection, memory: WriterMemory) -> None:
        self._connection = connection
        self._waiting = PendingFeedback(memory)

    def backlog(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Defer the rewards of *rollouts*, and their parts, to `process_backlog`.

        Raises:
            RetryableError: As `Connection.request`, when too many wait.
            BlockedError: As `Connection.request`, when too many wait.
        """
        self._waiting.add([feedback for rollout in rollouts for feedback in rewards_of(rollout)])
        while len(self._waiting) > _MOST_WAITING:
            self.process_backlog()

    @property
    def waiting(self) -> int:
        """Return how many values wait for `process_backlog`."""
        return len(self._waiting)

    def process_backlog(self) -> bool:
        """Write a few of the waiting values, unless their assessment exists; return whether none is left.

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

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Set *values*; a later value of a name replaces the earlier one.

        Raises:
            PermanentError: The trace of a value does not exist.
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
                message = f"{value.name} of rollout {value.rollout_id}: {exc}"
                raise PermanentError(message, position=value.position) from exc
            except ExporterError as exc:
                exc.position = value.position
                raise

    def _create(self, feedback: Feedback) -> bool:
        """Create an assessment; return ``False`` when it already exists."""
        made = self._entity(feedback)
        try:
            if self._connection.settings.remote:
                path = f"/api/3.0/mlflow/traces/{made.trace_id}/assessments"
                body = {"assessment": made.to_dictionary()}
                self._connection.request("POST", path, json=body, missing_is_refused=True)
            else:
                with as_bridge_errors(f"assessing trace {made.trace_id}", missing_is_refused=True):
                    self._connection.store.create_assessment(made)
        except (RetryableError, Refused) as exc:
            if not is_held(exc):
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
