"""Opens a writer: loads wandb, checks credentials, opens the run, and declares its axes before the first row.

An opening that fails is tried again: after a `RetryableError` soon, after a `BlockedError` every
minute, with its help shown. No record is lost by that.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import logging
import math
import shutil
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from otel_bridge import semconv
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import (
    NEW_RUN_HINT,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.records import axis_of
from otel_bridge_wandb import sdk
from otel_bridge_wandb.axes import SharedAxes, WandbAxes
from otel_bridge_wandb.bulk import BulkLogger
from otel_bridge_wandb.content.alerts import WandbAlerts
from otel_bridge_wandb.content.media import WandbMedia
from otel_bridge_wandb.content.rollout_tables import Tables
from otel_bridge_wandb.definitions import ONE_BY_ONE, Definitions
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.missing_parts import lacked_parts, missing_parts
from otel_bridge_wandb.offline.store import OfflineStore
from otel_bridge_wandb.online.line_ledger import LineLedger, held_before
from otel_bridge_wandb.online.ownership import RunOwnership
from otel_bridge_wandb.online.refused_files import RefusedFiles
from otel_bridge_wandb.online.store import OnlineStore
from otel_bridge_wandb.online.upload_timeouts import UploadTimeouts
from otel_bridge_wandb.online.uploads import Server, ServerRun, Stored, Uploads
from otel_bridge_wandb.saved_view import save_view
from otel_bridge_wandb.sdk import leave_open
from otel_bridge_wandb.settings import (
    UploadLimits,
    WandbSettings,
    entity_of,
    group_of,
    has_own_run,
    project_of,
    resume_of,
    run_id_of,
    sweep_of,
)
from otel_bridge_wandb.shared_mode.run import (
    SharedRun,
    marker_of,
    number_lines,
    table_suffix_of,
)
from otel_bridge_wandb.shared_mode.settings import Sharing, part_of_id
from otel_bridge_wandb.shared_mode.writer import (
    PrefixedMemory,
    SharedWriter,
    became_primary,
)
from otel_bridge_wandb.versions import require_safe_sharing
from otel_bridge_wandb.writer import OpenRun, RunStore, WandbRunWriter

_STEPS_AHEAD = "online/steps_ahead"
"""By how much W&B's step of the next line exceeds its number: 0 in a run that only bridges wrote."""
_log = logging.getLogger("otel_bridge.wandb")


