"""Machines that share one W&B run: each a process with its own wandb and run folder, of the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.trackers.wandb_backend.server import WandbServer
from support.waiting import HANG_S

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".venv-wandb-shared" / "bin" / "python"
ID = "one-run"
SHARED = {
    "OTEL_BRIDGE_WANDB_SHARED": "1",
    "OTEL_BRIDGE_ROLES": "trainer,explorer,judge",
    "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
    "OTEL_BRIDGE_WANDB_POLL_S": "0.1",
    "OTEL_BRIDGE_WANDB_INIT_TIMEOUT_S": "20",
    "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "20",
}
ROLES = {
    "trainer/step",
    "trainer/*",
    "explorer/step",
    "explorer/*",
    "judge/step",
    "judge/*",
}


class Machine:
    """A process of `support.trackers.wandb_shared.job`."""

    def __init__(
        self,
        server: WandbServer,
        folder: Path,
        node_rank: int,
        python: Path,
        **more: str,
    ) -> None:
        environment = {**server.environment(), **SHARED, **more}
        job = {
            "id": ID,
            "folder": str(folder),
            "node_rank": node_rank,
            "environment": environment,
        }
        paths = os.pathsep.join(str(ROOT / name) for name in ("", "exporters", "tests"))
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WANDB", "OTEL"))
        }
        self.process = subprocess.Popen(
            [python, "-m", "support.trackers.wandb_shared.job", json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**clean, **environment, "PYTHONPATH": paths},
        )  # fmt: skip
        self.opened: dict[str, Any] = self._answer()

    def do(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return json.loads(line)

    def settle(self) -> None:
        """Wait until the server names all that was written here."""
        until(lambda: len(set(self.do("durable"))) == 1)

    def kill(self) -> None:
        self.process.kill()
        self.said()

    def said(self) -> str:
        """End the process, as it ends by itself, and return what it warned of."""
        return self.process.communicate(timeout=HANG_S)[1]


Begin = Callable[..., Machine]


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer(features=("EXPAND_DEFINED_METRIC_GLOBS",)) as server:
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


@pytest.fixture
def begin(server: WandbServer, tmp_path: Path) -> Iterator[Begin]:
    if not PYTHON.exists():
        missing = f"{PYTHON.parent.parent.name} is missing, with a wandb of safe shared mode; `make test-long` makes it"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    machines: list[Machine] = []

    def start(name: str, node_rank: int, **more: str) -> Machine:
        machines.append(Machine(server, tmp_path / name, node_rank, PYTHON, **more))
        return machines[-1]

    yield start
    for machine in machines:
        machine.process.kill()
        machine.process.wait()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)
