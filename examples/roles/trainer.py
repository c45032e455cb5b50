"""One of three programs of one job: updates the policy, on its own step counter."""

import math
import time

import otel_bridge

with otel_bridge.init(
    project="hello", name="roles", role="trainer", config={"lr": 1e-3}
) as run:
    for step in range(1, 51):
        run.log({"loss": math.exp(-step / 20)}, step=step)
        time.sleep(0.02)
