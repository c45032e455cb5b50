"""``otel-bridge timeline``: show where the time of each step went, or write a trace."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import click
import orjson

from otel_bridge.bridge.ledger.database import open_for_reading
from otel_bridge.bridge.ledger.timeline import TimelineStep, read_timeline
from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.output import write_file
from otel_bridge.cli.run_folders import chosen_folders, only_one
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.cli.timeline.bars import bars_of
from otel_bridge.cli.timeline.clocks import align
from otel_bridge.cli.timeline.trace_events import trace_of
from otel_bridge.journal.folder import RunFolder

_LAST = 20
"""Number of steps of a role that are shown unless the call names steps."""
_NEVER = 1 << 62
# As many digits as SQLite can compare; longer numbers are typing errors.
_STEPS = re.compile(r"(-?\d{1,18})(-?)(\d{0,18})")
_BESIDE = 52
"""Columns beside a bar."""
_MIN_COLUMNS = 20
_MAX_COLUMNS = 100
"""Columns of the longest bar: a pipe has no width, and a pager has that of a terminal."""


@click.command(
    "timeline", epilog="Example: otel-bridge timeline ppo --steps 10-20 -o run.json"
)
@click.argument("run", required=False)
@click.argument(
    "directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path)
)
@click.option(
    "--steps",
    "steps",
    metavar="A-B",
    help="Only these steps: 7, 10-20, 10-. [default: bars: the last 20; file: all]",
)
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    help="Write these steps for Perfetto to this file.",
)
def command(
    *, run: str | None, directory: Path | None, steps: str | None, output: Path | None
) -> None:
    """Show one bar a step, by phase, or write the timeline as trace events.

    RUN is the name of a run, its id, or the beginning of its id; it may be left out if there is
    only one run. DIR holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here), is one,
    or is the folder above. Open the written file in https://ui.perfetto.dev or chrome://tracing:
    each rank has a track with its phases, each rollout a lane with its turns and tools.
    """
    for folder in _chosen(directory, run):
        with contextlib.closing(open_for_reading(folder.ledger_path)) as reader:
            timeline_steps = read_timeline(reader, *_range(steps))
        kinds = {event.kind for step in timeline_steps for event in step.events}
        # Marks alone are rows, of which a bar or a track shows nothing.
        if kinds <= {"mark"}:
            echo("no phases and no rollouts with times; see docs/phases.md", err=True)
            raise SystemExit(1)
        # Bars show phases only; the file shows rollouts too.
        if output is None and "phase" not in kinds:
            echo(
                "no phases, see docs/phases.md; -o FILE writes the rollouts",
                err=True,
            )
            raise SystemExit(1)
        # Of unaligned machines the times would name a rank that does not hold up the others.
        clocks = align(timeline_steps)
        if output is not None:
            write_file(output, orjson.dumps(trace_of(timeline_steps)))
            echo(
                f"{output}: {len(timeline_steps)} steps; open it in https://ui.perfetto.dev",
                err=True,
            )
        else:
            _show(timeline_steps, last_only=steps is None)
        for clock in clocks.values():
            if note := clock.note():
                echo(note, err=True)


def _chosen(directory: Path | None, run: str | None) -> list[RunFolder]:
    """Return the folder of the run, in a list; a folder in place of the run is its directory.

    Empty if the directory of the environment has no run, which is printed then.

    Raises:
        WrongCallError: Several runs match, or none of those that are there; the message lists them.
    """
    if directory is None and run is not None and os.path.isdir(run):
        directory = Path(run)
        run = None
    return only_one(chosen_folders(directory, run))


def _range(steps: str | None) -> tuple[int, int]:
    """Return the first and the last step of *steps*; all for ``None``. ``-1`` is what has no step.

    Raises:
        WrongCallError: It is not a range, or the option is empty, as where a variable is not set.
    """
    # From -1 on, under which rollouts without a step are stored.
    if steps is None:
        return -1, _NEVER
    match = _STEPS.fullmatch(steps.strip())
    if match is None:
        raise WrongCallError(f"--steps {steps!r} is not a range, e.g. 7, 10-20 or 10-")
    first, dash, last = match.groups()
    if not dash:
        return int(first), int(first)
    return int(first), int(last or _NEVER)


def _show(steps: list[TimelineStep], *, last_only: bool) -> None:
    """Print the bars of each role that has phases; with *last_only* those of its last `_LAST` steps."""
    terminal = Terminal(soft_wrap=True)
    columns = min(max(terminal.width - _BESIDE, _MIN_COLUMNS), _MAX_COLUMNS)
    by_role: dict[str, list[TimelineStep]] = {}
    for step in steps:
        if any(event.kind == "phase" for event in step.events):
            by_role.setdefault(step.role, []).append(step)
    for role, of_role in by_role.items():
        terminal.print_line(role or "run", style="bold")
        for line in bars_of(of_role[-_LAST:] if last_only else of_role, columns):
            terminal.print(line)
