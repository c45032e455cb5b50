"""Which MLflow run is ours: found by id, tag or name, else created; opened again when it had ended.

Names are not unique in MLflow and nothing locks, so two bridges may create a run at once: after creating, the tag is
searched again and the oldest run that has it wins in both; the other one, still empty, is deleted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_bridge import semconv
from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import NEW_RUN_HINT, Memory, RunInfo
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors, outcome_of
from otel_bridge_mlflow.tags import wanted

_log = logging.getLogger(__name__)
_RUN_SLOT = "run"
_RUNNING = "RUNNING"
_ACTIVE = "active"
_OLDEST_FIRST = ["attributes.start_time ASC"]
_NEWEST_FIRST = ["attributes.start_time DESC"]
_SEARCHED = 1000


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An MLflow run that takes records.

    Attributes:
        id: MLflow's run id.
        experiment_id: Of its experiment.
        params: Params it has.
        tags: Tags it has.
        found: That the store already held it, though this destination had never written to it; else empty.
    """

    id: str
    experiment_id: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    found: str = ""


def open_run(connection: Connection, run: RunInfo, memory: Memory) -> OpenRun:
    """Find or create the MLflow run of *run* and make it RUNNING.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: The run or its experiment was deleted, or a run id that was asked for is not there.
    """
    try:
        with as_bridge_errors(f"opening run {run.name!r} in {connection.shown}"):
            ours = memory.get(_RUN_SLOT)
            found = _named(connection, run, memory) or _searched(connection, run)
            memory.put(_RUN_SLOT, str(found.info.run_id).encode())
            opened = _reopened(connection, found, run)
            known = ours or run.identity.get(semconv.MLFLOW_RUN_ID)
            return opened if known else dataclasses.replace(opened, found=_said(found))
    except Refused as exc:
        raise BlockedError(str(exc), help="rename the run or its project") from exc


def require_active(connection: Connection, run: OpenRun) -> None:
    """Look again at an open run that MLflow no longer takes.

    Raises:
        BlockedError: It or its experiment was deleted; names the command that restores it.
        RetryableError: The store cannot be reached now.
    """
    with as_bridge_errors(f"looking at run {run.id} in {connection.shown}"):
        _require_active(connection, connection.client.get_run(run.id))


def _said(found: Any) -> str:
    if not found.data.metrics and not found.data.params:
        return ""
    return f"MLflow already holds this run ({found.info.run_id}), going on in it; {NEW_RUN_HINT}"


def experiment_name(run: RunInfo, limit: int) -> str:
    """Return the experiment of *run*: the emitter's ``MLFLOW_EXPERIMENT_NAME``, else its project."""
    name = run.identity.get(semconv.MLFLOW_EXPERIMENT) or run.project or "default"
    return name if len(name) <= limit else f"{name[: limit - 9]}-{_digits(name)}"


def run_name(run: RunInfo, limit: int) -> str:
    """Return the display name of *run*; MLflow would draw one for an empty name."""
    name = run.name or run.id
    return name if len(name) <= limit else f"{name[: limit - 9]}-{_digits(name)}"


def quoted(text: str) -> tuple[str, str]:
    """Return operator and literal that match *text* in a filter of MLflow.

    Its grammar has no escapes: a literal with both kinds of quotes can only be matched by LIKE, with ``_`` for each,
    and must be compared again.
    """
    if "'" not in text:
        return "=", f"'{text}'"
    if '"' not in text:
        return "=", f'"{text}"'
    return "LIKE", "'" + text.replace("'", "_").replace('"', "_") + "'"


