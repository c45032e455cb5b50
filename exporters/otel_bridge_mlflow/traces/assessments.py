"""Rewards, their parts and evaluations -> feedback assessments of MLflow traces.

An assessment's id is derived from the trace and the name. So a redelivered value changes nothing,
and a later value replaces an earlier one. MLflow answers a second creation with an internal error
that names a constraint. Its client would repeat such a request for minutes, which is why MLflow's
retries are off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.records import Evaluation, RolloutRecord
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors, is_held
from otel_bridge_mlflow.traces.database import AssessmentRows
from otel_bridge_mlflow.traces.feedback import Feedback, feedback_of, rewards_of
from otel_bridge_mlflow.traces.spans import trace_id_of

_log = logging.getLogger(__name__)
_SOURCE = "otel-bridge"


class AssessmentWriter:
    """Makes assessments of one store, and writes those whose traces exist.

    A database takes many in one transaction; a server takes one a call.

    Args:
        connection: The store.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A server has no call for assessments of several traces.
        self._database = None
        if not connection.settings.remote:
            self._database = AssessmentRows(connection.store)

    def rewards(self, rollout: RolloutRecord) -> list[Any]:
        """Return the reward of *rollout* and its parts as MLflow's assessments."""
        return [self._entity(feedback) for feedback in rewards_of(rollout)]

    def write_rewards(self, assessments: Sequence[Any]) -> None:
        """Write *assessments*, unless they exist; one whose trace is gone is left out, with a warning.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        without_trace, _ = self._written_together(assessments)
        for assessment in without_trace:
            try:
                self._create(assessment)
            except Refused as exc:  # noqa: PERF203  # the trace was deleted meanwhile
                _log.warning(
                    "%s of trace %s: %s", assessment.name, assessment.trace_id, exc
                )

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Set *values*; a later value of a name replaces the earlier one.

        Raises:
            PermanentError: The trace of a value does not exist.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        assessments = [self._entity(feedback_of(value)) for value in values]
        without_trace, stored = self._written_together(assessments)
        unwritten = {id(assessment) for assessment in (*without_trace, *stored)}
        for value, assessment in zip(values, assessments, strict=True):
            if id(assessment) not in unwritten:
                continue
            try:
                if not self._create(assessment):
                    self._update(assessment)
            except Refused as exc:
                message = f"{value.name} of rollout {value.rollout_id}: {exc}"
                raise PermanentError(message, position=value.position) from exc
            except ExporterError as exc:
                # Values before this one are written: the bridge goes on here.
                exc.position = value.position
                raise

    def _written_together(
        self, assessments: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Write new *assessments* in one transaction, where a database can.

        Return those that need a call of their own, and those whose ids are stored. After a failure
        all of them need one: nothing is stored then, and single calls find the one at fault.

        Raises:
            BlockedError: A person must act.
        """
        # One alone is written by its own call, which also finds out whether it exists.
        if len(assessments) < 2 or self._database is None or not self._database.usable:
            return assessments, ()
        try:
            with as_bridge_errors(f"assessing {len(assessments)} traces"):
                return self._database.write(assessments)
        except (
            RetryableError,
            Refused,
        ) as exc:  # nothing is stored; the calls find out which one it is
            _log.debug("%s; each is written alone", exc)
            return assessments, ()

    def _create(self, assessment: Any) -> bool:
        """Create an assessment; return ``False`` when it already exists.

        Raises:
            Refused: Its trace does not exist, or MLflow does not accept it.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        try:
            if self._connection.settings.remote:
                path = f"/api/3.0/mlflow/traces/{assessment.trace_id}/assessments"
                body = {"assessment": assessment.to_dictionary()}
                self._connection.request(
                    "POST", path, json=body, missing_is_refused=True
                )
            else:
                with as_bridge_errors(
                    f"assessing trace {assessment.trace_id}", missing_is_refused=True
                ):
                    self._connection.store.create_assessment(assessment)
        except (RetryableError, Refused) as exc:
            # Held: written by an earlier call whose answer was lost, or by one before a kill.
            if not is_held(exc):
                raise
            return False
        return True

    def _update(self, assessment: Any) -> None:
        """Replace value and explanation of an assessment; raises as `_create`.

        Metadata that the new value lacks, such as a label, stay: MLflow merges them (3.17).
        """
        with as_bridge_errors(
            f"assessing trace {assessment.trace_id}", missing_is_refused=True
        ):
            self._connection.store.update_assessment(
                assessment.trace_id,
                assessment.assessment_id,
                feedback=assessment.feedback,
                # None would keep that of the value before (3.17).
                rationale=assessment.rationale or "",
                metadata=assessment.metadata,
            )

    def _entity(self, feedback: Feedback) -> Any:
        """Return *feedback* as MLflow's assessment, by code and not by a person, with an id of our own."""
        entities = self._connection.entities
        assessment = entities.Feedback(
            name=feedback.name,
            value=feedback.value,
            source=entities.AssessmentSource(source_type="CODE", source_id=_SOURCE),
            trace_id=trace_id_of(feedback.rollout_id),
            metadata=dict(feedback.metadata) or None,
            create_time_ms=feedback.time_unix_ns // 1_000_000,
            last_update_time_ms=feedback.time_unix_ns // 1_000_000,
            rationale=feedback.rationale,
        )
        # Set afterwards, since the constructor of Feedback takes no id; MLflow keeps it (3.7 to
        # 3.17).
        assessment.assessment_id = feedback.id
        return assessment
