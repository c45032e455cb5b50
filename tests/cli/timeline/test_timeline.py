"""``otel-bridge timeline`` of a real run: bars, the file for Perfetto, and wrong calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.trainers.command_runs import call, ended, environment, otel_bridge, program

JOB = """
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer")
    for step in range(30):
        with run.phase("generate", step=step), run.rollout(step=step, role="explorer") as rollout:
            with rollout.chat("policy", input="2 + 2?") as turn:
                turn.output = "4"
            rollout.reward = 1.0
        with run.phase("train", step=step), run.phase("forward"):
            pass
        run.log({"tokens_per_s": 100.0 + step}, step=step)
    run.finish()
"""

RANKS = """
    import multiprocessing
    import time
    import otel_bridge

    def work(rank, barrier):
        run = otel_bridge.init("maths", "ppo", role="trainer", rank=rank)
        for step in range(3):
            with run.phase("forward", step=step):
                time.sleep(0.7 if rank == 1 else 0.4)
            with run.phase("all_reduce", step=step):
                barrier.wait()
        run.finish()

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(3)
        ranks = [context.Process(target=work, args=(rank, barrier)) for rank in range(3)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job")
    done = call(
        [sys.executable, program(path, "job.py", JOB)],
        cwd=path,
        env=environment(path, OTEL_BRIDGE_EXPORTERS="file"),
    )
    assert done.returncode == 0, done.stderr
    ended(path / ".otel-bridge")
    return path


def timeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return otel_bridge(
        "timeline", *arguments, cwd=folder, env=environment(folder, COLUMNS="100")
    )


def test_the_last_steps_are_bars(folder: Path) -> None:
    done = timeline(folder, "ppo")

    assert done.returncode == 0, done.stderr
    assert "trainer\n" in done.stdout
    steps = [
        int(line.split()[0])
        for line in done.stdout.splitlines()
        if line[:8].strip().isdigit()
    ]
    assert steps == [*range(10, 30)]
    assert max(map(len, done.stdout.splitlines())) < 160


def test_the_rank_that_the_others_wait_for_is_named_and_not_those_that_wait(
    tmp_path: Path,
) -> None:
    done = call(
        [sys.executable, program(tmp_path, "ranks.py", RANKS)],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file"),
    )
    assert done.returncode == 0, done.stderr
    ended(tmp_path / ".otel-bridge")

    bars = timeline(tmp_path, "--steps", "1-2").stdout.splitlines()[2:]

    names = [re.findall(r"rank (\d+): .* in (\w+)", bar) for bar in bars]
    assert names == [[("1", "forward")]] * 2


def test_a_folder_in_place_of_the_run_is_searched_as_by_other_commands(
    folder: Path,
) -> None:
    done = timeline(folder.parent, str(folder), "--steps", "3-5")

    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["3", "4", "5"]


def test_some_steps_are_bars(folder: Path) -> None:
    done = timeline(folder, "--steps", "3-5")

    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["3", "4", "5"]


def test_the_file_has_all_steps(folder: Path) -> None:
    done = timeline(folder, "ppo", "-o", "run.json")

    assert done.returncode == 0, done.stderr
    assert "run.json" in done.stderr
    events = json.loads((folder / "run.json").read_text("utf-8"))["traceEvents"]
    spans = [event["name"] for event in events if event["ph"] == "X"]
    counts = {
        name: spans.count(name)
        for name in ("generate", "train", "forward", "chat policy")
    }
    assert counts == {"generate": 30, "train": 30, "forward": 30, "chat policy": 30}
    assert [
        event["args"]["value"]
        for event in events
        if event["name"] == "trainer/tokens_per_s"
    ] == [100.0 + step for step in range(30)]


def test_rollouts_without_phases_are_shown_by_the_file_alone(tmp_path: Path) -> None:
    script = """
        import otel_bridge

        with otel_bridge.init("maths", "ppo", role="explorer") as run, run.rollout(step=1) as rollout:
            rollout.reward = 1.0
    """
    job = call(
        [sys.executable, program(tmp_path, "job.py", script)],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file"),
    )
    assert job.returncode == 0, job.stderr
    ended(tmp_path / ".otel-bridge")

    bars = timeline(tmp_path)
    written = timeline(tmp_path, "-o", "run.json")

    assert (bars.returncode, bars.stdout, bars.stderr) == (
        1,
        "",
        "no phases, see docs/phases.md; -o FILE writes the rollouts\n",
    )
    assert written.returncode == 0
    assert (tmp_path / "run.json").exists()


def test_a_file_that_cannot_be_written_is_one_line(folder: Path) -> None:
    done = timeline(folder, "ppo", "-o", "missing/run.json")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "missing/run.json: No such file or directory" in done.stderr


@pytest.mark.parametrize("steps", ["x", "-", "3-x", "", f"3-{10**19}"])
def test_what_is_not_a_range_is_a_wrong_call(folder: Path, steps: str) -> None:
    done = timeline(folder, "--steps", steps)

    assert (done.returncode, "is not a range" in done.stderr) == (2, True)
