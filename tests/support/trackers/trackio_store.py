"""The one Trackio folder of a test process (Trackio reads its folder once), and what it holds through its own store."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from otel_bridge.exporter import RunInfo
from otel_bridge.testing.contents import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    scalar_text,
)

DIRECTORY = Path(
    os.environ.get("TRACKIO_TEST_DIR") or tempfile.mkdtemp(prefix="trackio-")
)
ENVIRONMENT = {"TRACKIO_DIR": str(DIRECTORY)}

_package = importlib.util.find_spec("trackio")
HAS_INBOX = (
    _package is not None
    and Path(_package.origin or "").with_name("fragments.py").is_file()
)
"""From Trackio 0.28 on; found without an import, since Trackio reads its folder in one."""


def package() -> Any:
    """Import trackio with the folder of this process: the first import decides for all tests of the process."""
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = str(DIRECTORY)
    try:
        return importlib.import_module("trackio")
    finally:
        if before is None:
            del os.environ["TRACKIO_DIR"]
        else:
            os.environ["TRACKIO_DIR"] = before


def storage() -> Any:
    """The module of Trackio's own store."""
    package()
    return importlib.import_module("trackio.sqlite_storage")


def is_axis(key: str) -> bool:
    """Whether *key* is a role's step, which every row carries; a metric may end in ``/step`` too."""
    return key.endswith("/step") and key.count("/") == 1 and not key.startswith("__")


def held_in(directory: Path, run: RunInfo) -> Contents:
    """What Trackio's own store in *directory* holds of *run*: Trackio reads its folder from a constant."""
    with _reading(directory):
        return held(run)


def rows_in(directory: Path, run: RunInfo) -> list[dict[str, Any]]:
    """The rows of *run* in *directory*, as Trackio's own store returns them."""
    with _reading(directory) as store:
        rows: list[dict[str, Any]] = store.SQLiteStorage.get_logs(
            run.project, run.name, run_id=run.id
        )
        return rows


def traces_in(directory: Path, run: RunInfo) -> list[dict[str, Any]]:
    """The traces of *run* in *directory*, as Trackio's own store returns them."""
    with _reading(directory) as store:
        traces: list[dict[str, Any]] = store.SQLiteStorage.get_traces(
            run.project, run_id=run.id
        )
        return traces


def config_in(directory: Path, run: RunInfo) -> dict[str, Any]:
    """The config of *run* in *directory*, with Trackio's own entries (``_Group``)."""
    with _reading(directory) as store:
        config: dict[str, Any] = store.SQLiteStorage.get_run_config(
            run.project, run.name, run_id=run.id
        )
        return config


@contextmanager
def _reading(directory: Path) -> Iterator[Any]:
    sqlite_storage = storage()
    before = sqlite_storage.TRACKIO_DIR
    sqlite_storage.TRACKIO_DIR = directory
    try:
        yield sqlite_storage
    finally:
        sqlite_storage.TRACKIO_DIR = before


def held(run: RunInfo) -> Contents:
    """What Trackio's own store says it holds of *run*."""
    store = storage().SQLiteStorage
    contents = Contents()
    for row in store.get_logs(run.project, run.name, run_id=run.id):
        time_unix_ms = int(datetime.fromisoformat(row["timestamp"]).timestamp() * 1000)
        for key, value in row.items():
            if key in {"step", "timestamp"} or is_axis(key):
                continue
            if isinstance(value, dict) and value.get("_type") == "trackio.histogram":
                low, high = value["bins"][0], value["bins"][-1]
                contents.distributions.append(
                    HeldDistribution(key, row["step"], low, high, sum(value["values"]))
                )
            elif isinstance(value, (int, float)):
                contents.scalars.append(
                    HeldScalar(key, row["step"], value, time_unix_ms)
                )
    for trace in store.get_traces(run.project, run_id=run.id):
        metadata = trace["metadata"]
        if trace["key"].endswith("/late"):
            if metadata["value"] is not None:
                contents.evaluations.append(
                    (metadata["rollout_id"], metadata["name"], metadata["value"])
                )
            continue
        # Those that came with the rollout: a late one is moved from here to the evaluations.
        parts = dict(metadata.get("rewards") or {})
        for name in metadata.get("late_values", ()):
            value = (
                metadata.get(name)
                if name in {"reward", "advantage"}
                else parts.pop(name, None)
            )
            if value is not None:
                contents.evaluations.append((metadata["trace_id"], name, value))
        reward = metadata.get("reward")
        reward = float(reward) if isinstance(reward, str) else reward
        messages, spans = len(trace["messages"]), len(spans_of(trace))
        contents.rollouts.append(
            HeldRollout(metadata["trace_id"], reward, messages, spans, parts)
        )
    config = store.get_run_config(run.project, run.name, run_id=run.id) or {}
    contents.config.update(
        {
            key: str(value)
            for key, value in config.items()
            if not key.startswith(("_", "summary/"))
        }
    )
    if hasattr(store, "get_alerts"):
        alerts = store.get_alerts(run.project, run.name, run_id=run.id)
        contents.alerts.extend((alert["title"], alert["level"]) for alert in alerts)
    contents.summary.update(
        {
            key.removeprefix("summary/"): scalar_text(value)
            for key, value in config.items()
            if key.startswith("summary/")
        }
    )
    return contents


def spans_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of a trace; below Trackio 0.37 they are text in its metadata."""
    spans: list[dict[str, Any]] = (
        trace["spans"] if "spans" in trace else json.loads(trace["metadata"]["spans"])
    )
    return spans


def created(run: RunInfo) -> object:
    """When the run began, as the page of runs says."""
    return storage().SQLiteStorage.get_run_config(run.project, run.name, run_id=run.id)[
        "_Created"
    ]


def imported(inbox: Path) -> int:
    """Import the files of *inbox* as the dashboard does; return how many records it took."""
    os.environ["TRACKIO_DIR"] = str(DIRECTORY)
    from trackio.fragments import import_inbox_dir

    return import_inbox_dir(inbox)
