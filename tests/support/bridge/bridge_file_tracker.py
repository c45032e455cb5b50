"""A tracker that is one file, for bridges that are killed: a line a record, ``<position> <id>``, appended in one write.

``python bridge_file_tracker.py FOLDER FILE MODE`` serves one run folder into it, as the plain bridge does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.journal.folder import run_folders
from otel_bridge.records import (
    Evaluation,
    Json,
    Position,
    Record,
    RolloutRecord,
    Row,
    Status,
)


@dataclass(frozen=True)
class Nowhere:
    destination: Mapping[str, str] = field(default_factory=dict)

    def view(self, run: RunInfo) -> str:
        return ""


class FileWriter:
    """Appends; with *reports_durable* it says what the file holds, so that nothing comes twice."""

    url = None

    def __init__(self, path: Path, *, reports_durable: bool) -> None:
        self._path, self._reports_durable = path, reports_durable
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)  # a write that a kill cut short

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._write(rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._write(rollouts)

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        self._write(values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        pass

    def durable(self) -> Position | None:
        if not self._reports_durable:
            return None
        lines = self._path.read_bytes().splitlines()
        return int(lines[-1].split()[0]) if lines else 0

    def end(self, status: Status) -> None:
        os.write(self._fd, b"")

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, records: Sequence[Record]) -> None:
        os.write(
            self._fd,
            "".join(f"{record.position} {record.id}\n" for record in records).encode(),
        )
        time.sleep(
            0.004
        )  # a tracker takes its time to answer: many kills fall between the write and its note


def file_exporter(path: Path, *, reports_durable: bool) -> Exporter:
    def opened(
        run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> FileWriter:
        return FileWriter(path, reports_durable=reports_durable)

    return Exporter(read_settings=lambda env, cwd: Nowhere(), ordered=True, open=opened)


def main(folder: Path, file: Path, mode: str) -> None:
    exporter = file_exporter(file, reports_durable=mode == "durable")
    how = BridgeOptions.read(os.environ, Path.cwd(), load=lambda name: exporter)
    folders = [found for found in run_folders(folder.parent) if found.path == folder]
    BridgeSupervisor(
        folder.parent, how, folders=lambda: folders, until_done=True
    ).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
