"""The exporter ``tensorboard``: a folder a run, a folder below it a role, each role on its own step.

Exactly once: how far the records are written, and how long each file is then, is remembered when a call's bytes are on
the disk; what a kill left behind that is cut off, and the bridge gives it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import Exporter, ExporterSettings, RunInfo, WriterMemory
from otel_bridge.records import Evaluation, Json, Position, RolloutRecord, Row, Status

R = TypeVar("R", Row, RolloutRecord, Evaluation)
STATE, CONFIG = "state", "config/"


@dataclass(frozen=True)
class TensorBoardSettings:
    directory: Path

    @property
    def destination(self) -> Mapping[str, str]:
        return {"OTEL_BRIDGE_TENSORBOARD_DIR": str(self.directory)}

    def view(self, run: RunInfo) -> str:
        return f"tensorboard --logdir {self.directory / run.id}"


class TensorBoardRunWriter:
    """Writes one run's event files."""

    url: str | None = None

    def __init__(
        self, run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> None:
        import otel_bridge_tensorboard_events  # noqa: PLC0415  # brings tensorboardX

        self._events: ModuleType = otel_bridge_tensorboard_events
        self._folder = Path(settings.destination["OTEL_BRIDGE_TENSORBOARD_DIR"], run.id)
        self._memory = memory
        known = json.loads(
            memory.get(STATE) or b'{"through": 0, "session": 0, "sizes": {}}'
        )
        self._through, self._session = int(known["through"]), int(known["session"]) + 1
        self._sizes: dict[str, int] = known["sizes"]
        self._files: dict[str, BinaryIO] = {}
        self._touched: set[str] = set()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for file in self._folder.rglob("events.out.tfevents.*"):
                name = str(file.relative_to(self._folder))
                if name not in self._sizes:
                    file.unlink()
                elif file.stat().st_size > self._sizes[name]:
                    os.truncate(file, self._sizes[name])
        except OSError as exc:
            raise _blocked(exc) from exc
        self._remember()

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._write(rows, lambda row: (row.role, self._events.of_row(row)))

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._write(
            rollouts, lambda rollout: (rollout.role, self._events.of_rollout(rollout))
        )

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        self._write(
            values,
            lambda evaluation: (
                evaluation.role,
                self._events.of_evaluation(evaluation),
            ),
        )

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        shown = json.dumps(config, sort_keys=True, indent=1, default=str)
        slot = f"{CONFIG}{role or ''}"
        if (self._memory.get(slot) or b"").decode() == shown:
            return
        self._append([(role, self._events.of_config(shown, self._session))])
        self._remember()
        self._memory.put(slot, shown.encode())

    def durable(self) -> Position | None:
        return self._through

    def end(self, status: Status) -> None: ...  # TensorBoard knows no end

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(
        self, records: Sequence[R], encode: Callable[[R], tuple[str | None, bytes]]
    ) -> None:
        """Append what *records* become; one that cannot be encoded is refused when those before it are written."""
        made: list[tuple[str | None, bytes]] = []
        last, refused = self._through, None
        for record in records:
            # A dead letter that is tried again has position 0.
            if 0 < record.position <= self._through:
                continue
            try:
                made.append(encode(record))
            except (ValueError, TypeError) as exc:
                refused = PermanentError(
                    f"tensorboard: {record.id}: {exc}", position=record.position
                )
                break
            last = max(record.position, last)
        self._append(made)
        self._through = last
        if made:
            self._remember()
        if refused is not None:
            raise refused

    def _append(self, made: Iterable[tuple[str | None, bytes]]) -> None:
        by_role: dict[str | None, list[bytes]] = {}
        for role, data in made:
            by_role.setdefault(role, []).append(data)
        try:
            for role, parts in by_role.items():
                name = self._name(role)
                file = self._files.get(name) or self._open(name)
                data = b"".join(parts)
                if file.write(data) != len(data):
                    raise OSError("short write")
                os.fsync(file.fileno())
            for name, file in self._files.items():
                self._sizes[name] = file.tell()
        except OSError as exc:
            for name, file in self._files.items():
                file.truncate(self._sizes.get(name, 0))
                file.seek(0, os.SEEK_END)
            raise RetryableError(f"tensorboard: {exc}") from exc

    def _open(self, name: str) -> BinaryIO:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = self._files[name] = path.open("wb", buffering=0)
        file.write(self._events.version())
        self._sizes[name] = file.tell()
        return file

    def _name(self, role: str | None) -> str:
        """Return the file of *role* of this session; TensorBoard reads a folder's in the order of their names."""
        folder = quote(role or "", safe=" @+=").replace(".", "%2E")
        return os.path.join(
            folder, f"events.out.tfevents.{self._session:010d}.otel-bridge"
        )

    def _remember(self) -> None:
        state = {
            "through": self._through,
            "session": self._session,
            "sizes": self._sizes,
        }
        self._memory.put(STATE, json.dumps(state).encode())


def _blocked(exc: OSError) -> BlockedError:
    return BlockedError(
        f"tensorboard: {exc}",
        help="set OTEL_BRIDGE_TENSORBOARD_DIR to a writable folder",
    )


def _settings(env: Mapping[str, str], cwd: Path) -> TensorBoardSettings:
    return TensorBoardSettings(
        cwd / (env.get("OTEL_BRIDGE_TENSORBOARD_DIR") or "tensorboard")
    )


exporter = Exporter(
    read_settings=_settings,
    ordered=True,
    open=TensorBoardRunWriter,
    requires=("tensorboardX",),
)
