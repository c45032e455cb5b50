"""Wait until an offline run's file is whole: ``run.finish()`` returns before wandb's service has flushed and closed it.

Source: ``handleInformFinish`` in core/pkg/server/connection.go, which sends no answer.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any, Final

from otel_bridge_wandb.log_file import BLOCK_BYTES, HEADER_BYTES, LogReader

_PAUSE_S: Final = 0.005


def wait_for_exit(directory: Path, timeout_s: float) -> bool:
    """Wait until the run's file in *directory* ends with its exit record; tell whether it does."""
    deadline = time.monotonic() + timeout_s
    while True:
        if any(has_exit(file) for file in directory.glob("run-*.wandb")):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)


def has_exit(file: Path) -> bool:
    """Tell whether an exit record stands in the last two blocks of *file*."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    try:
        with file.open("rb") as opened:
            start = max(opened.seek(0, 2) // BLOCK_BYTES - 1, 0) * BLOCK_BYTES
            opened.seek(start)
            reader = LogReader(opened.read(), 0 if start else HEADER_BYTES)
    except OSError:
        return False
    return any(messages.Record.FromString(record).HasField("exit") for record in reader.records())
