"""Tests of the memory of forgotten steps."""

from __future__ import annotations

from otel_bridge.translation.step_rows import ForgottenSteps
from support.otlp.memory_state import MemoryState


def test_of_too_many_roles_the_last_ones_stay_forgotten() -> None:
    state = MemoryState()
    forgotten = ForgottenSteps(state, "key")
    for number in range(300):
        forgotten.add((f"role{number}", 1), 7)
        forgotten.add(("trainer", 1), number)

    for steps in (forgotten, ForgottenSteps(state, "key")):
        assert [
            steps.has((role, 1), 7) for role in ("role0", "role299", "trainer")
        ] == [
            False,
            True,
            True,
        ]
        assert not steps.has(("role299", 1), 8)
        assert steps.has(("trainer", 1), 299)
