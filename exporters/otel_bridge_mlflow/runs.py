"""Finds the MLflow run of a run by id, tag or name, or creates it.

A run that had ended is opened again.

Names are not unique in MLflow and there are no locks, so that two bridges may create a run at the
same time. After creating a run, each bridge searches the tag again and uses the oldest run that has
it. The other run, still empty, is deleted.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_bridge import semconv
from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import NEW_RUN_HINT, RunInfo, WriterMemory
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors, outcome_of
from otel_bridge_mlflow.keys import cut_name, hash_of
from otel_bridge_mlflow.tags import missing_tags

_log = logging.getLogger(__name__)
_RUN_SLOT = "run"
_GENERATED_SLOT = "name/generated"
_RUNNING = "RUNNING"
_ACTIVE = "active"
_OLDEST_FIRST = ["attributes.start_time ASC"]
_NEWEST_FIRST = ["attributes.start_time DESC"]
_SEARCHED = 1000
"""Most runs that a search returns; few have one tag or one name."""


@dataclass(frozen=True, slots=True)
class OpenMlflowRun:
    """Describes an open MLflow run.

    Attributes:
        id: MLflow's run id.
        experiment_id: Id of its experiment.
        params: Params that the run has.
        tags: Tags that the run has.
        found: Line that reports that the store held the run before this destination first wrote to
            it; else empty.
    """

    id: str
    experiment_id: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    found: str = ""

    @property
    def page(self) -> str:
        """Return the path of the run's charts, below the address of MLflow.

        Without the workflow MLflow 3.17 opens in its GenAI mode and lists the run among
        evaluations, whatever the experiment's tag ``mlflow.experimentKind`` is. Older ones ignore
        it.
        """
        return f"#/experiments/{self.experiment_id}/runs/{self.id}/model-metrics?workflowType=machine_learning"


def open_run(
    connection: Connection, run: RunInfo, memory: WriterMemory
) -> OpenMlflowRun:
    """Find or create the MLflow run of *run* and make it RUNNING.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: The run or its experiment was deleted, no run has the requested id, or MLflow
            refuses a name.
    """
    try:
        with as_bridge_errors(f"opening run {run.name!r} in {connection.shown}"):
            ours = memory.get(_RUN_SLOT)
            mlflow_run = _named(connection, run, memory) or _searched(connection, run)
            # Before the run is changed: after a kill the next bridge finds the same run, by its id.
            memory.put(_RUN_SLOT, str(mlflow_run.info.run_id).encode())
            _rename(connection, mlflow_run, run, memory)
            opened = _reopened(connection, mlflow_run, run)
            is_known = ours or run.identity.get(semconv.MLFLOW_RUN_ID)
            is_adopted = semconv.RUN_ID not in mlflow_run.data.tags
            if is_known:
                return opened
            return dataclasses.replace(
                opened, found=_found_line(mlflow_run, is_adopted=is_adopted)
            )
    except RetryableError as exc:
        # After a time-out the server would only be waited for twice as long.
        if connection.settings.remote and not exc.timed_out:
            connection.require_access()
        raise
    except Refused as exc:
        raise BlockedError(str(exc), help="rename the run or its project") from exc


def _rename(
    connection: Connection, mlflow_run: Any, run: RunInfo, memory: WriterMemory
) -> None:
    """Rename a run that has a generated name; a name that a person gave the run in MLflow stays.

    A generated name of this bridge never replaces another. Raises as MLflow's client.
    """
    name = run_name(run, connection.rules.name_length)
    current_name = str(mlflow_run.info.run_name)
    if run.name_generated:
        if current_name == name:
            # Kept, because only a name that is known to be generated may be replaced later.
            memory.put(_GENERATED_SLOT, current_name.encode())
        return
    # A process that knows only the id uses the id as the generated name.
    generated_names = {run.id, (memory.get(_GENERATED_SLOT) or b"").decode()}
    if current_name != name and current_name in generated_names:
        connection.client.update_run(str(mlflow_run.info.run_id), name=name)


def require_active(connection: Connection, run: OpenMlflowRun) -> None:
    """Check whether an open run, which MLflow no longer accepts records for, was deleted.

    Called after a refusal that is a `BlockedError` already: its general help becomes the command
    for what was deleted, the run or its experiment. Any other outcome leaves it as it is.

    Raises:
        BlockedError: The run or its experiment was deleted; the error names the command that
            restores it.
        RetryableError: The store cannot be reached now.
    """
    with as_bridge_errors(f"looking at run {run.id} in {connection.shown}"):
        _require_active(connection, connection.client.get_run(run.id))


def _found_line(mlflow_run: Any, *, is_adopted: bool) -> str:
    """Return what ``init()`` prints of a run that the store held, empty for a new one."""
    if is_adopted:  # also an empty run: another program began it, and may end it
        return f"MLflow's own run of this name ({mlflow_run.info.run_id}) gets the records; {NEW_RUN_HINT}"
    if not mlflow_run.data.metrics and not mlflow_run.data.params:
        return ""
    return f"MLflow already holds this run ({mlflow_run.info.run_id}), continuing it; {NEW_RUN_HINT}"


def experiment_name(run: RunInfo, limit: int) -> str:
    """Return the experiment of *run*: the producer's ``MLFLOW_EXPERIMENT_NAME``, else its project, else ``default``."""
    return _shortened(
        run.identity.get(semconv.MLFLOW_EXPERIMENT) or run.project or "default", limit
    )


