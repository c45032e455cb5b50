"""Rollouts -> traces of MLflow with their rewards, linked to the run.

A server accepts OTLP at ``/v1/traces``; for a database, MLflow's store writes the same spans. Both
upsert by (trace, span), so that a redelivered rollout changes nothing. A request is all or nothing:
a refused request is halved until the bad rollout is found.

MLflow versions differ in how they use a root's attributes. Below 3.13 they create no tags, and
below 3.10 no session either. So the first rollout that a writer stores is read back. What is
missing there is then set by a separate call for this rollout and all later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import WriterMemory
from otel_bridge.otlp.request_size import RequestSize, refused_items
from otel_bridge.records import PlainTrace, RolloutRecord
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.runs import OpenMlflowRun
from otel_bridge_mlflow.traces.assessments import AssessmentWriter
from otel_bridge_mlflow.traces.database import DatabaseTraces
from otel_bridge_mlflow.traces.server import ServerTraces
from otel_bridge_mlflow.traces.spans import (
    SESSION,
    TRACE_NAME,
    TraceContent,
    messages_of,
    name_of,
    session_of,
    spans_of,
    tags_of,
    trace_id_of,
)

_log = logging.getLogger(__name__)
REQUEST_ROLLOUTS = 50
"""MLflow links at most 100 traces in one call (sqlalchemy_store.py, link_traces_to_run)."""
REQUEST_BYTES = 8 << 20
"""Most bytes of the spans of one request; a larger rollout is sent alone."""
_GROUP = "group"
"""Tag for the group of a rollout in an MLflow without sessions."""


class TraceWriter:
    """Writes rollouts to one MLflow run.

    Args:
        connection: The store.
        run: The run.
        assessments: Makes the rewards.
        memory: Memory that keeps the size of a request.
    """

    def __init__(
        self,
        connection: Connection,
        run: OpenMlflowRun,
        assessments: AssessmentWriter,
        memory: WriterMemory,
    ) -> None:
        self._connection = connection
        self._assessments = assessments
        self._run = run
        self._size = RequestSize(
            REQUEST_ROLLOUTS, memory=memory, key="request_size/traces"
        )
        self._traces: ServerTraces | DatabaseTraces
        if connection.settings.remote:
            self._traces = ServerTraces(connection, run.experiment_id)
        else:
            self._traces = DatabaseTraces(connection, run.experiment_id)
        self._tags_missing: bool | None = None
        self._session_missing: bool | None = None

    def write(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Store *rollouts* with their rewards, and link them to the run.

        Raises:
            PermanentError: A rollout is refused; the rollouts before it are stored.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        start = 0
        while start < len(rollouts):
            batch = self._batch(rollouts, start)
            for (rollout, _), exc in refused_items(batch, self._write_batch, Refused):
                raise PermanentError(
                    f"rollout {rollout.id}: {exc}", position=rollout.position
                ) from exc
            start += len(batch)

    def complete(self, traces: Sequence[PlainTrace]) -> None:
        """Add the spans of *traces* to rollouts that are stored; raises as `write`.

        Spans of a trace that MLflow does not have make a new one, without a link to the run.
        One trace a call: they are few, and an error then names its own record.
        """
        for trace in traces:
            spans = messages_of(trace.id, trace.spans)
            try:
                self._traces.write([TraceContent(trace_id_of(trace.id), spans)])
            except Refused as exc:
                raise PermanentError(
                    f"spans of rollout {trace.id}: {exc}", position=trace.position
                ) from exc
            except ExporterError as exc:
                exc.position = trace.position
                raise

    def _batch(
        self, rollouts: Sequence[RolloutRecord], start: int
    ) -> list[tuple[RolloutRecord, TraceContent]]:
        """Return the next request: rollouts from *start* on within its limits, at least one, with their contents."""
        batch: list[tuple[RolloutRecord, TraceContent]] = []
        size = 0
        for rollout in rollouts[start : start + self._size.now]:
            spans = spans_of(rollout, self._connection.rules.trace_tag_length)
            size += sum(span.ByteSize() for span in spans)
            # One rollout alone may exceed it: it cannot be divided.
            if batch and size > REQUEST_BYTES:
                break
            rewards = self._assessments.rewards(rollout)
            session = session_of(rollout)
            content = TraceContent(trace_id_of(rollout.id), spans, session, rewards)
            batch.append((rollout, content))
        return batch

    def _write_batch(self, pairs: Sequence[tuple[RolloutRecord, TraceContent]]) -> None:
        """Store the rollouts of *pairs*, with rewards, links and tags.

        Raises:
            Refused: MLflow does not accept one of them; none is stored, or all of those before it.
            RetryableError: As `Connection.request`, with the position of the first.
            BlockedError: As `Connection.request`, with the position of the first.
        """
        rollouts = [rollout for rollout, _ in pairs]
        traces = [content for _, content in pairs]
        try:
            with self._size.request(len(pairs)):
                # Traces first: an assessment of a trace that MLflow lacks is refused.
                unwritten = self._traces.write(traces)
                self._assessments.write_rewards(unwritten)
                self._link(traces)
            # Outside of the measured request: these are single calls, whatever the size of the
            # batch is.
            self._set_missing_tags(rollouts)
        except ExporterError as exc:
            exc.position = rollouts[0].position
            raise

    def _link(self, batch: Sequence[TraceContent]) -> None:
        """Link the traces to the run, because servers below MLflow 3.15 ignore the header that does this.

        Raises as `as_bridge_errors`; the traces are stored by then, and come again with their batch.
        """
        with as_bridge_errors(
            f"linking {len(batch)} traces to MLflow run {self._run.id}"
        ):
            trace_ids = [trace.id for trace in batch]
            self._connection.client.link_traces_to_run(trace_ids, self._run.id)

    def _set_missing_tags(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Set the tags that MLflow did not create from the roots' attributes.

        A newer MLflow lacks none. As long as no trace could be read back, none is set. Raises as
        `Connection.request`.
        """
        # Read from a stored trace, so that no version of a server has to be known.
        if self._tags_missing is None:
            self._read_back(rollouts[0])
        if self._session_missing is None:
            # A rollout without a group has no session that could be missing.
            in_groups = [rollout for rollout in rollouts if rollout.group]
            self._read_back(in_groups[0] if in_groups else None)
        if not self._tags_missing and not self._session_missing:
            return
        for rollout in rollouts:
            tags = {}
            if self._tags_missing:
                tags = self._tags(rollout)
            session = session_of(rollout)
            if self._session_missing and session is not None:
                tags[_GROUP] = session
            self._set_tags(rollout, tags)

    def _set_tags(self, rollout: RolloutRecord, tags: Mapping[str, str]) -> None:
        """Set *tags* of one rollout; they are left out, with a warning, if it was deleted meanwhile.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        try:
            with as_bridge_errors(
                f"tagging trace {rollout.id}", missing_is_refused=True
            ):
                for key, value in tags.items():
                    self._connection.client.set_trace_tag(
                        trace_id_of(rollout.id), key, value
                    )
        except Refused as exc:  # deleted meanwhile; the trace itself is stored
            _log.warning("a tag of rollout %s is left out: %s", rollout.id, exc)

    def _read_back(self, rollout: RolloutRecord | None) -> None:
        """Find out which tags MLflow created for *rollout*; nothing without one.

        Unknown as long as no trace can be read. Raises as `as_bridge_errors`.
        """
        if rollout is None:
            return
        try:
            with as_bridge_errors(
                f"reading trace {rollout.id} back", missing_is_refused=True
            ):
                info = self._connection.client.get_trace(trace_id_of(rollout.id)).info
        except Refused as exc:
            # A user deleted it meanwhile: the next rollout is read instead.
            _log.warning("rollout %s cannot be read back: %s", rollout.id, exc)
            return
        self._tags_missing = not self._tags(rollout).items() <= info.tags.items()
        if rollout.group:
            self._session_missing = SESSION not in info.trace_metadata

    def _tags(self, rollout: RolloutRecord) -> dict[str, str]:
        limit = self._connection.rules.trace_tag_length
        tags = {TRACE_NAME: name_of(rollout)}
        for tag, value in tags_of(rollout).items():
            tags[tag] = value[:limit]
        return tags
