"""Wait until an offline run's file is whole: ``run.finish()`` returns before wandb's service has flushed and closed it.

Source: ``handleInformFinish`` in core/pkg/server/connection.go (no answer is sent); the file is a LevelDB log of 32 KiB
blocks (``core/pkg/leveldb``), whose last records are looked at here.
"""

from __future__ import annotations

import importlib
import struct
import time
from pathlib import Path
from typing import Any, Final

_BLOCK_BYTES: Final = 32 << 10
_HEADER_BYTES: Final = 7
_CHUNK: Final = struct.Struct("<IHB")
_FULL: Final = 1
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
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    try:
        with file.open("rb") as opened:
            size_bytes = opened.seek(0, 2)
            start = max(size_bytes // _BLOCK_BYTES - 1, 0) * _BLOCK_BYTES
            opened.seek(start)
            data = opened.read()
    except OSError:
        return False
    return any(records.Record.FromString(body).HasField("exit") for body in _whole(data, 0 if start else _HEADER_BYTES))


def _whole(data: bytes, at: int) -> list[bytes]:
    bodies: list[bytes] = []
    while at + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        _, size, kind = _CHUNK.unpack_from(data, at)
        end = at + _CHUNK.size + size
        if kind == _FULL and end <= len(data):
            bodies.append(data[at + _CHUNK.size : end])
        at = end if kind else at + left
    return bodies
