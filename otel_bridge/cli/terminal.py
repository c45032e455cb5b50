"""Prints text of users, jobs and trackers so that it cannot control the terminal.

All text is escaped by `otel_bridge.text.printable`. Markup is off, so that ``[redacted]`` in a
reason stays text. JSON is escaped by the rules of JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from otel_bridge.text.printable import shown
from otel_bridge.text.wait_display import WaitDisplay

_PIPE_COLUMNS = 500
"""A pipe and a log have no width: a line on a problem stays one line, so that it can be searched for."""


class Terminal(Console):
    """Prints lines that may hold text of users, jobs and trackers.

    An `OSError` of its stream passes, and ends a command that only shows something (`OutputStream`).

    Args:
        stderr: Write to stderr.
        soft_wrap: Do not break long lines.
    """

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(
            highlight=False,
            markup=False,
            emoji=False,
            stderr=stderr,
            soft_wrap=soft_wrap,
        )
        if not self.is_terminal:
            self.width = _PIPE_COLUMNS

    def print_line(self, text: str, style: str = "") -> None:
        """Print *text* unwrapped, so that a command in it can be copied."""
        self.print(Text(shown(text), style=style), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """Print *table*: folded on a terminal, one line per row in a pipe or a file.

        There it is printed line by line without the spaces that rich pads each line with.
        """
        if self.is_terminal:
            self.print(table)
            return
        with self.capture() as capture:
            self.print(table, soft_wrap=True)
        for line in capture.get().splitlines():
            self.print_line(line.rstrip())

    def wait_display(self) -> WaitDisplay:
        """Return a display of a wait; what is printed meanwhile stands above its bars."""
        return WaitDisplay(
            self.print_line, (lambda: self) if self.is_terminal else None
        )


def plain_table(columns: Iterable[str], *, numbers: Collection[str] = ()) -> Table:
    """Return an empty table without lines, in which *numbers* are the columns aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        justify: JustifyMethod = "right" if column in numbers else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def echo(text: str, *, err: bool = False) -> None:
    """Print *text* and a line break to stdout, or to stderr."""
    click.echo(shown(text), err=err)