def run_name(run: RunInfo, limit: int) -> str:
    """Return the display name of *run*, which must not be empty, because MLflow would generate one."""
    return _shortened(run.name or run.id, limit)


def _shortened(name: str, limit: int) -> str:
    """Return *name*, cut to *limit* with a hash, so that long names with one beginning stay different."""
    if len(name) <= limit:
        return name
    return cut_name(name, limit, name)


def quoted(text: str) -> tuple[str, str]:
    """Return the operator and the literal that match *text* in a filter of MLflow.

    The filter's grammar has no escapes. Text with both kinds of quotes can only be matched by LIKE,
    with ``_`` for each quote, and the results must be compared with *text* again.
    """
    if "'" not in text:
        return "=", f"'{text}'"
    if '"' not in text:
        return "=", f'"{text}"'
    return "LIKE", "'" + text.replace("'", "_").replace('"', "_") + "'"


def _named(connection: Connection, run: RunInfo, memory: WriterMemory) -> Any | None:
    """Return the run whose id was requested or written to before; ``None`` without such an id.

    ``None`` also when the run that was written to is gone: its data still needs one.

    Raises:
        BlockedError: The requested run does not exist. Another run would hide the mistake.
        Exception: MLflow's own, when the store cannot be asked.
    """
    requested_id = run.identity.get(semconv.MLFLOW_RUN_ID)
    stored_id = memory.get(_RUN_SLOT)
    run_id = requested_id or (stored_id.decode() if stored_id else None)
    if not run_id:
        return None
    try:
        return connection.client.get_run(run_id)
    except Exception as exc:
        # Any other error may pass: another run must not be used because of it.
        if getattr(exc, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        if requested_id:
            raise BlockedError(
                f"MLFLOW_RUN_ID={requested_id}: {connection.shown} has no such run",
                help="unset MLFLOW_RUN_ID in the training job, or name a run of this store",
            ) from exc
        # Deleted for good (mlflow gc), or the store was replaced: the data still needs a run.
        _log.warning(
            "run %s is no longer in %s: looking for it by tag and name",
            run_id,
            connection.shown,
        )
        return None


def _searched(connection: Connection, run: RunInfo) -> Any:
    """Return the run of *run* in its experiment: by the bridge's tag, else by name, else a new one.

    Raises as `_experiment` and `_created`.
    """
    experiment_id = _experiment(connection, run)
    return (
        _by_tag(connection, run, experiment_id)
        or _by_name(connection, run, experiment_id)
        or _created(connection, run, experiment_id)
    )


def _by_tag(connection: Connection, run: RunInfo, experiment_id: str) -> Any | None:
    """Return the oldest run with the tag of *run*, ``None`` without one; raises as MLflow's client.

    The oldest, because of two that were created at once each bridge must choose the same.
    """
    operator, literal = quoted(run.id)
    mlflow_runs = connection.client.search_runs(
        [experiment_id],
        f"tags.`{semconv.RUN_ID}` {operator} {literal}",
        max_results=_SEARCHED,
        order_by=_OLDEST_FIRST,
    )
    tagged: list[Any] = []
    for mlflow_run in mlflow_runs:
        # Compared again: see `quoted`.
        if mlflow_run.data.tags.get(semconv.RUN_ID) == run.id:
            tagged.append(mlflow_run)
    return min(tagged, key=_age, default=None)


def _age(mlflow_run: Any) -> tuple[int, str]:
    # The id decides between runs of one millisecond, for both bridges in the same way.
    return mlflow_run.info.start_time, mlflow_run.info.run_id


def _by_name(connection: Connection, run: RunInfo, experiment_id: str) -> Any | None:
    """Return the newest run of this name, ``None`` when each has a tag of otel-bridge, and so another id.

    So a run that another program began can be continued. Raises as MLflow's client.
    """
    name = run_name(run, connection.rules.name_length)
    operator, literal = quoted(name)
    mlflow_runs = connection.client.search_runs(
        [experiment_id],
        f"attributes.run_name {operator} {literal}",
        max_results=_SEARCHED,
        order_by=_NEWEST_FIRST,
    )
    for mlflow_run in mlflow_runs:
        if (
            mlflow_run.info.run_name == name
            and semconv.RUN_ID not in mlflow_run.data.tags
        ):
            return mlflow_run
    return None


def _created(connection: Connection, run: RunInfo, experiment_id: str) -> Any:
    """Create a run, or return the older one that another bridge has created at the same time.

    Raises:
        RetryableError: The store does not find what it has just created.
        Exception: MLflow's own.
    """
    name = run_name(run, connection.rules.name_length)
    mine = connection.client.create_run(
        experiment_id,
        run_name=name,
        tags=missing_tags(run, connection.rules.tag_length, {}),
    )
    # Only after creating: of two bridges that create at once, both see both runs then.
    oldest = _by_tag(connection, run, experiment_id)
    if oldest is None:
        raise RetryableError(
            f"run {mine.info.run_id} was created in {connection.shown} and is not found there"
        )
    if oldest.info.run_id != mine.info.run_id:
        # Still empty, since nothing is written before a run is chosen.
        connection.client.delete_run(mine.info.run_id)
        return oldest
    _log.info(
        "started MLflow run %s (%r) in %s", mine.info.run_id, name, connection.shown
    )
    return mine


def _reopened(connection: Connection, mlflow_run: Any, run: RunInfo) -> OpenMlflowRun:
    """Make *mlflow_run* RUNNING, with the tags that it lacks, and return it.

    Raises:
        BlockedError: It, or its experiment, was deleted.
        Exception: MLflow's own.
    """
    run_id = str(mlflow_run.info.run_id)
    experiment_id = str(mlflow_run.info.experiment_id)
    _require_active(connection, mlflow_run)
    # MLflow takes records of an ended run too, but would go on showing it as ended.
    if mlflow_run.info.status != _RUNNING:
        connection.client.update_run(run_id, status=_RUNNING)
    tags: dict[str, str] = dict(mlflow_run.data.tags)
    new = missing_tags(run, connection.rules.tag_length, tags)
    if new:
        make = connection.entities.RunTag
        run_tags = [make(key, value) for key, value in new.items()]
        connection.client.log_batch(run_id, tags=run_tags, synchronous=True)
    if (
        mlflow_run.data.metrics
        or mlflow_run.data.params
        or mlflow_run.info.status != _RUNNING
    ):
        _log.warning(
            "resuming MLflow run %s (%r) in %s",
            run_id,
            mlflow_run.info.run_name,
            connection.shown,
        )
    return OpenMlflowRun(
        run_id, experiment_id, dict(mlflow_run.data.params), tags | new
    )


def _require_active(connection: Connection, mlflow_run: Any) -> None:
    """Check that neither the run nor its experiment was deleted.

    Raises:
        BlockedError: One of them was; the error names the command that restores it.
        Exception: MLflow's own.
    """
    # The experiment is checked first: deleting it deletes its runs, and restoring it restores them.
    experiment = connection.client.get_experiment(mlflow_run.info.experiment_id)
    if experiment.lifecycle_stage != _ACTIVE:
        raise _deleted_experiment(connection, experiment)
    if mlflow_run.info.lifecycle_stage != _ACTIVE:
        run_id = str(mlflow_run.info.run_id)
        raise BlockedError(
            f"MLflow run {run_id} ({mlflow_run.info.run_name!r}) was deleted in {connection.shown}",
            help=_command(connection, f"runs restore --run-id {run_id}"),
        )


def _experiment(connection: Connection, run: RunInfo) -> str:
    """Return the id of the experiment of *run*, which is created if there is none.

    Raises:
        BlockedError: It was deleted; its name cannot be used again before it is restored.
        Exception: MLflow's own, or what `outcome_of` makes of it.
    """
    name = experiment_name(run, connection.rules.experiment_length)
    experiment = connection.client.get_experiment_by_name(name)
    if experiment is None:
        folder = _artifacts(connection, name)
        try:
            return str(
                connection.client.create_experiment(name, artifact_location=folder)
            )
        except Exception as exc:  # another process may have created it meanwhile
            experiment = connection.client.get_experiment_by_name(name)
            if experiment is None:
                raise outcome_of(exc, f"creating experiment {name!r}") from exc
    if experiment.lifecycle_stage != _ACTIVE:
        raise _deleted_experiment(connection, experiment)
    return str(experiment.experiment_id)


def _deleted_experiment(connection: Connection, experiment: Any) -> BlockedError:
    return BlockedError(
        f"MLflow experiment {experiment.name!r} was deleted in {connection.shown}",
        help=_command(connection, f"experiments restore -x {experiment.experiment_id}"),
    )


def _command(connection: Connection, arguments: str) -> str:
    """Return the line of a shell that runs MLflow with *arguments* on the store of *connection*."""
    # Quoted, because the folder of a database may have a space in its name.
    return f"MLFLOW_TRACKING_URI={shlex.quote(connection.shown)} mlflow {arguments}"


def _artifacts(connection: Connection, name: str) -> str | None:
    """Return where artifacts of other programs are stored: beside the database, not in the bridge's working folder.

    ``None`` without a file, where MLflow or its server decides.
    """
    database = connection.settings.database
    if database is None:
        return None
    return (database.parent / "mlruns" / hash_of(name)).as_uri()
