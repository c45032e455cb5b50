"""``otel-bridge doctor --send``: deliver a row and a rollout, and read them back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import otel_bridge
from otel_bridge import exporter
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.exporters import choose
from otel_bridge.errors import OtelBridgeError
from otel_bridge.exporter import ExporterSettings, RunInfo, TrackerCounts
from otel_bridge.journal.base_dir import base_dir
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import ExporterReport, Report, read_report

_PROJECT = "otel-bridge-doctor"
_WAIT_S = 60.0
_OF_A_JOB = (
    "WANDB_RUN_ID", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_RESUME", "WANDB_SWEEP_ID", "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT", "OTEL_BRIDGE_RUN_ID", "OTEL_RESOURCE_ATTRIBUTES",
)  # fmt: skip
"""Variables that name a job's own run.

They are removed, so that the test run is not written into that run.
"""
_READ_BACK = "the row and the rollout were read back"
_SENT = "the row and the rollout were sent; they cannot be read back from here, so look at them there"
_NOTHING_CHOSEN = "no exporter is chosen; set OTEL_BRIDGE_EXPORTERS, e.g. to trackio"


def send(show: Callable[[str], None], env: Mapping[str, str]) -> list[str]:
    """Send a test run to the exporters that *env* chooses.

    Return a line for each that failed, *show* the others. Failed has also what retries when the
    wait is over, and a run that no bridge has read after `_WAIT_S`. Without an exporter one line
    says what to set, and no folder is left behind.

    Raises:
        ConfigError: The run cannot begin, as with a directory that cannot be used.
    """
    for variable in _OF_A_JOB:
        # From the process itself, because trackers read them there.
        os.environ.pop(variable, None)
    # A launcher chooses the exporters of its children, whatever the environment names.
    launched = launcher_alive(env)
    if not (launched or choose(None, env, Path.cwd(), elsewhere=True).names):
        return [_NOTHING_CHOSEN]
    name = f"check-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    run = otel_bridge.init(project=_PROJECT, name=name, role="doctor")
    if not run.recording:
        return [_NOTHING_CHOSEN]
    folder = RunFolder(base_dir(env, Path.cwd()), run.id)
    run.log({"check": 1.0}, step=1)
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    run.log_rollouts([otel_bridge.Rollout(messages, reward=1.0)], step=1)
    run.finish(timeout_s=_WAIT_S)
    report = _ended(folder)
    if report is None:
        return [
            f"no bridge has read the row after {_WAIT_S:.0f} s; look at {folder.log_path}"
        ]
    if not report.exporters:
        return [_NOTHING_CHOSEN]
    info = RunInfo(id=run.id, project=_PROJECT, name=name, folder=folder.path)
    wrong: list[str] = []
    for chosen, state in report.exporters.items():
        problem = _problem(chosen, state, info, env)
        if problem:
            wrong.append(f"{chosen}: {problem}")
        else:
            show(f"{chosen}: {_SENT if _read_back_of(chosen) is None else _READ_BACK}")
    return wrong


def _ended(folder: RunFolder) -> Report | None:
    """Wait until every tracker has ended the run or is blocked, then return the last report.

    That is also returned after `_WAIT_S`; ``None`` if no bridge has written one by then. A blocked
    tracker is not waited for, because it needs a person.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        report = read_report(folder)
        is_over = report is not None and (report.settled or not report.exporters)
        if is_over or time.monotonic() >= deadline:
            return report
        time.sleep(0.1)


def _read_back_of(
    name: str,
) -> Callable[[RunInfo, ExporterSettings], TrackerCounts] | None:
    """Return what counts the test run in the tracker *name*.

    ``None`` if the exporter cannot, or this environment lacks its tracker: then the bridge runs in
    another one (``OTEL_BRIDGE_PYTHON``).

    Raises:
        ConfigError: The exporter is not known here, as one that only a launcher has.
    """
    if name == exporter.OTLP:
        return None
    described = exporter.described(name)
    if exporter.missing_of(name, described):
        return None
    return described.read_back


def _problem(
    name: str, state: ExporterReport, run: RunInfo, env: Mapping[str, str]
) -> str:
    """Return why an exporter does not have the test run; empty if it has, or cannot be asked.

    The tracker is asked for its numbers and rollouts, because one that took a call may still lack
    the data. At least one of each is expected: more may be there, such as system metrics.
    """
    if state.trouble:
        return state.trouble
    if (read_back := _read_back_of(name)) is None:
        return ""
    try:
        held = read_back(run, exporter.load(name).read_settings(env, Path.cwd()))
    except OtelBridgeError as exc:
        return f"cannot be read back: {exc}"
    if held.numbers and held.rollouts:
        return ""
    return f"holds {held.numbers} numbers and {held.rollouts} rollouts of the test run, expected at least one of each"
