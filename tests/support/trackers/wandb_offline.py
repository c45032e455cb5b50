"""Read an offline W&B run back: rows, config, axes, tables and exit code, as the SDK wrote them.

The package wandb must be installed for its message types (``wandb_internal_pb2.Record``); nothing of it runs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Json
from otel_bridge_wandb.offline.log_file import MAGIC, records


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Holds one ``define_metric``: a name, its axis (empty: none), and whether it is hidden."""

    name: str
    axis: str
    hidden: bool
    glob: bool = False


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """Holds what one offline directory has.

    Attributes:
        rows: One dict a history line, in order, ``_step`` and ``_runtime`` included.
        tables: Key to the rows of its incremental table, each a dict by column, in order.
        config: The run's config, without wandb's own ``_wandb``.
        alerts: Title and level of each alert.
        summary: The last value of each key: of its rows, or set as the summary's.
        metrics: Name to its definition, the last one of each.
        exit_code: ``None``: the run was not finished, or left open (`left_open`).
        left_open: It was closed, but not marked complete.
    """

    run_id: str = ""
    project: str = ""
    entity: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    rows: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    tables: dict[str, list[dict[str, Json]]] = field(
        default_factory=dict[str, list[dict[str, Json]]]
    )
    config: dict[str, Json] = field(default_factory=dict[str, Json])
    alerts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    summary: dict[str, Json] = field(default_factory=dict[str, Json])
    metrics: dict[str, MetricDefinition] = field(
        default_factory=dict[str, MetricDefinition]
    )
    exit_code: int | None = None
    left_open: bool = False


def read_offline_run(directory: Path) -> OfflineRun:
    """Read the offline run in *directory* (``…/wandb/offline-run-<time>-<id>``).

    Raises:
        InvalidRecordError: The file does not exist, or was not written by wandb.
    """
    files = sorted(directory.glob("run-*.wandb"))
    if not files:
        raise InvalidRecordError(
            f"{directory} holds no run-*.wandb; expected the folder of an offline run"
        )
    data = files[0].read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise InvalidRecordError(
            f"{files[0]} begins with {data[:4]!r}; a file of wandb begins with {MAGIC!r}"
        )
    reading = _Reading(directory)
    for record in records(data):
        reading.add(record)
    return reading.result()


def offline_directories(root: Path, run_id: str) -> list[Path]:
    """Return the offline directories of a run below *root* (``WANDB_DIR``), oldest first."""
    return sorted((root / "wandb").glob(f"offline-run-*-{run_id}*"))


class _Reading:
    """Collects the records of one file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        self._run: dict[str, Any] = {}
        self._rows: list[dict[str, Json]] = []
        self._config: dict[str, Json] = {}
        self._alerts: list[tuple[str, str]] = []
        self._summary: dict[str, Json] = {}
        self._metrics: dict[str, MetricDefinition] = {}
        self._exit: tuple[int | None, bool] = (None, False)

    def add(self, payload: bytes) -> None:
        """Take one record."""
        record = self._messages.Record.FromString(payload)
        match record.WhichOneof("record_type"):
            case "run":
                self._take_run(record.run)
            case "history":
                self._rows.append(_row(record.history))
                self._summary |= _row(
                    record.history
                )  # anew: the summary changes within its values
            case "alert":
                self._alerts.append(
                    (str(record.alert.title), str(record.alert.level).lower())
                )
            case "summary":
                for item in record.summary.update:
                    _put(
                        self._summary,
                        list(item.nested_key) or [item.key],
                        json.loads(item.value_json),
                    )
            case "config":
                self._take_config(record.config)
            case "metric":
                self._take_metric(record.metric)
            case "exit":
                left_open = bool(
                    getattr(record.exit, "not_complete", False)
                )  # from wandb 0.26.1 on
                self._exit = (
                    None if left_open else int(record.exit.exit_code),
                    left_open,
                )
            case _:
                pass

    def result(self) -> OfflineRun:
        """Return what was read."""
        exit_code, left_open = self._exit
        return OfflineRun(
            **self._run,
            rows=self._rows,
            tables=self._tables(),
            config=self._config,
            alerts=self._alerts,
            summary=self._summary,
            metrics=self._metrics,
            exit_code=exit_code,
            left_open=left_open,
        )

    def _take_run(self, run: Any) -> None:
        self._run = {
            "run_id": str(run.run_id), "project": str(run.project), "entity": str(run.entity),
            "name": str(run.display_name), "group": str(run.run_group), "job_type": str(run.job_type),
            "notes": str(run.notes), "tags": tuple(str(tag) for tag in run.tags),
        }  # fmt: skip
        self._take_config(run.config)

    def _take_config(self, config: Any) -> None:
        for item in config.update:
            path = list(item.nested_key) or [item.key]
            if path[0] != "_wandb":
                _put(self._config, path, json.loads(item.value_json))
        for item in config.remove:
            self._config.pop(item.key, None)

    def _take_metric(self, metric: Any) -> None:
        name = str(metric.name or metric.glob_name).replace("\\.", ".")
        self._metrics[name] = MetricDefinition(
            name,
            str(metric.step_metric).replace("\\.", "."),
            bool(metric.options.hidden),
            glob=bool(metric.glob_name),
        )

    def _tables(self) -> dict[str, list[dict[str, Json]]]:
        tables: dict[str, list[dict[str, Json]]] = {}
        for row in self._rows:
            for key, value in row.items():
                if isinstance(value, dict) and value.get("_type") in {
                    "incremental-table-file",
                    "table-file",
                }:
                    tables.setdefault(key, []).extend(
                        self._increment(str(value.get("path", "")))
                    )
        return tables

    def _increment(self, path: str) -> Iterator[dict[str, Json]]:
        file = self._directory / "files" / path
        table: Any = json.loads(file.read_text("utf-8"))
        for cells in table["data"]:
            yield dict(zip(table["columns"], cells, strict=True))


def _row(history: Any) -> dict[str, Json]:
    row: dict[str, Json] = {}
    for item in history.item:
        _put(row, list(item.nested_key) or [str(item.key)], json.loads(item.value_json))
    return row


def _put(config: dict[str, Json], path: list[str], value: Json) -> None:
    inner = config
    for key in path[:-1]:
        inner = cast("dict[str, Json]", inner.setdefault(key, {}))
    inner[path[-1]] = value
