"""A small job in two roles with rollouts of several turns and a tool, for pages that people look at.

``browser_job.py PICTURES_DIR`` takes the picture of one of its rollouts in MLflow.
"""

from __future__ import annotations

import base64
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from support.browser.browser_page import open_page
from support.browser.browser_pictures import BIN, served
from support.free_ports import free_port
from support.trainers.command_runs import ended, environment

PROJECT = "arithmetic"
KEYS = "^(trainer/loss|explorer/accuracy)$"
JOB = """
import otel_bridge

def call(name, arguments):
    return [{"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]

def talk(n, right):
    return [
        {"role": "system", "content": "You solve word problems. Use the calculator for every product."},
        {"role": "user", "content": f"A crate holds {n + 11} boxes of 24 pencils. How many pencils are in 7 crates?"},
        {"role": "assistant", "content": "First the boxes of all crates.", "tool_calls": call("calculator", f'{{"expression": "7 * {n + 11}"}}')},
        {"role": "tool", "tool_call_id": "call_1", "name": "calculator", "content": str(7 * (n + 11))},
        {"role": "assistant", "content": "Now the pencils.", "tool_calls": call("calculator", f'{{"expression": "{7 * (n + 11)} * 24"}}')},
        {"role": "tool", "tool_call_id": "call_1", "name": "calculator", "content": str(168 * (n + 11))},
        {"role": "assistant", "content": f"There are **{168 * (n + 11) if right else 24 * (n + 11)}** pencils."},
    ]

trainer = otel_bridge.init("arithmetic", "ppo-7b", role="trainer", config={"lr": 1e-6, "algorithm": "grpo"})
for step in range(40):
    trainer.log({"loss": 2.0 / (step + 1), "reward/mean": step / 40}, step=step)
    for sample in range(3):
        trainer.log({"accuracy": min(1.0, (3 * step + sample) / 100)}, step=3 * step + sample, role="explorer")
rollouts = [
    otel_bridge.Rollout(
        talk(n // 2, n % 2 == 0), reward=float(n % 2 == 0), rewards={"format": 1.0, "answer": float(n % 2 == 0)},
        group=f"crates-{n // 2 + 11}", sample=n % 2, advantage=0.5 if n % 2 == 0 else -0.5, finish_reason="stop",
        policy_version=39, metadata={"topic": "products"},
    )
    for n in range(6)
]
trainer.log_rollouts(rollouts, step=39)
trainer.finish()
"""  # noqa: E501


def do_job(folder: Path) -> tuple[Path, Path]:
    """Run the job into Trackio and MLflow; return Trackio's folder and MLflow's database."""
    store, database = folder / "store", folder / "mlflow.db"
    script = folder / "job.py"
    script.write_text(JOB, "utf-8")
    env = environment(
        folder,
        OTEL_BRIDGE_EXPORTERS="trackio,mlflow",
        TRACKIO_DIR=str(store),
        OTEL_BRIDGE_TRACKIO_ALL_SERIES="1",
        MLFLOW_TRACKING_URI=f"sqlite:///{database}",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=env,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    ended(folder / ".otel-bridge")
    return store, database


@contextmanager
def mlflow_ui(database: Path, folder: Path) -> Iterator[str]:
    """Serve MLflow's UI on the database."""
    port = free_port()
    command = [
        str(BIN / "mlflow"),
        "ui",
        "--backend-store-uri",
        f"sqlite:///{database}",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    env = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with served(command, port, folder, env) as address:
        yield address


def mlflow_places(database: Path) -> tuple[str, str]:
    """Return the paths, below MLflow's address, of the run and of a rollout with a reward of 1."""
    with closing(sqlite3.connect(database)) as sql:
        run, experiment = sql.execute(
            "SELECT run_uuid, experiment_id FROM runs"
        ).fetchone()
        (trace,) = sql.execute(
            "SELECT request_id FROM trace_info WHERE request_preview LIKE '%11 boxes%' AND request_id IN"
            " (SELECT trace_id FROM assessments WHERE name = 'reward' AND value = '1.0')"
        ).fetchone()
    where = f"/#/experiments/{experiment}/runs/{run}"
    return where, f"{where}/traces?selectedEvaluationId={trace}"


def main() -> None:
    """Take the picture, without what stands beside the rollout."""
    pictures = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _, database = do_job(folder)
        with (
            mlflow_ui(database, folder / "ui") as address,
            open_page(folder / "page", width=1400, height=900) as page,
        ):
            page.go(address + mlflow_places(database)[1])
            page.until(
                "document.body && document.body.innerText.includes('Outputs')",
                "the rollout",
            )
            time.sleep(2)
            clip = {"x": 0, "y": 0, "width": 980, "height": 900, "scale": 1}
            data = page.call("Page.captureScreenshot", format="png", clip=clip)["data"]
            (pictures / "mlflow-rollout.png").write_bytes(base64.b64decode(data))


if __name__ == "__main__":
    main()
