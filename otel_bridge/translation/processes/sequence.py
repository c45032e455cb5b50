"""Which numbers of one process have come: a contiguous high-water mark and a bounded set of gaps above it. Pure.

Numbers are ``rl.seq`` or ``rl.event.seq``, 1, 2, …; times grow with them, so that a piece of a row that does not say
its number can be placed by its time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict, cast

MAX_GAPS = 1_000
"""Gaps remembered of one process; beyond it the oldest is given up: what it misses stays missing."""


@dataclass(slots=True)
class Gap:
    """Numbers *first* to *last* are missing; their times lie strictly between *after_ns* and *before_ns*."""

    first: int
    last: int
    after_ns: int
    before_ns: int


class SequenceState(TypedDict):
    """A `SequenceTracker` as JSON."""

    high: int
    high_ns: int
    given_up: int
    gaps: list[list[int]]


@dataclass(slots=True)
class SequenceTracker:
    """The numbers that have come.

    Attributes:
        high: The highest number that has come, 0 before the first.
        high_ns: Its time.
        gaps: What is missing below it, ascending.
        given_up: Numbers in gaps that were given up.
    """

    high: int = 0
    high_ns: int = 0
    given_up: int = 0
    gaps: list[Gap] = field(default_factory=list[Gap])

    @property
    def missing(self) -> int:
        """How many numbers below `high` have not come."""
        return self.given_up + sum(gap.last - gap.first + 1 for gap in self.gaps)

    def seen(self, number: int) -> bool:
        """Return whether *number* has come (or was given up)."""
        return number <= self.high and not any(gap.first <= number <= gap.last for gap in self.gaps)

    def covers(self, time_ns: int) -> bool:
        """Return whether the row of this time has come."""
        return time_ns <= self.high_ns and not any(gap.after_ns < time_ns < gap.before_ns for gap in self.gaps)

    def add(self, number: int, time_ns: int) -> None:
        """Note that *number* has come."""
        if number > self.high:
            if number > self.high + 1:
                self._open(Gap(self.high + 1, number - 1, self.high_ns, time_ns))
            self.high, self.high_ns = number, max(time_ns, self.high_ns)
            return
        for index, gap in enumerate(self.gaps):
            if gap.first <= number <= gap.last:
                parts = (
                    Gap(gap.first, number - 1, gap.after_ns, time_ns),
                    Gap(number + 1, gap.last, time_ns, gap.before_ns),
                )
                self.gaps[index : index + 1] = [part for part in parts if part.first <= part.last]
                return

    def _open(self, gap: Gap) -> None:
        self.gaps.append(gap)
        if len(self.gaps) > MAX_GAPS:
            oldest = self.gaps.pop(0)
            self.given_up += oldest.last - oldest.first + 1

    def to_state(self) -> SequenceState:
        """Return the sequence as JSON."""
        gaps = [[gap.first, gap.last, gap.after_ns, gap.before_ns] for gap in self.gaps]
        return {"high": self.high, "high_ns": self.high_ns, "given_up": self.given_up, "gaps": gaps}

    @classmethod
    def from_state(cls, value: object) -> SequenceTracker:
        """Restore what `to_state` returned."""
        state = cast("SequenceState", value)
        gaps = [Gap(*gap) for gap in state["gaps"]]
        return cls(high=state["high"], high_ns=state["high_ns"], given_up=state["given_up"], gaps=gaps)
