"""Open a writer: load wandb, check the credentials, open the run, declare what it must know before the first row."""

from __future__ import annotations

import functools
import logging
import shutil
import time
from pathlib import Path
from typing import Any, Final, cast

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import NEW_RUN_HINT, ExporterSettings, Memory, RunInfo
from otel_bridge_wandb import sdk
from otel_bridge_wandb.axes import Axes
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.lines import Lines
from otel_bridge_wandb.offline import OfflineStore
from otel_bridge_wandb.online import OnlineStore
from otel_bridge_wandb.settings import WandbSettings, entity_of, is_other_node, project_of, run_id_of
from otel_bridge_wandb.table import Tables
from otel_bridge_wandb.uploads import Server, Uploads
from otel_bridge_wandb.writer import Opened, Store, WandbRunWriter

_OPENED: Final = "online/opened"
_log: Final = logging.getLogger("otel_bridge.wandb")


def open_writer(run: RunInfo, settings: ExporterSettings, memory: Memory) -> WandbRunWriter:
    """Open *run* in W&B.

    Raises:
        RetryableError: The server did not answer.
        BlockedError: No key, no access, the run was deleted or another writer holds it.
    """
    chosen = cast("WandbSettings", settings)
    if is_other_node(run):
        _log.warning(
            "W&B: node %d writes a run of its own, %s, in the group of the job; for one run of all machines set "
            "OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`", run.node_rank, run_id_of(run),
        )  # fmt: skip
    _make_root(run, chosen)
    wandb = sdk.load()
    return _open_offline(wandb, run, chosen, memory) if chosen.offline else _open_online(wandb, run, chosen, memory)


def _open_offline(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory) -> WandbRunWriter:
    store = OfflineStore(memory, settings.root(run), run_id_of(run), oldest=run.oldest)
    store.before_init()
    opened = sdk.init(wandb, run, settings, resume=None, stopped=_nothing)
    store.after_init(sdk.sync_dir(opened))
    return _writer(wandb, opened, run, settings, store)


def _open_online(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory) -> WandbRunWriter:
    sdk.require_credentials(wandb, settings)
    known = memory.get(_OPENED) is not None
    with as_bridge_errors("asking for the run"):
        server = _server(wandb, settings, project_of(run), run_id_of(run), entity_of(run, settings))
        found = server.find()
    if found is not None and found.state == "running" and not known:
        raise BlockedError(
            f"W&B: run {run_id_of(run)} is being written by another process, and two writers of one run lose rows",
            help="end that run, or let the job have another id (WANDB_RUN_ID)",
        )
    folder = _own_folder(run, settings)
    _clear(folder, run_id_of(run))
    memory.put(_OPENED, b"1")
    resume = settings.resume if found is None or not known else "allow"
    opened = sdk.init(wandb, run, settings, resume=resume, stopped=_nothing)
    try:
        lines = Lines(memory, int(opened.starting_step))
        _settle(lines, server)
        connect = functools.partial(_server, wandb, settings, project_of(run), run_id_of(run), str(opened.entity))
        log_file = Path(str(opened.settings.log_internal))
        uploads = Uploads(connect, lines.next, settings.limits, log_file)
        store = OnlineStore(lines, uploads, settings.limits, sdk.sync_dir(opened) if folder else None)
        writer = _writer(wandb, opened, run, settings, store, memory=memory)
        lines_found = int(opened.starting_step)
        if found is not None and not known and lines_found:
            writer.found = (
                f"W&B already holds this run ({run_id_of(run)}) with {lines_found:,} history lines, going on in it; "
                f"{NEW_RUN_HINT}"
            )
        return writer
    except BaseException:
        sdk.leave_open(opened)
        opened.finish(0)
        raise


def _settle(lines: Lines, server: Server) -> None:
    """Find out which increments of the writer before are committed; the others are sent again."""
    if lines.pending:
        with as_bridge_errors("asking for the tables"):
            seen = {key: server.committed(key, since) for key, since in lines.awaited_tables().items()}
        lines.committed(lambda key: seen.get(key, ()))
        lines.lose_pending(time.time_ns() // 1_000_000)


def _server(wandb: Any, settings: WandbSettings, project: str, run_id: str, entity: str) -> Server:
    return Server(sdk.api(wandb, settings), entity=entity, project=project, run_id=run_id)


def _own_folder(run: RunInfo, settings: WandbSettings) -> Path | None:
    """Return where wandb keeps its copies of an online run, ``None`` when that folder is the user's."""
    return settings.root(run) / "wandb" if settings.directory is None else None


def _clear(folder: Path | None, run_id: str) -> None:
    """Delete the copies that killed writers left: the server and the ledger hold what was in them."""
    for left in folder.glob(f"run-*-{run_id}*") if folder else ():
        shutil.rmtree(left, ignore_errors=True)


def _writer(
    wandb: Any, opened: Any, run: RunInfo, settings: WandbSettings, store: Store, *, memory: Memory | None = None
) -> WandbRunWriter:
    """Declare all known axes, before the first row, and put the parts together."""
    axes = Axes(functools.partial(sdk.define, opened))
    with as_bridge_errors("declaring the axes"):
        axes.bind_all(run.keys)

    def histogram(counts: list[int], edges: list[float]) -> object:
        return wandb.Histogram(np_histogram=(counts, edges))

    def table(columns: list[str]) -> Any:
        return wandb.Table(columns=columns, log_mode="INCREMENTAL", allow_mixed_types=True)

    return WandbRunWriter(
        Opened(
            run=opened,
            histogram=histogram,
            axes=axes,
            tables=Tables(table, memory, settings.limits.cell_chars),
            store=store,
            let_go=sdk.leave_open,
            url=None if settings.offline else str(opened.url or "") or None,
            run_id=run_id_of(run),
        )
    )


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
