"""Open a writer: load wandb, check the credentials, open the run, declare what it must know before the first row."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final, cast

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import ExporterSettings, Memory, RunInfo
from otel_bridge_wandb import sdk
from otel_bridge_wandb.axes import Axes
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.offline import OfflineStore
from otel_bridge_wandb.settings import WandbSettings, is_other_node, run_id_of
from otel_bridge_wandb.table import Tables
from otel_bridge_wandb.writer import Opened, Store, WandbRunWriter

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
    return _open_offline(wandb, run, chosen, memory)


def _open_offline(wandb: Any, run: RunInfo, settings: WandbSettings, memory: Memory) -> WandbRunWriter:
    store = OfflineStore(memory, settings.root(run), run_id_of(run))
    store.before_init()
    opened = sdk.init(wandb, run, settings, resume=None, stopped=_nothing)
    store.after_init(sdk.sync_dir(opened))
    return _writer(wandb, opened, run, settings, store)


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
