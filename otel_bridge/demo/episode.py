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
        decisions: Tool calls, and last the answer.
        messages: OpenAI chat shape.
        tokens: Text of each decision, the tokens of this policy.
        rewards: Reward by part.
    """

    id: str
    group: int
    policy_version: int
    decisions: list[Decision]
    messages: list[Message]
    tokens: list[str]
    rewards: dict[str, float]

    @property
    def calls(self) -> int:
        """Return the number of tool calls: each decision but the last one."""
        return len(self.decisions) - 1

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
) -> Episode:
    """Play one episode until the policy answers; without *rng* the likeliest action is taken each time.

    It ends: each tool call leaves an operation less, and without any only the answer is possible.
    An answer that comes too early is what is left, added up, which is right only by luck.
    """
    messages: list[Message] = [{"role": "user", "content": prompt(expression)}]
    decisions: list[Decision] = []
    tokens: list[str] = []
    rest = expression
    while True:
        decision = policy.decide(rest, rng)
        decisions.append(decision)
        # The last action is the answer; the others are places of an operation.
        if decision.action == len(decision.mask) - 1:
            break
        messages += _tool_turn(rest, decision.action, call_id=f"call_{len(tokens)}")
        tokens.append(f"[{rest.operation(decision.action)}] ")
        rest = rest.reduced(decision.action)
    answer = sum(rest.numbers)
    messages.append({"role": "assistant", "content": f"The answer is {answer}."})
    tokens.append(f"= {answer}")
    parts = rewards(expression, answer, len(rest.operators))
    return Episode(
        rollout_id, group, policy.version, decisions, messages, tokens, parts
    )


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
