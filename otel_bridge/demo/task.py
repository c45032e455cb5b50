"""The task: arithmetic with a calculator that does one operation at a time; answers can be checked.

The policy sees ``3 + 4 * 2 - 5`` and must reduce it by tool calls in the order that precedence
demands, then answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mul, sub

import numpy as np

_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}
OPERATORS = tuple(_OPERATIONS)
OPERANDS = 5


@dataclass(frozen=True, slots=True)
class Expression:
    """Holds numbers with an operator between each two: ``len(operators) == len(numbers) - 1``."""

    numbers: tuple[int, ...]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        parts = [str(self.numbers[0])]
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            parts += [operator, str(number)]
        return " ".join(parts)

    def operation(self, index: int) -> str:
        """Return the operation at *index* as text."""
        return (
            f"{self.numbers[index]} {self.operators[index]} {self.numbers[index + 1]}"
        )

    def reduced(self, index: int) -> Expression:
        """Return the expression after the operation at *index* was done."""
        value = calculate(
            self.numbers[index], self.operators[index], self.numbers[index + 1]
        )
        return Expression(
            numbers=(*self.numbers[:index], value, *self.numbers[index + 2 :]),
            operators=(*self.operators[:index], *self.operators[index + 1 :]),
        )

    @property
    def value(self) -> int:
        """Return the right answer: products first, then from the left."""
        rest = self
        while "*" in rest.operators:
            rest = rest.reduced(rest.operators.index("*"))
        while rest.operators:
            rest = rest.reduced(0)
        return rest.numbers[0]


def calculate(left: int, operator: str, right: int) -> int:
    """Do one operation, of `OPERATORS`: the calculator tool."""
    return _OPERATIONS[operator](left, right)


def problems(count: int, rng: np.random.Generator) -> list[Expression]:
    """Draw *count* expressions of `OPERANDS` numbers from 2 to 9."""
    drawn: list[Expression] = []
    for _ in range(count):
        numbers: list[int] = rng.integers(2, 10, OPERANDS).tolist()
        operators: list[str] = rng.choice(OPERATORS, OPERANDS - 1).tolist()
        drawn.append(Expression(tuple(numbers), tuple(operators)))
    return drawn


def prompt(expression: Expression) -> str:
    """Return what the policy is asked."""
    return f"What is {expression}? Use the calculator, one operation a call, and then give the number."


def rewards(expression: Expression, answer: int, left: int) -> dict[str, float]:
    """Score an episode: 1 for the right answer, 0.2 for an answer with no operation left (of *left*) to do."""
    return {
        "correct": float(answer == expression.value),
        "finished": 0.2 * (left == 0),
    }
