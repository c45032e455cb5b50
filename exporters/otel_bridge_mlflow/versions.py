"""Determines what the installed MLflow and its server can do, from calls and fields.

A server exposes neither calls nor fields. Its version decides what no answer reveals: an MLflow
server older than 3.6 accepts traces and never shows them, and one older than 3.13 cannot start a
trace a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otel_bridge.capabilities import Capabilities, accepts, release_of
from otel_bridge.errors import BlockedError

INSTALL = "pip install 'otel-bridge[mlflow]'"
HINTS = {
    "FallbackAsyncAdaptedQueuePool": "pip install 'sqlalchemy<2.1': this MLflow cannot use a newer one",
}
"""Text of an error to the command that fixes it, where the package at fault is not MLflow."""
_TRACES_FROM = (3, 6)
_STARTS_FROM = (3, 13)
"""The first server on which a repeated ``start_trace`` adds to the trace; older ones answer with an
error."""
_CLIENT = (
    ("get_run", "run_id"),
    ("search_runs", "experiment_ids", "filter_string", "max_results", "order_by"),
    ("create_run", "experiment_id", "run_name", "tags"),
    ("update_run", "run_id", "status"),
    ("delete_run", "run_id"),
    ("set_terminated", "run_id", "status"),
    ("set_tag", "run_id", "key", "value"),
    ("log_batch", "run_id", "metrics", "params", "tags", "synchronous"),
    ("get_experiment", "experiment_id"),
    ("get_experiment_by_name", "name"),
    ("create_experiment", "name", "artifact_location"),
)
"""Calls of ``mlflow.MlflowClient`` without which nothing works."""


@dataclass(frozen=True, slots=True)
class Package:
    """Holds the used parts of the installed MLflow.

    Attributes:
        version: Its version, for messages.
        client: ``mlflow.MlflowClient``.
        entities: ``mlflow.entities``.
        store: Class of the tracking store: of a database, or of servers.
        trace_tags: ``mlflow.tracing.constant.TraceTagKey``, ``None`` where MLflow has none.
        rest: ``mlflow.utils.rest_utils``.
    """

    version: str
    client: Any
    entities: Any
    store: Any
    trace_tags: Any
    rest: Any


_SHOWS_NO_TRACES = "does not show traces written this way; 3.7 does"


@dataclass(frozen=True, slots=True)
class MlflowAbilities:
    """Holds what can be written.

    Attributes:
        left_out: Why rollouts and their evaluations are left out; empty when they are written.
        degraded: One sentence for each ability that is missing.
        starts_traces: Whether the server takes the rewards of a rollout in one call.
    """

    left_out: str = ""
    degraded: tuple[str, ...] = ()
    starts_traces: bool = False


def abilities_of(
    package: Package, *, remote: bool, server_version: str | None
) -> MlflowAbilities:
    """Return what *package* can do with a server (*remote*) of *server_version*, or with a database.

    Raises:
        BlockedError: A call is missing without which nothing works.
    """
    tracker = f"MLflow {package.version}"
    capabilities = Capabilities(tracker, INSTALL)
    for call, *arguments in _CLIENT:
        capabilities.require(package.client, call, "self", *arguments)
    capabilities.require(
        package.entities, "Metric", "key", "value", "timestamp", "step"
    )
    capabilities.require(package.entities, "Param", "key", "value")
    capabilities.require(package.entities, "RunTag", "key", "value")
    if remote and not accepts(
        package.rest,
        "http_request",
        "host_creds",
        "endpoint",
        "method",
        "extra_headers",
    ):
        raise BlockedError(
            f"{tracker} has another mlflow.utils.rest_utils.http_request", help=INSTALL
        )
    left_out = ""
    # 3.5 stores spans and reads them from an artifact that does not exist: a silent loss.
    if (
        remote
        and server_version is not None
        and release_of(server_version) < _TRACES_FROM
    ):
        left_out = f"the MLflow server is {server_version}, which {_SHOWS_NO_TRACES}"
    elif not _shows_traces(package, remote=remote):
        left_out = f"{tracker} {_SHOWS_NO_TRACES}"
    capabilities.prefer(
        not left_out, f"rollouts and evaluations are left out: {left_out}"
    )
    # Unknown counts as old: each reward is then a call, which every version takes.
    starts = server_version is not None and release_of(server_version) >= _STARTS_FROM
    return MlflowAbilities(
        left_out,
        capabilities.degraded,
        starts and hasattr(package.entities, "TraceInfo"),
    )


def _shows_traces(package: Package, *, remote: bool) -> bool:
    """Return whether the installed MLflow has every call by which traces and assessments are written.

    A server writes spans by OTLP, so that only a database needs calls of the store for them.
    """
    writes = remote or (
        # A tag marks traces whose spans are in the database. An MLflow without it writes them there
        # but reads files.
        hasattr(package.trace_tags, "SPANS_LOCATION")
        and accepts(package.store, "log_spans", "location", "spans")
        and accepts(package.store, "create_assessment", "assessment")
        and accepts(
            getattr(package.entities, "Span", None),
            "from_otel_proto",
            "otel_proto_span",
        )
    )
    return (
        writes
        and accepts(package.client, "link_traces_to_run", "trace_ids", "run_id")
        and accepts(package.client, "set_trace_tag", "trace_id", "key", "value")
        and accepts(
            package.store,
            "update_assessment",
            "trace_id",
            "assessment_id",
            "feedback",
            "rationale",
            "metadata",
        )
        and accepts(
            package.entities,
            "Feedback",
            "name",
            "value",
            "source",
            "trace_id",
            "metadata",
            "rationale",
        )
    )
