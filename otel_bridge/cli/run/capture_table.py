"""Prints at the end of ``otel-bridge run --capture`` what was captured of all processes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from otel_bridge.capture.counts import totals_in
from otel_bridge.cli.terminal import Terminal, plain_table
from otel_bridge.settings import CAPTURE, CAPTURE_COUNTS
from otel_bridge.text.printable import shown

_MAX_LINES = 20


class CaptureTable:
    """Makes the folder in which captured processes count calls, and prints the table.

    Args:
        variables: Environment variables of the capture; empty when nothing is captured.

    Attributes:
        environment: The variables, and the one that names the folder.

    Raises:
        OSError: The folder cannot be made; the command is not started then.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._names = variables.get(CAPTURE.name, "")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.environment = dict(variables)
        if self._names:
            # A child that outlives the command may write to it while it is removed.
            self._folder = tempfile.TemporaryDirectory(
                prefix="otel-bridge-capture-", ignore_cleanup_errors=True
            )
            self.environment[CAPTURE_COUNTS.name] = self._folder.name

    def show(self, console: Terminal, *, recorded: bool = True) -> None:
        """Print the table, or why nothing was captured, and remove the folder; nothing without a capture.

        The table is how a user sees that calls of his program are left out. A process whose counts
        cannot be read is left out of them.
        """
        if self._folder is None:
            return
        totals = totals_in(Path(self._folder.name))
        self._folder.cleanup()
        if not recorded:
            console.print_line(
                f"captured: nothing; the exporters are none, and calls of {self._names} have no effect"
            )
            return
        if not totals.processes:
            console.print_line(
                f"captured: nothing; no Python program of the command used {self._names}, or it ran with -I, -E or -S"
            )
            return
        counts = ("captured", "not captured")
        table = plain_table(["call", *counts], numbers=counts)
        for call, count in _cells(totals.captured):
            table.add_row(Text(shown(call)), count, "")
        for call, count in _cells(totals.not_captured):
            table.add_row(Text(shown(call)), "", count)
        console.print(table)


def _cells(calls: Counter[str]) -> list[tuple[str, str]]:
    """Return calls and their counts, the most frequent first; those beyond the limit together."""
    ordered = calls.most_common()
    lines = [(call, f"{number:,}") for call, number in ordered[:_MAX_LINES]]
    rest = sum(number for _, number in ordered[_MAX_LINES:])
    if rest:
        return [*lines, (f"{len(ordered) - _MAX_LINES} further", f"{rest:,}")]
    return lines
