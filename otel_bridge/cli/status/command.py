"""``otel-bridge status``: show what every run has emitted and delivered, once or continuously.

An `OtelBridgeError` that passes (a service that does not answer, a setting that cannot be read) ends
the command with one line and exit code 1, a `WrongCallError` with 2 (`cli.main`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from pathlib import Path

import click
import orjson
from rich.live import Live
from rich.text import Text

from otel_bridge import settings
from otel_bridge.cli.run_folders import existing_folders, folders_of
from otel_bridge.cli.status.run_state import RunState, StateReader
from otel_bridge.cli.status.source import (
    Overview,
    ReadOverview,
    is_url,
    overview_of,
)
from otel_bridge.cli.status.view import (
    next_commands,
    overview_view,
    run_view,
    space_line,
    state_line,
)
from otel_bridge.cli.terminal import Terminal
from otel_bridge.journal.base_dir import base_dir
from otel_bridge.text.printable import printable_json, shown

_EVERY_S = 1.0


@click.command("status", epilog="Example: otel-bridge status --watch")
@click.argument("location", required=False, metavar="[DIR|URL]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per run.")
@click.option(
    "--watch",
    is_flag=True,
    help="Continue until Ctrl-C; in a pipe, print a line whenever a run changed.",
)
def command(location: str | None, as_json: bool, watch: bool) -> None:
    """Show runs, roles, last steps, records that wait for each tracker, and the disk space.

    DIR holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here), is a run folder
    itself, or is the folder above. URL is the HTTP address of a running `otel-bridge serve`, e.g.
    http://bridge:4318. Set OTEL_BRIDGE_TOKEN to its token.
    """
    env = settings.environment()
    if location is not None and is_url(location):
        # Imports requests, which would double the time of a command that needs none.
        from otel_bridge.cli.status.service import from_service  # noqa: PLC0415

        read: ReadOverview = partial(from_service, location, env)
    else:
        reader = StateReader(settings.LIVENESS_TIMEOUT_S.read(env))
        read = partial(
            _here, None if location is None else Path(location), reader, watching=watch
        )
    if not watch:
        _print(read(), as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            _watch_lines(read, as_json=as_json)
        else:
            _watch(read)


def _here(directory: Path | None, reader: StateReader, *, watching: bool) -> Overview:
    """Return the overview of a local directory.

    Without runs it is empty: for a watch, and without a *directory*, where `existing_folders`
    prints that there are none.

    Raises:
        WrongCallError: The call names a directory without a run; not for a watch.
    """
    # A watch may begin before the first run, so that none is not an error then.
    folders = folders_of(directory) if watching else existing_folders(directory)
    base = (
        base_dir(settings.environment(), Path.cwd()) if directory is None else directory
    )
    return overview_of(
        folders[0].base if folders else base, folders, settings.environment(), reader
    )


def _print(overview: Overview, *, as_json: bool) -> None:
    """Print the runs once: tables with the next commands, or one JSON line each."""
    if as_json:
        for state in overview.runs:
            sys.stdout.write(_json(state))
        return
    console = Terminal()
    for number, state in enumerate(overview.runs):
        if number:
            console.print()
        console.print(run_view(state, overview), soft_wrap=not console.is_terminal)
        for line in next_commands(state, here=overview.here):
            console.print_line(line)  # unwrapped, so that it can be copied
    if space := space_line(overview):
        console.print(
            Text(shown(space), style="dim"), soft_wrap=not console.is_terminal
        )


def _watch(read: ReadOverview) -> None:
    """Draw the runs again each second, until Ctrl-C, or until they cannot be read.

    Without a thread of rich, so that nothing is drawn while the runs are read. What does not fit is
    cropped: rich cannot redraw lines that have scrolled away.
    """
    console = Terminal()
    with Live(
        console=console, auto_refresh=False, screen=False, vertical_overflow="crop"
    ) as live:
        while True:
            live.update(overview_view(read()), refresh=True)
            time.sleep(_EVERY_S)


def _watch_lines(read: ReadOverview, *, as_json: bool) -> None:
    """Print a line of each run whenever it changed, until Ctrl-C, or until they cannot be read."""
    printed: dict[str, str] = {}
    while True:
        overview = read()
        for state in overview.runs:
            # Compared as it is printed: a pipe gets a line for each change that a reader can see.
            line = (
                _json(state)
                if as_json
                else f"{shown(state_line(state, here=overview.here))}\n"
            )
            if printed.get(state.run_id) != line:
                printed[state.run_id] = line
                sys.stdout.write(line)
        sys.stdout.flush()
        time.sleep(_EVERY_S)


def _json(state: RunState) -> str:
    return printable_json(orjson.dumps(state).decode()) + "\n"
