"""Run a program of a framework: with the fakes of tests/support/frameworks, or in the environment of the real ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import Report, read_report
from support.trainers.command_runs import (
    PYTHON,
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    runs,
    until,
)

FAKES = Path(__file__).parents[1] / "frameworks"
REAL = os.environ.get("FRAMEWORKS_PYTHON", "")
AT_FLOOR = bool(os.environ.get("FRAMEWORKS_FLOOR"))
"""Whether the frameworks are the oldest ones that the adapters support."""
NEEDS_REAL = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not REAL, reason="FRAMEWORKS_PYTHON names no environment with the frameworks"
    ),
]
_SILENT = {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1",
    "WANDB_BASE_URL": "http://127.0.0.1:9", "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip


def framework_environment(
    folder: Path, *, real: bool, **variables: str
) -> dict[str, str]:
    """The environment of a program that delivers to files."""
    path = {"PYTHONWARNINGS": "ignore"} if real else {"PYTHONPATH": str(FAKES)}
    return environment(
        folder, **{"OTEL_BRIDGE_EXPORTERS": "file", **_SILENT, **path, **variables}
    )


def run_program(
    folder: Path,
    code: str,
    *arguments: str,
    real: bool = False,
    fails: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run *code* to its end, which must be good unless it *fails*."""
    folder.mkdir(exist_ok=True)
    env = framework_environment(folder, real=real, **variables)
    done = call(
        [REAL if real else PYTHON, program(folder, "train.py", code), *arguments],
        cwd=folder,
        env=env,
    )
    assert (done.returncode != 0) is fails, done.stderr
    return done


def run_captured(
    folder: Path,
    captured: str,
    code: str,
    *arguments: str,
    real: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run *code* to its good end under ``otel-bridge run --capture CAPTURED``."""
    folder.mkdir(exist_ok=True)
    env = framework_environment(folder, real=real, **variables)
    command = [
        REAL if real else "python",
        program(folder, "train.py", code),
        *arguments,
    ]
    done = otel_bridge(
        "run", "--capture", captured, "--", *command, cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr
    return done


def recorded(folder: Path) -> list[dict[str, Any]]:
    """What the one run of *folder* delivered, after its end."""
    ended(runs(folder))
    return records(only_folder(runs(folder)))


def recorded_runs(folder: Path) -> list[tuple[Report, list[dict[str, Any]]]]:
    """The last report of each run of *folder*, and what it delivered, after the end of all."""

    def ends() -> list[tuple[Report, list[dict[str, Any]]]] | None:
        folders = run_folders(runs(folder))
        found = [
            report
            for one in folders
            if (report := read_report(one)) is not None and report.ended
        ]
        return (
            list(zip(found, map(records, folders), strict=True))
            if len(found) == len(folders) > 0
            else None
        )

    return until(ends, f"the end of the runs in {folder}")


def rows_of(found: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    """Step and values of the rows that have all of *keys*."""
    rows = [
        one
        for one in found
        if one["kind"] == "row" and all(key in one["values"] for key in keys)
    ]
    return [(one["step"], *(one["values"][key] for key in keys)) for one in rows]


def config_in(found: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The config of the run."""
    config: dict[str, Any] = {}
    for one in found:
        config |= one.get("config", {}) if one["kind"] == "config" else {}
    return config


def ends_of(found: list[dict[str, Any]]) -> list[str]:
    """Every end of the run."""
    return [one["status"] for one in found if one["kind"] == "end"]


def rollouts_in(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rollouts of the run."""
    return [one for one in found if one["kind"] == "rollout"]


def summary_in(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The last values of the run."""
    return {
        key: value
        for one in found
        if one["kind"] == "summary"
        for key, value in one["summary"].items()
    }
