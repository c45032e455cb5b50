"""``otel-bridge status``: show what every run has emitted and delivered, once or continuously."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import click
import orjson
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from otel_bridge import settings
from otel_bridge.cli.status.run_state import RunState, StateReader, lasts_s
from otel_bridge.cli.status.source import Overview, Read, folders_of, from_service, is_url, no_run_folder, overview_of
from otel_bridge.cli.status.unread import Unread, unread
from otel_bridge.cli.tables import age, place_commands, run_table, size
from otel_bridge.cli.terminal import Terminal
from otel_bridge.journal.folder import RunFolder, base_dir
from otel_bridge.text.printable import printable_json, shown

__all__ = ["command", "folders_of"]

_EVERY_S: Final = 1.0
_PIPE_COLUMNS: Final = 240


@click.command("status")
@click.argument("place", required=False, metavar="[DIR|URL]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per run.")
@click.option("--watch", is_flag=True, help="Continue until Ctrl-C; in a pipe, print a line whenever a run changed.")
def command(place: str | None, as_json: bool, watch: bool) -> None:
    """Show runs, roles, last steps, how many records wait for each tracker, and what uses the disk space.

    DIR holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here), or is a run folder itself. URL is the HTTP
    address of a running `otel-bridge serve`, e.g. http://bridge:4318. Set OTEL_BRIDGE_TOKEN to its token.
    """
    env = settings.environment()
    if place is not None and is_url(place):
        read: Read = partial(from_service, place, env)
    else:
        read = partial(_here, None if place is None else Path(place), StateReader(), watching=watch)
    if not watch:
        _print(read(), as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            _watch_lines(read, as_json=as_json)
        else:
            _watch(read)


def _here(directory: Path | None, reader: StateReader, *, watching: bool) -> Overview:
    folders = folders_of(directory)
    base = base_dir(settings.environment(), Path.cwd()) if directory is None else directory
    if not folders and not watching:
        raise click.ClickException(no_run_folder(base))
    return overview_of(folders[0].base if folders else base, folders, settings.environment(), reader)


def _print(found: Overview, *, as_json: bool) -> None:
    if as_json:
        for state in found.runs:
            sys.stdout.write(_json(state))
        return
    console = Terminal(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    for number, state in enumerate(found.runs):
        if number:
            console.print()
        console.print(_run(state, found), soft_wrap=not console.is_terminal)
        for line in _commands(state, here=found.here):
            console.print_line(line)  # unwrapped, so that it can be copied
    if space := _space(found):
        console.print(Text(shown(space), style="dim"), soft_wrap=not console.is_terminal)


def _shown(found: Overview) -> RenderableType:
    parts = [_run(state, found) for state in found.runs]
    space = _space(found)
    return Group(*parts, *([Text(shown(space), style="dim")] if space else []))


def _run(state: RunState, found: Overview) -> RenderableType:
    if state.report is None:
        refused = f"; this version cannot serve it: {state.refused}" if state.refused else ""
        return Text(shown(_unread(state, here=found.here).message + refused))
    return run_table(state.run_id, state.report, live=state.bridge_alive, state=state, now_unix_ns=found.time_unix_ns)


def _unread(state: RunState, *, here: bool) -> Unread:
    folder, waiting_bytes = RunFolder.at(Path(state.folder)), state.bytes.get("segments", 0)
    return unread(state.run_id, folder, waiting_bytes, served=state.bridge_alive, here=here)


def _commands(state: RunState, *, here: bool) -> list[str]:
    """Return the commands that are useful next for a run."""
    report = state.report
    if report is None:
        return [] if state.refused else [f"  {_unread(state, here=here).command}"]
    lines = [f"  {line}" for line in place_commands(report)]
    # No bridge delivers: it gave up, was killed, or ended before more was appended.
    if not state.bridge_alive and not state.refused and (state.unread_bytes or not report.ended):
        lines.append(f"  otel-bridge drain {state.folder}")
    if any(one.dead_letters for one in report.exporters.values()):
        lines.append(f"  otel-bridge dead-letters list {state.folder}")
    return lines


def _space(found: Overview) -> str:
    """Return in one line what uses the space of the directory, and how long the rest lasts."""
    if found.room is None or not found.runs:
        return ""
    used, limit = found.room.used_bytes, found.room.limit_bytes
    limit_note = ", half of the free disk," if found.room.of_disk else ""
    line = f"space: {size(used)} of {size(limit)}{limit_note} in {found.where}"
    biggest = max(found.runs, key=lambda state: state.total_bytes)
    holder = max(biggest.held, key=lambda name: biggest.held[name].bytes, default="")
    if len(found.runs) > 1 and biggest.total_bytes:
        line += f"; most in {biggest.run_id}, {size(biggest.total_bytes)}"
    if holder and biggest.held[holder].bytes:
        line += f", held by {holder}"
    line += _of_ended(found.runs, used) if 2 * used >= limit else ""
    left_s = lasts_s(found.runs, found.room, found.time_unix_ns)
    return line if left_s is None else f"{line}; full in {age(left_s)} at this pace, if nothing is delivered"


def _of_ended(states: Iterable[RunState], used_bytes: int) -> str:
    """Return a note when files of ended runs use most of the space, because only a person deletes those."""
    ended = [state for state in states if state.report is not None and state.report.ended]
    kept = [state for state in ended if state.bytes.get("files", 0) > state.total_bytes // 2]
    count = sum(state.bytes["files"] for state in kept)
    if not kept or 2 * count <= used_bytes:
        return ""
    reports = [state.report for state in kept if state.report is not None]
    by_file = any("file" in report.former or "file" in report.exporters for report in reports)
    runs = "1 ended run" if len(kept) == 1 else f"{len(kept)} ended runs"
    holder = "file" if by_file else "files"
    return f"; {size(count)} of {runs} held by {holder}: delete their folders when you no longer need them"


def _watch(read: Read) -> None:
    console = Terminal()
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            live.update(_shown(read()), refresh=True)
            time.sleep(_EVERY_S)


def _watch_lines(read: Read, *, as_json: bool) -> None:
    printed: dict[str, str] = {}
    while True:
        found = read()
        for state in found.runs:
            line = _json(state) if as_json else f"{shown(_line(state, here=found.here))}\n"
            if printed.get(state.run_id) != line:
                printed[state.run_id] = line
                sys.stdout.write(line)
        sys.stdout.flush()
        time.sleep(_EVERY_S)


def _line(state: RunState, *, here: bool) -> str:
    report = state.report
    if report is None:
        return _unread(state, here=here).message
    steps = " ".join(f"{axis}={step}" for axis, step in sorted(report.steps.items()))
    trackers = "; ".join(
        f"{name} {one.state}, {max(report.position - one.written, 0)} waiting"
        + f", {one.backlog} rewards later" * bool(one.backlog)
        + f", {one.reason}" * bool(one.reason)
        for name, one in report.exporters.items()
    )
    refused = f"; this version cannot serve it: {state.refused}" if state.refused else ""
    unread_bytes = 0 if state.bridge_alive else state.unread_bytes
    waits = f"; {size(unread_bytes)} that no bridge has read" if unread_bytes else ""
    return f"{report.project}/{report.name} ({state.run_id}) {report.status} {steps}; {trackers}{waits}{refused}"


def _json(state: RunState) -> str:
    return printable_json(orjson.dumps(state).decode()) + "\n"
