"""A third party's exporter, ``gated``: a file that takes nothing until a person makes another file, its gate.

`install` puts it where the commands find it, as ``pip install`` would; a line a value or rollout, ``<key> <step>``.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.records import Evaluation, Json, Position, RolloutRecord, Row, Status


@dataclass(frozen=True)
class GatedSettings:
    file: Path
    gate: Path
    blocked: bool
    refuse: Path
    hangs: bool

    @property
    def destination(self) -> Mapping[str, str]:
        return {"GATED_FILE": str(self.file)}

    def view(self, run: RunInfo) -> str:
        return f"cat {self.file}"


class GatedWriter:
    url = None

    def __init__(self, settings: GatedSettings) -> None:
        self._settings = settings
        if not settings.gate.exists():
            if settings.blocked:
                raise BlockedError("the gate is shut", help=f"touch {settings.gate}")
            raise RetryableError("the gate is shut")

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._settings.refuse.exists() and any(
                key.endswith("odd") for key in row.values
            ):
                raise PermanentError(
                    "odd things are not taken here", position=row.position
                )
            self._write(*(f"{key} {row.step}" for key in row.values))

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._write(*(f"{rollout.key} {rollout.step}" for rollout in rollouts))

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        pass

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        pass

    def durable(self) -> Position | None:
        return 0 if self._settings.hangs else None

    def end(self, status: Status) -> None:
        self._write(f"end {status.value}")

    def close(self) -> None:
        if self._settings.hangs:
            threading.Event().wait()

    def _write(self, *lines: str) -> None:
        with self._settings.file.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def _settings(env: Mapping[str, str], cwd: Path) -> GatedSettings:
    file = cwd / env.get("GATED_FILE", "gated.txt")
    gate, refuse = file.with_name("gate"), file.with_name("refuse")
    return GatedSettings(
        file,
        gate,
        env.get("GATED_BLOCKED") == "1",
        refuse,
        env.get("GATED_HANGS") == "1",
    )


def _open(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> GatedWriter:
    assert isinstance(settings, GatedSettings)
    return GatedWriter(settings)


exporter = Exporter(read_settings=_settings, ordered=True, open=_open)


def install(folder: Path) -> dict[str, str]:
    """Install it into a folder below *folder*; returns the variables that bring it, writing to *folder*/gated.txt."""
    site = folder / "site"
    info = site / "gated_tracker-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(__file__, site)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gated-tracker\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[otel_bridge.exporters]\ngated = gated_tracker:exporter\n"
    )
    return {"PYTHONPATH": os.fspath(site), "GATED_FILE": str(folder / "gated.txt")}


def gated_lines(folder: Path) -> list[str]:
    """What it took."""
    file = folder / "gated.txt"
    return file.read_text().splitlines() if file.exists() else []
