"""A training program with the core alone: a bridge of another environment delivers to all trackers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.collector.service_process import service
from support.trackers import mlflow_reading, shown_runs
from support.trainers.command_runs import BIN
from support.trainers.e2e_jobs import (
    CLEAN,
    ended,
    environment,
    no_bridge_left,
    script,
    until,
)
from support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
JOB = """
import importlib.util, sys, otel_bridge
assert not any(importlib.util.find_spec(name) for name in ("wandb", "trackio"))
run = otel_bridge.init("elsewhere", "job", role="trainer", config={"lr": 0.1})
for step in range(20):
    run.log({"loss": step / 2}, step=step)
run.finish(timeout_s=300)
"""
RUN = RunInfo(run_id_of("elsewhere", "job"), "elsewhere", "job", Path())
NAMES = "wandb,mlflow,trackio"
UV = BIN / "uv"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with otel-bridge and none of its extras."""
    if not UV.exists():
        pytest.skip("uv is not installed in this environment")
    folder = tmp_path_factory.mktemp("core")
    python = folder / "env" / "bin" / "python"
    subprocess.run([UV, "build", "--quiet", "--wheel", "-o", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run(
        [UV, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True
    )
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", python, wheel], check=True
    )
    return python


def job_environment(root: Path, exporters: str = NAMES, **more: str) -> dict[str, str]:
    """Modules that stand for trackers in PYTHONPATH raise: they must not reach the bridge."""
    poison = root / "poison"
    poison.mkdir(exist_ok=True)
    (poison / "mlflow.py").write_text(
        "raise RuntimeError('the training program's own')"
    )
    env = environment(
        root / "runs",
        exporters,
        WANDB_MODE="offline",
        WANDB_DIR=str(root / "wandb"),
        **more,
    )
    return env | {
        "PYTHONPATH": str(poison),
        "MLFLOW_TRACKING_URI": mlflow_reading.database(root),
        "TRACKIO_DIR": str(root / "trackio"),
        "PATH": more.get("PATH", "/usr/bin:/bin"),
    }


def losses(root: Path, env: Mapping[str, str]) -> dict[str, list[float]]:
    shown = {
        "wandb": shown_runs.wandb_offline(root / "wandb", RUN.id),
        "mlflow": shown_runs.mlflow(env["MLFLOW_TRACKING_URI"], RUN),
        "trackio": shown_runs.trackio(root / "trackio", RUN),
    }
    return {name: sorted(one.series("trainer/loss")) for name, one in shown.items()}


def train(
    python: Path, root: Path, env: Mapping[str, str], *before: str
) -> subprocess.CompletedProcess[str]:
    command = [*before, str(python), str(script(root / "train.py", JOB))]
    return subprocess.run(
        command,
        env=dict(env),
        cwd=root,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def everything() -> dict[str, list[float]]:
    return {
        name: [step / 2 for step in range(20)]
        for name in ("wandb", "mlflow", "trackio")
    }


def test_a_bridge_of_another_environment_delivers_to_every_tracker(
    core: Path, tmp_path: Path
) -> None:
    env = job_environment(
        tmp_path, OTEL_BRIDGE_PYTHON=sys.executable, OTEL_BRIDGE_QUIET="0"
    )

    with no_bridge_left(tmp_path):
        done = train(core, tmp_path, env)
        until(lambda: ended(tmp_path / "runs"))

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert f"the bridge runs in another environment: {sys.executable}" in done.stderr
    assert losses(tmp_path, env) == everything()


def test_a_launcher_of_another_environment_delivers(core: Path, tmp_path: Path) -> None:
    env = job_environment(tmp_path)
    del env["PYTHONPATH"], env["OTEL_BRIDGE_EXPORTERS"]

    done = train(
        core, tmp_path, env, str(BIN / "otel-bridge"), "run", "--exporters", NAMES, "--"
    )

    assert done.returncode == 0, done.stderr
    assert losses(tmp_path, env) == everything()


def test_what_is_held_is_drained_from_another_environment(
    core: Path, tmp_path: Path
) -> None:
    env = job_environment(tmp_path, OTEL_BRIDGE_OFFLINE="1")

    done = train(core, tmp_path, env)
    drained = subprocess.run(
        [BIN / "otel-bridge", "drain", tmp_path / "runs"],
        env={name: value for name, value in env.items() if name not in {"PYTHONPATH", "OTEL_BRIDGE_OFFLINE"}},
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip

    assert (done.returncode, drained.returncode) == (0, 0), done.stderr + drained.stderr
    assert losses(tmp_path, env) == everything()


def test_a_service_of_another_environment_delivers(core: Path, tmp_path: Path) -> None:
    env = job_environment(tmp_path)
    served = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    served |= {"OTEL_BRIDGE_DIR": str(tmp_path / "served"), "PATH": CLEAN["PATH"]}

    with (
        service(tmp_path, served, "--exporters", NAMES) as running,
        no_bridge_left(tmp_path),
    ):
        sent = {
            "OTEL_BRIDGE_EXPORTERS": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": running.http,
        }
        done = train(core, tmp_path, env | sent)
        until(lambda: ended(tmp_path / "served"))
        running.end()

    assert done.returncode == 0, done.stderr
    assert losses(tmp_path, env) == everything()


def test_an_environment_that_lacks_a_tracker_too_is_an_error_of_init_that_says_what_to_do(
    core: Path, tmp_path: Path
) -> None:
    for more in ({"PATH": f"{BIN}:/usr/bin:/bin"}, {"OTEL_BRIDGE_PYTHON": str(core)}):
        done = train(core, tmp_path, job_environment(tmp_path, **more))

        assert done.returncode == 1
        assert "MissingExtraError" in done.stderr
        assert "pip install" in done.stderr
        assert ("uv tool install 'otel-bridge[" in done.stderr) is True
