"""A seeded training script ends with the same random states with telemetry and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.e2e_jobs import (
    ended,
    environment,
    lines,
    no_bridge_left,
    run,
    script,
    until,
)

pytestmark = pytest.mark.slow

TRAINING = """
import hashlib, random, sys
import numpy as np
try:
    import torch
except ImportError:
    torch = None
random.seed(7)
np.random.seed(7)
if torch is not None:
    torch.manual_seed(7)
import otel_bridge

generator = np.random.default_rng(7)
run = otel_bridge.init(role="trainer", config={"lr": 0.1}, system_metrics=True, otel=True)
weights = np.zeros(16)
for step in range(200):
    gradient = np.random.normal(size=16) + generator.normal(size=16)
    weights -= 0.1 * (gradient if random.random() < 0.5 else np.random.permutation(gradient))
    run.log({"loss": float(weights.sum()), "weights": weights, "actor": {"lr": 0.1}}, step=step)
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": str(random.randrange(9))}]
    batch = [otel_bridge.Rollout(messages, reward=random.random(), group=f"g{n % 4}") for n in range(40)]
    run.log_rollouts(batch, step=step)
    with run.rollout(step=step) as rollout, otel_bridge.chat("policy"), otel_bridge.tool("calculator"):
        rollout.reward = random.random()
    run.log_generations(prompts=["2 + 2?"], responses=["4"], rewards=[random.random()], step=step, split="eval")
    run.log_reward(rollout.id, random.random())
    if step % 50 == 0:
        run.flush(300)
run.finish(timeout_s=300)
states = [repr(random.getstate()), repr(np.random.get_state()), repr(generator.bit_generator.state), weights.tobytes()]
if torch is not None:
    states.append(torch.get_rng_state().numpy().tobytes())
print(hashlib.sha256(repr(states).encode()).hexdigest(), len(states))
"""


@pytest.mark.long
def test_a_seeded_script_ends_with_the_same_states_with_telemetry_and_without(
    tmp_path: Path,
) -> None:
    code = script(tmp_path / "train.py", TRAINING)
    on, held = tmp_path / "on", tmp_path / "held"
    without = TRAINING.replace(
        "import otel_bridge\n",
        "import unittest.mock\notel_bridge = unittest.mock.MagicMock()\n",
    )
    bare = script(tmp_path / "bare.py", without)
    with no_bridge_left(tmp_path):
        done = [
            run(code, environment(on)),
            run(code, environment(held, OTEL_BRIDGE_OFFLINE="1")),
            run(code, environment(tmp_path / "off", "none")),
            run(bare, environment(tmp_path / "bare", "none")),
        ]
        until(lambda: ended(on))

    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 4
    assert len({one.stdout for one in done}) == 1
    assert len([line for line in lines(on) if line["kind"] == "rollout"]) > 200
    assert not (tmp_path / "off").exists()
