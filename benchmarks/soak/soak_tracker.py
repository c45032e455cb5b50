"""An exporter for the soak: a line for each row in a file; refuses everything while a file ``away`` is there."""

# ruff: noqa: ARG002  # a writer takes what the contract says
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.records import Evaluation, Json, Position, RolloutRecord, Row, Status


@dataclass(frozen=True)
class Settings:
    folder: Path

    @property
    def destination(self) -> Mapping[str, str]:
        return {"SOAK_FOLDER": str(self.folder)}

    def view(self, run: RunInfo) -> str:
        return f"cat {self.folder / run.id}"


class Writer:
    url = None

    def __init__(self, run: RunInfo, settings: Settings) -> None:
        self._folder, self._run_id = settings.folder, run.id
        self._here()

    def _here(self) -> None:
        if (self._folder / "away").exists():
            raise RetryableError("the tracker is away")

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._here()
        with (self._folder / self._run_id).open("a") as file:
            file.writelines(f"{row.id}\n" for row in rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._here()

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        self._here()

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        self._here()

    def durable(self) -> Position | None:
        return None

    def end(self, status: Status) -> None:
        self._here()

    def close(self) -> None:
        pass


def _settings(env: Mapping[str, str], cwd: Path) -> Settings:
    return Settings(cwd / env["SOAK_FOLDER"])


def _open(run: RunInfo, settings: ExporterSettings, memory: WriterMemory) -> Writer:
    del memory
    assert isinstance(settings, Settings)
    return Writer(run, settings)


exporter = Exporter(read_settings=_settings, ordered=True, open=_open)
