"""Determines what the installed Trackio can do, from its signatures, and what a server can do, from its answers.

Needed are event times, ids and a run id in ``SQLiteStorage.bulk_log`` (0.24), traces (0.25), and
for the inbox its importer (0.28). Trackio 0.26 added ids of traces, and 0.37 spans of traces.
Before 0.37 spans are text in the trace's metadata.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from otel_bridge.capabilities import Capabilities, accepts, incompatibility, release_of
from otel_bridge.errors import BlockedError

INSTALL = "pip install 'trackio>=0.25,<0.44'"
TESTED_WITH = "0.25.1, 0.30.4, 0.36.0, 0.37.1, 0.40.0, 0.43.0"
_IDS_FROM = (0, 26)
_INBOX_FROM = (0, 28)
_SPANS_FROM = (0, 37)
_INSTALL_INBOX = (
    "pip install 'trackio>=0.28', or set TRACKIO_DIR to a folder of this machine, or TRACKIO_STORAGE_MODE=sqlite when "
    "no other machine writes there"
)
# Trackio's client has no call with times and ids: Run.log() stamps the time of its next flush.
_CALLS = (
    ("bulk_log", "project", "run", "metrics_list", "steps", "timestamps", "config", "log_ids", "run_id"),
    ("bulk_alert", "project", "run", "titles", "texts", "levels", "steps", "timestamps", "alert_ids", "run_id"),
    ("get_logs", "project", "run", "run_id"),
    ("get_log_count", "project", "run", "run_id"),
    ("get_run_config", "project", "run", "run_id"),
    ("get_traces", "project", "run_id"),
    ("get_project_db_path", "project"),
)  # fmt: skip
"""Calls of ``SQLiteStorage``, which every Trackio from 0.25 on has, and their arguments."""
_SAME_IDS = "{} gives rollouts of one step the same Trace ID, each its own from 0.26"
_HINTS: Mapping[str, str] = {
    # Trackio to 0.37 with huggingface_hub from 1.32: its own import fails.
    "CommitOperationAdd": "pip install 'huggingface_hub<1.31', or 'trackio>=0.38'"
}


class TrackioAbilities:
    """Holds the abilities of one Trackio that not every supported version has.

    Attributes:
        spans: Whether it keeps the spans of a trace.
        degraded: One sentence for each ability that it lacks.
    """

    def __init__(
        self, capabilities: Capabilities, *, spans: bool, tracker: str
    ) -> None:
        self.spans = capabilities.prefer(
            spans,
            f"{tracker} shows the spans of a rollout as text in its metadata, as a tree from 0.37",
        )
        self.degraded = capabilities.degraded


def storage_of(trackio: ModuleType) -> tuple[Any, TrackioAbilities]:
    """Return ``SQLiteStorage`` of the imported package *trackio*, and what it can do.

    Raises:
        BlockedError: A call without which nothing works is missing.
    """
    storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    tracker = f"Trackio {trackio.__version__}"
    capabilities = Capabilities(tracker, INSTALL)
    for call, *arguments in _CALLS:
        capabilities.require(storage, call, *arguments)
    # The argument came with the table of traces.
    capabilities.prefer(
        accepts(storage, "get_traces", "step"), _SAME_IDS.format(tracker)
    )
    return storage, TrackioAbilities(
        capabilities, spans=accepts(trackio.Trace, "__init__", "spans"), tracker=tracker
    )


def of_inbox() -> TrackioAbilities:
    """Return what the Trackio that imports the inbox can do, assumed to be the installed one.

    Its version decides: importing it costs 0.3 s and 62 MB, which the inbox does without.

    Raises:
        BlockedError: This Trackio does not import an inbox, or there is none.
    """
    if release_of(_installed()) < _INBOX_FROM:
        raise BlockedError(
            f"TRACKIO_DIR is shared over a network, and Trackio {_installed()} imports no inbox",
            help=_INSTALL_INBOX,
        )
    return _of_release(f"Trackio {_installed()}", _installed())


def of_server(server_version: str) -> TrackioAbilities:
    """Return what a server with *server_version*, from its ``/version``, can do.

    The version decides, because before the project has a trace no other answer shows the abilities.
    An empty one counts as the oldest.
    """
    return _of_release(f"the server's Trackio {server_version}", server_version)


def _of_release(tracker: str, its_version: str) -> TrackioAbilities:
    capabilities = Capabilities(tracker, INSTALL)
    release = release_of(its_version)
    capabilities.prefer(release >= _IDS_FROM, _SAME_IDS.format(tracker))
    return TrackioAbilities(capabilities, spans=release >= _SPANS_FROM, tracker=tracker)


def unusable(exc: Exception) -> BlockedError | None:
    """Return the error to raise when *exc* means that the installed Trackio lacks an ability, else ``None``."""
    return incompatibility(exc, f"Trackio {_installed()}", INSTALL, hints=_HINTS)


def _installed() -> str:
    try:
        return version("trackio")
    except PackageNotFoundError:
        return "(no version)"
