"""Open a writer: load wandb, check the credentials, open the run, declare what it must know before the first row."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from otel_bridge import semconv
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import NEW_RUN_HINT, ExporterSettings, Memory, RunInfo, RunWriter
from otel_bridge.records import axis_of
from otel_bridge_wandb import sdk
from otel_bridge_wandb.axes import Axes, SharedAxes
from otel_bridge_wandb.definitions import ONE_BY_ONE, Definitions
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.lines import Lines, announced_before, held_before
from otel_bridge_wandb.offline import OfflineStore
from otel_bridge_wandb.online import STRANGER_HELP, OnlineStore, strangers
from otel_bridge_wandb.patience import Patience
from otel_bridge_wandb.settings import (
    WandbSettings,
    entity_of,
    group_of,
    is_other_node,
    project_of,
    resume_of,
    run_id_of,
)
from otel_bridge_wandb.shared_run import SharedRun, definitions_count, marker_of, table_suffix_of
from otel_bridge_wandb.shared_writer import PrefixedMemory, SharedWriter, became_primary
from otel_bridge_wandb.sharing import Sharing, part_of_id
from otel_bridge_wandb.table import Tables
from otel_bridge_wandb.together import Together
from otel_bridge_wandb.uploads import Found, Server, Uploads
from otel_bridge_wandb.versions import require_safe_sharing
from otel_bridge_wandb.writer import Opened, Store, WandbRunWriter

_OPENED: Final = "online/opened"
_MISSED: Final = "online/missed"
_MAX_MISSED: Final = 3
_log: Final = logging.getLogger("otel_bridge.wandb")


def open_writer(run: RunInfo, settings: ExporterSettings, memory: Memory) -> RunWriter:
    """Open *run* in W&B.

    Raises:
        RetryableError: The server did not answer.
        BlockedError: No key, no access, the run was deleted, another writer holds it, or wandb is too old.
    """
    chosen = cast("WandbSettings", settings)
    _say_what_is_not_shared(run, chosen)
    _make_root(run, chosen)
    wandb = sdk.load()
    if chosen.offline:
        return _open_offline(wandb, run, chosen, memory)
    sdk.require_credentials(wandb, chosen)
    if chosen.sharing is None:
        return _open_online(wandb, run, chosen, memory)
    return _open_shared(wandb, run, chosen, memory, chosen.sharing)


def _say_what_is_not_shared(run: RunInfo, settings: WandbSettings) -> None:
    if settings.unshared:
        _log.warning(
            "W&B: an offline run cannot be shared: each machine writes one of its own, here %s, in the group %s",
            run_id_of(run, settings), group_of(run, settings),
        )  # fmt: skip
    elif is_other_node(run, settings):
        _log.warning(
            "W&B: node %d writes a run of its own, %s, in the group of the job; for one run of all machines set "
            "OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`", run.node_rank, run_id_of(run, settings),
        )  # fmt: skip


def _open_offline(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory) -> WandbRunWriter:
    store = OfflineStore(memory, settings.root(run), run_id_of(run, settings), oldest=run.oldest)
    store.before_init()
    opened = sdk.init(wandb, run, settings, resume=None, stopped=_nothing)
    store.after_init(sdk.sync_dir(opened))
    return _writer(wandb, opened, run, settings, store)


def _open_shared(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory, sharing: Sharing) -> SharedWriter:
    require_safe_sharing(str(wandb.__version__))
    if became_primary(memory) and sharing.primary in sharing.roles:
        sharing = dataclasses.replace(sharing, primary="1")
    shared = dataclasses.replace(settings, sharing=sharing)

    def open_own(role: str | None) -> WandbRunWriter:
        alone = dataclasses.replace(settings, sharing=None)
        suffix = part_of_id(role or "")
        return _open_online(wandb, _of_one_role(run, role, alone), alone, PrefixedMemory(memory, f"own/{suffix}/"))

    main = _open_online(wandb, run, shared, memory)
    try:
        return SharedWriter(
            settings.sharing or sharing, main, open_own=open_own, memory=memory, primary=sharing.is_primary(run)
        )
    except BaseException:
        main.close()
        raise


def _of_one_role(run: RunInfo, role: str | None, settings: WandbSettings) -> RunInfo:
    """Return the run of a role that is not listed: beside the shared one, in its group."""
    named = run.identity.get(semconv.WANDB_RUN_ID) or run.id
    axis = axis_of(role)
    return dataclasses.replace(
        run,
        name=f"{run.name} ({role or 'no role'})",
        group=group_of(run, settings) or named,
        identity={**run.identity, semconv.WANDB_RUN_ID: f"{named}-{part_of_id(role or '')}"},
        keys={key: its_axis for key, its_axis in run.keys.items() if its_axis == axis},
    )


def _open_online(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory) -> WandbRunWriter:
    """Open a run at the server, as its one writer or, where the settings say so, as one of several."""
    run_id, alone = run_id_of(run, settings), settings.sharing is None
    marker = "" if alone else marker_of(memory)
    connect = functools.partial(_server, wandb, settings, project_of(run), run_id, marker=marker)
    with as_bridge_errors("asking for the run"):
        server = connect(entity=entity_of(run, settings))
        found = server.find()
    stored = memory.get(_OPENED)
    if alone and found is not None and found.state == "running":
        _refuse_strangers(run_id, found, stored, memory)
    folder = _own_folder(run, settings)
    _clear(folder, run_id)
    resume = resume_of(run, settings) if alone and (found is None or stored is None) else "allow"
    memory.put(_OPENED, str(found.lines if found else 0).encode())
    patience = Patience(memory)
    settings = dataclasses.replace(settings, limits=patience.stretched(settings.limits))
    opened = sdk.init(wandb, run, settings, resume=resume, stopped=_nothing)
    try:
        held = int(opened.starting_step) if alone else max(found.lines, held_before(memory)) if found else 0
        memory.put(_OPENED, str(held).encode())
        lines = Lines(memory, held)
        _settle(lines, server)
        limits = settings.limits if alone else dataclasses.replace(settings.limits, stall_s=math.inf)
        log_file = Path(str(opened.settings.log_internal))
        uploads = Uploads(functools.partial(connect, entity=str(opened.entity)), lines.next, limits, log_file)
        copies = sdk.sync_dir(opened) if folder else None
        store = OnlineStore(lines, uploads, limits, copies, alone=alone, patience=patience)
        writer = _writer(wandb, opened, run, settings, store, memory=memory, server=server, marker=marker)
        if alone and found is not None and stored is None and held:
            writer.found = (
                f"W&B already holds this run ({run_id}) with {held:,} history lines, going on in it; {NEW_RUN_HINT}"
            )
        return writer
    except BaseException:
        sdk.leave_open(opened)
        opened.finish(0)
        raise


def _refuse_strangers(run_id: str, found: Found, stored: bytes | None, memory: Memory) -> None:
    """Raise `BlockedError` when the running run has a writer that is not this bridge before it was killed."""
    if stored is None:
        raise BlockedError(
            f"W&B: run {run_id} is being written by another process, and two writers of one run lose rows. If that one "
            "is dead, W&B marks the run crashed after some minutes and this one goes on",
            help=STRANGER_HELP,
        )
    ours = max(int(stored), announced_before(memory))
    if found.lines > ours:
        raise strangers(found.lines - ours)


def _settle(lines: Lines, server: Server) -> None:
    """Find out which increments of the writer before are committed; the others are sent again."""
    if lines.pending:
        with as_bridge_errors("asking for the tables"):
            seen = {key: server.committed(key, since) for key, since in lines.awaited_tables().items()}
        lines.committed(lambda key: seen.get(key, ()))
        lines.lose_pending(time.time_ns() // 1_000_000)


def _server(wandb: Any, settings: WandbSettings, project: str, run_id: str, *, entity: str, marker: str) -> Server:
    return Server(sdk.api(wandb, settings), entity=entity, project=project, run_id=run_id, marker=marker)


def _own_folder(run: RunInfo, settings: WandbSettings) -> Path | None:
    """Return where wandb keeps its copies of an online run, ``None`` when that folder is the user's."""
    return settings.root(run) / "wandb" if settings.directory is None else None


