"""Reads the file of an offline run, ``run-<id>.wandb``: seven bytes of header, then LevelDB log blocks of 32 KiB.

A record is a serialised ``wandb_internal_pb2.Record``, in one chunk or split into first, middle and
last chunks. The checksum is plain CRC-32, neither LevelDB's polynomial nor its mask. Source:
core/pkg/leveldb and core/internal/transactionlog of wandb-core.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b":W&B"
HEADER_BYTES = 7
BLOCK_BYTES = 32 << 10
_CHUNK = struct.Struct("<IHB")
_FULL = 1
_FIRST = 2
_LAST = 4


@dataclass(slots=True)
class LogReader:
    """Reads the records in the bytes of a file.

    Attributes:
        data: Bytes from a block's boundary on.
        offset: Offset of the first chunk: after the header, or 0.
        torn: After reading: whether the end is cut off or damaged.
    """

    data: bytes
    offset: int = HEADER_BYTES
    torn: bool = False

    def records(self) -> Iterator[bytes]:
        """Yield the records up to the end or the first damaged chunk.

        Parts without a beginning are skipped.
        """
        parts: list[bytes] = []
        whole = False
        while (chunk := self._next()) is not None:
            kind, body = chunk
            whole = kind in {_FULL, _FIRST} or (whole and bool(parts))
            parts = [body] if kind in {_FULL, _FIRST} else [*parts, body]
            if kind in {_FULL, _LAST}:
                if whole:
                    yield b"".join(parts)
                parts = []
        self.torn = bool(parts) or self.offset < len(self.data)

    def _next(self) -> tuple[int, bytes] | None:
        """Return kind and body of the next chunk and move behind it.

        ``None`` at the end or at a damaged chunk.
        """
        while self.offset + _CHUNK.size <= len(self.data):
            block_rest = BLOCK_BYTES - self.offset % BLOCK_BYTES
            # LevelDB: the rest of a block that is too short for a chunk's header is filled with
            # zeros.
            if block_rest < _CHUNK.size:
                self.offset += block_rest
                continue
            crc, size, kind = _CHUNK.unpack_from(self.data, self.offset)
            if (crc, size, kind) == (0, 0, 0):
                self.offset += block_rest
                continue
            body = self.data[
                self.offset + _CHUNK.size : self.offset + _CHUNK.size + size
            ]
            # The tail that wandb had not flushed at a kill, or damage: what follows has no known
            # beginning.
            if len(body) < size or zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
                return None
            self.offset += _CHUNK.size + size
            return kind, body
        return None
