"""Start of a run: identify it, choose exporters, open the segment, ensure a bridge, print one line.

Only this part of emission raises: a bad setting or argument is an error here, never later.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.content.user_function import redact_by_setting
from otel_bridge.destination_seal import sealed
from otel_bridge.emit import console
from otel_bridge.emit.bridge_process.other_python import find_python
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
    missing_here,
    variables_of_choice,
)
from otel_bridge.emit.config.identity import Identity, identify
from otel_bridge.emit.config.misspelt import misspelt
from otel_bridge.emit.config.resource import (
    encode_resource,
    merges_ranks,
    source_of,
)
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.config.snapshot import RunStart, check_settings
from otel_bridge.emit.encode.known_names import with_known_names
from otel_bridge.emit.media.log import MediaLog
from otel_bridge.emit.recording.process_segment import MakeHeader
from otel_bridge.emit.recording.recorder import Recorder, RowRules
from otel_bridge.emit.run import Run
from otel_bridge.emit.start_lines import FolderState, start_lines
from otel_bridge.errors import ConfigError, JournalError
from otel_bridge.exporter import (
    NONE,
    SIGNALS,
)
from otel_bridge.journal.base_dir import BaseDir, find_base
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import present_report
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.journal.quota import Quota
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
            console.notify(*start_lines(facts, state))
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


def _folder_state(facts: RunStart, base: BaseDir, *, launched: bool) -> FolderState:
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
    return FolderState(
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
    facts: RunStart, state: FolderState, shared: SharedBridges | None
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


def _header_maker(facts: RunStart, state: FolderState) -> MakeHeader:
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
