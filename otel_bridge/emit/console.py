"""Prints lines on stderr: a few at ``init()`` and at ``finish()``, and warnings."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otel_bridge.emit.config.exporters import installed
from otel_bridge.emit.config.identity import Identity
from otel_bridge.emit.drop_reasons import drop_lines
from otel_bridge.errors import ConfigError, any_error_but_signals
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, left_out_lines, view_links
from otel_bridge.settings import QUIET, environment
from otel_bridge.text.command_line import command_line
from otel_bridge.text.counts import counted
from otel_bridge.text.printable import shown
from otel_bridge.text.wait_display import WaitDisplay

if TYPE_CHECKING:
    from rich.console import Console

NONE_CHOSEN = "exporters: none, nothing is recorded"


def notify(*lines: str, always: bool = False) -> None:
    """Write *lines* to stderr at once, without secrets and control characters; it never raises.

    ``OTEL_BRIDGE_QUIET`` suppresses them unless *always* is set, for what a person must know.

    Further lines belong to the first and are indented.
    """
    if not always:
        with contextlib.suppress(ConfigError):
            if QUIET.read(environment()):
                return
    # A closed or broken stderr is the program's own concern.
    try:
        text = ""
        for line in lines:
            indent = "  " if text else ""
            text += f"otel-bridge: {indent}{shown(line)}\n"
        _write(text)
    except any_error_but_signals():
        pass


def wait_display() -> WaitDisplay:
    """Return a display of this process's wait on stderr, without bars where ``OTEL_BRIDGE_QUIET`` is set."""
    try:
        has_bars = sys.stderr.isatty() and not QUIET.read(environment())
    except any_error_but_signals():  # a program may replace stderr by any object
        has_bars = False
    return WaitDisplay(notify, _terminal if has_bars else None)


def _terminal() -> Console:
    from rich.console import Console  # noqa: PLC0415  # takes 0.1 s, which only a wait of seconds may cost

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def _write(text: str) -> None:
    """Write *text* to stderr; to the interpreter's own stderr without its buffer.

    Text in the buffer of a full or broken stderr would be written again at exit, and Python would
    then exit with 120. What a broken stream raises is raised: `notify` ignores it.
    """
    stream = sys.stderr
    own_stderr = sys.__stderr__
    # What the program has printed before comes first.
    stream.flush()
    if own_stderr is not None and stream is own_stderr:
        os.write(
            own_stderr.fileno(), text.encode(own_stderr.encoding, "backslashreplace")
        )
        return
    stream.write(text)
    stream.flush()


def begun(identity: Identity, to: str, notes: Sequence[str]) -> list[str]:
    """Return the lines of ``init()``: run, role and destinations (*to*), then a line for each note."""
    producer = f" as {identity.role}" if identity.role else ""
    if identity.world_size > 1:
        rank = f" rank {identity.rank} of {identity.world_size}"
    else:
        rank = ""
    line = f"{identity.project}/{identity.name} ({identity.id[:8]}…){producer}{rank} → {to}"
    return [line, *notes]


def kept_without_exporter(
    folder: Path, exporters: Sequence[str], *, delivered: bool
) -> list[str]:
    """Return lines on a run that is appended because no exporter is chosen: its folder, and how to deliver it.

    Args:
        folder: The run folder.
        exporters: Exporters that this environment could deliver to; empty: those of an earlier
            start apply.
        delivered: Whether a bridge of another process delivers it.
    """
    if delivered:
        return [f"{folder}, which the run's bridge delivers; no exporter chosen here"]
    lines = [f"no exporter chosen, kept in {folder}"]
    if not exporters:
        return [*lines, f"deliver with: {command_line('drain', folder)}"]
    return [
        *lines,
        f"deliver with: {command_line('drain', '--exporters', exporters[0], folder)}",
        f"next time set OTEL_BRIDGE_EXPORTERS to some of: {', '.join(exporters)}; none records nothing",
    ]


def drain_command(folder: RunFolder, *, chosen: bool) -> str:
    """Return the command that delivers *folder*.

    Without a *chosen* exporter, it names one that could deliver here, at least ``file``.
    """
    return command_line(
        "drain", *(() if chosen else ("--exporters", installed()[0])), folder.path
    )


def held_command(folder: RunFolder, *, chosen: bool) -> str:
    """Return the command that delivers all runs of a directory.

    Without a *chosen* exporter, *folder* alone.

    An exporter that a command names goes before those that other runs of the directory chose: it
    must not be named for all.
    """
    if chosen:
        return command_line("drain", folder.base)
    return drain_command(folder, chosen=False)


def nothing_kept(reason: str) -> str:
    """Return a sentence on a run without an exporter that cannot be appended, for *reason*."""
    return f"no exporter chosen, and nothing is recorded: {reason}"


