"""Rewards for every sample of a batch of which the emitter kept a few: those of the others are only counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.e2e_jobs import environment, lines, run, script, status, until

JOB = """
import sys, otel_bridge

first, how = sys.argv[1] == "rewards first", sys.argv[2]
run = otel_bridge.init("rewards", "job", role="trainer")
names = [f"sample-{number}" for number in range(64)]
later = {name: number / 4 for number, name in enumerate(names)}
if first:
    run.log_rewards(later, name="judge")
if how == "rollouts":
    asked = {name: [{"role": "user", "content": name}] for name in names}
    run.log_rollouts([otel_bridge.Rollout(asked[name], reward=1.0, id=name) for name in names], step=3)
else:
    run.log_generations(prompts=names, responses=names, rewards=[1.0] * 64, ids=names, step=3)
if not first:
    run.log_rewards(later, name="judge")
run.finish(timeout_s=300)
"""


@pytest.mark.parametrize("how", ["rollouts", "generations"])
@pytest.mark.parametrize("order", ["rewards first", "rollouts first"])
def test_rewards_of_rollouts_that_the_emitter_left_out_are_counted_and_not_sent(
    tmp_path: Path, order: str, how: str
) -> None:
    base = tmp_path / "runs"
    env = environment(
        base, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4", OTEL_BRIDGE_TRACE_TIMEOUT_S="1"
    )

    done = run(script(tmp_path / "train.py", JOB), env, order, how)
    until(lambda: status(base))

    shown = lines(base)
    rollouts = {
        line["id"]: line["rewards"] for line in shown if line["kind"] == "rollout"
    }
    values = {
        line["rollout_id"]: line["value"]
        for line in shown
        if line["kind"] == "evaluation"
    }
    assert done.returncode == 0, done.stderr
    assert len(rollouts) == 4
    assert (
        len(
            {*values, *(one for one, rewards in rollouts.items() if "judge" in rewards)}
        )
        == 4
    )
    assert set(values) <= set(rollouts)
