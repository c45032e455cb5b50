"""``otel-bridge dead-letters``: list, retry or discard the records that a tracker refused for good.

``list`` and ``show`` only read. The run's bridge executes ``retry`` and ``discard``, if one runs.
An `OtelBridgeError` that passes ends the command with one line and exit code 1, a `WrongCallError`
with 2 (`cli.main`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn, cast

import click
import orjson

from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.queries import StoredDeadLetter, open_view
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.cli.drain import Drains
from otel_bridge.cli.output import work_without_output
from otel_bridge.cli.run_folders import chosen_folders, only_one
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.errors import InvalidRecordError, OtelBridgeError
from otel_bridge.journal.control import send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import read_report
from otel_bridge.text.counts import counted
from otel_bridge.text.printable import printable, printable_json
from otel_bridge.text.wait_display import Amount

_KINDS = {
    codec.ROW: "row",
    codec.ROLLOUT: "rollout",
    codec.EVALUATION: "evaluation",
    codec.CONFIG: "config",
    codec.END: "end",
    codec.OTHER: "trace",
    codec.SUMMARY: "summary",
    codec.ALERT: "alert",
    codec.MEDIA: "media",
    codec.TOKEN_VIEW: "token view",
}
"""All kinds of this version: a ledger of another format is refused when it is opened."""
_CLIP = 2_000
_WAIT_S = 30.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class _Selection:
    """Holds what the options of a command select: all dead letters of a directory, or some."""

    directory: Path | None
    run: str | None
    exporter: str | None
    ids: tuple[int, ...]
    as_json: bool


@dataclass(frozen=True, slots=True)
class _RunDeadLetters:
    """Holds the chosen dead letters of one run folder; there is at least one."""

    folder: RunFolder
    dead_letters: Sequence[StoredDeadLetter]

    def by_exporter(self) -> Mapping[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for dead_letter in self.dead_letters:
            ids.setdefault(dead_letter.exporter, []).append(dead_letter.id)
        return ids


@click.group(
    "dead-letters", epilog="Example: otel-bridge dead-letters retry --exporter mlflow"
)
def command() -> None:
    """List, retry or discard rejected records.

    A tracker may refuse a record for good: a key that it cannot hold, a value over its limit. Such
    a record is stored with the reason, and the records after it are delivered. DIR holds run
    folders, is one, or is the folder above (default: OTEL_BRIDGE_DIR, else .otel-bridge here).
    """


def _options(function: Callable[[_Selection], None]) -> Callable[..., None]:
    """Give a command the options that select dead letters; it is called with the selection.

    All four commands have the same ones, so that what `list` shows is what `retry` and `discard`
    take.
    """

    @functools.wraps(function)
    def with_options(**options: Any) -> None:
        function(_Selection(**options))

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines."),
        click.option(
            "--id",
            "ids",
            type=int,
            multiple=True,
            help="Only the dead letter with this id; may be given several times.",
        ),
        click.option(
            "--exporter", default=None, help="Only dead letters of this exporter."
        ),
        click.option(
            "--run",
            default=None,
            help="Only this run: its name, its id, or the beginning of its id.",
        ),
        click.argument(
            "directory",
            required=False,
            metavar="[DIR]",
            type=click.Path(path_type=Path),
        ),
    ):
        with_options = option(with_options)
    return with_options


@command.command("list", epilog="Example: otel-bridge dead-letters list --run ppo")
@_options
def list_(selection: _Selection) -> None:
    """Print one line per dead letter.

    It has id, exporter, kind, step, role, record id, time and reason.
    """
    chosen, all_read = _chosen(selection)
    for letters in chosen:
        if not selection.as_json:
            echo(
                f"{letters.folder.run_id}: {counted(len(letters.dead_letters), 'dead letter')}"
            )
        for dead_letter in letters.dead_letters:
            if selection.as_json:
                echo(_json(letters.folder, dead_letter, whole=False))
            else:
                echo(f"  {_line(dead_letter)}")
    sys.exit(0 if all_read else 1)


@command.command(epilog="Example: otel-bridge dead-letters show --id 3")
@_options
def show(selection: _Selection) -> None:
    """Print each dead letter with its record. Long records are clipped unless you pass --json."""
    chosen, all_read = _chosen(selection)
    for letters in chosen:
        for dead_letter in letters.dead_letters:
            if selection.as_json:
                echo(_json(letters.folder, dead_letter, whole=True))
                continue
            text = orjson.dumps(
                _content(dead_letter), option=orjson.OPT_INDENT_2, default=str
            ).decode()
            if len(text) > _CLIP:
                text = f"{text[:_CLIP]} … ({len(text):,} characters; --json for all)"
            echo(f"{letters.folder.run_id} {_line(dead_letter)}\n{text}")
    sys.exit(0 if all_read else 1)


@command.command(epilog="Example: otel-bridge dead-letters retry --exporter mlflow")
@_options
def retry(selection: _Selection) -> None:
    """Deliver dead letters to their exporters again.

    Exits with 1 when one is refused again or cannot be tried now. The bridge of the run executes
    the retry. If no bridge runs, the folder is delivered as by `otel-bridge drain`.
    """
    _carry_out(selection, _retry, "tried")


@command.command(epilog="Example: otel-bridge dead-letters discard --exporter trackio")
@_options
def discard(selection: _Selection) -> None:
    """Delete dead letters for good."""
    _carry_out(selection, _discard, "discarded")


def _carry_out(
    selection: _Selection, begin: Callable[[_RunDeadLetters], None], outcome: str
) -> NoReturn:
    """Wait until each run is done with its letters, print the counts, and exit.

    The exit code is 1 when some still wait, because no bridge can take them now, were refused
    again, or are in a ledger that cannot be read. An `OtelBridgeError` of a run (its request cannot
    be written, its ledger is locked) ends the command: runs after it are left as they are.

    Args:
        selection: Chooses the letters.
        begin: Requests the work for the letters of one run, or does it.
        outcome: What is done with a letter, in one word.
    """
    work_without_output()
    chosen, all_read = _chosen(selection)
    failed = not all_read
    for letters in chosen:
        begin(letters)
        remaining = _left(letters, _WAIT_S)
        counts = {outcome: len(letters.dead_letters) - remaining}
        if begin is _retry:
            counts["refused_again"] = _refused_again(letters)
        counts["waiting"] = remaining
        failed |= bool(remaining or counts.get("refused_again"))
        _print_counts(letters.folder, counts, as_json=selection.as_json)
    sys.exit(1 if failed else 0)


def _retry(letters: _RunDeadLetters) -> None:
    """Request that the letters of a run are tried again; without a bridge, drain its folder.

    Raises:
        JournalError: The request cannot be written, or the lock cannot be asked for.
    """
    send_control(letters.folder, "retry", dead_letters=letters.by_exporter())
    # The request waits in the folder, so a bridge that starts meanwhile carries it out too.
    if not probe(letters.folder.lock_path):
        Drains(Terminal(stderr=True)).drain([letters.folder])


def _discard(letters: _RunDeadLetters) -> None:
    """Delete the letters of a run, or request it of the bridge that has the ledger.

    Raises:
        OtelBridgeError: The ledger cannot be used, or the request cannot be written.
    """
    lock = letters.folder.lock()
    # Without a bridge the ledger may be opened here; else only the bridge writes to it.
    if not lock.acquire():
        send_control(letters.folder, "discard", dead_letters=letters.by_exporter())
        return
    try:
        with contextlib.closing(Ledger(letters.folder.ledger_path)) as ledger:
            ledger.discard_dead_letters(None, letters.by_exporter())
    finally:
        lock.release()


def _chosen(selection: _Selection) -> tuple[list[_RunDeadLetters], bool]:
    """Return the chosen dead letters by run folder, and whether every ledger could be read.

    A line on stderr says when there are none. A folder whose ledger cannot be read costs one line,
    and the other runs are as usual.

    Raises:
        WrongCallError: The call names a folder or a run that is not there, or several runs match.
    """
    chosen: list[_RunDeadLetters] = []
    all_read = True
    folders = chosen_folders(selection.directory, selection.run)
    if selection.run is not None:
        folders = only_one(folders)
    for folder in folders:
        try:
            of_run = _letters(folder, selection.ids or None)
        except OtelBridgeError as exc:
            echo(f"{folder.run_id}: {exc}", err=True)
            all_read = False
            continue
        dead_letters = [
            letter for letter in of_run if selection.exporter in {None, letter.exporter}
        ]
        if dead_letters:
            chosen.append(_RunDeadLetters(folder, dead_letters))
    # Without folders that was printed already; of a ledger that cannot be read it is not known.
    if folders and not chosen and all_read:
        echo("no dead letters", err=True)
    return chosen, all_read


def _letters(folder: RunFolder, ids: Sequence[int] | None) -> list[StoredDeadLetter]:
    """Return the dead letters of a folder, those of *ids* if given; empty without a ledger.

    Raises:
        OtelBridgeError: The ledger is damaged, locked, or of another version.
    """
    if not folder.ledger_path.exists():
        return []
    with open_view(folder.ledger_path) as view:
        return view.dead_letters(ids)


def _left(letters: _RunDeadLetters, timeout_s: float) -> int:
    """Wait until the ledger has none of the chosen dead letters.

    Return how many are left after *timeout_s*, or earlier when no bridge will take them. Raises as
    `_letters`.
    """
    # The chosen ones only: a record that is refused again has another id.
    ids = [dead_letter.id for dead_letter in letters.dead_letters]
    deadline = time.monotonic() + timeout_s
    # On stderr, so that JSON on stdout stays whole.
    with Terminal(stderr=True).wait_display() as display:
        while (
            count := len(_letters(letters.folder, ids))
        ) and time.monotonic() < deadline:
            # The bridge has ended, or is blocked until a person acts: a longer wait is in vain.
            if not probe(letters.folder.lock_path) or _stuck(letters):
                break
            display.show(functools.partial(_amounts, len(ids), count))
            time.sleep(_PAUSE_S)
    return count


def _amounts(total: int, remaining: int) -> dict[str, Amount]:
    return {"dead letters": Amount(total - remaining, total)}


def _stuck(letters: _RunDeadLetters) -> bool:
    """Return whether each exporter of the letters is blocked; ``False`` without a report."""
    report = read_report(letters.folder)
    exporters = {} if report is None else report.exporters
    return all(
        name in exporters and exporters[name].state == "blocked"
        for name in letters.by_exporter()
    )


def _refused_again(letters: _RunDeadLetters) -> int:
    """Return how many of the letters were refused again since they were chosen."""
    # A record that is refused again is stored as a new dead letter, with a higher id.
    last = max(dead_letter.id for dead_letter in letters.dead_letters)
    # By record, because only its id is the same in the old dead letter and the new one.
    tried = {(letter.exporter, letter.record_id) for letter in letters.dead_letters}
    refused = 0
    for letter in _letters(letters.folder, None):
        if letter.id > last and (letter.exporter, letter.record_id) in tried:
            refused += 1
    return refused


def _print_counts(
    folder: RunFolder, counts: Mapping[str, int], *, as_json: bool
) -> None:
    """Print what became of the letters of a run, and why some still wait.

    A reason is not in the JSON.
    """
    if as_json:
        echo(orjson.dumps({"run_id": folder.run_id, **counts}).decode())
        return
    parts: list[str] = []
    for outcome, count in counts.items():
        if count or outcome != "waiting":
            parts.append(f"{count} {outcome.replace('_', ' ')}")
    line = f"{folder.run_id}: {', '.join(parts)}"
    report = read_report(folder)
    if report is not None and counts["waiting"]:
        line = "; ".join([line, *report.troubles()])
    echo(line)


def _line(dead_letter: StoredDeadLetter) -> str:
    """Return a dead letter on one line, with control characters escaped."""
    time_text = datetime.fromtimestamp(
        dead_letter.time_unix_ns / 1e9, timezone.utc
    ).strftime("%Y-%m-%d %H:%M:%S")
    kind = _KINDS[dead_letter.kind]
    facts = printable(_facts(dead_letter))
    return f"{dead_letter.id}  {dead_letter.exporter}  {kind}  {facts}{time_text}  {printable(dead_letter.reason)}"


def _facts(dead_letter: StoredDeadLetter) -> str:
    """Return step, role and id of the record, as far as it has them, each with spaces behind it."""
    content = _content(dead_letter)
    step = content.get("step")
    role = str(content.get("role") or "")
    parts = [f"step {step}" if step is not None else "", role, dead_letter.record_id]
    return "".join(f"{part}  " for part in parts if part)


def _content(dead_letter: StoredDeadLetter) -> dict[str, object]:
    """Return the dead letter's record as JSON.

    Empty for an old one, of which the ledger keeps the reason alone.
    """
    if not dead_letter.data:
        return {}
    try:
        record = codec.decode(dead_letter.kind, dead_letter.data, dead_letter.position)
    except InvalidRecordError as exc:
        # Shown all the same: its reason is what a person looks for.
        return {"undecodable": str(exc), "bytes": len(dead_letter.data)}
    # Records are dataclasses, which become objects.
    return cast("dict[str, object]", orjson.loads(orjson.dumps(record, default=str)))


def _json(folder: RunFolder, dead_letter: StoredDeadLetter, *, whole: bool) -> str:
    """Return one JSON line of a dead letter, with its record if *whole*, which may be of megabytes."""
    line: dict[str, object] = {
        "run_id": folder.run_id,
        "id": dead_letter.id,
        "exporter": dead_letter.exporter,
        "kind": _KINDS[dead_letter.kind],
        "record_id": dead_letter.record_id,
        "position": dead_letter.position,
        "time_unix_ns": dead_letter.time_unix_ns,
        "reason": dead_letter.reason,
    }
    if whole:
        line["record"] = _content(dead_letter)
    return printable_json(orjson.dumps(line).decode())