def _named(connection: Connection, run: RunInfo, memory: Memory) -> Any | None:
    """Return the run whose id is known: asked for, or written to before."""
    asked = run.identity.get(semconv.MLFLOW_RUN_ID)
    known = memory.get(_RUN_SLOT)
    run_id = asked or (known.decode() if known else None)
    if not run_id:
        return None
    try:
        return connection.client.get_run(run_id)
    except Exception as exc:
        if getattr(exc, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        if asked:
            raise BlockedError(
                f"MLFLOW_RUN_ID={asked}: there is no such run in {connection.shown}",
                help="unset MLFLOW_RUN_ID in the training job, or name a run of this store",
            ) from exc
        _log.warning("run %s is no longer in %s: looking for it by tag and name", run_id, connection.shown)
        return None


def _searched(connection: Connection, run: RunInfo) -> Any:
    experiment_id = _experiment(connection, run)
    return (
        _by_tag(connection, run, experiment_id)
        or _by_name(connection, run, experiment_id)
        or _created(connection, run, experiment_id)
    )


def _by_tag(connection: Connection, run: RunInfo, experiment_id: str) -> Any | None:
    operator, literal = quoted(run.id)
    found = connection.client.search_runs(
        [experiment_id],
        f"tags.`{semconv.RUN_ID}` {operator} {literal}",
        max_results=_SEARCHED,
        order_by=_OLDEST_FIRST,
    )
    ours = [each for each in found if each.data.tags.get(semconv.RUN_ID) == run.id]
    return min(ours, key=lambda each: (each.info.start_time, each.info.run_id), default=None)


def _by_name(connection: Connection, run: RunInfo, experiment_id: str) -> Any | None:
    """Return the newest run of this name, unless it is another run of ours that only has the same name."""
    name = run_name(run, connection.rules.name_length)
    operator, literal = quoted(name)
    found = connection.client.search_runs(
        [experiment_id],
        f"attributes.run_name {operator} {literal}",
        max_results=_SEARCHED,
        order_by=_NEWEST_FIRST,
    )
    return next(
        (each for each in found if each.info.run_name == name and semconv.RUN_ID not in each.data.tags),
        None,
    )


def _created(connection: Connection, run: RunInfo, experiment_id: str) -> Any:
    name = run_name(run, connection.rules.name_length)
    mine = connection.client.create_run(experiment_id, run_name=name, tags=wanted(run, connection.rules.tag_length, {}))
    oldest = _by_tag(connection, run, experiment_id)
    if oldest is None:
        raise RetryableError(f"run {mine.info.run_id} was created in {connection.shown} and is not found there")
    if oldest.info.run_id != mine.info.run_id:
        connection.client.delete_run(mine.info.run_id)
        return oldest
    _log.info("started MLflow run %s (%r) in %s", mine.info.run_id, name, connection.shown)
    return mine


def _reopened(connection: Connection, found: Any, run: RunInfo) -> OpenRun:
    run_id, experiment_id = str(found.info.run_id), str(found.info.experiment_id)
    _require_active(connection, found)
    if found.info.status != _RUNNING:
        connection.client.update_run(run_id, status=_RUNNING)
    held: dict[str, str] = dict(found.data.tags)
    new = wanted(run, connection.rules.tag_length, held)
    if new:
        tags = [connection.entities.RunTag(key, value) for key, value in new.items()]
        connection.client.log_batch(run_id, tags=tags, synchronous=True)
    if found.data.metrics or found.data.params or found.info.status != _RUNNING:
        _log.warning("resuming MLflow run %s (%r) in %s", run_id, found.info.run_name, connection.shown)
    return OpenRun(run_id, experiment_id, dict(found.data.params), held | new)


def _require_active(connection: Connection, found: Any) -> None:
    # First the experiment: deleted, it takes its runs with it, and restored, it brings them back.
    experiment = connection.client.get_experiment(found.info.experiment_id)
    if experiment.lifecycle_stage != _ACTIVE:
        raise _deleted_experiment(connection, experiment)
    if found.info.lifecycle_stage != _ACTIVE:
        run_id = str(found.info.run_id)
        raise BlockedError(
            f"MLflow run {run_id} ({found.info.run_name!r}) was deleted in {connection.shown}",
            help=f"MLFLOW_TRACKING_URI={connection.shown} mlflow runs restore --run-id {run_id}",
        )


def _experiment(connection: Connection, run: RunInfo) -> str:
    name = experiment_name(run, connection.rules.experiment_length)
    found = connection.client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(connection.client.create_experiment(name, artifact_location=_artifacts(connection, name)))
        except Exception as exc:
            found = connection.client.get_experiment_by_name(name)
            if found is None:
                raise outcome_of(exc, f"creating experiment {name!r}") from exc
    if found.lifecycle_stage != _ACTIVE:
        raise _deleted_experiment(connection, found)
    return str(found.experiment_id)


def _deleted_experiment(connection: Connection, experiment: Any) -> BlockedError:
    return BlockedError(
        f"MLflow experiment {experiment.name!r} was deleted in {connection.shown}",
        help=f"MLFLOW_TRACKING_URI={connection.shown} mlflow experiments restore -x {experiment.experiment_id}",
    )


def _artifacts(connection: Connection, name: str) -> str | None:
    """Return where artifacts that others log go: beside the database, not in the bridge's working folder."""
    database = connection.settings.database
    return None if database is None else (database.parent / "mlruns" / _digits(name)).as_uri()


def _digits(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:8]
