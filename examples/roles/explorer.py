"""One of three programs of one job: samples answers and logs them as rollouts, on its own step counter."""

import random
import time

import otel_bridge

dice = random.Random(0)
with otel_bridge.init(project="hello", name="roles", role="explorer") as run:
    for step in range(1, 31):
        a, b = dice.randint(1, 9), dice.randint(1, 9)
        with run.rollout(
            step=step, group=f"{a}+{b}", policy_version=step - 1
        ) as rollout:
            with otel_bridge.tool(
                "calculator", arguments={"expression": f"{a}+{b}"}
            ) as tool:
                tool.result = a + b
            answer = a + b if dice.random() < step / 30 else a - b
            rollout.messages = [
                {"role": "user", "content": f"What is {a} + {b}?"},
                {"role": "assistant", "content": str(answer)},
            ]
            rollout.reward = float(answer == a + b)
        run.log({"reward": rollout.reward}, step=step)
        time.sleep(0.03)
