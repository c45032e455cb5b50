"""``otel-bridge rollouts``: print rollouts on the terminal, without any tracker.

A run that cannot be read is one line on stderr. A `WrongCallError` ends the command with exit code
2 (`cli.main`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import orjson

from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.rollouts.source import (
    Payload,
    RolloutListing,
    RolloutSource,
    StoredRollout,
)
from otel_bridge.cli.rollouts.tokens import print_tokens, write_page
from otel_bridge.cli.rollouts.view import RolloutView
from otel_bridge.cli.run_folders import chosen_folders, folders_of
from otel_bridge.cli.status.run_state import StateReader
from otel_bridge.cli.status.unread import unread
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.errors import OtelBridgeError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import read_report
from otel_bridge.text.counts import counted
from otel_bridge.text.printable import printable_json
from otel_bridge.tokens.view import view_in

_NEWEST = "newest"
_SORT = (_NEWEST, "reward", "advantage", "step", "duration", "turns")
_LIMIT = 10
_UNNAMED = {"split": "train"}
"""Values of a rollout that does not set them."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """Selects rollouts by the options of the command; ``None`` and empty select all."""

    steps: tuple[int, ...]
    group: str | None
    role: str | None
    split: str | None
    trace: str | None
    errors: bool
    consumed: int | None
    unused: bool

    def takes(self, rollout: StoredRollout) -> bool:
        """Return whether *rollout* matches every option.

        A rollout without a split counts as ``train``, which producers need not set.
        """
        facts = rollout.facts
        if self.steps and facts.get("step") not in self.steps:
            return False
        names = {"group": self.group, "role": self.role, "split": self.split}
        for key, name in names.items():
            if name is not None and name != (facts.get(key) or _UNNAMED.get(key)):
                return False
        if self.trace is not None and not self._has_id(facts, self.trace):
            return False
        return self._is_used(facts) and (not self.errors or bool(facts["failed"]))

    @staticmethod
    def _has_id(facts: Payload, rollout_id: str) -> bool:
        """Return whether *rollout_id* begins the trace id, or is the rollout's own id."""
        return (
            str(facts["id"]).startswith(rollout_id) or facts["rollout_id"] == rollout_id
        )

    def _is_used(self, facts: Payload) -> bool:
        """Return whether training steps consumed the rollout as the options require."""
        trained_steps = cast("list[int]", facts["trained_steps"])
        if self.consumed is not None and self.consumed not in trained_steps:
            return False
        return not (self.unused and trained_steps)


@click.command(
    "rollouts", epilog="Example: otel-bridge rollouts --step 7 --sort reward --full"
)
@click.argument(
    "directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path)
)
@click.option(
    "--step",
    "steps",
    type=int,
    multiple=True,
    help="Only this step; may be given several times.",
)
@click.option("--group", help="Only this group: the samples of one prompt.")
@click.option("--role", help="Only this role.")
@click.option("--split", help="Only this split, e.g. eval.")
@click.option(
    "--id",
    "trace",
    metavar="ID",
    help="Only the rollout with this trace id, beginning of it, or own id.",
)
@click.option(
    "--run",
    "run",
    metavar="NAME",
    help="Only this run: its name, its id, or the beginning of its id.",
)
@click.option(
    "--errors",
    is_flag=True,
    help="Only failed rollouts: with an error, a failed tool call, or without an end.",
)
@click.option(
    "--consumed",
    metavar="STEP",
    type=int,
    help="Only rollouts that this training step consumed.",
)
@click.option(
    "--unused", is_flag=True, help="Only rollouts that no training step has consumed."
)
@click.option(
    "--sort",
    type=click.Choice(_SORT),
    default=_NEWEST,
    show_default=True,
    help="Sort by this, highest first.",
)
@click.option("--reverse", is_flag=True, help="Sort lowest first.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Show at most N; 0: all. [default: {_LIMIT}; --json: all]",
)
@click.option("--full", is_flag=True, help="Do not clip long messages on a terminal.")
@click.option(
    "--tokens",
    "overlay",
    metavar="NAME",
    help="Color tokens by entropy, mismatch, advantage, mask, …",
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Write the token view of one rollout as a page. DIR may be its ID.",
)
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    help="With --html: the file. [default: stdout]",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per rollout, complete.",
)
def command(
    *,
    directory: Path | None,
    trace: str | None,
    run: str | None,
    sort: str,
    reverse: bool,
    limit: int | None,
    full: bool,
    overlay: str | None,
    as_html: bool,
    output: Path | None,
    as_json: bool,
    **selected: Any,
) -> None:
    """Show rollouts: messages, tool calls, rewards.

    DIR holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here), is one, or is the
    folder above. A bridge may serve the run at the same time. A rollout can be shown until every
    tracker has it. The exporter `file` keeps it longer. The id of a rollout may stand in place of
    DIR where there are runs.
    """
    _check_forms(output, overlay, as_html=as_html, as_json=as_json)
    if directory is not None and trace is None and _is_id(directory):
        trace = str(directory)
        directory = None
    folders = chosen_folders(directory, run)
    if not folders:
        return
    selection = _Filter(trace=trace, **selected)
    if as_html:
        write_page(folders, selection.takes, output)
        return
    view = RolloutView(Terminal(soft_wrap=True), full=full)
    order = _SortOrder(sort, reverse, limit, as_json, overlay)
    counts = [_show(folder, selection, view, order) for folder in folders]
    # Nothing could be read, which differs from nothing that is there.
    if all(count is None for count in counts):
        raise SystemExit(1)
    if not any(counts):
        echo(_none_in(folders), err=True)


