"""The lines that are said on stderr: one at ``init()``, one at ``finish()``, and warnings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from otel_bridge.emit.identity import Identity
from otel_bridge.errors import ConfigError
from otel_bridge.journal.places import places
from otel_bridge.journal.report import Report
from otel_bridge.settings import QUIET, environment

NOTHING_CHOSEN = 'no exporter chosen, nothing is recorded; pass exporters="trackio" or set OTEL_BRIDGE_EXPORTERS'
NONE_CHOSEN = "exporters: none, nothing is recorded"


def say(line: str, *, always: bool = False) -> None:
    """Write one line to stderr; ``OTEL_BRIDGE_QUIET`` silences it unless it is to be said *always*."""
    if not always:
        with contextlib.suppress(ConfigError):
            if QUIET.read(environment()):
                return
    # A closed or broken stderr is the program's own affair.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"otel-bridge: {line}\n")
        sys.stderr.flush()


def begun(identity: Identity, to: str, notes: Sequence[str]) -> str:
    """Return the line of ``init()``: which run, as whom, *to* where."""
    speaker = f" as {identity.role}" if identity.role else ""
    rank = f" rank {identity.rank} of {identity.world_size}" if identity.world_size > 1 else ""
    line = f"{identity.project}/{identity.name} ({identity.id[:8]}…){speaker}{rank} → {to}"
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
        parts += found(report)
        parts += [f"{name}: {place}" for name, place in places(report).items()]
        waiting = [f"{number} {what}" for what, number in report.waiting.items() if number]
        if waiting:
            # A finished rollout waits for the rest of its trace, or for the last of its step, and is written then.
            parts.append(f"waiting: {', '.join(waiting)}, which come by themselves")
        if report.drops:
            parts.append(f"dropped: {', '.join(f'{number} {reason}' for reason, number in report.drops.items())}")
    return " · ".join((*parts, *remains))


def found(report: Report) -> Sequence[str]:
    """Return what trackers already held of the run when the bridge first opened it, and what later ones never get."""
    missed = [
        f"{name} was named later: {_number(one.missed, 'record')} had been deleted by then"
        for name, one in report.exporters.items()
        if one.missed
    ]
    return [*(one.found for one in report.exporters.values() if one.found), *missed]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
