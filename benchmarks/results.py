"""What one measurement says, and how a table of them is shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """One line: *ours* and the *peer*'s figure in *unit*, and whether the goal is met.

    Attributes:
        what: What was measured.
        ours: Our figure.
        peer: The peer's, ``None`` where the goal is absolute.
        unit: Of both.
        goal: In words; empty where there is none, see `reported`.
        met: Whether it is met, ``None`` where there is none.
    """

    what: str
    ours: float
    peer: float | None
    unit: str
    goal: str
    met: bool | None

    @property
    def ratio(self) -> float | None:
        """Peer over ours."""
        return None if self.peer is None or not self.ours else self.peer / self.ours


def reported(what: str, ours: float, unit: str, peer: float | None = None) -> Result:
    """Return a figure that has no goal of its own."""
    return Result(what, ours, peer, unit, "", None)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def show(title: str, results: Sequence[Result]) -> None:
    """Print *results* as a table."""
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in ("what", "ours", "peer", "unit", "peer / ours", "goal", "met"):
        table.add_column(
            column,
            justify="right" if column in {"ours", "peer", "peer / ours"} else "left",
        )
    for result in results:
        peer = "" if result.peer is None else f"{result.peer:,.4g}"
        ratio = "" if result.ratio is None else f"{result.ratio:,.3g}"
        met = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[result.met]
        table.add_row(
            result.what,
            f"{result.ours:,.4g}",
            peer,
            result.unit,
            ratio,
            result.goal,
            met,
        )
    Console(width=150).print(table)
