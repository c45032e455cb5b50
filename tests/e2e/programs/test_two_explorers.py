"""Two explorers of one role, one six times as fast: what is kept and counted depends on the job, not on the pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trainers import e2e_jobs as jobs

STEPS = 6
EXPLORER = """
import sys, time, otel_bridge

name, pace_s = sys.argv[1], float(sys.argv[2])
run = otel_bridge.init("explorers", "two", role="explorer")
print("ready", flush=True)
sys.stdin.readline()
for step in range(STEPS):
    time.sleep(pace_s)
    best = 1.0 if name == "b" else 0.5
    samples = [
        {"id": f"{name}-{step}-{n}", "messages": "q", "group": f"{name}{step}", "reward": best - n / 10}
        for n in range(4)
    ]
    if name == "b":
        samples[1]["error"] = "the sandbox died"
    run.log_rollouts(samples, step=step)
run.finish()
""".replace("STEPS", str(STEPS))


def kept_of(
    base: Path, paces: dict[str, str]
) -> tuple[list[tuple[int, str, float]], list[tuple[int, int, float]]]:
    """Run both explorers; return the kept rollouts, and number and mean reward of each point of the statistics."""
    file = jobs.script(base.parent / f"{base.name}.py", EXPLORER)
    env = jobs.environment(base, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4")
    workers = [jobs.start(file, env, name, pace) for name, pace in paces.items()]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    assert [worker.wait(60) for worker in workers] == [0, 0]
    jobs.until(lambda: jobs.status(base))
    lines: list[dict[str, Any]] = jobs.lines(base)  # type: ignore[assignment]
    rollouts = sorted(
        (line["step"], line["id"], line["reward"])
        for line in lines
        if line["kind"] == "rollout"
    )
    points = [
        (
            line["step"],
            line["values"]["explorer/rollouts/total"],
            line["values"]["explorer/rollouts/reward/mean"],
        )
        for line in lines
        if line["kind"] == "row" and "explorer/rollouts/total" in line["values"]
    ]
    return rollouts, sorted(points)


@pytest.mark.slow
def test_of_two_explorers_of_different_pace_the_same_rollouts_are_kept_and_each_step_is_counted_once(
    tmp_path: Path,
) -> None:
    kept, points = kept_of(tmp_path / "slow", {"a": "0.1", "b": "0.6"})
    same, _ = kept_of(tmp_path / "fast", {"a": "0.3", "b": "0.02"})

    assert [(step, total, round(mean, 6)) for step, total, mean in points] == [
        (n, 8, 0.6) for n in range(STEPS)
    ]
    best = {
        step: max(reward for at, _, reward in kept if at == step)
        for step in range(STEPS)
    }
    assert best == dict.fromkeys(range(STEPS), 1.0)
    assert kept == same
