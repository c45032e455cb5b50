"""Lines that ``init()`` prints: where the run is delivered, what was before, where it is shown, and what is unusual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from otel_bridge.emit import console
from otel_bridge.emit.bridge_process.other_python import OtherPython
from otel_bridge.emit.config.exporters import installed
from otel_bridge.emit.config.identity import WORLD_SIZE
from otel_bridge.emit.config.resource import tracker_identity
from otel_bridge.emit.config.snapshot import RunStart
from otel_bridge.emit.config.tracker_ids import named_elsewhere
from otel_bridge.exporter import OTLP, RunInfo, caution_of, shown_by
from otel_bridge.journal.base_dir import BaseDir
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import (
    ExporterReport,
    Link,
    Report,
    links_of,
    view_links,
)
from otel_bridge.otlp import destination
from otel_bridge.records import axis_of
from otel_bridge.settings import RANKS


@dataclass(frozen=True, slots=True)
class FolderState:
    """Holds what a run finds at its start, before it adds to its folder.

    Attributes:
        before: Report of an earlier start, empty if no bridge has read it; ``None`` at the first one.
        delivered: Whether another process delivers the run now.
        launched: Whether ``otel-bridge run`` around this process delivers the run, or will.
        hold: Whether this process starts no bridge, so that records stay in the folder until they
            are drained.
        unchosen: Whether the reason of `hold` is that no exporter is chosen.
        other: Interpreter of another environment for the bridge; ``None``: this process's own.
    """

    base: BaseDir
    folder: RunFolder
    before: Report | None
    delivered: bool
    launched: bool
    hold: bool
    unchosen: bool
    other: OtherPython | None


def start_lines(facts: RunStart, state: FolderState) -> list[str]:
    """Return the lines of ``init()``: the run and its destinations, then a line for each note.

    Raises `OSError` for a process without a file to spare.
    """
    first_line, *further_lines = _destination(facts, state)
    return console.begun(
        facts.identity, first_line, [*further_lines, *_notes(facts, state)]
    )


def _notes(facts: RunStart, state: FolderState) -> list[str]:
    """Return the lines that follow the first one of ``init()``.

    They name what was before, where the run is shown, and what is unusual.
    """
    choice = facts.choice
    earlier_report = state.before
    notes: list[str] = []
    if earlier_report is not None:
        # Without exporters that an earlier start named and this process does not.
        concerned = {
            name: report
            for name, report in earlier_report.exporters.items()
            if not choice.names or name in choice.names
        }
        places = dict(choice.destinations)
        # As the bridge reports them: the address of each signal that is sent.
        if OTLP in places:
            places[OTLP] = destination.addresses(facts.env)
        elsewhere = _elsewhere(concerned, places, delivered=state.delivered)
        if not state.delivered:
            for name in elsewhere:
                del concerned[name]
        earlier_report = replace(earlier_report, exporters=concerned)
        resumed = _resumed(earlier_report, facts.identity.role)
        notes += [
            resumed,
            *elsewhere.values(),
            *console.found(earlier_report),
            *console.degraded(earlier_report),
        ]
    notes += named_elsewhere(choice.names, facts.identity.project, facts.env)
    links = _links(facts, state, earlier_report)
    notes += [f"{label}: {text}" for label, text in links]
    cautions = [
        *map(caution_of, choice.settings.values()),
        destination.note(choice.signals_of(OTLP), facts.env),
    ]
    notes += filter(None, cautions)
    return notes + _notes_of_folder(facts, state)


def _resumed(earlier_report: Report, role: str | None) -> str:
    """Return what this process does with a run that has begun before: it resumes or joins that run.

    It joins a running one that has no step of this role yet: a further role or worker.
    """
    last_step = earlier_report.steps.get(axis_of(role))
    if last_step is not None:
        if role:
            return f"resuming, last {role} step {last_step}"
        return f"resuming, last step {last_step}"
    # A process that is younger than the report is counted in its role alone.
    is_under_way = any(counts.alive for counts in earlier_report.roles.values())
    for process in earlier_report.processes.values():
        is_under_way = is_under_way or (process.alive and not process.bridge)
    if is_under_way and earlier_report.status == "running":
        return "joining"
    return "resuming"


def _notes_of_folder(facts: RunStart, state: FolderState) -> list[str]:
    """Return lines on a bridge or folder that is not the usual one, on records that are held, and on ranks.

    Else nothing.
    """
    notes: list[str] = []
    if state.other is not None:
        notes.append(
            f"the bridge runs in another environment: {state.other.path} (otel-bridge {state.other.version})"
        )
    if state.base.instead_of is not None:
        notes.append(
            f"{state.base.instead_of} is on {state.base.file_system}, so run folders are in {state.base.path}"
        )
    is_chosen = bool(facts.choice.names or _before(state))
    if state.hold and not state.unchosen:
        drain = console.held_command(state.folder, chosen=is_chosen)
        notes.append(f"held in {state.base.path}; deliver with: {drain}")
    elif not is_chosen and not state.unchosen:
        notes.append(
            "`otel-bridge run` has no --exporters, so all records are kept for `otel-bridge drain`"
        )
    return [*notes, *_note_of_ranks(facts)]


def _note_of_ranks(facts: RunStart) -> list[str]:
    """Return a line if rows of this rank are not recorded, or cannot be merged with those of the others.

    Else nothing.
    """
    rank = facts.identity.rank
    ranks = RANKS.read(facts.env)
    if rank and ranks == "0":
        return [
            "rows of rank 0 only (OTEL_BRIDGE_RANKS=all for every rank), rollouts of all"
        ]
    has_rank = facts.identity.request.rank is not None or "RANK" in facts.env
    # srun sets neither of the two variables. Without a rank the job has one process.
    if ranks == "merge" and has_rank and not WORLD_SIZE.read(facts.env):
        return [
            f"OTEL_BRIDGE_RANKS=merge: rank {rank} counts as the last one; set WORLD_SIZE to the number of ranks"
        ]
    return []


def _destination(facts: RunStart, state: FolderState) -> list[str]:
    """Return a line on where the run is delivered.

    Without a chosen exporter, lines on where it is kept.
    """
    if state.unchosen:
        exporters = () if _before(state) else installed()
        return console.kept_without_exporter(
            state.folder.path, exporters, delivered=state.delivered
        )
    names = [_shown(name, facts) for name in facts.choice.names or _before(state)]
    return [", ".join(names) or "no exporter yet"]


def _before(state: FolderState) -> tuple[str, ...]:
    """Return the exporters of an earlier start, which apply when none is named now."""
    if state.before is None:
        return ()
    return tuple(state.before.exporters)


def _shown(name: str, facts: RunStart) -> str:
    """Return the name of an exporter.

    For ``otlp`` with its endpoints, which no command or page shows: nearly always one of all signals.
    """
    if name != OTLP or not facts.choice.destinations.get(name):
        return name
    endpoints: dict[str, None] = {}
    for signal, address in destination.addresses(facts.env).items():
        endpoints[address.removesuffix(f"/v1/{signal}")] = None
    return f"{name} ({', '.join(endpoints)})"


def _links(
    facts: RunStart, state: FolderState, earlier_report: Report | None
) -> list[Link]:
    """Return what shows the run in each exporter, as reported by the bridge, else from the settings.

    Empty for held records. An exporter whose own code raises has none: the run begins all the same.
    """
    identity = facts.identity
    info = RunInfo(
        id=identity.id,
        project=identity.project,
        name=identity.name,
        folder=state.folder.path,
        entity=identity.request.entity,
        identity=tracker_identity(identity, facts.env),
        node_rank=identity.node_rank,
    )
    reported = view_links(earlier_report) if earlier_report else []
    reported_names = {link.label for link in reported}
    links: list[Link] = []
    # Held records are not shown anywhere yet, except for those delivered before.
    for name, settings in () if state.hold else facts.choice.settings.items():
        # The bridge's report has addresses that only the tracker knows.
        if name not in reported_names:
            view, upload = shown_by(settings, info)
            links += links_of(name, view=view, upload=upload)
    return links + reported


def _elsewhere(
    exporters: Mapping[str, ExporterReport],
    destinations: Mapping[str, Mapping[str, str]],
    *,
    delivered: bool,
) -> dict[str, str]:
    """Return a note for each exporter that delivered elsewhere before than this process's *destinations*.

    Empty without such a one, and for exporters of ended runs. A running bridge keeps the variables
    that it was started with, unless the run has ended.
    """
    notes: dict[str, str] = {}
    for name, variables in destinations.items():
        exporter = exporters.get(name)
        if (
            exporter is None
            or not exporter.destination
            or dict(exporter.destination) == dict(variables)
        ):
            continue
        earlier_place = _listed(exporter.destination)
        ours = _listed(variables)
        if not delivered:
            notes[name] = (
                f"{name} delivers to {ours} from now on; earlier records went to {earlier_place}"
            )
        elif exporter.state != "ended":
            notes[name] = (
                f"{name} delivers to the destination that the bridge was started with: {earlier_place}, not {ours}"
            )
    return notes


def _listed(variables: Mapping[str, str]) -> str:
    return (
        ", ".join(f"{name}={value}" for name, value in variables.items())
        or "the default"
    )
