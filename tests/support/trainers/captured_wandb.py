"""Programs that log to wandb, run as they are under its capture or with the real package offline."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.trackers.wandb_offline import OfflineRun, read_offline_run
from support.trainers.command_runs import (
    PYTHON,
    call,
    only_folder,
    otel_bridge,
    program,
    records,
    runs,
)
from support.trainers.command_runs import environment as plain_environment

_OWN = {"_step", "_runtime", "_timestamp"}


@contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server for W&B that answers nothing; fails when anything has connected to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        try:
            _, caller = server.accept()
        except BlockingIOError:
            return
        raise AssertionError(f"{caller} connected to W&B's server")


def captured(
    folder: Path,
    code: str,
    *,
    code_of_exit: int = 0,
    exporters: str = "file",
    **variables: str,
) -> str:
    """Run *code* under ``otel-bridge run --capture wandb``; returns what it printed on both streams."""
    with silent_server() as address:
        env = plain_environment(folder, WANDB_BASE_URL=address, **variables)
        command = [
            "run",
            "--exporters",
            exporters,
            "--capture",
            "wandb",
            "--",
            "python",
            "-W",
            "ignore",
        ]
        done = otel_bridge(
            *command, program(folder, "train.py", code), cwd=folder, env=env
        )
    assert done.returncode == code_of_exit, done.stderr
    assert not (folder / "wandb").exists()
    return done.stdout + done.stderr


def offline(folder: Path, code: str) -> OfflineRun:
    """Run *code* with the real package offline; returns what its file holds."""
    env = plain_environment(folder, WANDB_MODE="offline", WANDB_SILENT="true")
    done = call(
        [PYTHON, "-W", "ignore", program(folder, "train.py", code)], cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    return read_offline_run(found.parent)


def points_of(run: OfflineRun) -> dict[str, list[tuple[int, Any]]]:
    """Key to steps and numbers of an offline run; the step is that of the key's step metric, where it has one."""
    found: dict[str, list[tuple[int, Any]]] = {}
    globs = {name[:-1]: one.axis for name, one in run.metrics.items() if one.glob}
    for row in run.rows:
        for key, value in _flat(row):
            if key in _OWN or not isinstance(value, int | float):
                continue
            exact = run.metrics.get(key)
            axis = (
                exact.axis
                if exact
                else next(
                    (one for start, one in globs.items() if key.startswith(start)), ""
                )
            )
            step: Any = row[axis or "_step"]
            found.setdefault(key, []).append((int(step), value))
    return found


def captured_points(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """Key to steps and numbers that ``file`` wrote, without otel-bridge's own: statistics of rollouts, attempts."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for record in records(only_folder(runs(folder))):
        if record["kind"] != "row" or record["id"].startswith("s:"):
            continue
        for key, value in record["values"].items():
            if (
                key.rpartition("/")[2] == "attempt"
            ):  # where a process began after another one had ended
                continue
            found.setdefault(key, []).append(
                (record["step"], math.nan if value == "NaN" else value)
            )
    return found


def captured_config(folder: Path) -> dict[str, Any]:
    """The config that ``file`` wrote."""
    found: dict[str, Any] = {}
    for record in records(only_folder(runs(folder))):
        found |= record.get("config", {}) if record["kind"] == "config" else {}
    return found


def captured_summary(folder: Path) -> dict[str, Any]:
    """The last values that ``file`` wrote."""
    found: dict[str, Any] = {}
    for record in records(only_folder(runs(folder))):
        found |= record["summary"] if record["kind"] == "summary" else {}
    return found


def rollouts(folder: Path) -> list[Mapping[str, Any]]:
    """The rollouts that ``file`` wrote."""
    return [
        record
        for record in records(only_folder(runs(folder)))
        if record["kind"] == "rollout"
    ]


def comparable(points: Mapping[str, list[tuple[int, Any]]]) -> dict[str, str]:
    """Points as texts of floats, so that NaN equals itself."""
    return {
        key: json.dumps([[step, float(value)] for step, value in found])
        for key, found in points.items()
    }


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value
