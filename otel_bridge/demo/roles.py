"""The three roles of the demo job. Everything they say, they say through the public interface of otel-bridge.

``python -m otel_bridge.demo.roles trainer --exchange DIR --steps 100``: start them by hand, in any
order. An exception in a role ends its run as failed, by its ``with``, and its process with exit
code 1, by which `Job` stops the other roles; started by hand, they wait until the file ``stop`` is
in DIR.
"""

from __future__ import annotations

import argparse
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import otel_bridge
from otel_bridge.demo.episode import MODEL, Episode, play
from otel_bridge.demo.exchange import Exchange
from otel_bridge.demo.learning import group_advantages, train
from otel_bridge.demo.policy import Policy
from otel_bridge.demo.task import Expression, problems

PROMPTS = 16
SAMPLES = 8
FINISHED = "stop"
"""Finish reason of each episode: the policy ends all of them itself."""
LEARNING_RATE = 3.0
HELD_OUT = 64
EVALUATE_EVERY = 5
TOKENS_EVERY = 5
"""Steps from one whose tokens are recorded to the next: each rollout that trackers show has eight figures of them."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Holds what one explorer does, by its rank.

    Attributes:
        groups: The prompts of a step that it answers.
        step_s: What sampling a step takes at least: a policy worth training is slower than this one
            of 69 weights.
        behind: How many versions its policy is behind the newest one.
    """

    groups: range
    step_s: float
    behind: int


WORKERS = (
    Worker(range(5), step_s=0.25, behind=0),
    Worker(range(5, PROMPTS), step_s=0.5, behind=1),
)
"""The second explorer is slow and stale, so that trackers show how that looks.

It also has most of the work, so that it is the slow one on a busy machine too.
"""


def explore(exchange: Exchange, steps: int, seed: int, rank: int) -> None:
    """Sample answers: `SAMPLES` for each of a worker's prompts a step.

    Ends after *steps*, or when the job stops, also before the first policy. A worker waits while
    two of its batches are unused: its rollouts would only get staler.
    """
    worker = WORKERS[rank]
    # A stream for each explorer, or both would sample the same problems.
    rng = np.random.default_rng([seed, 1, rank])
    config = {"prompts": PROMPTS, "samples": SAMPLES, "model": MODEL}
    with otel_bridge.init(role="explorer", rank=rank, config=config) as run:
        # The roles start in any order, and only the trainer makes the first policy.
        policy = exchange.await_policy(0)
        for step in range(1, steps + 1):
            policy = exchange.policy(worker.behind) or policy
            if policy is None or exchange.stopped:
                return
            began = time.monotonic()
            with run.phase("generate", step=step):
                episodes = _rollouts(run, policy, worker.groups, rng, step)
                # Within the phase: it stands for the time that a larger model would take.
                time.sleep(max(worker.step_s - (time.monotonic() - began), 0))
            elapsed_s = time.monotonic() - began
            if step % TOKENS_EVERY == 0:
                _annotate(run, episodes, step)
            run.log(
                {
                    "reward/mean": np.mean([episode.reward for episode in episodes]),
                    **_scores(episodes),
                    "rollouts_per_s": len(episodes) / elapsed_s,
                    "policy_version": policy.version,
                },
                step=step,
            )
            exchange.put_batch(step, rank, episodes)
            with run.phase("wait_for_room", step=step):
                exchange.wait_for_room(rank, 2)