def open_writer(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> RunWriter:
    """Open *run* in W&B.

    Raises:
        RetryableError: The server did not answer.
        BlockedError: No key, no access, the run was deleted, another writer holds it, or wandb is
            too old.
    """
    chosen = cast("WandbSettings", settings)
    _notify_what_is_not_shared(run, chosen)
    _make_root(run, chosen)
    wandb = sdk.load()
    if chosen.offline:
        return _open_offline(wandb, run, chosen, memory)
    sdk.require_credentials(wandb, chosen)
    if chosen.sharing is None:
        return _open_online(wandb, run, chosen, memory)
    return _open_shared(wandb, run, chosen, memory, chosen.sharing)


def probe(_settings: ExporterSettings) -> Sequence[str]:
    """Import wandb and return one sentence for each ability that it lacks.

    Raise the same errors as `open_writer`.
    """
    return sdk.abilities(sdk.load()).degraded


def _notify_what_is_not_shared(run: RunInfo, settings: WandbSettings) -> None:
    """Warn if the machines of a job write runs of their own, with what would make them one."""
    if settings.unshared:
        _log.warning(
            "W&B: an offline run cannot be shared: each machine writes one of its own, here %s, in the group %s",
            run_id_of(run, settings), group_of(run, settings),
        )  # fmt: skip
    elif has_own_run(run, settings):
        _log.warning(
            "W&B: node %d writes a run of its own, %s, in the group of the job; for one run of all machines set "
            "OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`", run.node_rank, run_id_of(run, settings),
        )  # fmt: skip


def _warn_of_ignored_resume(resume: str) -> None:
    """Warn that shared mode ignores "never" and "must".

    Which machine comes first is chance, so that each would block one of them.
    """
    if resume in {"never", "must"}:
        _log.warning(
            "W&B: WANDB_RESUME=%s is ignored in shared mode, where each machine joins or creates the run",
            resume,
        )


def _open_offline(
    wandb: Any, run: RunInfo, settings: WandbSettings, memory: WriterMemory
) -> WandbRunWriter:
    """Open an offline run in a directory of its own, which replaces that of the writer before.

    Raises:
        RetryableError: As `sdk.init`, and as `_writer`. The next try then knows a directory that was
            left.
        BlockedError: As `sdk.init`.
        JournalError: The directory cannot be stored, as on a full disk.
    """
    store = OfflineStore(
        memory, settings.root(run), run_id_of(run, settings), oldest=run.oldest
    )
    # Around init(): a kill within it leaves a directory that the next writer must know as ours.
    store.before_init()
    opened = sdk.init(wandb, run, settings, resume=None)
    try:
        store.after_init(sdk.sync_dir(opened))
        return _writer(wandb, opened, run, settings, store)
    except BaseException:
        # Else wandb's service refuses every later init() of this run: "run ID … is in use".
        _close_unfinished(opened)
        raise


def _open_shared(
    wandb: Any,
    run: RunInfo,
    settings: WandbSettings,
    memory: WriterMemory,
    sharing: Sharing,
) -> SharedWriter:
    """Open the shared run, and a writer that gives each role without a place in it a run of its own.

    A machine that learned later that it is the primary one (`became_primary`) is opened as such
    now: wandb decides at ``init()`` which writer ends the run.

    Raises:
        BlockedError: Shared mode of this wandb is not known to be safe; else as `_open_online`.
        RetryableError: As `_open_online`.
    """
    require_safe_sharing(str(wandb.__version__))
    _warn_of_ignored_resume(resume_of(run, settings))
    sharing_now = sharing
    if became_primary(memory) and sharing.primary in sharing.roles:
        sharing_now = dataclasses.replace(sharing, primary="1")
    shared = dataclasses.replace(settings, sharing=sharing_now)

    def open_own(role: str | None) -> WandbRunWriter:
        """Open the run of one role that is not listed; raises as `_open_online`."""
        alone = dataclasses.replace(settings, sharing=None)
        suffix = part_of_id(role or "")
        return _open_online(
            wandb,
            _of_one_role(run, role, alone),
            alone,
            PrefixedMemory(memory, f"own/{suffix}/"),
        )

    # `SharedWriter` closes the main run if it cannot open another.
    return SharedWriter(
        sharing,
        _open_online(wandb, run, shared, memory),
        open_own=open_own,
        memory=memory,
        primary=sharing_now.is_primary(run),
    )


def _of_one_role(run: RunInfo, role: str | None, settings: WandbSettings) -> RunInfo:
    """Return the run of a role that is not listed, which is beside the shared run and in its group.

    It has the keys of its own axis alone, because its writer defines every key that it is given.
    """
    shared_id = run.identity.get(semconv.WANDB_RUN_ID) or run.id
    return dataclasses.replace(
        run,
        name=f"{run.name} ({role or 'no role'})",
        group=group_of(run, settings) or shared_id,
        identity={
            **run.identity,
            semconv.WANDB_RUN_ID: f"{shared_id}-{part_of_id(role or '')}",
        },
        keys=_on_axes(run.keys, {axis_of(role)}),
    )


def _open_online(
    wandb: Any, run: RunInfo, settings: WandbSettings, memory: WriterMemory
) -> WandbRunWriter:
    """Open a run at the server, as its only writer or, in shared mode, as one of several.

    The order decides what a kill leaves: the server is asked before ``init()`` creates the run, the
    ownership is stored right after it, and lost increments are known before the first line.

    Raises:
        BlockedError: No access, a run that must not be continued, or another writer of it.
        RetryableError: The server does not answer. A run that was opened is left open then.
    """
    run_id = run_id_of(run, settings)
    alone = settings.sharing is None
    marker = "" if alone else marker_of(memory)

    def connect(entity: str) -> Server:
        """Return a connection for one thread; raises wandb's own exceptions."""
        return Server(
            sdk.api(wandb, settings),
            entity=entity,
            project=project_of(run),
            run_id=run_id,
            marker=marker,
        )

    with as_bridge_errors("asking for the run"):
        # Asked before init(), which creates the run: afterwards its origin cannot be seen.
        server = connect(entity_of(run, settings))
        existing = server.find()
    assigned = existing is not None and sweep_of(run) is not None
    ownership = RunOwnership(memory, existing, assigned=assigned)
    if alone:
        ownership.require_allowed(run_id, resume_of(run, settings))
        ownership.refuse_other_writer(run_id)
    folder = _own_folder(run, settings)
    timeouts = UploadTimeouts(memory)
    # Before init(), because the finish timeout is one of wandb's own settings.
    settings = dataclasses.replace(settings, limits=timeouts.stretched(settings.limits))
    with as_bridge_errors(
        "asking for config and keys"
    ):  # wandb's first upload replaces the config
        parameters = None
        if assigned:
            parameters = server.parameters()
        stored = None
        if existing is not None and not alone:
            stored = server.stored()
    opened = _init(wandb, run, settings, ownership, alone=alone, config=parameters)
    try:
        if alone:
            line_count = _line_count(opened, server, ownership, memory)
        else:
            line_count = _shared_lines(existing, memory)
        # Right after init(): a kill from here on must find the run as this folder's own.
        ownership.opened(line_count)
        with as_bridge_errors("sending the files of a killed writer"):
            _carry_over(opened, folder, run_id)
        lines = LineLedger(memory, line_count, oldest=run.oldest)
        # Before the first line: lost increments are sent again, by the first calls of the bridge.
        _settle(lines, server)
        limits = _upload_limits(settings)
        uploads = Uploads(
            functools.partial(connect, str(opened.entity)),
            lines.next,
            limits,
            _log_file(opened),
        )
        copies = sdk.sync_dir(opened) if folder else None
        store = OnlineStore(
            lines, uploads, limits, copies, alone=alone, timeouts=timeouts
        )
        writer = _writer(
            wandb,
            opened,
            run,
            settings,
            store,
            memory=memory,
            server=server,
            marker=marker,
            stored=stored,
        )
        if alone and ownership.first:
            writer.found = _existing_lines(run_id, line_count)
        save_view(wandb, str(opened.entity), str(opened.project), settings, memory)
        return writer
    except BaseException:
        _close_unfinished(opened)
        raise


def _close_unfinished(opened: Any) -> None:
    """Close a run whose opening failed; raises wandb's own exceptions.

    That is not the end of the run: W&B goes on showing it as running.
    """
    leave_open(opened)
    opened.finish(0)


def _existing_lines(run_id: str, line_count: int) -> str:
    """Return what the server holds of the run, in words; empty for a new run."""
    if not line_count:
        return ""
    return f"W&B already holds this run ({run_id}) with {line_count:,} history lines, continuing it; {NEW_RUN_HINT}"


def _line_count(
    opened: Any, server: Server, ownership: RunOwnership, memory: WriterMemory
) -> int:
    """Return how many lines the server holds of the run that was just opened.

    wandb names the step of the next line. That is the line's number only in a run that bridges alone
    wrote: another program gives its lines steps of its own, such as 100, 200, 300.

    Raises:
        RetryableError: The server, which is asked for a run with lines of others, did not answer.
        BlockedError: The server refuses the question.
    """
    next_step = int(opened.starting_step)
    if not ownership.exists:
        memory.delete(_STEPS_AHEAD)
        return next_step
    # The step and not the count, which lags behind the last lines of a bridge that was killed.
    line_count = max(next_step - int(memory.get(_STEPS_AHEAD) or b"0"), 0)
    if max(line_count, ownership.server_lines) > ownership.own_lines:
        with as_bridge_errors("asking for the lines of the run"):
            current = server.find()
        line_count = 0 if current is None else current.lines
        memory.put(_STEPS_AHEAD, str(next_step - line_count).encode())
    return line_count


def _shared_lines(existing: ServerRun | None, memory: WriterMemory) -> int:
    """Return how many lines the shared run has: at the server, or sent before and still on the way."""
    # The server's number of a writer's own lines may lag, and never runs ahead.
    if existing is None:
        return 0
    return max(existing.lines, held_before(memory))


def _upload_limits(settings: WandbSettings) -> UploadLimits:
    """Return the limits of uploads.

    In shared mode, a line that is late may be another writer's, and is not a stall.
    """
    if settings.sharing is None:
        return settings.limits
    return dataclasses.replace(settings.limits, stall_s=math.inf)


def _init(
    wandb: Any,
    run: RunInfo,
    settings: WandbSettings,
    ownership: RunOwnership,
    *,
    alone: bool,
    config: Mapping[str, object] | None = None,
) -> Any:
    """Open the run. WANDB_RESUME was checked.

    wandb gets *never* too, in case another process creates the run now. The attempt is stored
    before it, because one that is killed or times out may have created the run.

    Raises:
        BlockedError: wandb refused; nothing was created, so that the attempt is taken back.
        RetryableError: The server did not answer in time.
    """
    never = alone and not ownership.exists and resume_of(run, settings) == "never"
    ownership.opening()
    try:
        return sdk.init(
            wandb, run, settings,
            resume="never" if never else "allow", exists=ownership.exists, config=config,
        )  # fmt: skip
    except BlockedError:
        ownership.refused()
        raise


def _settle(lines: LineLedger, server: Server) -> None:
    """Find out which increments of the previous writer are committed; the others are sent again.

    The server is not asked when none is pending.

    Raises:
        RetryableError: The server did not answer; the opening is tried again.
        BlockedError: The server refuses the question.
    """
    if lines.pending:
        with as_bridge_errors("asking for the tables"):
            increments = server.committed_of(lines.awaited_tables())
        # Committed ones first; what is then still pending is lost with its process.
        lines.committed(increments)
        lines.lose_pending(time.time_ns() // 1_000_000)


def _own_folder(run: RunInfo, settings: WandbSettings) -> Path | None:
    """Return where wandb keeps its copies of an online run, ``None`` when that folder is the user's.

    What is the user's is never deleted, and not read for files of a killed writer.
    """
    if settings.directory is None:
        return settings.root(run) / "wandb"
    return None


def _carry_over(opened: Any, folder: Path | None, run_id: str) -> None:
    """Send the files of media that killed writers left once more, and delete their copies.

    The server may hold the line of a picture and not its file, which wandb sends later. Everything
    else is in the ledger, or confirmed. Nothing without a *folder*, which is the user's then. What
    cannot be deleted stays.

    Raises:
        OSError: A file cannot be moved.
        Exception: wandb's own.
    """
    if folder is None:
        return
    run_files = Path(str(opened.dir))
    for old_run in folder.glob(f"run-*-{run_id}"):
        # W&B names a folder run-<time>-<id>; in shared mode each role has an id of its own, which
        # may end in another's.
        is_of_this_run = old_run.name.split("-", 2)[2] == run_id
        if old_run == run_files.parent or not is_of_this_run:
            continue
        for file in (old_run / "files" / "media").rglob("*"):
            if file.is_file():
                target = run_files / file.relative_to(old_run / "files")
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)  # a kill of this writer leaves it for the next one
                opened.save(
                    glob.escape(str(target)), base_path=str(run_files), policy="now"
                )
        shutil.rmtree(old_run, ignore_errors=True)


def _writer(
    wandb: Any,
    opened: Any,
    run: RunInfo,
    settings: WandbSettings,
    store: RunStore,
    *,
    memory: WriterMemory | None = None,
    server: Server | None = None,
    marker: str = "",
    stored: Stored | None = None,
) -> WandbRunWriter:
    """Declare all known axes before the first row, and return the writer.

    Raises:
        RetryableError: The axes, or the config of a shared run, could not be sent.
        BlockedError: A person must act.
    """
    sharing = settings.sharing
    common: SharedAxes | None = None
    if sharing:
        common = SharedAxes(
            sharing.roles, marker, functools.partial(sdk.define_all, opened)
        )
    with as_bridge_errors("declaring the axes"):
        axes = WandbAxes(
            Definitions(opened, one_by_one=_one_by_one(settings, memory)), common
        )
        # An init() replaces all definitions at the server by none, until this upload (wandb 0.28 to
        # 0.31).
        axes.bind_all(_listed(run.keys, sharing))
        axes.send_definitions(now=True)
    shared = None
    suffix = ""
    if sharing is not None and server is not None and isinstance(store, OnlineStore):
        if not sharing.is_primary(run):
            suffix = table_suffix_of(marker)
        shared = SharedRun(
            opened,
            axes,
            roles=sharing.roles,
            number=functools.partial(number_lines, marker, lambda: store.next_line),
            stored=server.stored,
            every_s=2 * settings.limits.poll_s,
        )
        if stored is not None:
            with as_bridge_errors("taking over config and axes"):
                # Read before init(), whose first upload replaces what the others had stored.
                shared.take_over(stored)
    missed = None
    if server is not None and memory is not None:
        missed = functools.partial(missing_parts, server, memory, shared)
    refused_files = None
    # Offline, the directory is written again as a whole, its alerts too.
    alert_memory = None
    if not settings.offline:
        refused_files = RefusedFiles(_log_file(opened))
        alert_memory = memory
    deadline_s = None
    if not sdk.abilities(wandb).finish_timeout:
        deadline_s = settings.limits.finish_timeout_s

    def histogram(counts: list[int], edges: list[float]) -> object:
        return wandb.Histogram(np_histogram=(counts, edges))

    def table(columns: list[str]) -> Any:
        return wandb.Table(
            columns=columns, log_mode="INCREMENTAL", allow_mixed_types=True
        )

    return WandbRunWriter(
        OpenRun(
            run=opened,
            histogram=histogram,
            axes=axes,
            tables=Tables(table, memory, settings.limits.cell_chars, suffix=suffix),
            store=store,
            media=WandbMedia(wandb, str(opened.id), refused_files),
            alerts=WandbAlerts(opened, alert_memory),
            url=_url(opened, settings),
            run_id=run_id_of(run, settings),
            degraded=sdk.abilities(wandb).degraded,
            deadline_s=deadline_s,
            shared=shared,
            bulk=BulkLogger(opened),
            missed=missed,
        )
    )


def _url(opened: Any, settings: WandbSettings) -> str | None:
    """Return the address of the run's page; ``None`` offline, or when wandb knows none."""
    if settings.offline:
        return None
    return str(opened.url or "") or None


def _log_file(opened: Any) -> Path:
    """Return wandb's own log of an open run."""
    return Path(str(opened.settings.log_internal))


def _one_by_one(settings: WandbSettings, memory: WriterMemory | None) -> int | None:
    """Return how many names are defined one by one, ``None`` for all.

    Offline, definitions cost nothing. In a shared run, patterns cover most names. All are sent one
    by one, too, after an end at which the server lacked axes or config (`missing_parts`).
    """
    if (
        settings.offline
        or settings.sharing is not None
        or memory is None
        or lacked_parts(memory)
    ):
        return None
    return ONE_BY_ONE


def _listed(keys: Mapping[str, str], sharing: Sharing | None) -> Mapping[str, str]:
    """Return the *keys* that the open run shows: in a shared run, the keys of listed roles.

    A role that is not listed has a run of its own (`SharedWriter`), with its keys.
    """
    if sharing is None:
        return keys
    return _on_axes(keys, {axis_of(role) for role in sharing.roles})


def _on_axes(keys: Mapping[str, str], axes: Container[str]) -> dict[str, str]:
    """Return the *keys* whose axis is in *axes*."""
    return {key: axis for key, axis in keys.items() if axis in axes}


def _make_root(run: RunInfo, settings: WandbSettings) -> None:
    """Make the folder in which wandb works, which is the user's or the run's.

    Raises:
        BlockedError: It cannot be made; wandb would write to a temporary folder instead.
    """
    root = settings.root(run)
    try:
        (root / "wandb").mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BlockedError(
            f"W&B: {root} cannot be used: {exc}",
            help="set WANDB_DIR to a folder you may write",
        ) from exc
