"""The lines that are said on stderr: one at ``init()``, one at ``finish()``, and warnings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_bridge.emit.config.identity import Identity
from otel_bridge.errors import ConfigError
from otel_bridge.journal.report import Report, places, sampled_out_lines
from otel_bridge.settings import QUIET, environment
from otel_bridge.text.printable import printable, shown
from otel_bridge.text.redaction import redact_text

NOTHING_CHOSEN = 'no exporter chosen, nothing is recorded; pass exporters="trackio" or set OTEL_BRIDGE_EXPORTERS'
_MAX_KEY_CHARS: Final = 100
NONE_CHOSEN = "exporters: none, nothing is recorded"


def say(line: str, *, always: bool = False) -> None:
    """Write one line to stderr; ``OTEL_BRIDGE_QUIET`` silences it unless it is to be said *always*."""
    if not always:
        with contextlib.suppress(ConfigError):
            if QUIET.read(environment()):
                return
    # A closed or broken stderr is the program's own affair.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"otel-bridge: {shown(line)}\n")
        sys.stderr.flush()


def begun(identity: Identity, to: str, notes: Sequence[str]) -> str:
    """Return the line of ``init()``: which run, as whom, *to* where."""
    producer = f" as {identity.role}" if identity.role else ""
    rank = f" rank {identity.rank} of {identity.world_size}" if identity.world_size > 1 else ""
    line = f"{identity.project}/{identity.name} ({identity.id[:8]}…){producer}{rank} → {to}"
    return " · ".join((line, *notes))


def ended(identity: Identity, status: str, own_rows: int, report: Report | None, remains: Sequence[str]) -> str:
    """Return the line of ``finish()``.

    Args:
        identity: The run.
        status: How this process ended.
        own_rows: Rows that this process logged.
        report: The bridge's last report, if there is one: of the whole run.
        remains: What is not delivered, and why; empty: all is.
    """
    parts = [f"{identity.project}/{identity.name} {status}", f"{_number(own_rows, 'row')} logged by this process"]
    if report is not None:
        parts.append(f"the run has {_number(report.rows, 'row')}, {_number(report.rollouts, 'rollout')}")
        parts += [*found(report), *degraded(report)]
        parts += [f"{name}: {place}" for name, place in places(report).items()]
        waiting = [f"{number} {what}" for what, number in report.waiting.items() if number]
        if waiting:
            # A finished rollout waits for the rest of its trace, or for the last of its step, and is written then.
            parts.append(f"waiting: {', '.join(waiting)}, which come by themselves")
        if report.drops:
            parts.append(f"dropped: {', '.join(_drops(report))}")
        parts += without_messages(report)
    return " · ".join((*parts, *remains))


def first_key(key: str) -> str:
    """Return the words that name the first key dropped for a reason; nothing where none is known."""
    return f", first '{shown_key(key)}'" if key else ""


def shown_key(key: str) -> str:
    """Return *key* as it may be printed: cut, without secrets and without what a terminal acts on."""
    cut = redact_text(key[: 2 * _MAX_KEY_CHARS])
    plain = printable(cut)
    return plain if len(plain) <= _MAX_KEY_CHARS else f"{plain[: _MAX_KEY_CHARS - 1]}…"


def _drops(report: Report) -> Sequence[str]:
    return [
        f"{number} {reason}{first_key(report.drop_keys.get(reason, ''))}" for reason, number in report.drops.items()
    ]


def without_messages(report: Report) -> Sequence[str]:
    """Return one sentence for each instrumentation whose rollouts have no messages: what makes it record them."""
    return [
        f"{scope} records no messages" + (f": set {switch}" if switch else "")
        for scope, switch in sorted(report.bare_scopes.items())
    ]


def rest_is_kept(base: Path, delivered_by: str | None, exporters: Sequence[str]) -> str:
    """Return what becomes of records that are not delivered when ``finish()`` returns.

    Args:
        base: The directory of run folders.
        delivered_by: Who goes on: ``launcher``, ``bridge``, or ``None`` for nobody.
        exporters: Exporters that the process named.
    """
    if delivered_by is None:
        named = "" if exporters else " --exporters NAME"
        return f"the rest is kept; deliver it with: otel-bridge drain {base}{named}"
    who = "`otel-bridge run` goes on" if delivered_by == "launcher" else "a process in the background goes on"
    return f"{who} delivering the rest; watch it with: otel-bridge status --watch {base}"


def blocked_is_kept(base: Path, names: Sequence[str]) -> str:
    """Return what becomes of the records for exporters that are blocked: their bridge ends without them."""
    have = "has" if len(names) == 1 else "have"
    return f"what {', '.join(names)} {have} not got is kept; once that is mended: otel-bridge drain {base}"


def found(report: Report) -> Sequence[str]:
    """Return what trackers already held of the run when the bridge first opened it, and what later ones never get."""
    missed = [
        f"{name} was named later: {_number(one.missed, 'record')} had been deleted by then"
        for name, one in report.exporters.items()
        if one.missed
    ]
    return [*(one.found for one in report.exporters.values() if one.found), *missed]


def degraded(report: Report) -> Sequence[str]:
    """Return what the installed trackers cannot do, and what was therefore left out."""
    sentences = [sentence for one in report.exporters.values() for sentence in one.degraded]
    return [*dict.fromkeys(sentences), *sampled_out_lines(report)]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
