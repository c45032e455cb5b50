"""Start of a run: identify it, choose exporters, open the segment, ensure a bridge, print one line.

Only this part of emission raises: a bad setting or argument is an error here, never later.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.content.user_function import redact_by_setting
from otel_bridge.destination_seal import sealed
from otel_bridge.emit import console
from otel_bridge.emit.bridge_process.other_python import OtherPython, find_python
from otel_bridge.emit.bridge_process.shared_bridge import SharedBridges
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.bridge_process.takeover import has_what_is_missing, take_over
from otel_bridge.emit.config.child_env import (
    ChildEnvironment,
    launcher_alive,
    refuse_unencodable,
)
from otel_bridge.emit.config.exporters import (
    SETTING_BY_SIGNAL,
    RequestedDestinations,
    choose,
    installed,
    missing_here,
    variables_of_choice,
)
from otel_bridge.emit.config.identity import WORLD_SIZE, Identity, identify
from otel_bridge.emit.config.misspelt import misspelt
from otel_bridge.emit.config.resource import (
    encode_resource,
    merges_ranks,
    source_of,
    tracker_identity,
)
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.config.snapshot import RunStart, check_settings
from otel_bridge.emit.config.tracker_ids import named_elsewhere
from otel_bridge.emit.encode.known_names import with_known_names
from otel_bridge.emit.media.log import MediaLog
from otel_bridge.emit.recording.process_segment import MakeHeader
from otel_bridge.emit.recording.recorder import Recorder, RowRules
from otel_bridge.emit.run import Run
from otel_bridge.errors import ConfigError, JournalError
from otel_bridge.exporter import (
    NONE,
    OTLP,
    SIGNALS,
    RunInfo,
    caution_of,
    shown_by,
)
from otel_bridge.journal.base_dir import BaseDir, find_base
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import present_report
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.journal.quota import Quota
from otel_bridge.journal.report import (
    ExporterReport,
    Link,
    Report,
    links_of,
    view_links,
)
from otel_bridge.otlp import destination
from otel_bridge.records import axis_of
from otel_bridge.settings import (
    DIR,
    EXPORTERS,
    GENERATED_NAME,
    GENERATED_PROJECT,
    LAUNCHER,
    LIVENESS_TIMEOUT_S,
    MAX_BYTES,
    MAX_MEDIA_PER_STEP,
    MEDIA_BYTES,
    NEW_RUN,
    NO_BRIDGE,
    OFFLINE,
    PROJECT,
    RANKS,
    RUN_ID,
    RUN_NAME,
    SCRAPE,
    SCRAPE_S,
    SEGMENT_BYTES,
    SYSTEM_METRICS_S,
)
from otel_bridge.values.mappings import without

UNCHOSEN_BYTES = 1 << 30
"""Limit of a run that is appended because no exporter is chosen."""


@dataclass(frozen=True, slots=True)
class _FolderState:
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


def begin(
    request: RunRequest,
    env: Mapping[str, str],
    cwd: Path,
    child_env: ChildEnvironment | None,
    *,
    shared: SharedBridges | None = None,
) -> Run:
    """Begin the run of this process, or return one that records nothing.

    It records nothing in a bridge, with the exporter ``none``, and where no exporter is chosen and
    nothing can be kept. Lines that cannot be printed stop nothing.

    Args:
        request: What the entry asks for.
        env: The environment, with ``init(dir=)``.
        cwd: The working folder.
        child_env: Environment variables for children; ``None``: children do not join this run.
        shared: Bridges that this process's runs share; ``None``: a bridge for this run alone.

    Raises:
        ConfigError: A setting or an argument cannot be used, or the folder cannot be written.
        MissingExtraError: An exporter's package is not installed.
        OSError: No file can be opened; `ProcessRuns` raises it as a `ConfigError`.
    """
    # All settings first: a malformed one is an error before anything is created.
    check_settings(env)
    launched = launcher_alive(env)
    identity = identify(request, env, cwd, launched=launched)
    # This process is a bridge: what its trackers record would go into the run that it delivers.
    if NO_BRIDGE.read(env):
        return Run(RunStart(identity, _nothing(), env, cwd, {}), None)
    redact_by_setting(env)
    for line in misspelt(env):
        console.notify(line)
    choice = choose(request.exporters, env, cwd, launched=launched, elsewhere=True)
    base = find_base(env, cwd)
    identity = with_known_names(identity, RunFolder(base.path, identity.id))
    variables = _child_variables(identity, env, base, launched=launched)
    if child_env is not None:
        refuse_unencodable(variables)
    facts = RunStart(identity, choice, env, cwd, variables)
    if choice.refused and not choice.names:
        if child_env is not None:
            # Whatever the user's variable names: children would begin runs of their own by it.
            child_env.set({EXPORTERS.name: NONE})
        console.notify(console.NONE_CHOSEN)
        return Run(facts, None)
    # Reads the last report before this process adds to the folder.
    state = _folder_state(facts, base, launched=launched)
    try:
        recorder = _open(facts, state, shared)
    except ConfigError as exc:
        if not state.unchosen:
            raise
        # No exporter was chosen, so the program goes on.
        console.notify(console.nothing_kept(str(exc)))
        return Run(facts, None)
    with _ended_on_error(recorder):
        if child_env is not None:
            # Children join this run, so the request for a new one is removed. They inherit the variables
            # of the signals, which may name exporters of a stock SDK beside ours.
            of_signals = {setting.name for setting in SETTING_BY_SIGNAL.values()}
            child_env.set({**without(variables, of_signals), NEW_RUN.name: None})
        # A process without a file to spare: its run goes on without the line.
        with contextlib.suppress(OSError):
            first_line, *further_lines = _destination(facts, state)
            console.notify(
                *console.begun(
                    identity, first_line, [*further_lines, *_notes(facts, state)]
                )
            )
            problem = state.folder.ledger_problem()
            if problem:
                console.notify(
                    f"rows are kept in the run folder, and not delivered: {problem}",
                    always=True,
                )
    return Run(facts, recorder)


def nothing_recorded(env: Mapping[str, str], cwd: Path) -> Run:
    """Return a run that records nothing, for calls before ``init()``."""
    identity = Identity("default", "none", "0" * 16, False, None, 0, 1, 0, RunRequest())
    return Run(RunStart(identity, _nothing(), env, cwd, {}), None)


def _nothing() -> RequestedDestinations:
    return RequestedDestinations(dict.fromkeys(SIGNALS, ()), {})


def _folder_state(facts: RunStart, base: BaseDir, *, launched: bool) -> _FolderState:
    """Return where the run of *facts* lies, what an earlier start left there, and who delivers.

    Without an exporter records are kept, and no bridge is started: it would have nothing to deliver
    to.

    Raises:
        ConfigError: The interpreter that the user names for the bridge cannot run it.
        MissingExtraError: No environment on this machine has the packages of the exporters.
    """
    offline = OFFLINE.read(facts.env)
    unchosen = not (facts.choice.names or launched or offline)
    hold = offline or unchosen
    folder = RunFolder(base.path, facts.identity.id)
    # The delivering process needs the trackers: the launcher, `drain`, or a bridge that is started
    # here.
    is_started_here = not (launched or hold)
    return _FolderState(
        base=base,
        folder=folder,
        before=present_report(folder, int(LIVENESS_TIMEOUT_S.read(facts.env) * 1e9)),
        delivered=BridgeStarter(folder, facts.env, hold=True).delivered_by()
        is not None,
        launched=launched,
        hold=hold,
        unchosen=unchosen,
        other=find_python(facts.env, facts.choice.names, missing_here(facts.choice))
        if is_started_here
        else None,
    )


def _open(
    facts: RunStart, state: _FolderState, shared: SharedBridges | None
) -> Recorder:
    """Open the segment of this process, and ensure a bridge; return the recorder.

    A bridge that cannot be started is printed, and stops nothing: rows are kept. One that is
    blocked for lack of a credential that this process has is asked to hand the run over.

    Raises:
        ConfigError: The folder or the segment cannot be made, or a setting cannot be parsed.
    """
    identity = facts.identity
    python = None if state.other is None else state.other.path
    starter = BridgeStarter(
        state.folder,
        facts.env,
        hold=state.hold,
        python=python,
        shared=None
        if shared is None
        else shared.of(state.folder, facts.env, python=python),
    )
    try:
        recorder = Recorder(
            state.folder,
            _header_maker(facts, state),
            starter,
            Quota(
                state.base.path,
                MAX_BYTES.read(facts.env),
                run=state.folder.path if state.unchosen else None,
                run_bytes=UNCHOSEN_BYTES,
            ),
            segment_bytes=SEGMENT_BYTES.read(facts.env),
            rules=RowRules(
                identity.role,
                merges_ranks=merges_ranks(identity.world_size, facts.env),
                # A mean over one rank must not look like one over all.
                are_recorded=identity.rank == 0 or RANKS.read(facts.env) != "0",
            ),
            media=MediaLog(
                ContentPolicy.read(facts.env),
                max_bytes=MEDIA_BYTES.read(facts.env),
                max_per_step=MAX_MEDIA_PER_STEP.read(facts.env),
            ),
        )
    except JournalError as exc:
        raise ConfigError(str(exc)) from exc
    # The segment first, the lock second: a bridge that ends checks for new segments once more after
    # its unlock.
    with _ended_on_error(recorder):
        if (
            not state.launched
            and not state.hold
            and state.before
            and has_what_is_missing(state.before, facts.env)
        ):
            take_over(state.folder)
        starter.ensure()
    return recorder


@contextlib.contextmanager
def _ended_on_error(recorder: Recorder) -> Generator[None]:
    """End the part of the run that *recorder* has begun, as failed, where ``init()`` raises all the same.

    Such as after an interrupt, or at a time limit of the program. The caller has no run that it could
    end, and that part would count as running as long as this process lives.
    """
    try:
        yield
    except BaseException:
        recorder.end("failed")
        raise


def _header_maker(facts: RunStart, state: _FolderState) -> MakeHeader:
    """Return what makes the header of each instance of this process.

    A fork, or a folder that was deleted, begins another instance. What all of them share is read
    once. It does not raise: `check_settings` has refused what it could not read.
    """
    identity = facts.identity
    choice = facts.choice
    host = this_host()
    source = source_of(facts.env, facts.cwd)
    destinations = {
        name: sealed(identity.id, name, variables)
        for name, variables in choice.destinations.items()
    }

    def make(instance_id: str, forked: bool) -> SegmentHeader:
        started_ns = time.time_ns()
        return SegmentHeader(
            instance_id=instance_id,
            run_id=identity.id,
            project=identity.project,
            run_name=identity.name,
            kind="process",
            resource=encode_resource(
                identity,
                facts.env,
                instance_id,
                source=source,
                forked=forked,
                started_unix_ns=started_ns,
            ),
            exporters=choice.by_signal,
            destinations=destinations,
            message_content=choice.message_content,
            host=host.name,
            boot_id=host.boot_id,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            created_unix_ns=started_ns,
            started_unix_ns=started_ns,
            started_monotonic_ns=time.monotonic_ns(),
            role=identity.role,
            hold=state.hold,
            system_metrics_s=SYSTEM_METRICS_S.read(facts.env)
            if identity.request.system_metrics
            else 0.0,
            # Of rank 0 alone: bridges of other machines would read the same engines again.
            scrape=SCRAPE.read(facts.env) if identity.rank == 0 else (),
            scrape_s=SCRAPE_S.read(facts.env),
            launcher=LAUNCHER.read(facts.env) if state.launched else "",
            generated=identity.generated,
        )

    return make


def _child_variables(
    identity: Identity,
    env: Mapping[str, str],
    base: BaseDir,
    *,
    launched: bool,
) -> dict[str, str]:
    """Return the variables by which children join this run, those with a value.

    Generated names are marked as such, so that a child does not count them as the user's choice.
    """
    variables = {
        PROJECT.name: identity.project,
        RUN_NAME.name: identity.name,
        DIR.name: os.fspath(base.path),
    }
    if identity.project_generated:
        variables[GENERATED_PROJECT.name] = identity.project
    if identity.name_generated:
        variables[GENERATED_NAME.name] = identity.name
    if identity.id_given:
        variables[RUN_ID.name] = identity.id
    if not launched:
        # Under a launcher its own choice reaches all children.
        variables |= variables_of_choice(identity.request.exporters, env)
    return {name: value for name, value in variables.items() if value}


def _notes(facts: RunStart, state: _FolderState) -> list[str]:
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


def _notes_of_folder(facts: RunStart, state: _FolderState) -> list[str]:
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


def _destination(facts: RunStart, state: _FolderState) -> list[str]:
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


def _before(state: _FolderState) -> tuple[str, ...]:
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
    facts: RunStart, state: _FolderState, earlier_report: Report | None
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
