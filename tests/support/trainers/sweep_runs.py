"""Programs of W&B's sweeps, run with the real agents against the stand-in server, captured or not."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from otel_bridge.journal.folder import RunFolder, run_folders
from support.trackers.wandb_backend.server import ENTITY, WandbServer
from support.trackers.wandb_backend.state import WandbRun
from support.trackers.wandb_backend.sweeps import WandbSweep
from support.trainers.command_runs import (
    BIN,
    call,
    environment,
    program,
    records,
    runs,
    values,
)

FAST = {"OTEL_BRIDGE_WANDB_TRANSMIT_S": "1", "OTEL_BRIDGE_WANDB_POLL_S": "0.1"}
_OWN = ("_", "step")
AGENT = """
import sys, wandb
from wandb.agents import pyagent
pyagent.Agent.HEARTBEAT_SLEEP_SECONDS = 0.05
{train}
wandb.agent(sys.argv[1], function=train, count=3)
"""
"""A program whose function `train` is called by an agent for each trial; its argument is the sweep."""


@dataclass(frozen=True, slots=True)
class SweepRuns:
    """A folder and server, on which a sweep's program runs.

    Attributes:
        exporters: Of ``otel-bridge run --capture wandb``; empty: the program runs with the real package alone.
    """

    folder: Path
    server: WandbServer
    exporters: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def create(self, **config: Any) -> str:
        """Make a sweep on the server; returns its path."""
        made = self.server.resolver.sweeps.upsert(
            {"projectName": "swept", "config": yaml.safe_dump(config)}
        )
        return f"{ENTITY}/swept/{made['upsertSweep']['sweep']['name']}"

    def command(self, *command: str) -> list[str]:
        """Return *command*, captured if so chosen."""
        capture = [
            "otel-bridge",
            "run",
            "--exporters",
            self.exporters,
            "--capture",
            "wandb",
            "--",
        ]
        head, *rest = [*(capture if self.exporters else []), *command]
        return [str(BIN / head), *rest]

    def program(self, train: str, whole: str = AGENT) -> str:
        """Write a program around the function `train`; returns its path."""
        return program(
            self.folder, "train.py", whole.format(train=textwrap.dedent(train))
        )

    def environment(self) -> dict[str, str]:
        """Return the variables of the program."""
        return environment(
            self.folder, **self.server.environment(), **FAST, **self.variables
        )

    def call(self, *command: str, code: int = 0) -> str:
        """Run *command* to its end; returns what it printed on both streams."""
        done = call(self.command(*command), cwd=self.folder, env=self.environment())
        assert done.returncode == code, done.stderr
        assert (self.server.errors, self.server.resolver.unknown) == ([], [])
        assert not self.exporters or set(self.recorded()) == set(self.sweep().trials)
        return done.stdout + done.stderr

    # --- what is there afterwards -------------------------------------------------------------------------------------

    def sweep(self) -> WandbSweep:
        """The one sweep of the server."""
        (found,) = self.server.resolver.sweeps.sweeps.values()
        return found

    def at_server(self) -> dict[str, WandbRun]:
        """The server's runs by id."""
        return {run.id: run for run in self.server.store.runs.values()}

    def sent(self, names: Sequence[str] = ("UpsertBucket", "file_stream")) -> list[str]:
        """What the server got of runs: upserts and history."""
        return [
            one.name for one in self.server.received if one.name.endswith(tuple(names))
        ]

    def recorded(self) -> dict[str, RunFolder]:
        """The run folders by run id."""
        return {folder.run_id: folder for folder in run_folders(runs(self.folder))}

    def recorded_points(self) -> dict[str, dict[str, list[tuple[int | None, Any]]]]:
        """What ``file`` wrote: run id to key to steps and values."""
        return {run_id: values(folder) for run_id, folder in self.recorded().items()}

    def recorded_configs(self) -> dict[str, dict[str, Any]]:
        """What ``file`` wrote: run id to config."""
        found: dict[str, dict[str, Any]] = {}
        for run_id, folder in self.recorded().items():
            for record in records(folder):
                found.setdefault(run_id, {}).update(
                    record.get("config", {}) if record["kind"] == "config" else {}
                )
        return found


def points(run: WandbRun) -> dict[str, list[tuple[int, Any]]]:
    """Key to steps and values of a run at the server, without what is not the program's."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for at, row in enumerate(run.history):
        for key, value in row.items():
            if not key.startswith(_OWN):
                found.setdefault(key, []).append((at, value))
    return found


def shown(run: WandbRun) -> dict[str, Any]:
    """What W&B shows of a run."""
    return {
        "sweep": run.sweep, "state": run.state, "name": run.display_name, "group": run.group, "config": run.config,
        "points": points(run), "last": (run.derived | run.summary).get("loss"),
    }  # fmt: skip
