"""Reads a run back: offline from its file, online through ``wandb.Api``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import ExporterSettings, RunInfo, TrackerCounts
from otel_bridge_wandb import sdk
from otel_bridge_wandb.content.rollout_tables import EVALUATIONS_SUFFIX
from otel_bridge_wandb.errors import as_bridge_errors
from otel_bridge_wandb.offline import log_file
from otel_bridge_wandb.online.uploads import Server
from otel_bridge_wandb.settings import WandbSettings, entity_of, project_of, run_id_of

_OWN = frozenset({"_step", "_runtime", "_timestamp"})
_TABLE = 'table-file"'
"""End of the type of a table, as JSON."""


def tracker_counts(run: RunInfo, settings: ExporterSettings) -> TrackerCounts:
    """Count the numbers and rollouts that W&B, or an offline directory, shows of *run*.

    Raises:
        RetryableError: The server did not answer, or an offline file cannot be read.
        BlockedError: No key, no access, or W&B does not have the run. Offline the counts are 0 then.
    """
    chosen = cast("WandbSettings", settings)
    with as_bridge_errors("reading the run back"):
        if chosen.offline:
            return _counted(
                _offline_values(chosen.root(run) / "wandb", run_id_of(run, chosen))
            )
        wandb = sdk.load()
        sdk.require_credentials(wandb, chosen)
        server = Server(
            sdk.api(wandb, chosen),
            entity=entity_of(run, chosen),
            project=project_of(run),
            run_id=run_id_of(run, chosen),
        )
        server_run = server.find()
        if server_run is None:
            raise BlockedError(
                f"W&B has no run {run_id_of(run, chosen)} in {project_of(run)}"
            )
        values: list[tuple[str, str]] = []
        for line in server.history(server_run.lines):
            values += [(key, json.dumps(value)) for key, value in line.items()]
        return _counted(values)


def _offline_values(folder: Path, run_id: str) -> Iterator[tuple[str, str]]:
    """Yield key and JSON of each value; nothing when *folder* has no file of the run.

    Of one that wandb writes in parts, the type of a table alone. Raises `OSError` for a file that
    cannot be read; a damaged one ends at its damage.
    """
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    # By the file, since the folder's name may end in a number, and another run's id may begin with
    # this one.
    for file in folder.glob(f"offline-run-*/run-{run_id}.wandb"):
        for record in log_file.records(file.read_bytes()):
            for item in messages.Record.FromString(record).history.item:
                text = str(item.value_json)
                if not item.nested_key[1:] or _TABLE in text:
                    yield str(item.key or item.nested_key[0]), text


def _counted(values: Iterable[tuple[str, str]]) -> TrackerCounts:
    """Count the numbers of *values* and the increments of rollouts, without axes and wandb's own keys.

    0 of both without *values*. Raises what reading them raises.
    """
    numbers = 0
    rollouts = 0
    for key, text in values:
        # Each increment of a table of rollouts counts as one.
        if _TABLE in text:
            rollouts += EVALUATIONS_SUFFIX not in key
        # The step axes are of the bridge, not of the user.
        elif key not in _OWN and key.rpartition("/")[2] != "step":
            # Histograms and media are JSON objects.
            numbers += not text.startswith("{")
    return TrackerCounts(numbers, rollouts)
