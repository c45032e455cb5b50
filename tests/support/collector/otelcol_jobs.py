"""Trainers that know nothing but where OTLP goes, and what the bridge's exporter ``file`` holds of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import ExporterReport, read_report
from support.trainers.e2e_jobs import CLEAN, acked, script, start, until
from support.waiting import HANG_S

JOB = """
import time
name, role, acks = sys.argv[1], sys.argv[2], Acks(sys.argv[3])
run = otel_bridge.init("site", name, role=role, config={"lr": 0.1})
step = 0
while not os.path.exists(sys.argv[3] + ".stop"):
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    step += 1
    time.sleep(0.01)
run.finish(timeout_s=300)
"""


class Jobs:
    """Trainers of several runs, each with a folder of its own, as on machines of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = script(folder / "train.py", JOB, acknowledging=True)
        self._jobs: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, where: Mapping[str, object], role: str = "trainer"
    ) -> None:
        """Start a trainer that knows nothing but *where* OTLP goes."""
        known = {variable: str(value) for variable, value in where.items()}
        env = {
            **CLEAN,
            "OTEL_BRIDGE_DIR": str(self._machine(name, role)),
            "OTEL_BRIDGE_QUIET": "1",
            **known,
        }
        self._jobs[name, role] = start(
            self._code, env, name, role, str(self._folder / f"{name}-{role}")
        )

    def exporter(self, name: str) -> ExporterReport:
        """How the exporter ``otlp`` of a trainer's machine is."""
        folders = run_folders(self._machine(name, "trainer"))
        report = read_report(folders[0]) if folders else None
        return (
            ExporterReport()
            if report is None
            else report.exporters.get("otlp", ExporterReport())
        )

    def _machine(self, name: str, role: str) -> Path:
        return self._folder / f"machine-{name}-{role}"

    def acked(self, name: str, role: str = "trainer") -> int:
        return len(acked(self._folder / f"{name}-{role}"))

    def go_on(self) -> None:
        """Wait until each has logged some more rows."""
        goal = {who: self.acked(*who) + 50 for who in self._jobs}
        until(lambda: all(self.acked(*who) >= rows for who, rows in goal.items()))

    def finish(self) -> dict[tuple[str, str], int]:
        """End them all; returns how many rows each logged."""
        until(lambda: all(self.acked(*who) > 50 for who in self._jobs))
        for name, role in self._jobs:
            (self._folder / f"{name}-{role}.stop").touch()
        for (name, role), job in self._jobs.items():
            _, errors = job.communicate(timeout=HANG_S)
            assert job.returncode == 0, (name, role, errors)
        return {who: self.acked(*who) for who in self._jobs}


def held(base: Path, role: str = "trainer") -> dict[str, list[int]]:
    """Run id to the steps of the role's rows, as the bridge's exporter ``file`` holds them; whole lines only."""
    found: dict[str, list[int]] = {}
    for folder in run_folders(base):
        for file in sorted(folder.path.glob("file/records-*.jsonl")):
            for line in file.read_bytes().splitlines(keepends=True):
                record = json.loads(line) if line.endswith(b"\n") else {}
                if f"{role}/loss" in record.get("values", {}):
                    found.setdefault(folder.run_id, []).append(record["step"])
    return found