def _clear(folder: Path | None, run_id: str) -> None:
    """Delete the copies that killed writers left: the server and the ledger hold what was in them."""
    for left in folder.glob(f"run-*-{run_id}*") if folder else ():
        shutil.rmtree(left, ignore_errors=True)


def _writer(
    wandb: Any,
    opened: Any,
    run: RunInfo,
    settings: WandbSettings,
    store: Store,
    *,
    memory: Memory | None = None,
    server: Server | None = None,
    marker: str = "",
) -> WandbRunWriter:
    """Declare all known axes, before the first row, and put the parts together."""
    sharing, shared, suffix = settings.sharing, None, ""
    common = SharedAxes(sharing.roles, marker, functools.partial(sdk.define_all, opened)) if sharing else None
    with as_bridge_errors("declaring the axes"):
        axes = Axes(Definitions(opened, one_by_one=_one_by_one(settings, memory)), common)
        axes.bind_all(_listed(run.keys, sharing))
        axes.tell(now=True)
    if sharing is not None and server is not None and isinstance(store, OnlineStore):
        suffix = "" if sharing.is_primary(run) else table_suffix_of(marker)
        shared = SharedRun(
            opened, axes, next_line=lambda: store.next_line, stored_config=server.config, marker=marker,
            primary=sharing.is_primary(run),
        )  # fmt: skip

    def histogram(counts: list[int], edges: list[float]) -> object:
        return wandb.Histogram(np_histogram=(counts, edges))

    def table(columns: list[str]) -> Any:
        return wandb.Table(columns=columns, log_mode="INCREMENTAL", allow_mixed_types=True)

    return WandbRunWriter(
        Opened(
            run=opened,
            histogram=histogram,
            axes=axes,
            tables=Tables(table, memory, settings.limits.cell_chars, suffix=suffix),
            store=store,
            let_go=sdk.leave_open,
            url=None if settings.offline else str(opened.url or "") or None,
            run_id=run_id_of(run, settings),
            shared=shared,
            together=Together(opened),
            missed=None if sharing or server is None or memory is None else functools.partial(_missed, server, memory),
        )
    )


