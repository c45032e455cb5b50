"""The recipes of docs/many-machines.md, with processes for other machines: no scheduler is here."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.bridge.gated_tracker import gated_lines, install
from support.trainers.command_runs import (
    call,
    environment,
    otel_bridge,
    program,
    values,
)

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "many-machines.md"
STAND_IN = '''
    """Ray's part in the recipe: an actor is a process of another machine, with what runtime_env gives it."""
    import json, os, subprocess, sys
    from otel_bridge.emit.config import child_env

    # 127.0.0.2 stands for an address that other machines reach.
    child_env.is_loopback = lambda host: host == "127.0.0.1"

    def remote(runtime_env):
        def actor(kind):
            code = "import otel_bridge; run = otel_bridge.init(); run.log({'reward': 0.5}, step=7); run.finish()"
            there = os.environ["ELSEWHERE"]
            away = {"PATH": os.environ["PATH"], "HOME": there, "OTEL_BRIDGE_DIR": there}
            subprocess.run([sys.executable, "-c", code], env={**runtime_env["env_vars"], **away}, check=True, cwd="/")
            return kind
        return actor
'''


def _block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[
        0
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.2", 0))
        port: int = found.getsockname()[1]
        return port


def test_ray_workers_with_the_env_of_the_driver_land_in_its_run(tmp_path: Path) -> None:
    program(tmp_path, "ray.py", STAND_IN)
    driver = program(tmp_path, "driver.py", _block("python"))
    (tmp_path / "elsewhere").mkdir()
    env = environment(
        tmp_path,
        OTEL_BRIDGE_TOKEN="t0ken-of-the-job",
        ELSEWHERE=str(tmp_path / "elsewhere"),
    )
    listen = f"127.0.0.2:{_free_port()}"

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--listen",
        listen,
        "--",
        "python",
        driver,
        cwd=tmp_path,
        env=env,
    )

    (folder,) = run_folders(tmp_path / ".otel-bridge")
    report = read_report(folder)
    assert report is not None
    assert (done.returncode, report.name, report.ended) == (0, "ppo-7b", True), (
        done.stderr
    )
    assert values(folder) == {"explorer/reward": [(7, 0.5)]}
    assert "t0ken-of-the-job" not in done.stdout + done.stderr


def _slurm_job(
    tmp_path: Path, exporter: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the recipe's script with *exporter* for a tracker and ``node`` for the disk of the first node."""
    port = _free_port()
    script = _block("bash").replace("--exporters wandb", f"--exporters {exporter}")
    script = script.replace("0.0.0.0:4317", f"127.0.0.2:{port}").replace(
        ":4317", f":{port}"
    )
    script = script.replace("/4317", f"/{port}")
    (tmp_path / "node").mkdir()
    for name, text in (
        ("scontrol", "echo 127.0.0.2"),
        ("srun", 'HOME=$PWD/away OTEL_BRIDGE_DIR=$PWD/away "$@"'),
    ):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/bash\n{text}\n")
        tool.chmod(0o755)
    program(tmp_path, "train.py", """
        import otel_bridge
        with otel_bridge.init(role="trainer") as run:
            run.log({"loss": 0.5}, step=1)
    """)  # fmt: skip
    slurm = {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    env = environment(
        tmp_path, **slurm, SLURM_TMPDIR=str(tmp_path / "node"), **variables
    )
    env["PATH"] = f"{tmp_path}:{env['PATH']}"

    return call(
        ["bash", "-e", program(tmp_path, "job.sh", script)], cwd=tmp_path, env=env
    )


def test_the_slurm_script_gathers_on_its_first_node_and_ends_with_everything_delivered(
    tmp_path: Path,
) -> None:
    done = _slurm_job(tmp_path, "file")

    (state,) = (tmp_path / "node").glob("*/otel-bridge-42")
    (folder,) = run_folders(state)
    assert done.returncode == 0, done.stderr
    assert values(folder) == {"trainer/loss": [(1, 0.5)]}
    assert "nothing remains" in done.stderr
    assert not (tmp_path / "otel-bridge-42").exists()


def test_what_the_slurm_job_could_not_deliver_leaves_the_node_and_is_drained(
    tmp_path: Path,
) -> None:
    extra = {"GATED_BLOCKED": "1", **install(tmp_path)}
    done = _slurm_job(tmp_path, "gated", **extra)
    shutil.rmtree(tmp_path / "node")
    (tmp_path / "gate").touch()

    drained = otel_bridge(
        "drain", "otel-bridge-42", cwd=tmp_path, env=environment(tmp_path, **extra)
    )

    assert (done.returncode, drained.returncode) == (0, 0), done.stderr + drained.stdout
    assert [line for line in gated_lines(tmp_path) if "loss" in line] == [
        "trainer/loss 1"
    ]
