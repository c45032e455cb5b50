"""The exporter ``csv``: one file a run, one line a number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.records import Position, Row


@dataclass(frozen=True)
class CsvSettings:
    directory: Path

    @property
    def destination(self) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_CSV_DIR": str(self.directory)}

    def view(self, run: RunInfo) -> str:
        return f"column -s, -t {self.directory / run.id}.csv"


class CsvRunWriter(RunWriter):
    """Writes numbers alone: the protocol's other methods do nothing."""

    def __init__(
        self, run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> None:
        path = Path(settings.destination["OTEL_BRIDGE_CSV_DIR"], f"{run.id}.csv")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise BlockedError(
                f"csv: {exc}", help="set OTEL_BRIDGE_CSV_DIR to a writable folder"
            ) from exc
        self._memory = memory
        end = self._file.tell()
        position, size = (memory.get("through") or b"0 %d" % end).split()
        # What a kill left behind the last call that is remembered is cut off: the bridge gives it again.
        self._remember(int(position), min(int(size), end))
        self._file.truncate(self._size)

    def write_rows(self, rows: Sequence[Row]) -> None:
        # A dead letter that is tried again has position 0.
        new = [row for row in rows if not 0 < row.position <= self._through]
        data = "".join(map(_lines, new)).encode("utf-8", "replace")
        try:
            if self._file.write(data) != len(data):
                raise OSError("short write")
            os.fsync(self._file.fileno())
        except OSError as exc:
            self._file.truncate(self._size)
            raise RetryableError(f"csv: {exc}") from exc
        if new:
            through = max(new[-1].position, self._through)
            self._remember(through, self._size + len(data))

    def durable(self) -> Position | None:
        return self._through

    def close(self) -> None:
        self._file.close()

    def _remember(self, position: Position, size: int) -> None:
        self._through, self._size = position, size
        self._memory.put("through", b"%d %d" % (position, size))


def _lines(row: Row) -> str:
    step = "" if row.step is None else row.step
    numbers = {
        key: value
        for key, value in row.values.items()
        if isinstance(value, (int, float))
    }
    return "".join(
        f"{_quoted(key)},{step},{row.time_unix_ns},{value!r}\n"
        for key, value in numbers.items()
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _settings(env: Mapping[str, str], cwd: Path) -> CsvSettings:
    return CsvSettings(cwd / (env.get("OTEL_BRIDGE_CSV_DIR") or "csv"))


exporter = Exporter(read_settings=_settings, ordered=True, open=CsvRunWriter)
