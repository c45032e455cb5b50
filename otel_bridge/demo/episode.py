"""Playing one episode: the policy reduces an expression by tool calls and answers; the conversation is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from otel_bridge.demo.policy import Decision, Policy
from otel_bridge.demo.task import Expression, calculate, prompt, rewards
from otel_bridge.records import Message

MODEL = "calculator-policy"


@dataclass(frozen=True, slots=True)
class Episode:
    """Holds one answer to a problem, with the conversation that led to it.

    Attributes:
        id: Id of its rollout; empty in an evaluation, where nothing refers to it.
        group: Number of the problem.
        policy_version: Version of the policy that decided.
        decisions: At least one.
        messages: OpenAI chat shape.
        tokens: Text of each decision, the tokens of this policy.
        rewards: Reward by part.
        calls: Tool calls made.
        finish_reason: ``stop``, or ``length`` when it ran out of turns.
    """

    id: str
    group: int
    policy_version: int
    decisions: list[Decision]
    messages: list[Message]
    tokens: list[str]
    rewards: dict[str, float]
    calls: int
    finish_reason: str

    @property
    def reward(self) -> float:
        """Return the reward: the sum of its parts."""
        return sum(self.rewards.values())


def play(
    policy: Policy,
    expression: Expression,
    *,
    rollout_id: str = "",
    group: int,
    rng: np.random.Generator | None,
    max_turns: int = 6,
) -> Episode:
    """Play one episode; without *rng* the likeliest action is taken each time, as an evaluation does.

    It ends with an answer, or after *max_turns* without one: then its reward is 0.
    """
    messages: list[Message] = [{"role": "user", "content": prompt(expression)}]
    decisions: list[Decision] = []
    tokens: list[str] = []
    rest = expression
    answer: int | None = None
    calls = 0
    for _ in range(max_turns):
        decision = policy.decide(rest, rng)
        decisions.append(decision)
        # The last action is the answer; the others are places of an operation.
        if decision.action == len(decision.mask) - 1:
            answer = rest.numbers[0] if not rest.operators else _guess(rest)
            messages.append(
                {"role": "assistant", "content": f"The answer is {answer}."}
            )
            tokens.append(f"= {answer}")
            break
        messages += _tool_turn(rest, decision.action, call_id=f"call_{calls}")
        tokens.append(f"[{rest.operation(decision.action)}] ")
        rest = rest.reduced(decision.action)
        calls += 1
    return Episode(
        rollout_id,
        group,
        policy.version,
        decisions,
        messages,
        tokens,
        rewards(expression, answer, len(rest.operators)),
        calls,
        "stop" if answer is not None else "length",
    )


def _guess(rest: Expression) -> int:
    """Return the answer given too early: what is left, added up, which is right only by luck."""
    return sum(rest.numbers)


def _tool_turn(rest: Expression, index: int, *, call_id: str) -> list[Message]:
    """Return the call of the calculator and its result, as OpenAI's chat API has them."""
    left = rest.numbers[index]
    operator = rest.operators[index]
    right = rest.numbers[index + 1]
    arguments = json.dumps({"left": left, "operator": operator, "right": right})
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "calculator", "arguments": arguments},
                }
            ],
        },
        {
            "role": "tool",
            "tool_call_id": call_id,
            "name": "calculator",
            "content": str(calculate(left, operator, right)),
        },
    ]
