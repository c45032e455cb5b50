"""What each tracker's own API shows of the recorded job, for the conformance suite."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from otel_bridge.exporter import RunInfo
from otel_bridge.testing import HeldScalar
from support.conformance.truth import Shown
from support.trackers import mlflow_reading, wandb_reading
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_offline import offline_directories, read_offline_run

TESTS = Path(__file__).resolve().parents[2]
_OWN = {"_step", "_runtime", "_timestamp"}
WIDE = "wide/"
"""Keys of the one wide row; MLflow's client takes milliseconds for the history of each."""


def wandb_offline(store: Path, run: RunInfo) -> Shown:
    """The offline directories below *store*."""
    runs = [
        read_offline_run(directory) for directory in offline_directories(store, run.id)
    ]
    axes = {metric.axis for one in runs for metric in one.metrics.values()}
    rows = [row for one in runs for row in one.rows]
    return Shown(
        wandb_reading.offline_contents(store, run.id), _rows_of_numbers(rows, axes)
    )


def wandb_online(server: WandbServer, run: RunInfo) -> Shown:
    """The run on the stand-in server."""
    held = server.run(run.id)
    names = {
        key for row in held.history for key in row if "rollouts" in key
    }  # a closed table goes on as `<key>_2`
    tables = {
        key: server.table(run.id, key) for key in names if _is_table(held.history, key)
    }
    axes = {name: metric.axis for name, metric in held.metrics.items()}
    status = None if held.exit_code is None else wandb_reading.STATUSES[held.exit_code]
    contents = wandb_reading.contents_of(
        held.history, axes, tables, held.config, status
    )
    return Shown(contents, _rows_of_numbers(held.history, set(axes.values())))


def _is_table(rows, key: str) -> bool:
    return any(
        "table" in str(row[key].get("_type"))
        for row in rows
        if isinstance(row.get(key), dict)
    )


def _rows_of_numbers(rows, axes: set[str]) -> int:
    """Lines that hold a number or a histogram; increments of tables are lines too."""

    def counts(key: str, value: object) -> bool:
        named = isinstance(value, dict) and value.get("_type") == "histogram"
        return (
            key not in _OWN
            and key not in axes
            and (named or not isinstance(value, dict))
        )

    return sum(any(counts(key, value) for key, value in row.items()) for row in rows)


def mlflow(uri: str, run: RunInfo) -> Shown:
    """The run in MLflow's database or server at *uri*."""
    (held,) = mlflow_reading.runs_of(uri, run)
    wide = [metric for metric in held.data._metric_objs if metric.key.startswith(WIDE)]
    contents = mlflow_reading.contents(uri, run, skip=WIDE)
    contents.scalars.extend(
        HeldScalar(metric.key, metric.step, metric.value, metric.timestamp)
        for metric in wide
    )
    return Shown(contents)


def trackio(folder: Path, run: RunInfo) -> Shown:
    """The run in Trackio's *folder*, read by Trackio's own store in a process of its own: it reads its folder once.

    What lies in its inbox is imported first, as the dashboard does.
    """
    env = {**os.environ, "TRACKIO_DIR": str(folder), "TRACKIO_TEST_DIR": str(folder)}
    printed = "from support.trackers import conformance_reading; conformance_reading.print_trackio()"
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); {printed}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=env, input=pickle.dumps(run), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def print_trackio() -> None:
    """Write what is shown of the run on standard input to standard output."""
    from trackio.sqlite_storage import SQLiteStorage

    from support.trackers import trackio_store

    run: RunInfo = pickle.load(sys.stdin.buffer)
    inbox = trackio_store.DIRECTORY / "inbox"
    if inbox.is_dir():
        trackio_store.imported(inbox)
    contents = trackio_store.held(run)
    logs = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
    named = {"step", "timestamp"}
    rows = sum(
        # Trackio 0.25 keeps traces among the rows.
        any(
            key not in named
            and not trackio_store.is_axis(key)
            and not isinstance(row[key], list)
            for key in row
        )
        for row in logs
    )
    sys.stdout.buffer.write(pickle.dumps(Shown(contents, rows)))
