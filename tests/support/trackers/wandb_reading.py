"""What an offline W&B directory or the stand-in server holds, in the shape in which trackers are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from otel_bridge.records import Json, Status
from otel_bridge.testing import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_config,
)
from otel_bridge.testing.contents import scalar_text
from support.trackers.wandb_offline import offline_directories, read_offline_run

STATUSES = {0: Status.FINISHED, 1: Status.FAILED, 255: Status.KILLED}
_OWN = {"_step", "_runtime", "_timestamp"}


def offline_contents(root: Path, run_id: str) -> Contents:
    """Return what the offline directories of a run hold together."""
    runs = [
        read_offline_run(directory) for directory in offline_directories(root, run_id)
    ]
    if not runs:
        return Contents()
    axes = {name: metric.axis for run in runs for name, metric in run.metrics.items()}
    tables: dict[str, list[dict[str, Json]]] = {}
    for run in runs:
        for key, rows in run.tables.items():
            tables.setdefault(key, []).extend(rows)
    last = runs[-1]
    status = None if last.exit_code is None else STATUSES[last.exit_code]
    contents = contents_of(
        [row for run in runs for row in run.rows], axes, tables, last.config, status
    )
    contents.alerts.extend(alert for run in runs for alert in run.alerts)
    contents.summary.update(
        {key: scalar_text(value) for key, value in last.summary.items()}
    )
    return contents


def contents_of(
    rows: Iterable[Mapping[str, Json]],
    axes: Mapping[str, str],
    tables: Mapping[str, list[dict[str, Json]]],
    config: Mapping[str, Json],
    status: Status | None,
) -> Contents:
    contents = Contents(config=flat_config(config), status=status)
    for row in rows:
        for key, value in row.items():
            axis = axes.get(key, "")
            step = cast("int | None", row.get(axis)) if axis else None
            if key in _OWN or key in axes.values():
                continue
            if isinstance(value, dict):
                if value.get("_type") == "histogram":
                    contents.distributions.append(
                        _distribution(key, step, cast("dict[str, Any]", value))
                    )
                continue
            time_unix_ms = round(float(cast("float", row["_timestamp"])) * 1000)
            contents.scalars.append(HeldScalar(key, step, _number(value), time_unix_ms))
    for key, cells in tables.items():
        for cell in cells:
            if "_late" in key:
                if cell["value"] is not None:
                    contents.evaluations.append(
                        (
                            str(cell["trace"]),
                            str(cell["name"]),
                            cast("float", cell["value"]),
                        )
                    )
            else:
                reward, messages = (
                    cast("float | None", cell["reward"]),
                    cast("int", cell["messages"]),
                )
                parts = json.loads(str(cell.get("rewards") or "{}"))
                contents.rollouts.append(
                    HeldRollout(str(cell["trace"]), reward, messages, None, parts)
                )
    return contents


def _distribution(
    key: str, step: int | None, value: dict[str, Any]
) -> HeldDistribution:
    return HeldDistribution(
        key,
        step,
        float(value["bins"][0]),
        float(value["bins"][-1]),
        int(sum(value["values"])),
    )


def _number(value: Json) -> float:
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return words[value] if isinstance(value, str) else cast("float", value)
