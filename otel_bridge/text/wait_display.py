"""Shows a wait: what is waited for, and how much of it is done.

The training process waits too: rich is imported only when a bar is drawn, no thread refreshes it,
and the cursor stays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from otel_bridge.errors import any_error_but_signals

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_TROUBLED = frozenset({"blocked", "retrying"})
_PATIENCE_S = 2.0
"""Seconds of a wait before a bar is drawn; most waits end before."""
_REFRESH_S = 0.2
"""Seconds between two drawings of the bars."""
_LINE_S = 10.0
"""Seconds between two lines where the output is not a terminal."""


class Amount(NamedTuple):
    """Counts how much of one thing is done.

    Attributes:
        total: Number that is waited for; ``None`` when it is not known.
    """

    done: int = 0
    total: int | None = None


class TrackerPosition(Protocol):
    """Has a number of written records: one exporter of a run's status or report."""

    @property
    def written(self) -> int:
        """Return the last position that was written."""
        ...

    @property
    def state(self) -> str:
        """Return the state, e.g. ``retrying``, or ``ended`` once nothing more is to be written."""
        ...


class RunDelivery(Protocol):
    """Has a number of records, and what each exporter has of them: a run's status or report."""

    @property
    def position(self) -> int:
        """Return the number of records."""
        ...

    @property
    def exporters(self) -> Mapping[str, TrackerPosition]:
        """Return the exporters by name."""
        ...


def records_in_trackers(
    runs: Iterable[RunDelivery], *, without: Container[str] = ()
) -> dict[str, Amount]:
    """Return how many of the records of *runs* each of their trackers has, as `status` counts them.

    Trackers in one of the states *without* are left out; empty without any. An exporter that has
    ended counts as having all of them: nothing more is written.
    """
    amounts: dict[str, Amount] = {}
    for run in runs:
        for name, exporter in run.exporters.items():
            if exporter.state in without:
                continue
            label = f"records in {name}" + (
                f" ({exporter.state})" if exporter.state in _TROUBLED else ""
            )
            amount = amounts.get(label, Amount(0, 0))
            if exporter.state == "ended":
                written = run.position
            else:
                written = min(exporter.written, run.position)
            amounts[label] = Amount(
                amount.done + written, (amount.total or 0) + run.position
            )
    return amounts


class WaitDisplay:
    """Shows a wait from its third second on: as bars on a terminal, else as a line every ten seconds.

    Bars vanish when the wait ends. For the thread that waits; an exception of the wait passes.

    Args:
        print_line: Prints a line where the output is not a terminal.
        terminal: Returns the terminal to draw bars on; ``None`` if there is none.
    """

    def __init__(
        self, print_line: Callable[[str], None], terminal: Callable[[], Console] | None
    ) -> None:
        self._print_line = print_line
        self._terminal = terminal
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._began_s = time.monotonic()
        self._due_s = self._began_s + (_LINE_S if terminal is None else _PATIENCE_S)

    def __enter__(self) -> WaitDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, amounts: Callable[[], Mapping[str, Amount]]) -> None:
        """Show how much of each part of the wait is done, if that is due.

        Only then are the *amounts* read. A display that fails is given up, and the wait goes on;
        what reading the amounts raises is raised.
        """
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + (_LINE_S if self._terminal is None else _REFRESH_S)
        parts = amounts()
        try:
            if self._terminal is None:
                counts = ", ".join(
                    _counted(label, amount) for label, amount in parts.items()
                )
                self._print_line(f"waiting ({now_s - self._began_s:.0f} s): {counts}")
            else:
                self._draw(parts, self._terminal)
        except any_error_but_signals():
            # A terminal that has gone: the wait goes on without a display.
            self._due_s = float("inf")

    def close(self) -> None:
        """Remove the bars, if any are drawn. May be called twice, and never raises for a terminal that has gone."""
        bars = self._bars
        self._bars = None
        if bars is not None:
            # A terminal that has gone, or a closed stream.
            with contextlib.suppress(OSError, ValueError):
                bars.stop()

    def _draw(
        self, parts: Mapping[str, Amount], terminal: Callable[[], Console]
    ) -> None:
        """Draw a bar for each of *parts*, and remove those of parts that are no longer waited for.

        What the terminal raises is raised: `show` then stops drawing.
        """
        bars = self._bars
        if bars is None:
            bars = _bars_on(terminal())
            self._bars = bars
            self._tasks = {}
        for label in self._tasks.keys() - parts.keys():
            bars.remove_task(self._tasks.pop(label))
        for label, amount in parts.items():
            if label not in self._tasks:
                self._tasks[label] = bars.add_task(label, total=None)
            bars.update(self._tasks[label], completed=amount.done, total=amount.total)
        bars.refresh()


def _counted(label: str, amount: Amount) -> str:
    """Return *label* with its numbers, without any if neither is known."""
    if amount.total is not None:
        return f"{label} {amount.done:,} of {amount.total:,}"
    if amount.done:
        return f"{label} {amount.done:,}"
    return label


def _bars_on(terminal: Console) -> Progress:
    """Return bars that are drawn on *terminal* until `Progress.stop`.

    Raises:
        OSError: The terminal has gone; another exception when its stream is closed.
    """
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        # As wide as most labels, so that the bars of several trackers begin in one column.
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bars = Progress(
        *columns,
        console=terminal,
        # What the program prints next takes the place of the bars.
        transient=True,
        # Else rich refreshes from a thread, which a training process must not get.
        auto_refresh=False,
        # Else rich replaces the program's own streams.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bars.start()
    # A process that is killed during its wait would leave the terminal without a cursor.
    terminal.show_cursor(True)
    return bars
