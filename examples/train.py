"""The smallest training script: OTEL_BRIDGE_EXPORTERS=trackio python examples/train.py"""

import math

import otel_bridge

run = otel_bridge.init(project="hello", name="first", config={"lr": 1e-3})
for step in range(1, 101):
    run.log({"loss": math.exp(-step / 30), "lr": 1e-3 * (1 - step / 100)}, step=step)
run.finish()
