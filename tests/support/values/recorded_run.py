"""What the exporter ``file`` holds of a run that was recorded in this process, and what the run counted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

import otel_bridge
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.emit.config.child_env import launcher_environment
from otel_bridge.emit.drops import Drops
from otel_bridge.emit.run import Run
from otel_bridge.exporter import SIGNALS
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import read_report
from otel_bridge.values.plain import Losses

_QUICK: Final[Mapping[str, str]] = {
    "OTEL_BRIDGE_QUIET": "1", "OTEL_BRIDGE_END_GRACE_S": "0", "OTEL_BRIDGE_POLL_S": "0.01",
    "OTEL_BRIDGE_STEP_STARTUP_S": "0",
}  # fmt: skip
_IDS_AND_TIMES: Final = re.compile(r'"[0-9a-f]{16,32}"|\b1\d{18}\b')
"""Digits that are not of the values, and may hold those of a mark."""


@dataclass(frozen=True)
class Recorded:
    """Holds the lines of ``file``, and every drop of the run.

    Attributes:
        text: The lines.
        drops: Reason to number, as the run's report has them.
        first_keys: Reason to the first key, as the report has them.
        dropped: Reason and key of all drops of this process.
    """

    text: str
    drops: Mapping[str, int]
    first_keys: Mapping[str, str]
    dropped: Sequence[str]


class RunRecorder:
    """Records runs below a folder, and reads what ``file`` has of them.

    Args:
        base: The folder.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._dropped: list[str] = []
        self._number = 0

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Let runs be recorded below the folder without a bridge, and the keys of all drops be noted."""

        # As below `otel-bridge run`: no bridge begins, because the launcher delivers.
        launched = launcher_environment(dict.fromkeys(SIGNALS, ("file",)))
        variables = {**_QUICK, **launched, "OTEL_BRIDGE_DIR": str(self._base)}
        with pytest.MonkeyPatch.context() as patch:
            for name in [
                name
                for name in os.environ
                if name.startswith(("OTEL_", "WANDB_", "TRACKIO_", "MLFLOW_"))
            ]:
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            # The drops of a record keep the first key of each reason; here every key counts.
            patch.setattr(Drops, "count", self._noting(Drops.count))
            patch.setattr(Losses, "add", self._noting(Losses.add))
            yield

    def _noting(self, count: Callable[..., None]) -> Callable[..., None]:
        def noted(drops: object, reason: str, number: int = 1, key: str = "") -> None:
            self._dropped.append(f"{reason} {key}")
            count(drops, reason, number, key)

        return noted

    def recorded(self, record: Callable[[Run], None], **arguments: Any) -> Recorded:
        """Return what ``file`` holds of a run in which *record* recorded; *arguments* are those of `init`."""
        self._number += 1
        self._dropped = []
        run: Any = otel_bridge.init("properties", f"run {self._number}", **arguments)
        run.log({"row": 1.0})  # a config alone opens no exporter
        record(run)
        run.finish(timeout_s=0)
        folder = RunFolder.at(self._base / run.id)
        self._deliver(folder)
        report = read_report(folder)
        assert report is not None
        assert {
            name: exporter.dead_letters for name, exporter in report.exporters.items()
        } == {"file": 0}
        files = sorted((folder.path / "file").glob("records-*.jsonl"))
        text = "".join(file.read_text() for file in files)
        return Recorded(
            _IDS_AND_TIMES.sub("", text), report.drops, report.drop_keys, self._dropped
        )

    def _deliver(self, folder: RunFolder) -> None:
        options = replace(BridgeOptions.read(os.environ, Path.cwd()), closing=True)
        BridgeSupervisor(
            self._base, options, folders=lambda: [folder], until_done=True
        ).serve()
