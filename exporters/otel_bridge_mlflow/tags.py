"""Sets the tags of an MLflow run: the run of otel-bridge, its program, and the roles that wrote to it.

Names of MLflow's own tags: mlflow/utils/mlflow_tags.py. Tags that a person may change in the UI (the note) and tags
that another bridge of the run has set (host, commit) are never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from otel_bridge import semconv
from otel_bridge.errors import ExporterError
from otel_bridge.exporter import RunInfo
from otel_bridge.records import RolloutRecord, Row
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import as_bridge_errors

_SOURCE: Final = {
    "mlflow.source.name": semconv.PROCESS_COMMAND,
    "mlflow.source.git.commit": semconv.VCS_REVISION,
    "mlflow.user": semconv.PROCESS_OWNER,
    semconv.HOST_NAME: semconv.HOST_NAME,
}


def wanted(run: RunInfo, limit: int, held: Mapping[str, str]) -> dict[str, str]:
    """Return the tags to set on *run*, whose MLflow run has the tags *held*; values are cut to *limit* characters."""
    ours = {
        semconv.RUN_ID: run.id,
        semconv.RUN_GROUP: run.group,
        semconv.RUN_JOB_TYPE: run.job_type,
        semconv.RUN_TAGS: ",".join(run.tags),
        semconv.BRIDGE_VERSION: _version(),
    }
    once = {
        "mlflow.note.content": run.notes,
        "mlflow.source.type": "LOCAL" if semconv.PROCESS_COMMAND in run.identity else None,
        **{tag: run.identity.get(fact) for tag, fact in _SOURCE.items()},
    }
    tags = {key: value for key, value in once.items() if key not in held} | ours
    return {key: value[:limit] for key, value in tags.items() if value and held.get(key) != value[:limit]}


class Roles:
    """Maintains the tag that lists the roles of a run, to which several bridges may add.

    Args:
        connection: The store.
        run_id: MLflow's run id.
    """

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection, self._run_id = connection, run_id
        self._mine: set[str] = set()

    def note(self, records: Sequence[Row | RolloutRecord]) -> None:
        """Add the roles of *records* to the tag.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        new = {record.role for record in records if record.role} - self._mine
        if not new:
            return
        self._mine |= new
        try:
            self.confirm()
        except ExporterError as exc:
            self._mine -= new
            exc.position = records[0].position
            raise

    def confirm(self) -> None:
        """Add this bridge's roles again if the tag lacks them, because another bridge set the tag at the same time.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        client = self._connection.client
        with as_bridge_errors(f"tagging MLflow run {self._run_id}"):
            held = _listed(client.get_run(self._run_id).data.tags)
            if not self._mine <= held:
                limit = self._connection.rules.tag_length
                client.set_tag(self._run_id, semconv.ROLES, ",".join(sorted(held | self._mine))[:limit])


def _listed(tags: Mapping[str, str]) -> set[str]:
    return {role for role in tags.get(semconv.ROLES, "").split(",") if role}


def _version() -> str | None:
    try:
        return version("otel-bridge")
    except PackageNotFoundError:
        return None