def _one_by_one(settings: WandbSettings, memory: Memory | None) -> int | None:
    """Return how many names are defined by themselves, ``None`` for all.

    Offline they cost nothing, in a shared run the patterns do most, and what did not arrive once is said the plain way.
    """
    if settings.offline or settings.sharing is not None or memory is None or memory.get(_MISSED) is not None:
        return None
    return ONE_BY_ONE


def _missed(server: Server, memory: Memory, names: int, configured: bool) -> str:
    """Return what the server lacks of the run's axes and config, ``""`` when it has them or was told often enough."""
    with as_bridge_errors("asking for config and axes"):
        stored = server.config()
    lacking = [
        *(["the axes"] if names and definitions_count(stored) < names else []),
        *(["the config"] if configured and not stored.keys() - {"_wandb"} else []),
    ]
    if not lacking:
        memory.delete(_MISSED)
        return ""
    times = int(memory.get(_MISSED) or b"0") + 1
    memory.put(_MISSED, str(times).encode())
    if times <= _MAX_MISSED:
        return " and ".join(lacking)
    _log.warning("W&B: the server shows less than was sent of %s of the run", " and ".join(lacking))
    return ""


def _listed(keys: Mapping[str, str], sharing: Sharing | None) -> Mapping[str, str]:
    """Return those of *keys* that the run at hand shows: in a shared one, those of listed roles."""
    if sharing is None:
        return keys
    axes = {axis_of(role) for role in sharing.roles}
    return {key: axis for key, axis in keys.items() if axis in axes}


def _make_root(run: RunInfo, settings: WandbSettings) -> None:
    root = settings.root(run)
    try:
        (root / "wandb").mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BlockedError(
            f"W&B: {root} cannot be used: {exc}", help="set WANDB_DIR to a folder you may write"
        ) from exc


def _nothing() -> None:
    """The Stop button means the trainer, not the bridge."""
