"""The three roles of the demo job. Everything they say, they say through the public interface of otel-bridge.

``python -m otel_bridge.demo.roles trainer --exchange DIR --steps 100``: start the three by hand, in any order.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

import otel_bridge
from otel_bridge.demo.episode import MODEL, Played, play
from otel_bridge.demo.exchange import Exchange
from otel_bridge.demo.learning import group_advantages, train
from otel_bridge.demo.policy import Policy
from otel_bridge.demo.task import Expression, accuracy, problems

PROMPTS: Final = 16
SAMPLES: Final = 8
LEARNING_RATE: Final = 3.0
HELD_OUT: Final = 64
EVALUATE_EVERY: Final = 5
TARGET_STEP_S: Final = 0.4
"""What sampling a step takes at least: a policy of any size worth training is slower than this one of 69 weights."""


def explore(exchange: Exchange, steps: int, seed: int) -> None:
    """Sample answers from the newest policy: `SAMPLES` for each of `PROMPTS` prompts a step."""
    rng = np.random.default_rng([seed, 1])
    with otel_bridge.init(
        role="explorer", config={"prompts": PROMPTS, "samples": SAMPLES, "model": MODEL}
    ) as run:
        policy = exchange.await_policy(0)
        for step in range(1, steps + 1):
            policy = exchange.policy() or policy
            if policy is None or exchange.stopped:
                return
            began = time.monotonic()
            with run.phase("generate", step=step):
                played = [
                    _rollout(run, policy, expression, rng, step=step, group=group, sample=sample)
                    for group, expression in enumerate(problems(PROMPTS, rng))
                    for sample in range(SAMPLES)
                ]
            elapsed_s = time.monotonic() - began
            run.log(
                {
                    "reward/mean": np.mean([one.episode.reward for one in played]),
                    "accuracy": accuracy([one.episode.correct for one in played]),
                    "tool_calls_mean": np.mean([one.calls for one in played]),
                    "rollouts_per_s": len(played) / elapsed_s,
                    "policy_version": policy.version,
                },
                step=step,
            )
            with run.phase("wait_for_trainer", step=step):
                exchange.put_batch(step, [one.episode for one in played])
                exchange.wait_for_room(2)
            time.sleep(max(TARGET_STEP_S - (time.monotonic() - began), 0))


def _rollout(
    run: otel_bridge.Run,
    policy: Policy,
    expression: Expression,
    rng: np.random.Generator,
    *,
    step: int,
    group: int,
    sample: int,
) -> Played:
    with run.rollout(
        id=_rollout_id(step, group, sample),
        step=step,
        group=f"{step}-{group}",
        sample=sample,
        split="train",
        policy_version=policy.version,
    ) as rollout:
        played = play(policy, expression, group=group, rng=rng)
        rollout.messages = played.messages
        rollout.reward = played.episode.reward
        rollout.rewards.update(played.parts)
        rollout.finish_reason = played.finish_reason
        rollout.metadata.update(expression=str(expression), answer=expression.value)
    return played


def _rollout_id(step: int, group: int, sample: int) -> str:
    """Return the id by which explorer and trainer name the same rollout."""
    return f"{step}-{group}-{sample}"


def learn(exchange: Exchange, steps: int, seed: int) -> None:
    """Train on each batch with group-relative advantages and publish the new weights."""
    config = {"algorithm": "grpo", "lr": LEARNING_RATE, "seed": seed, "batch": PROMPTS * SAMPLES}
    with otel_bridge.init(role="trainer", config=config) as run:
        policy = Policy()
        exchange.put_policy(policy)
        for step in range(1, steps + 1):
            with run.phase("wait_for_batch", step=step):
                episodes = exchange.take_batch(step)
            if episodes is None:
                return
            rewards = np.asarray([episode.reward for episode in episodes])
            with run.phase("train", step=step):
                advantages = group_advantages(rewards, [episode.group for episode in episodes])
                weights, update = train(policy.weights, episodes, advantages, lr=LEARNING_RATE)
            run.train_on(
                step,
                [
                    _rollout_id(step, group, sample)
                    for group in range(PROMPTS)
                    for sample in range(SAMPLES)
                ],
            )
            policy = Policy(weights, version=step)
            with run.phase("sync_weights", step=step):
                exchange.put_policy(policy)
            run.log(
                {
                    "loss": update.loss,
                    "entropy": update.entropy,
                    "kl": update.kl,
                    "clip_fraction": update.clip_fraction,
                    "grad_norm": update.grad_norm,
                    "reward": {"mean": rewards.mean(), "std": rewards.std()},
                    "staleness": step - 1 - min(episode.policy_version for episode in episodes),
                    "advantages": advantages,
                },
                step=step,
            )
        exchange.stop()


def evaluate(exchange: Exchange, steps: int, seed: int) -> None:
    """Score the `evaluated_versions` of the policy on problems that were never trained on."""
    held_out = problems(HELD_OUT, np.random.default_rng([seed, 2]))
    with otel_bridge.init(
        role="evaluator", config={"held_out": HELD_OUT, "every": EVALUATE_EVERY}
    ) as run:
        for step, version in enumerate(evaluated_versions(steps), 1):
            policy = exchange.await_policy(version)
            if policy is None:
                return
            _evaluation(run, policy, held_out, step)


def evaluated_versions(steps: int) -> Sequence[int]:
    """Return the versions of the policy that a job of *steps* evaluates, one for each step of the evaluator."""
    return [*range(0, steps, EVALUATE_EVERY), steps]


def _evaluation(
    run: otel_bridge.Run, policy: Policy, held_out: Sequence[Expression], step: int
) -> None:
    played = [
        play(policy, expression, group=group, rng=None) for group, expression in enumerate(held_out)
    ]
    values = {
        "accuracy": accuracy([one.episode.correct for one in played]),
        "tool_calls_mean": np.mean([one.calls for one in played]),
        "policy_version": policy.version,
    }
    run.log(values, step=step)
    run.log_rollouts(
        [
            otel_bridge.Rollout(
                messages=one.messages,
                reward=one.episode.reward,
                rewards=one.parts,
                group=f"problem-{number}",
                finish_reason=one.finish_reason,
                policy_version=policy.version,
                metadata={"expression": str(held_out[number])},
            )
            for number, one in enumerate(played)
        ],
        step=step,
        split="eval",
    )


ROLES: Final[dict[str, Callable[[Exchange, int, int], None]]] = {
    "trainer": learn,
    "explorer": explore,
    "evaluator": evaluate,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one role of the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument(
        "--exchange",
        type=Path,
        default=Path(os.environ.get("OTEL_BRIDGE_DEMO_EXCHANGE", "exchange")),
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    ROLES[arguments.role](Exchange(arguments.exchange), arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
