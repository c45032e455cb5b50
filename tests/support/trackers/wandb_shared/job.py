"""A machine of a job that shares its W&B run, with a wandb of its own.

``python -m support.trackers.wandb_shared.job <job as JSON>``

Reads lines from standard input (``rows trainer 1 3``, ``rollouts``, ``config trainer {"a": 1}``, ``durable``, ``end``,
``close``), does them through the exporter and answers each with one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import ExporterError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter, WritesSummary
from otel_bridge.records import MediaItem, MediaRecord, Record, Row, Status, axis_of
from otel_bridge.testing import deliver, open_writer, samples
from otel_bridge.testing.memory import MemoryTable
from otel_bridge_wandb import exporter

_TRIES = 4


class Machine:
    """One machine with its run folder; opening again is a restarted bridge."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._folder = Path(job["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._records = self._folder / "records.json"
        self.position = 0
        self.keys: dict[str, str] = {}
        self.configs: dict[str, Any] = {}
        self.summaries: dict[str, dict[str, float]] = {}
        self.sent: list[Record] = []
        if self._records.exists():
            self.position, self.keys, self.configs, self.summaries = json.loads(
                self._records.read_text()
            )
        self.writer = self.open()

    def open(self) -> RunWriter:
        run = RunInfo(
            id=self._job["id"], project="shared", name="shared", folder=self._folder, keys=self.keys,
            node_rank=self._job["node_rank"],
        )  # fmt: skip
        settings = exporter.read_settings(self._job["environment"], self._folder)
        writer = open_writer(
            exporter, run, settings, MemoryTable(self._folder / "memory.db")
        )
        for role, config in self.configs.items():
            writer.write_config(role, config)
        for role, values in self.summaries.items():
            cast("WritesSummary", writer).write_summary(role, values)
        return writer

    def config(self, role: str, config: dict[str, Any]) -> None:
        self.configs[role] = config
        self.save()
        self.writer.write_config(role, config)

    def summary(self, role: str, key: str, value: float) -> None:
        self.summaries.setdefault(role, {})[f"{role}/{key}"] = value
        self.save()
        cast("WritesSummary", self.writer).write_summary(role, self.summaries[role])

    def save(self) -> None:
        self._records.write_text(
            json.dumps([self.position, self.keys, self.configs, self.summaries])
        )

    def rows(self, role: str, first: int, last: int, key: str = "loss") -> None:
        rows = [
            samples.row(step, {key: step}, role=role or None)
            for step in range(first, last + 1)
        ]
        for row in rows:
            self.keys |= {name: str(row.axis) for name in row.values}
        self.write(rows)

    def rollouts(self, role: str, first: int, last: int) -> None:
        self.write(
            [samples.rollout(number, role=role) for number in range(first, last + 1)]
        )

    def write(self, records: list[Row] | list[Any]) -> None:
        placed: list[Record] = samples.placed(records, self.position + 1)
        self.position += len(placed)
        self.sent += placed
        self.save()
        try:
            deliver(self.writer, placed)
        except ExporterError as exc:
            if "opened anew" not in str(exc):
                raise
            self.open_anew()

    def end(self) -> None:
        """End the run as a bridge does: a new writer sends again what another one replaced meanwhile."""
        for _ in range(_TRIES):
            try:
                return self.writer.end(Status.FINISHED)
            except RetryableError:
                self.open_anew()
        return self.writer.end(Status.FINISHED)

    def open_anew(self) -> None:
        self.writer.close()
        self.writer = self.open()
        deliver(self.writer, self.sent, held=self.writer.durable() or 0)

    def answer(self, words: list[str]) -> object:
        match words:
            case ["rows", role, first, last, *key]:
                self.rows(role.strip("-"), int(first), int(last), *key)
            case ["rollouts", role, first, last]:
                self.rollouts(role, int(first), int(last))
            case ["config", role, config]:
                self.config(role, json.loads(config))
            case ["media", role, step]:
                self.write([*_media(role, int(step))])
            case ["summary", role, key, value]:
                self.summary(role, key, float(value))
            case ["durable"]:
                return [self.writer.durable(), self.position]
            case ["end"]:
                self.end()
            case _:
                self.writer.close()
        return None


def _media(role: str, step: int) -> Iterator[MediaRecord]:
    """A page, and a table whose cell holds a film: neither needs pillow."""
    page, film = f"<p>{step}</p>".encode(), b"\0\0\0\x18ftyp" + bytes([step])
    table = json.dumps({"columns": ["film"], "rows": [[{"media": 0}]]}).encode()
    cell = MediaItem("video", "video/mp4", film, hashlib.sha256(film).hexdigest())
    for key, kind, mime, data in (
        ("page", "html", "text/html", page),
        ("films", "table", "application/json", table),
    ):
        item = MediaItem(kind, mime, data, hashlib.sha256(data).hexdigest())
        axis, cells = axis_of(role), [cell] if kind == "table" else []
        yield MediaRecord(
            f"media:{role}:{step}:{key}",
            role,
            f"{role}/{key}",
            step,
            axis,
            samples.START_UNIX_NS,
            [item],
            cells,
        )


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    job = json.loads(sys.argv[1])
    try:
        machine = Machine(job)
    except ExporterError as exc:
        print(
            json.dumps({"error": str(exc), "help": getattr(exc, "help", "")}),
            flush=True,
        )
        return
    print(json.dumps({"durable": machine.writer.durable()}), flush=True)
    for line in sys.stdin:
        try:
            said: object = machine.answer(
                line.split(maxsplit=2) if line.startswith("config") else line.split()
            )
        except ExporterError as exc:
            said = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
