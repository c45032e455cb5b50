"""``otel-bridge dead-letters``: what a tracker refused for good. Looking is read-only; the bridge does the rest."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, TypeVar

import click
import orjson
from rich.console import Console

from otel_bridge.bridge import codec
from otel_bridge.bridge.database import open_for_reading
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.tables import Buried
from otel_bridge.bridge.view import View
from otel_bridge.cli.drain import Drains
from otel_bridge.cli.rollouts import chosen_folders
from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.ask import ask
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import read_report

_KINDS: Final = {
    codec.ROW: "row",
    codec.ROLLOUT: "rollout",
    codec.LATE: "late value",
    codec.CONFIG: "config",
    codec.END: "end",
    codec.OTHER: "trace",
}
_CLIP: Final = 2_000
_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.1
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class _Found:
    """The chosen dead letters of one run folder; there is at least one."""

    folder: RunFolder
    letters: Sequence[Buried]

    def by_exporter(self) -> Mapping[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for letter in self.letters:
            ids.setdefault(letter.exporter, []).append(letter.id)
        return ids


@click.group("dead-letters")
def command() -> None:
    """Show what trackers refused for good, try it again, or discard it.

    A record that a tracker will never take as it is (a key it cannot hold, a value over its limit) is set aside, with
    the reason, and what stands behind it goes on. DIR holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge
    here), or is one.
    """


def _options(function: F) -> F:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines."),
        click.option("--id", "ids", type=int, multiple=True, help="Only this one; may be given several times."),
        click.option("--exporter", default=None, help="Only those of this exporter."),
        click.option("--run", default=None, help="Only of this run: its name, its id, or the beginning of that."),
        click.argument("directory", required=False, type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


@command.command("list")
@_options
def list_(directory: Path | None, run: str | None, exporter: str | None, ids: tuple[int, ...], as_json: bool) -> None:
    """One line each: id, exporter, kind, what it is, when, and why it was refused."""
    for found in _chosen(directory, run, exporter, ids):
        if not as_json:
            click.echo(f"{found.folder.run_id}: {len(found.letters)} dead letters")
        for letter in found.letters:
            click.echo(_json(found.folder, letter, whole=False) if as_json else f"  {_line(letter)}")


@command.command()
@_options
def show(directory: Path | None, run: str | None, exporter: str | None, ids: tuple[int, ...], as_json: bool) -> None:
    """The same with what each holds; long ones are clipped, but for --json."""
    for found in _chosen(directory, run, exporter, ids):
        for letter in found.letters:
            if as_json:
                click.echo(_json(found.folder, letter, whole=True))
                continue
            text = orjson.dumps(_content(letter), option=orjson.OPT_INDENT_2, default=str).decode()
            clipped = text if len(text) <= _CLIP else f"{text[:_CLIP]} … ({len(text):,} characters; --json for all)"
            click.echo(f"{found.folder.run_id} {_line(letter)}\n{clipped}")


@command.command()
@_options
def retry(directory: Path | None, run: str | None, exporter: str | None, ids: tuple[int, ...], as_json: bool) -> None:
    """Hand them to their exporters once more; exits 1 when one is refused again or cannot be tried now.

    The bridge of the run does it; where none runs, the folder is delivered as by `otel-bridge drain`.
    """
    failed = False
    for found in _chosen(directory, run, exporter, ids):
        ask(found.folder, "retry", letters=found.by_exporter())
        if not probe(found.folder.lock_path):
            Drains(Console(highlight=False, stderr=True)).drain(found.folder)
        left = _left(found, _WAIT_S)
        again = _refused_again(found)
        said = {"tried": len(found.letters) - left, "refused_again": again, "waiting": left}
        failed |= bool(left or again)
        _say(found.folder, said, as_json=as_json)
    sys.exit(1 if failed else 0)


@command.command()
@_options
def discard(directory: Path | None, run: str | None, exporter: str | None, ids: tuple[int, ...], as_json: bool) -> None:
    """Delete them for good."""
    failed = False
    for found in _chosen(directory, run, exporter, ids):
        lock = found.folder.lock()
        if lock.acquire():
            try:
                with contextlib.closing(Ledger(found.folder.ledger_path)) as ledger:
                    ledger.discard_dead_letters(None, found.by_exporter())
            finally:
                lock.release()
        else:
            ask(found.folder, "discard", letters=found.by_exporter())
        left = _left(found, _WAIT_S)
        failed |= left > 0
        _say(found.folder, {"discarded": len(found.letters) - left, "waiting": left}, as_json=as_json)
    sys.exit(1 if failed else 0)


def _chosen(directory: Path | None, run: str | None, exporter: str | None, ids: Sequence[int]) -> list[_Found]:
    """Return what was asked for; says on standard error when there is nothing."""
    found: list[_Found] = []
    for folder in chosen_folders(directory, run):
        letters = [letter for letter in _letters(folder, ids or None) if exporter in {None, letter.exporter}]
        if letters:
            found.append(_Found(folder, letters))
    if not found:
        click.echo("no dead letters", err=True)
    return found


def _letters(folder: RunFolder, ids: Sequence[int] | None) -> list[Buried]:
    if not folder.ledger_path.exists():
        return []
    view = View(open_for_reading(folder.ledger_path))
    try:
        return view.dead_letters(ids)
    finally:
        view.close()


def _left(found: _Found, timeout_s: float) -> int:
    """Wait until the ledger has none of them any more; return how many it has after *timeout_s*."""
    ids = [letter.id for letter in found.letters]
    deadline = time.monotonic() + timeout_s
    while (left := len(_letters(found.folder, ids))) and time.monotonic() < deadline:
        if not probe(found.folder.lock_path) or _stuck(found):
            break
        time.sleep(_PAUSE_S)
    return left


def _stuck(found: _Found) -> bool:
    report = read_report(found.folder)
    exporters = {} if report is None else report.exporters
    return all(name in exporters and exporters[name].state == "blocked" for name in found.by_exporter())


def _refused_again(found: _Found) -> int:
    last = max(letter.id for letter in found.letters)
    tried = {(letter.exporter, letter.record_id) for letter in found.letters}
    return sum(one.id > last and (one.exporter, one.record_id) in tried for one in _letters(found.folder, None))


def _say(folder: RunFolder, said: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps({"run_id": folder.run_id, **said}).decode())
        return
    parts = [f"{count} {what.replace('_', ' ')}" for what, count in said.items() if count or what != "waiting"]
    report = read_report(folder)
    why = [
        f"{name} is {one.state}: {one.reason}"
        for name, one in (report.exporters if report else {}).items()
        if one.reason
    ]
    click.echo("; ".join([f"{folder.run_id}: {', '.join(parts)}", *(why if said["waiting"] else [])]))


def _line(letter: Buried) -> str:
    when = datetime.fromtimestamp(letter.time_unix_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    what = _KINDS.get(letter.kind, f"kind {letter.kind}")
    return f"{letter.id}  {letter.exporter}  {what}  {_facts(letter)}{when}  {_plain(letter.reason)}"


def _facts(letter: Buried) -> str:
    content = _content(letter)
    step, role = content.get("step"), content.get("role")
    parts = [f"step {step}" if step is not None else "", str(role or ""), letter.record_id]
    return "".join(f"{part}  " for part in parts if part)


def _content(letter: Buried) -> dict[str, object]:
    """Return the record as JSON; empty where its content was let go."""
    if not letter.data:
        return {}
    try:
        record = codec.decode(letter.kind, letter.data, letter.position)
    except InvalidRecordError as exc:
        return {"undecodable": str(exc), "bytes": len(letter.data)}
    found: object = orjson.loads(orjson.dumps(record, default=str))
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON


def _json(folder: RunFolder, letter: Buried, *, whole: bool) -> str:
    line: dict[str, object] = {
        "run_id": folder.run_id,
        "id": letter.id,
        "exporter": letter.exporter,
        "kind": _KINDS.get(letter.kind, str(letter.kind)),
        "record_id": letter.record_id,
        "position": letter.position,
        "time_unix_ns": letter.time_unix_ns,
        "reason": letter.reason,
    }
    return orjson.dumps({**line, **({"record": _content(letter)} if whole else {})}).decode()


def _plain(text: str) -> str:
    """Return *text* in one line: a tracker's words may hold anything."""
    return "".join(char if char.isprintable() else " " for char in text)