def _none_in(folders: Sequence[RunFolder]) -> str:
    """Return that the runs have no rollouts, and how many of them wait to be chosen."""
    waiting = 0
    for folder in folders:
        report = read_report(folder)
        if report is not None:
            waiting += report.waiting.get("rollouts", 0)
    if waiting:
        return f"no rollouts yet: {waiting} wait until their step closes"
    return "no rollouts"


def _is_id(directory: Path) -> bool:
    """Return whether the argument is the id of a rollout, as people type it: no such folder, but runs are here.

    Raises as `folders_of`.
    """
    return not os.path.exists(directory) and bool(folders_of(None))


def _check_forms(
    output: Path | None, overlay: str | None, *, as_html: bool, as_json: bool
) -> None:
    """Raise `WrongCallError` for options that would have no effect together, before anything is read."""
    if output is not None and not as_html:
        raise WrongCallError("-o FILE is for the page of a rollout: add --html")
    if as_html and (as_json or overlay):
        raise WrongCallError(
            "--html writes a page with all values of the tokens: leave out --json and --tokens"
        )
    if as_json and overlay:
        raise WrongCallError("--tokens colors text: leave out --json")


@dataclass(frozen=True, slots=True)
class _SortOrder:
    """Holds the order, the number and the form in which rollouts are shown."""

    sort: str
    reverse: bool
    limit: int | None
    as_json: bool
    overlay: str | None

    def of(self, rollouts: Sequence[StoredRollout]) -> list[StoredRollout]:
        """Return the rollouts to show, in order; those without the value to sort by come last."""
        sign = 1 if self.reverse else -1

        def place(rollout: StoredRollout) -> tuple[bool, float]:
            value = _value(rollout, self.sort)
            # Last in either direction, since they are neither high nor low.
            return value is None, sign * (value or 0)

        limit = self.limit
        # A program that reads JSON wants all; a person sees the first ones.
        if limit is None and not self.as_json:
            limit = _LIMIT
        return sorted(rollouts, key=place)[: limit or None]


def _value(rollout: StoredRollout, sort: str) -> float | None:
    """Return the number to sort by.

    ``None`` without one. The newest is the one that ended last: the ledger holds them in the order
    in which the bridge read or chose them.
    """
    facts = rollout.facts
    if sort == "duration":
        start = facts.get("start_unix_ns")
        end = facts.get("end_unix_ns")
        if isinstance(start, int) and isinstance(end, int):
            return float(end - start)
        return None
    # Not as a float: it has no room for the nanoseconds of today.
    value = facts.get("end_unix_ns" if sort == _NEWEST else sort)
    if isinstance(value, (int, float)):
        return value
    return None


def _show(
    folder: RunFolder, selection: _Filter, view: RolloutView, order: _SortOrder
) -> int | None:
    """Print the rollouts of one run, and return how many it has or had, also those not selected.

    It is ``None`` when its data cannot be read, or no bridge has read it yet; a line on stderr says
    why.
    """
    try:
        with RolloutSource(folder) as source:
            if not source.has_data:
                _notify_unread(folder)
                return None
            rollouts = source.rollouts()
            count = len(rollouts.rollouts) + rollouts.deleted
            if not count:
                return 0
            matching = [
                rollout for rollout in rollouts.rollouts if selection.takes(rollout)
            ]
            chosen = order.of(matching)
            if not order.as_json:
                view.run(folder.run_id, read_report(folder))
            # Once for all, since the files are read from beginning to end.
            pages = {} if order.overlay is None else source.token_pages(chosen)
            count_shown = 0
            for rollout in chosen:
                count_shown += _show_one(rollout, view, as_json=order.as_json)
                if order.overlay is not None:
                    page = pages.get(str(rollout.facts["id"]))
                    print_tokens(None if page is None else view_in(page), order.overlay)
    except OtelBridgeError as exc:
        # One run that cannot be read must not hide the others.
        echo(f"{folder.run_id}: {exc}", err=True)
        return None
    _notify_rest(rollouts, len(matching), count_shown)
    return count


def _show_one(rollout: StoredRollout, view: RolloutView, *, as_json: bool) -> bool:
    """Print a rollout, and return whether it was still there. Raises as `StoredRollout.whole`."""
    payload = rollout.whole()
    # Deleted since it was listed, because every tracker has it by now.
    if payload is None:
        return False
    if as_json:
        sys.stdout.write(printable_json(orjson.dumps(payload).decode()) + "\n")
    else:
        view.rollout(payload)
    return True


def _notify_unread(folder: RunFolder) -> None:
    """Print on stderr what waits in a folder without a ledger, and what to do."""
    message, command = unread(StateReader().read(folder))
    echo(f"{message}; {command}", err=True)


def _notify_rest(rollouts: RolloutListing, matching: int, count_shown: int) -> None:
    """Print on stderr how many rollouts are not shown, and why.

    On stderr, so that a program which reads JSON from stdout gets rollouts alone.
    """
    stored = len(rollouts.rollouts)
    parts = [
        f"{count_shown} of {counted(stored, 'rollout')} shown"
        if matching == stored
        else f"{count_shown} of {matching} that match, {stored} here"
    ]
    if rollouts.deleted:
        parts.append(
            f"{rollouts.deleted} more were delivered and deleted here: look in the trackers, "
            "or add the exporter file to keep rollouts here"
        )
    echo("; ".join(parts), err=True)
