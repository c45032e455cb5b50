"""Workers of one role that start one after another: one attempt, and each step is counted once."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.trainers import e2e_jobs as jobs

WORKER = """
import sys, otel_bridge

name = sys.argv[1]
run = otel_bridge.init("explorers", "late", role="explorer")
print("ready", flush=True)
for line in sys.stdin:
    step = int(line)
    run.log_rollouts([{"id": f"{name}-{step}-{n}", "messages": "q", "reward": n / 8} for n in range(8)], step=step)
    print("sent", flush=True)
run.finish()
"""


class Worker:
    """A process of the role ``explorer`` that sends eight rollouts of each step that it is given."""

    def __init__(self, file: Path, env: Mapping[str, str], name: str) -> None:
        self.process: subprocess.Popen[bytes] = jobs.start(file, env, name)
        self.answers(b"ready\n")

    def answers(self, expected: bytes) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == expected

    def send(self, *steps: int) -> None:
        assert self.process.stdin is not None
        for step in steps:
            self.process.stdin.write(b"%d\n" % step)
            self.process.stdin.flush()
            self.answers(b"sent\n")

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(jobs.WAIT_S) == 0


def environment(base: Path) -> dict[str, str]:
    """A start-up time that no slow machine exceeds; the end of the run ends it."""
    return jobs.environment(base, OTEL_BRIDGE_STEP_STARTUP_S="600")


def points(base: Path) -> list[tuple[object, ...]]:
    """Step, attempt, total and kept of each point of the statistics."""
    jobs.until(lambda: jobs.status(base))
    rows = [
        line
        for line in jobs.lines(base)
        if line["kind"] == "row" and "explorer/rollouts/total" in line["values"]
    ]
    return [
        (
            row["step"],
            row["attempt"],
            row["values"]["explorer/rollouts/total"],
            row["values"]["explorer/rollouts/kept"],
        )
        for row in rows
    ]


@pytest.mark.slow
def test_a_worker_that_starts_when_another_has_passed_the_first_step_shares_that_step(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"
    file, env = jobs.script(tmp_path / "worker.py", WORKER), environment(base)

    first = Worker(file, env, "a")
    first.send(1, 2)
    second = Worker(file, env, "b")
    second.send(1, 2)
    first.finish()
    second.finish()

    assert points(base) == [(1, 1, 16, 16), (2, 1, 16, 16)]


@pytest.mark.slow
def test_three_workers_of_which_one_ended_before_another_started_share_the_seats_of_a_step(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"
    file, env = jobs.script(tmp_path / "worker.py", WORKER), environment(base)

    silent, brief = Worker(file, env, "silent"), Worker(file, env, "brief")
    brief.send(1, 2)
    brief.finish()
    late = Worker(file, env, "late")
    late.send(1, 2)
    silent.send(1, 2)
    late.finish()
    silent.finish()

    assert points(base) == [(1, 1, 24, 16), (2, 1, 24, 16)]
