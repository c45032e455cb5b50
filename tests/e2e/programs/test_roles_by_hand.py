"""The demo's three roles started by hand, each a script of its own: plain, and under ``otel-bridge run``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.trackers import shown_runs
from support.trainers.command_runs import (
    PYTHON,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    run_info,
    statuses,
)

pytestmark = pytest.mark.slow
STEPS = 8
ROLES = ("trainer", "explorer", "evaluator")
ROLE = f"python -m otel_bridge.demo.roles {{role}} --exchange exchange --steps {STEPS}"
COMMANDS = [
    *(ROLE.format(role=role) for role in ROLES),
    ROLE.format(role="explorer --rank 1"),
]
SCRIPT = " & ".join(COMMANDS) + "; wait\n"


def places(folder: Path) -> dict[str, str]:
    return {
        "OTEL_BRIDGE_PROJECT": "sums",
        "OTEL_BRIDGE_RUN_NAME": "by-hand",
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",  # relative: meant from the working folder
        "TRACKIO_DIR": str(folder / "trackio"),
        "OTEL_BRIDGE_TRACKIO_ALL_SERIES": "1",
        "OTEL_BRIDGE_MLFLOW_ALL_SERIES": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": ".",
    }


def launch(folder: Path) -> None:
    env = environment(
        folder, **places(folder), OTEL_BRIDGE_EXPORTERS="wandb,mlflow,trackio"
    )
    done = otel_bridge(
        "run", "--", "sh", program(folder, "roles.sh", SCRIPT), cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr


def start_plain(folder: Path) -> None:
    """Processes that know nothing of each other but the run's name."""
    env = environment(
        folder, **places(folder), OTEL_BRIDGE_EXPORTERS="wandb,mlflow,trackio"
    )
    commands = [[PYTHON, *command.split()[1:]] for command in COMMANDS]
    roles = [
        subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    assert [role.wait(120) for role in roles] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "start", [launch, pytest.param(start_plain, marks=pytest.mark.long)]
)
def test_three_scripts_are_one_run_in_each_tracker(tmp_path: Path, start) -> None:
    start(tmp_path)

    report, run = ended(tmp_path / ".otel-bridge"), run_info(tmp_path / ".otel-bridge")
    wandb = shown_runs.wandb_offline(tmp_path, run.id)
    mlflow = shown_runs.mlflow(f"sqlite:///{tmp_path}/mlflow.db", run)
    trackio = shown_runs.trackio(tmp_path / "trackio", run)
    assert (report.status, report.drops, report.missing_rows) == ("finished", {}, 0)
    assert (run.project, run.name) == ("sums", "by-hand")
    assert wandb.scalars == mlflow.scalars == trackio.scalars
    assert wandb.distributions == mlflow.distributions == trackio.distributions
    assert wandb.rollouts == mlflow.rollouts == trackio.rollouts
    assert wandb.config == mlflow.config == trackio.config
    assert mlflow.conversations == trackio.conversations
    assert wandb.roles == set(ROLES)
    assert (
        wandb.steps("trainer") == wandb.steps("explorer") == list(range(1, STEPS + 1))
    )
    assert wandb.steps("evaluator") == [1, 2, 3]  # of the policies 0, 5 and 8
    assert wandb.status == mlflow.status


@pytest.mark.long
def test_signals_go_to_different_trackers_by_environment_alone(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        **places(tmp_path),
        OTEL_METRICS_EXPORTER="file",
        OTEL_TRACES_EXPORTER="trackio",
    )
    script = program(tmp_path, "roles.sh", SCRIPT)

    done = otel_bridge("run", "--", "sh", script, cwd=tmp_path, env=env)

    base = tmp_path / ".otel-bridge"
    folder, trackio = (
        only_folder(base),
        shown_runs.trackio(tmp_path / "trackio", run_info(base)),
    )
    kinds = {record["kind"] for record in records(folder)}
    rows = {
        record["step"]
        for record in records(folder)
        if record["kind"] == "row" and record["role"] == "trainer"
    }
    configs = {
        record["role"] for record in records(folder) if record["kind"] == "config"
    }
    states = {name: one.state for name, one in report_of(base).exporters.items()}
    assert done.returncode == 0, done.stderr
    assert (kinds & {"row", "rollout"}, rows, configs) == (
        {"row"},
        set(range(1, STEPS + 1)),
        set(ROLES),
    )
    assert statuses(folder) == ["finished"]
    assert trackio.scalars == []
    assert {one.key for one in trackio.rollouts.values()} == {
        "explorer/rollouts",
        "evaluator/rollouts",
    }
    assert (
        len(trackio.rollouts)
        == report_of(base).exporters["trackio"].rollouts
        > 16 * STEPS
    )
    assert {key.partition("/")[0] for key in trackio.config} == set(ROLES)
    assert states == {"file": "ended", "trackio": "ended"}
