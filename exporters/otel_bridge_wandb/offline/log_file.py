"""Reads the file of an offline run, ``run-<id>.wandb``: seven bytes of header, then LevelDB log blocks of 32 KiB.

A record is a serialised ``wandb_internal_pb2.Record``, in one chunk or split into first, middle and
last chunks. The checksum is plain CRC-32, neither LevelDB's polynomial nor its mask. Source:
core/pkg/leveldb and core/internal/transactionlog of wandb-core.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

MAGIC = b":W&B"
HEADER_BYTES = 7
BLOCK_BYTES = 32 << 10
_CHUNK = struct.Struct("<IHB")
# Kinds of chunks; one in the middle of a record is 3.
_FULL = 1
_FIRST = 2
_LAST = 4


def records(data: bytes, offset: int = HEADER_BYTES) -> Iterator[bytes]:
    """Yield the records of a file up to its end, or to the first damaged chunk.

    Parts without a beginning are skipped. What follows damage has no known beginning. Damaged is
    also the tail that wandb had not flushed at a kill.

    Args:
        data: Bytes of the file from a block's boundary on.
        offset: Offset of the first chunk: after the header, or 0.
    """
    record: bytes | None = None
    while offset + _CHUNK.size <= len(data):
        block_rest = BLOCK_BYTES - offset % BLOCK_BYTES
        if block_rest < _CHUNK.size:
            offset += block_rest
            continue
        crc, size, kind = _CHUNK.unpack_from(data, offset)
        # LevelDB: the rest of a block that is too short for a chunk is filled with zeros.
        if kind == 0:
            offset += block_rest
            continue
        offset += _CHUNK.size
        body = data[offset : offset + size]
        if len(body) < size or zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
            return
        offset += size
        if kind in {_FULL, _FIRST}:
            record = b""
        if record is not None:
            record += body
            if kind in {_FULL, _LAST}:
                yield record
                record = None
