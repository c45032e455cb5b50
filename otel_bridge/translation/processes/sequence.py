"""Received numbers of one process: the highest number, and a bounded set of gaps below it. Pure.

Numbers are ``rl.seq`` or ``rl.event.seq``, 1, 2, … Times grow with numbers, so that a fragment of a
row without a number can be placed by its time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_GAPS = 1_000
"""Most gaps remembered of one process; beyond it the oldest gap is given up, and its numbers stay
missing."""


@dataclass(slots=True)
class Gap:
    """Holds missing numbers *first* to *last*.

    Their times lie strictly between *after_ns* and *before_ns*.
    """

    first: int
    last: int
    after_ns: int
    before_ns: int


@dataclass(slots=True)
class SequenceTracker:
    """Tracks which numbers of one process were received.

    Attributes:
        high: The highest number received, 0 before the first.
        high_ns: Time of the highest number.
        gaps: Missing numbers below `high`, ascending.
        given_up: Count of the numbers in gaps that were given up.
    """

    high: int = 0
    high_ns: int = 0
    given_up: int = 0
    gaps: list[Gap] = field(default_factory=list[Gap])

    @property
    def missing(self) -> int:
        """Count of the numbers below `high` that were not received."""
        return self.given_up + sum(gap.last - gap.first + 1 for gap in self.gaps)

    def seen(self, number: int) -> bool:
        """Return whether *number* was received (or given up)."""
        return number <= self.high and not any(
            gap.first <= number <= gap.last for gap in self.gaps
        )

    def covers(self, time_ns: int) -> bool:
        """Return whether the row of this time was received (or its gap was given up)."""
        return time_ns <= self.high_ns and not any(
            gap.after_ns < time_ns < gap.before_ns for gap in self.gaps
        )

    def add(self, number: int, time_ns: int) -> None:
        """Note that *number* was received.

        A number that was received before changes nothing; the caller asks `seen` first.
        """
        if number > self.high:
            # With the times of both neighbours, by which fragments without a number are placed.
            if number > self.high + 1:
                self._open(Gap(self.high + 1, number - 1, self.high_ns, time_ns))
            self.high = number
            self.high_ns = max(time_ns, self.high_ns)
            return
        for index, gap in enumerate(self.gaps):
            if gap.first <= number <= gap.last:
                parts = (
                    Gap(gap.first, number - 1, gap.after_ns, time_ns),
                    Gap(number + 1, gap.last, time_ns, gap.before_ns),
                )
                self.gaps[index : index + 1] = [
                    part for part in parts if part.first <= part.last
                ]
                return

    def _open(self, gap: Gap) -> None:
        self.gaps.append(gap)
        # Every number is compared with the gaps, so their number bounds the time of a row too.
        if len(self.gaps) > MAX_GAPS:
            oldest = self.gaps.pop(0)
            self.given_up += oldest.last - oldest.first + 1