def ended(
    identity: Identity,
    status: str,
    own_rows: int,
    report: Report | None,
    remains: Sequence[str],
    *,
    printed_drops: Mapping[str, int],
) -> list[str]:
    """Return the lines of ``finish()``: status and counts, each address, then what a person must know.

    Args:
        identity: The run.
        status: End status of this process.
        own_rows: Rows that this process logged.
        report: The bridge's last report on the whole run, if any.
        remains: Statements on undelivered records; empty: everything is delivered.
        printed_drops: Reason of drops to the number in the line that this process has just printed:
            an equal one of the run is not printed again.
    """
    counts = f"{counted(own_rows, 'row')} logged by this process"
    if report is not None:
        logged_rows = report.rows - sum(report.derived_rows.values())
        of_run = _counts_of_run(report)
        if own_rows == logged_rows:
            counts = of_run
        else:
            counts = f"{counts}; the run has {of_run}"
    parts = [f"{identity.project}/{identity.name} {status}: {counts}"]
    if report is not None:
        parts += [f"{label}: {text}" for label, text in view_links(report)]
        parts += [*found(report), *degraded(report)]
        waiting: list[str] = []
        for plural, number in report.waiting.items():
            if number:
                waiting.append(counted(number, plural.removesuffix("s")))
        if waiting:
            # A finished rollout waits for the rest of its trace, or for the end of its step, and is
            # written then.
            parts.append(f"waiting: {', '.join(waiting)}; delivery is automatic")
        further_drops = {
            reason: count
            for reason, count in report.drops.items()
            if count != printed_drops.get(reason)
        }
        parts += drop_lines(further_drops, report.drop_keys)
        parts += without_messages(report)
    return [*parts, *remains]


def _counts_of_run(report: Report) -> str:
    derived = derived_counts(report)
    rollouts = f"{counted(report.rollouts, 'rollout')} and " if report.rollouts else ""
    return f"{rollouts}{counted(report.rows, 'row')}" + (
        f", {derived}" if derived else ""
    )


def derived_counts(report: Report) -> str:
    """Return the numbers of rows that no process logged, by the data they are made of."""
    return ", ".join(
        f"{count:,} of {source}" for source, count in report.derived_rows.items()
    )


def without_messages(report: Report) -> Sequence[str]:
    """Return a sentence for each instrumentation without messages, with the setting that makes it record them."""
    sentences: list[str] = []
    for scope, switch in sorted(report.bare_scopes.items()):
        remedy = f": set {switch}" if switch else ""
        sentences.append(f"{scope} records no messages{remedy}")
    return sentences


def rest_is_kept(folder: RunFolder, delivered_by: str | None, *, chosen: bool) -> str:
    """Return a sentence on records that are kept, as they are not delivered when ``finish()`` returns.

    Args:
        folder: The run folder.
        delivered_by: Process that continues to deliver: ``launcher``, ``bridge``, or ``None``.
        chosen: Whether this start of the run or an earlier one named an exporter.
    """
    if delivered_by is None:
        return f"undelivered records are kept; deliver them with: {held_command(folder, chosen=chosen)}"
    if delivered_by == "launcher":
        deliverer = "`otel-bridge run`"
    else:
        deliverer = "a process in the background"
    return f"{deliverer} continues to deliver the rest; watch it with: {command_line('status --watch', folder.base)}"


def blocked_is_kept(base: Path, names: Sequence[str]) -> str:
    """Return a sentence on the records of blocked exporters, which the bridge keeps when it ends."""
    lack = "lacks" if len(names) == 1 else "lack"
    drain = command_line("drain", base)
    return f"records that {', '.join(names)} {lack} are kept; once this is fixed, run: {drain}"


def found(report: Report) -> Sequence[str]:
    """Return statements on content that trackers already held, and on records that they miss or refused."""
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        if exporter.found:
            lines.append(exporter.found)
        if exporter.missed:
            lines.append(missed_line(name, exporter.missed))
        if exporter.dead_letters:
            lines.append(refused_line(name, exporter.dead_letters))
    return lines


def missed_line(name: str, count: int) -> str:
    """Return a statement on an exporter that was named after *count* records had been deleted."""
    return f"{name} was named later: it lacks {counted(count, 'record')} that had been deleted by then"


def refused_line(name: str, count: int) -> str:
    """Return a statement on *count* records that an exporter refused for good, and where to read of them."""
    # What otlp forwards is in no ledger, from which it could be listed or tried again.
    advice = "see bridge.log"
    if name != OTLP:
        advice = "otel-bridge dead-letters list"
    return f"{name} refused {counted(count, 'record')} for good: {advice}"


def degraded(report: Report) -> Sequence[str]:
    """Return sentences on features that the installed trackers lack, and on data left out as a result."""
    sentences: dict[str, None] = {}
    for exporter in report.exporters.values():
        sentences |= dict.fromkeys(exporter.degraded)
    return [*sentences, *left_out_lines(report)]
