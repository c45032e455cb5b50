"""Shows the tokens of one rollout: as a page, or on the terminal, each colored by a value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.text import Text

from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.output import write_file
from otel_bridge.cli.rollouts.source import RolloutSource, StoredRollout
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.journal.folder import RunFolder
from otel_bridge.text.printable import printable
from otel_bridge.tokens.view import TokenView

_LARGEST = 5
_NO_TOKENS = "no token view: its tokens were not annotated, or are not here any more; see docs/tokens.md"
_NO_ROLLOUT = "no rollout here matches; see which there are with: otel-bridge rollouts"


def write_page(
    folders: Sequence[RunFolder],
    takes: Callable[[StoredRollout], bool],
    output: Path | None,
) -> None:
    """Write the page of the one rollout that *takes* chooses to *output*, else to stdout.

    Raises:
        WrongCallError: More than one rollout with tokens matches.
        click.ClickException: The rollout has no page, or the file cannot be written.
    """
    matching: list[StoredRollout] = []
    pages: list[str] = []
    for folder in folders:
        with RolloutSource(folder) as source:
            of_folder = [
                rollout for rollout in source.rollouts().rollouts if takes(rollout)
            ]
            matching += of_folder
            pages += source.token_pages(of_folder).values()
    # A page shows one rollout.
    if len(pages) > 1:
        raise WrongCallError(f"{len(pages)} rollouts match; name one of them: --id ID")
    if not pages:
        raise click.ClickException(_NO_TOKENS if matching else _NO_ROLLOUT)
    if output is None:
        sys.stdout.write(pages[0])
        return
    write_file(output, pages[0].encode())
    echo(f"{output}: open it in a browser", err=True)


def print_tokens(view: TokenView | None, overlay: str) -> None:
    """Print the tokens of *view*, colored by *overlay*, and those with the largest values.

    Without a view, or without that overlay, one line says so, with the overlays that there are. A
    pipe gets no colors: there only the tokens with the largest values show the values.
    """
    terminal = Terminal(soft_wrap=True)
    if view is None:
        terminal.print_line(f"  {_NO_TOKENS}", style="dim")
        return
    values = view.overlays.get(overlay)
    if values is None:
        terminal.print_line(
            f"  no {overlay} of its tokens; there are {', '.join(view.overlays)}",
            style="dim",
        )
        return
    numbers = {index: value for index, value in enumerate(values) if value is not None}
    highest = max(map(abs, numbers.values()), default=0.0)
    colored = Text("    ")
    for index, token in enumerate(view.tokens):
        style = _style(overlay, numbers.get(index), highest)
        colored.append(printable(token, lines=True), style=style)
    terminal.print_line(f"  tokens by {overlay}, at most {highest:.4g}", style="bold")
    terminal.print(colored)
    # By size, whatever the sign: a strongly negative advantage is as worth a look.
    ordered = sorted(numbers, key=lambda index: -abs(numbers[index]))
    for index in ordered[:_LARGEST]:
        terminal.print_line(
            f"    token {index} {printable(view.tokens[index])!r}: {overlay} {numbers[index]:.4g}"
        )


def _style(name: str, value: float | None, highest: float) -> str:
    """Return the style of a token: the darker, the larger its value. The page colors alike.

    Green is for an advantage above 0, red for any other value, of either sign.

    Args:
        name: Name of the overlay.
        value: Value of the token; ``None`` without one.
        highest: Largest absolute value of the overlay; 0 when it has only zeros.
    """
    # Below a twentieth of the highest a token keeps the terminal's own colors.
    if value is None or abs(value) <= highest / 20:
        return ""
    # From 60 to 210 of 255: white letters stay readable on it.
    level = round(60 + 150 * abs(value) / highest)
    if name == "advantage" and value > 0:
        return f"white on rgb(0,{level},60)"
    return f"white on rgb({level},40,40)"
