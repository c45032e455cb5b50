"""Makes what ``otel-bridge status`` prints: roles, trackers, warnings, next commands, space.

`drain`, `run` and `demo` show a run by the same tables when they end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from otel_bridge.cli.status.run_state import KeptRecords, RunState, StateReader
from otel_bridge.cli.status.source import Overview
from otel_bridge.cli.status.unread import unread
from otel_bridge.cli.terminal import Terminal, plain_table
from otel_bridge.emit.console import (
    derived_counts,
    drain_command,
    missed_line,
    refused_line,
    without_messages,
)
from otel_bridge.emit.drop_reasons import drop_lines
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import (
    ExporterReport,
    Report,
    left_out_lines,
    view_links,
)
from otel_bridge.records import AXIS, axis_of
from otel_bridge.text.command_line import command_line
from otel_bridge.text.counts import counted, first_ones, records_waiting
from otel_bridge.text.printable import printable, shown

_AWAITED_S = 5.0
"""Time that ranks have waited for one before `status` names it."""
_OLD_NS = 10_000_000_000
"""Age of a report from which its rates no longer hold: ten seconds."""
_HEIGHTS = "▁▂▃▄▅▆▇█"
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_DELIVERING = frozenset({"idle", "writing"})
_STYLES = {"blocked": "bold red", "retrying": "yellow", "ended": "green"}


def run_table(state: RunState, report: Report, now_ns: int) -> RenderableType:
    """Return *report* as a heading, tables of roles and trackers, and a line for each problem.

    Args:
        state: State of its folder.
        report: Its report.
        now_ns: When *state* was read, in Unix ns.
    """
    heading = Text.assemble(
        (f"{report.project}/{report.name}", "bold"),
        f" ({printable(state.run_id)}) ",
        _status(state, report),
    )
    parts: list[RenderableType] = [
        heading,
        Text(_pace(report, state, now_ns), style="dim"),
        _roles(state, report, now_ns),
        _trackers(state, report, now_ns),
    ]
    parts += [Text(line, style="dim") for line in _notes(report)]
    problems = (*_recent(report, now_ns), *_undelivered(state), *warnings(report))
    return Group(*parts, *(Text(line, style="yellow") for line in problems))


def _undelivered(state: RunState) -> Iterator[str]:
    """Yield one line for each reason, not in the report, why records reach no tracker."""
    yield from _refused(state)
    if state.unread_bytes and not state.bridge_alive:
        yield f"{size(state.unread_bytes)} arrived after the last bridge exited and are unread"


def warnings(report: Report) -> Sequence[str]:
    """Return one line for each thing that was lost, is held up, or is not recorded.

    Empty without any: `demo` takes any line as a failure.
    """
    lines: list[str] = []
    for name, exporter in report.exporters.items():
        lines += _warnings_of(name, exporter)
    lines += left_out_lines(report)
    if report.lacks_exporter:
        lines.append(
            f"no exporter is chosen, and {records_waiting(report.position)} for one"
        )
    lines += [owed_line(name, count) for name, count in report.owed.items()]
    lines += [
        f"{name}: {_records(name, count)} were discarded with --discard"
        for name, count in report.discarded.items()
    ]
    lines += [
        f"{name}: {_records(name, count)} were deleted to free space before they were delivered"
        for name, count in report.evicted.items()
    ]
    lines += drop_lines(dict(sorted(report.drops.items())), report.drop_keys)
    if report.missing_rows:
        lines.append(f"{report.missing_rows} rows are missing (gaps in their numbers)")
    return [*lines, *without_messages(report)]


def _warnings_of(name: str, exporter: ExporterReport) -> Iterator[str]:
    """Yield one line for each problem of the exporter *name*, nothing for one without.

    Records that were missed or refused are named for as long as the run exists: no retry mends
    them.
    """
    if exporter.trouble:
        yield f"{name} is {exporter.trouble}"
    if exporter.missed:
        yield missed_line(name, exporter.missed)
    if exporter.dead_letters:
        yield refused_line(name, exporter.dead_letters)


def owed_line(name: str, count: int) -> str:
    """Return the line about records that an exporter, which the run requested, did not get."""
    return f"{name}, which the run requested, did not get {_records(name, count)}"


def _records(name: str, count: int) -> str:
    """Return *count* as text; ``otlp`` forwards whole segments, so that its counts are of these."""
    return counted(count, "segment" if name == OTLP else "record")


def place_commands(report: Report) -> Sequence[str]:
    """Return one line for each command, address or folder that leads to the run.

    The exporter ``otlp`` has none.
    """
    links = view_links(report)
    width = max(
        map(len, (*report.exporters, *(link.label for link in links))), default=0
    )
    return [f"{label:<{width}}  {text}" for label, text in links]


def show(console: Terminal, folder: RunFolder) -> RunState:
    """Print the run of *folder*, and return its state; nothing is printed of one without a report.

    Commands are printed on lines of their own, unwrapped, so that they can be copied.
    """
    state = StateReader().read(folder)
    if state.report is not None:
        console.print(run_table(state, state.report, time.time_ns()))
        for line in place_commands(state.report):
            console.print_line(f"  {line}")
    return state


def overview_view(overview: Overview) -> RenderableType:
    """Return all runs and what uses the disk space, for a terminal that is watched."""
    parts: list[RenderableType] = []
    for state in overview.runs:
        parts += [run_view(state, overview), *_curves(state.report), ""]
    return Group(*parts, Text(shown(space_line(overview)), style="dim"))


def _curves(report: Report | None) -> Iterator[Text]:
    """Yield one line for each featured key: a small curve of its last values, and the last one."""
    featured = {} if report is None else report.featured
    width = max(map(len, featured), default=0)
    for key, values in featured.items():
        low = min(values)
        # All low where they are equal.
        scale = (len(_HEIGHTS) - 1) / (max(values) - low or 1.0)
        curve = "".join(_HEIGHTS[round((value - low) * scale)] for value in values)
        yield Text(f"  {printable(key):<{width}}  {curve}  {values[-1]:.4g}")


def run_view(state: RunState, overview: Overview) -> RenderableType:
    """Return one run: its tables, or one line when no bridge has read it or its report is not valid."""
    if state.report is None:
        message = unread(state, here=overview.here).message
        return Text(shown("; ".join([message, *_refused(state)])))
    return run_table(state, state.report, overview.time_unix_ns)


def next_commands(state: RunState, *, here: bool) -> list[str]:
    """Return the commands that are useful next for a run; empty for one that needs none.

    For a run that this version refuses, draining is not among them.
    """
    report = state.report
    if report is None:
        if state.refused:
            return []
        return [f"  {unread(state, here=here).command}"]
    lines = [f"  {line}" for line in place_commands(report)]
    # No bridge delivers: it gave up, was killed, had no exporter, or ended too early.
    remains = state.unread_bytes or not report.ended or report.lacks_exporter
    if not state.bridge_alive and not state.refused and remains:
        lines.append(
            f"  {drain_command(RunFolder.at(Path(state.folder)), chosen=report.has_exporter)}"
        )
    if any(
        exporter.dead_letters
        for name, exporter in report.exporters.items()
        if name != OTLP
    ):
        lines.append(f"  {command_line('dead-letters list', state.folder)}")
    return lines


def space_line(overview: Overview) -> str:
    """Return in one line what uses the space of the directory; empty without a run, or one of a service.

    The run that uses most is named only among several, and of it the exporter that holds most.
    """
    if overview.room is None or not overview.runs:
        return ""
    used = overview.room.used_bytes
    limit = overview.room.limit_bytes
    limit_note = ", half of the free disk," if overview.room.of_disk else ""
    line = f"space: {size(used)} of {size(limit)}{limit_note} in {overview.where}"
    biggest = max(overview.runs, key=lambda state: state.total_bytes)
    holder = max(biggest.held, key=lambda name: biggest.held[name].bytes, default="")
    if len(overview.runs) > 1 and biggest.total_bytes:
        line += f"; most in {biggest.run_id}, {size(biggest.total_bytes)}"
    if holder and biggest.held[holder].bytes:
        line += f", held by {holder}"
    if used >= limit:
        line += "; full: new records are dropped until you free space"
    # Only once half is used: before that nothing needs to be deleted.
    if 2 * used >= limit:
        line += _of_ended(overview.runs, used)
    return line


def state_line(state: RunState, *, here: bool) -> str:
    """Return one run in one line, for a pipe that is watched.

    Only facts that change when something happens, unlike the tables: a line is printed at each
    change, and an age or a rate changes at each look.
    """
    report = state.report
    if report is None:
        return unread(state, here=here).message
    # An ended run needs no bridge, so that its own status is shown.
    is_served = report.ended or state.bridge_alive
    status = report.status if is_served else _unserved(state, report)
    steps = " ".join(f"{axis}={step}" for axis, step in sorted(report.steps.items()))
    parts = [f"{report.project}/{report.name} ({state.run_id}) {status} {steps}"]
    for name, exporter in report.exporters.items():
        label = _exporter_state(exporter, report, served=state.bridge_alive)
        part = f"{name} {label}, {_waiting(report, exporter)} waiting"
        parts.append(f"{part}, {exporter.reason}" if exporter.reason else part)
    if report.lacks_exporter:
        parts.append(f"no exporter, {report.position} waiting")
    # A bridge that runs is about to read them.
    if state.unread_bytes and not state.bridge_alive:
        parts.append(f"{size(state.unread_bytes)} unread")
    if report.media:
        parts.append(f"{report.media:,} media")
    if report.alerts:
        title = report.last_alert.get("title", "")
        parts.append(f"{report.alerts:,} alerts, last {title}")
    return "; ".join([*parts, *_refused(state)])


def _refused(state: RunState) -> Iterator[str]:
    """Yield why this version cannot serve the run; nothing if it can."""
    if state.refused:
        yield f"this version cannot serve the run: {state.refused}"


def _of_ended(states: Iterable[RunState], used_bytes: int) -> str:
    """Return a note when files of ended runs use most of the space: only a person deletes those."""
    sizes: list[int] = []
    for state in states:
        file_bytes = state.bytes.get("files", 0)
        # Only runs of which files are the most.
        is_large = 2 * file_bytes > state.total_bytes
        if state.report is not None and state.report.ended and is_large:
            sizes.append(file_bytes)
    # Less than half: deleting them would not be what helps most.
    if 2 * sum(sizes) <= used_bytes:
        return ""
    return (
        f"; {size(sum(sizes))} of {counted(len(sizes), 'ended run')} are files of exporters: "
        "delete their folders when you no longer need them"
    )


def _status(state: RunState, report: Report) -> Text:
    """Return the status of a run with its color, or who is missing: its bridge, or all processes."""
    if report.ended:
        return Text(
            report.status, style="green" if report.status == "finished" else "red"
        )
    if state.bridge_alive:
        if report.status != "running":
            return Text(f"{report.status}, delivering", style="cyan")
        # A process that crashed may be restarted; until then its run is neither running nor over.
        return Text(
            "running" if _any_runs(report) else "ending (none of its processes runs)",
            style="cyan",
        )
    # Not below 0: the report may be of a machine with another clock.
    since_s = max(time.time() - report.time_unix_ns / 1e9, 0)
    return Text(
        f"{_unserved(state, report)}, last seen {age(since_s)} ago", style="yellow"
    )


def _any_runs(report: Report) -> bool:
    """Return whether a process of the run is alive.

    A run without reported processes may have some elsewhere.
    """
    return not report.processes or any(
        process.alive and not process.bridge for process in report.processes.values()
    )


def _unserved(state: RunState, report: Report) -> str:
    """Return the status of a run that no bridge serves and that is not delivered.

    A run whose senders cannot be seen may have some that run.
    """
    if report.status == "running" and not (state.unseen_senders or _any_runs(report)):
        return "no bridge, and none of its processes runs"
    return f"{report.status}, no bridge"


def _pace(report: Report, state: RunState, now_ns: int) -> str:
    """Return in one line the rate of rows, what waits for missing data, and the disk space used.

    An ended run has no rate.
    """
    parts: list[str] = []
    if not report.ended:
        # Without a bridge the report is of its last moment, and its rate is over.
        rate = (
            _current(report.rows_per_s, report, now_ns) if state.bridge_alive else 0.0
        )
        parts.append(f"{rate:g} rows/s in")
    waiting = [f"{count} {name}" for name, count in report.waiting.items() if count]
    if waiting:
        parts.append(f"still open: {', '.join(waiting)}")
    used = [f"{name} {size(count)}" for name, count in state.bytes.items() if count]
    parts.append(f"{size(state.total_bytes)} here ({', '.join(used) or 'nothing'})")
    return "; ".join(parts)


def _current(rate: float, report: Report, now_ns: int) -> float:
    """Return a rate of the report, or 0 when the report is old: an idle bridge writes no report."""
    if now_ns - report.time_unix_ns < _OLD_NS:
        return rate
    return 0.0


def _roles(state: RunState, report: Report, now_ns: int) -> Table:
    """Return a table with a row per role, without a column of roles when the run has none.

    A run without a step and a role has no row, because nothing has been logged.
    """
    steps = _last_steps(report)
    columns = [*_role_cells(state, report, "", None, now_ns)]
    if not any(steps):
        columns.remove("role")
    table = plain_table(columns, numbers=set(columns) - {"role"})
    for role, step in sorted(steps.items()):
        cells = _role_cells(state, report, role, step, now_ns)
        table.add_row(*(cells[column] for column in columns))
    return table


def _role_cells(
    state: RunState, report: Report, role: str, step: int | None, now_ns: int
) -> dict[str, str]:
    """Return the cells of one role by column.

    What changes only while a run goes on is left out after it.
    """
    axis = axis_of(role or None)
    cells = {
        "role": role or "-",
        "last step": "-" if step is None else str(step),
        "rows": str(report.rows_by_axis.get(axis, 0)),
    }
    if report.status == "running":
        cells["processes"] = _processes(state, report, role)
    if not report.ended:
        cells["last row"] = ""
        if axis in report.row_times:
            cells["last row"] = f"{age((now_ns - report.row_times[axis]) / 1e9)} ago"
    return cells


def _last_steps(report: Report) -> dict[str, int | None]:
    """Return role to its last step, ``None`` for one without steps.

    The role of processes without a role is empty. Empty for a run without roles and steps.
    """
    # Roles without steps are shown too.
    steps: dict[str, int | None] = dict.fromkeys(filter(None, report.roles))
    steps |= {
        "" if axis == AXIS else axis.removesuffix(f"/{AXIS}"): step
        for axis, step in report.steps.items()
    }
    return steps


def _processes(state: RunState, report: Report, role: str) -> str:
    """Return how many processes of *role* are alive; empty when none is known."""
    processes = report.roles.get(role)
    if processes is None:
        return ""
    note = " when last seen" if state.unseen_senders else ""
    return f"{processes.alive} of {processes.processes} alive{note}"


def _trackers(state: RunState, report: Report, now_ns: int) -> Table:
    """Return a table with a row per exporter that is named now."""
    columns = ["tracker", "state", "rows", "rollouts", "waiting"]
    # Speeds and lags of an ended run are over.
    if not report.ended:
        columns += ["rows/s", "lag", "holds"]
    table = plain_table(columns, numbers=columns[2:])
    for name, exporter in report.exporters.items():
        label = _exporter_state(exporter, report, served=state.bridge_alive)
        cells = ["", ""]
        # The exporter otlp forwards bytes, in which rows and rollouts are not counted.
        if name != OTLP:
            cells = [str(exporter.rows), str(exporter.rollouts)]
        cells.append(str(_waiting(report, exporter)))
        if not report.ended:
            records = state.held.get(name, KeptRecords())
            lag_s = 0.0
            if records.unwritten_unix_ns is not None:
                lag_s = (now_ns - records.unwritten_unix_ns) / 1e9
            rate = 0.0
            if state.bridge_alive:
                rate = _current(exporter.rows_per_s, report, now_ns)
            cells += [f"{rate:g}", age(lag_s), size(records.bytes)]
        table.add_row(name, Text(label, style=_STYLES.get(label, "")), *cells)
    return table


def _exporter_state(exporter: ExporterReport, report: Report, *, served: bool) -> str:
    """Return the state of an exporter.

    Without a bridge nothing is delivered: one that worked is stopped, but for a run that has ended.
    Then it has ended too. Others than otlp have that state already, since they end a run in a tracker.
    """
    if served or exporter.state not in _DELIVERING:
        return exporter.state
    if report.ended:
        return "ended"
    return "stopped"


def _recent(report: Report, now_ns: int) -> Iterator[str]:
    """Yield a line for each problem of ranks and engines now, and one on alerts; nothing without any.

    A rank that is awaited only for a moment is not named: at each barrier one is last.
    """
    for role, rank in sorted(report.awaited_ranks.items()):
        waited_s = (now_ns - int(rank["since_unix_ns"])) / 1e9
        if waited_s >= _AWAITED_S and not report.ended:
            ranks = counted(int(rank["others"]), "rank")
            phase = f"{shown(str(rank['phase']))} of step {rank['step']}"
            yield f"{role or 'the run'}: rank {rank['rank']} delays {ranks} for {age(waited_s)}: {phase}"
    for role, slow in sorted(report.slow_ranks.items()):
        yield (
            f"{role or 'the run'}: the others wait for rank {slow['rank']}, "
            f"which takes {slow['ratio']:.1f} times as long in {shown(str(slow['phase']))}, "
            f"in {slow['slow_steps']} of the last {slow['steps']} steps"
        )
    problems = report.engine_problems
    if problems:
        yield f"{counted(len(problems), 'problem')} of engines: {shown(first_ones(problems, 3))}"
    time_ns = report.last_alert.get("time_unix_ns")
    if report.alerts and isinstance(time_ns, int):
        alerts = counted(report.alerts, "alert")
        title = shown(str(report.last_alert.get("title")))
        level = report.last_alert.get("level")
        yield f"{alerts}, last {age((now_ns - time_ns) / 1e9)} ago: {title} ({level})"


def _notes(report: Report) -> Iterator[str]:
    """Yield a line for rows that no role logged, media, and what trackers lack or had before."""
    counts = derived_counts(report)
    if counts:
        yield f"rows made by the bridge: {counts}"
    if report.media:
        yield f"{report.media:,} media logged"
    for name, exporter in report.exporters.items():
        for sentence in exporter.degraded:
            yield f"{name}: {sentence}"
    yield from _former(report)


def _former(report: Report) -> Iterator[str]:
    """Yield one line for each tracker that the run no longer names, with what it holds and lacks.

    Such a tracker gets nothing more unless it is named again, which a person may have overlooked.
    """
    for name, exporter in report.former.items():
        # The exporter otlp forwards bytes, in which rows and rollouts are not counted.
        contents = "what was forwarded"
        if name != OTLP:
            contents = f"{counted(exporter.rows, 'row')} and {counted(exporter.rollouts, 'rollout')}"
        line = f"{name}, no longer named, has {contents}"
        lacking = _waiting(report, exporter)
        # What the run requested has a line of its own, with how much that is.
        if lacking and name not in report.owed:
            command = f"`drain --exporters {name}`"
            line += f"; {counted(lacking, 'record')} did not reach it: {command} delivers what is kept"
        yield line


def _waiting(report: Report, exporter: ExporterReport) -> int:
    """Return how many records an exporter has not written.

    Its position may be newer than the ledger's here.
    """
    return max(report.position - exporter.written, 0)


def age(seconds: float) -> str:
    """Return a duration as text, in its largest fitting unit."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def size(count: int) -> str:
    """Return a number of bytes as text, in its largest fitting unit."""
    if count < 1024:
        return f"{count} B"
    # From the bits, which are exact: a logarithm may round to the next unit.
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"