def _scores(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the share of right answers and the mean number of tool calls of *episodes*, at least one."""
    correct = 0.0
    calls = 0
    for episode in episodes:
        correct += episode.rewards["correct"]
        calls += episode.calls
    return {
        "accuracy": correct / len(episodes),
        "tool_calls_mean": calls / len(episodes),
    }


def _annotate(run: otel_bridge.Run, episodes: Sequence[Episode], step: int) -> None:
    """Record the tokens that the policy sampled, with its log-probabilities."""
    ids: list[str] = []
    token_ids: list[Sequence[int]] = []
    logprobs: list[Sequence[float]] = []
    tokens: list[Sequence[str]] = []
    for episode in episodes:
        _, _, actions, log_probs = zip(*episode.decisions, strict=True)
        ids.append(episode.id)
        token_ids.append(actions)
        logprobs.append(log_probs)
        tokens.append(episode.tokens)
    run.annotate(ids, step=step, token_ids=token_ids, logprobs=logprobs, tokens=tokens)


def _rollouts(
    run: otel_bridge.Run,
    policy: Policy,
    groups: range,
    rng: np.random.Generator,
    step: int,
) -> list[Episode]:
    """Sample `SAMPLES` answers to a new problem for each of *groups*."""
    episodes: list[Episode] = []
    for group, expression in zip(groups, problems(len(groups), rng), strict=True):
        for sample in range(SAMPLES):
            episode = _rollout(
                run, policy, expression, rng, step=step, group=group, sample=sample
            )
            episodes.append(episode)
    return episodes


def _rollout(
    run: otel_bridge.Run,
    policy: Policy,
    expression: Expression,
    rng: np.random.Generator,
    *,
    step: int,
    group: int,
    sample: int,
) -> Episode:
    """Play one episode as a rollout with its messages, reward and facts.

    An exception marks it as failed.
    """
    # Trainer and explorers name the same rollout by its id.
    rollout_id = f"{step}-{group}-{sample}"
    with run.rollout(
        id=rollout_id,
        step=step,
        group=f"{step}-{group}",
        sample=sample,
        split="train",
        policy_version=policy.version,
    ) as rollout:
        episode = play(policy, expression, rollout_id=rollout_id, group=group, rng=rng)
        rollout.messages = episode.messages
        rollout.reward = episode.reward
        rollout.rewards.update(episode.rewards)
        rollout.finish_reason = FINISHED
        rollout.metadata.update(expression=str(expression), answer=expression.value)
    return episode


def learn(exchange: Exchange, steps: int, seed: int, rank: int) -> None:  # noqa: ARG001
    """Train on each batch with group-relative advantages and publish the new weights.

    Ends after *steps*, and then stops the job for all roles, or when the job stops before the
    batches of a step are there, because another role has failed.
    """
    config = {
        "algorithm": "grpo",
        "lr": LEARNING_RATE,
        "seed": seed,
        "batch": PROMPTS * SAMPLES,
    }
    with otel_bridge.init(role="trainer", config=config) as run:
        policy = Policy()
        # Before the first step: the explorers wait for it.
        exchange.put_policy(policy)
        for step in range(1, steps + 1):
            with run.phase("wait_for_batch", step=step):
                episodes = exchange.take_batch(step, len(WORKERS))
            if episodes is None:
                return
            ids = [episode.id for episode in episodes]
            groups = [episode.group for episode in episodes]
            rewards = np.asarray([episode.reward for episode in episodes])
            with run.phase("train", step=step):
                advantages = group_advantages(rewards, groups)
                weights, update = train(
                    policy.weights, episodes, advantages, lr=LEARNING_RATE
                )
            run.train_on(step, ids)
            if step % TOKENS_EVERY == 0:
                run.annotate(
                    ids,
                    step=step,
                    trainer_logprobs=update.log_probs,
                    entropies=update.entropies,
                )
            oldest = min(episodes, key=operator.attrgetter("policy_version"))
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
                    # Step n trains the policy of version n - 1.
                    "staleness": step - 1 - oldest.policy_version,
                    "advantages": advantages,
                },
                step=step,
            )
        # The trainer alone counts the steps of the job.
        exchange.stop()


def evaluate(exchange: Exchange, steps: int, seed: int, rank: int) -> None:  # noqa: ARG001
    """Score the `evaluated_versions` of the policy on problems that were never trained on.

    Ends with the last one, or when the job stops before it is published.
    """
    # A stream of its own: the same problems at each evaluation, and none that the explorers draw.
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
    """Play *held_out* with the likeliest actions, and record values and rollouts of the split ``eval``."""
    episodes: list[Episode] = []
    rollouts: list[otel_bridge.Rollout] = []
    for number, expression in enumerate(held_out):
        episode = play(policy, expression, group=number, rng=None)
        episodes.append(episode)
        rollouts.append(
            otel_bridge.Rollout(
                messages=episode.messages,
                reward=episode.reward,
                rewards=episode.rewards,
                group=f"problem-{number}",
                finish_reason=FINISHED,
                policy_version=policy.version,
                metadata={"expression": str(expression)},
            )
        )
    run.log({**_scores(episodes), "policy_version": policy.version}, step=step)
    run.log_rollouts(rollouts, step=step, split="eval")


ROLES: dict[str, Callable[[Exchange, int, int, int], None]] = {
    "trainer": learn,
    "explorer": explore,
    "evaluator": evaluate,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one role of the job. A wrong argument ends it with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument("--exchange", type=Path, default=Path("exchange"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", type=int, default=0, help="which of the explorers")
    arguments = parser.parse_args(argv)
    exchange = Exchange(arguments.exchange)
    ROLES[arguments.role](exchange, arguments.steps, arguments.seed, arguments.rank)


if __name__ == "__main__":
    main()
