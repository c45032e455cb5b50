"""Reads a run back: offline from its file, online through ``wandb.Api``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import ExporterSettings, RunInfo, TrackerCounts
from otel_bridge_wandb import sdk
from otel_bridge_wandb.content.rollout_tables import EVALUATIONS_SUFFIX
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.offline.log_file import LogReader
from otel_bridge_wandb.online.uploads import Server
from otel_bridge_wandb.settings import WandbSettings, entity_of, project_of, run_id_of

_OWN = frozenset({"_step", "_runtime", "_timestamp"})


def tracker_counts(run: RunInfo, settings: ExporterSettings) -> TrackerCounts:
    """Count the numbers and rollouts that W&B, or an offline directory, shows of *run*.

    Raises:
        RetryableError: The server did not answer.
        BlockedError: No key, no access, or W&B does not have the run.
    """
    chosen = cast("WandbSettings", settings)
    if chosen.offline:
        lines: Iterable[Mapping[str, object]] = _offline_lines(
            chosen.root(run) / "wandb", run_id_of(run, chosen)
        )
    else:
        wandb = sdk.load()
        sdk.require_credentials(wandb, chosen)
        with as_bridge_errors("reading the run back"):
            api = sdk.api(wandb, chosen)
            server = Server(
                api,
                entity=entity_of(run, chosen),
                project=project_of(run),
                run_id=run_id_of(run, chosen),
            )
            server_run = server.find()
            if server_run is None:
                raise BlockedError(
                    f"W&B has no run {run_id_of(run, chosen)} in {project_of(run)}"
                )
            lines = server.history(server_run.lines)
    return _counted(lines)


def _offline_lines(folder: Path, run_id: str) -> Iterator[Mapping[str, object]]:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    # In the order of their time: a table goes on from one directory to the next.
    for file in sorted(folder.glob(f"offline-run-*-{run_id}*/run-*.wandb")):
        for record in LogReader(file.read_bytes()).records():
            history = messages.Record.FromString(record).history
            if history.item:
                yield _line(history)


def _line(history: Any) -> dict[str, object]:
    """Return a history record as a line: parts of one value have nested keys."""
    line: dict[str, object] = {}
    for item in history.item:
        if item.nested_key[1:]:
            inner = cast("dict[str, object]", line.setdefault(item.nested_key[0], {}))
            inner[str(item.nested_key[-1])] = json.loads(item.value_json)
        else:
            line[str(item.key or item.nested_key[0])] = json.loads(item.value_json)
    return line


def _counted(lines: Iterable[Mapping[str, object]]) -> TrackerCounts:
    numbers = 0
    rollouts = 0
    last: dict[str, int] = {}
    for line in lines:
        for key, value in line.items():
            if isinstance(value, dict):
                table = cast("dict[str, object]", value)
                if (
                    str(table.get("_type", "")).endswith("table-file")
                    and EVALUATIONS_SUFFIX not in key
                ):
                    rows = int(cast("int", table.get("nrows", 0)))
                    last_rows = last.get(key, 0)
                    # A resumed table counts from the beginning.
                    rollouts += rows - last_rows if rows > last_rows else rows
                    last[key] = rows
            # The step axes are of the bridge, not of the user.
            elif key not in _OWN and key.rpartition("/")[2] != "step":
                numbers += 1
    return TrackerCounts(numbers, rollouts)
