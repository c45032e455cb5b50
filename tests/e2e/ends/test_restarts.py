"""A job that is killed, started again and finished has finished in its trackers."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    statuses,
)

JOB = """
    import os, signal, sys
    import otel_bridge
    role = sys.argv[1] or None
    run = otel_bridge.init("maths", "ppo", id="ppo-1", role=role, exporters="file")
    for step in range(int(sys.argv[2]), int(sys.argv[2]) + 3):
        run.log({"loss": step / 2}, step=step)
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("role", ["trainer", pytest.param("", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "how", ["live", pytest.param("drained", marks=pytest.mark.long)]
)
def test_a_job_that_was_killed_and_started_again_has_finished(
    tmp_path: Path, role: str, how: str, rounds: int
) -> None:
    job = program(tmp_path, "job.py", JOB)

    def play(number: int) -> str:
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        env = environment(
            folder, **({"OTEL_BRIDGE_OFFLINE": "1"} if how == "drained" else {})
        )
        call([sys.executable, job, role, "1", "dies"], cwd=folder, env=env)
        again = call([sys.executable, job, role, "4", "finishes"], cwd=folder, env=env)
        if how == "drained":
            otel_bridge("drain", cwd=folder, env=environment(folder))
        assert again.returncode == 0, again.stderr
        base = folder / ".otel-bridge"
        return f"{ended(base).status} {statuses(only_folder(base))[-1]}"

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(play, range(rounds)))

    assert seen == ["finished finished"] * rounds
