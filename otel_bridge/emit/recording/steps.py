"""Last step of each role in one process, from which a row without a step gets its own."""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.emit.encode.values import to_step
from otel_bridge.values.plain import CountKeyedDrop


class LastSteps:
    """Counts the steps of each role. Not thread-safe: its owner locks.

    Attributes:
        by_role: Role to its last step; ``None`` is a run's own role without a name.
    """

    def __init__(self) -> None:
        self.by_role: dict[str | None, int] = {}
        # Roles whose last row left its step open: ``commit=False``.
        self._open: set[str | None] = set()

    def take(
        self, step: object, role: str | None, drop: CountKeyedDrop, *, commits: bool
    ) -> int:
        """Return the step of a row, which is the last one of *role* from now on.

        It may be below the one before: a program that goes back to a checkpoint says so.

        Args:
            step: The step that the call gives. One that `to_step` cannot read has the row get the
                step of a row without one.
            role: Role of the row.
            drop: Counts a step that cannot be used.
            commits: Whether the next row without a step gets the step after this one.
        """
        number = to_step(step, drop)
        if number is None:
            number = self.after_last(role)
        self.by_role[role] = number
        if not commits:
            self._open.add(role)
        elif self._open:
            self._open.discard(role)
        return number

    def after_last(self, role: str | None) -> int:
        """Return the step after the last of *role*; 0 before the first.

        The last one again where it was left open.
        """
        last = self.by_role.get(role)
        if last is None:
            return 0
        if role in self._open:
            return last
        return last + 1

    def close(self, role: str | None) -> None:
        """End the step that the last row of *role* left open.

        An empty row with ``commit=True`` does so, as in W&B.
        """
        self._open.discard(role)

    def go_on_from(self, steps: Mapping[str | None, int]) -> None:
        """Continue from *steps*, by role."""
        self.by_role = dict(steps)
