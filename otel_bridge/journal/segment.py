"""Append-only files of frames: one writer, any number of readers, at the same time.

A frame is written by one ``os.write`` to a file opened with ``O_APPEND``: once it returned, the record is in the kernel
and no death of the process can lose it. A reader sees whole frames and at most one unfinished frame at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, replace
from os import write
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

from otel_bridge.errors import InvalidRecordError, JournalError, JournalFullError
from otel_bridge.journal.frames import (
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    WHOLE,
    Scan,
    pack_head,
    pending_end,
    scan,
    seal_head,
    start_of,
    stream_of,
    too_long,
)
from otel_bridge.journal.header import MAX_HEADER_BYTES, SegmentHeader, header_end
from otel_bridge.settings import SEGMENT_BYTES

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder

SUFFIX: Final = ".seg"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_sync = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment in its folder, as it was when listed."""

    path: Path
    instance_id: str
    number: int
    size_bytes: int
    mtime_ns: int


def segment_name(instance_id: str, number: int) -> str:
    """Return the file name of a segment, without the suffix."""
    return f"{instance_id}-{number:06d}"


class SegmentWriter:
    """Writes the segments of one process. Not thread-safe: its owner locks.

    Args:
        folder: The run folder, already created.
        header: Header of the first segment; later ones differ by number and time.
        segment_bytes: Size at which a segment is closed and the next one opened.

    Raises:
        JournalFullError: The disk is full.
        JournalError: The segment cannot be created.
    """

    def __init__(self, folder: RunFolder, header: SegmentHeader, *, segment_bytes: int = SEGMENT_BYTES.default) -> None:
        self._segments_dir = folder.segments_dir
        self._header = header
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._open(header)

    @property
    def instance_id(self) -> str:
        """The process whose segments these are."""
        return self._header.instance_id

    @property
    def number(self) -> int:
        """Number of the open segment."""
        return self._header.number

    @property
    def offset(self) -> int:
        """Where the next frame goes, if it does not begin a new segment."""
        # Asked of the kernel: a signal handler that raises right after the write cannot make it wrong.
        return os.lseek(self._fd, 0, os.SEEK_CUR) if self._fd >= 0 else self._closed_at

    @property
    def path(self) -> Path:
        """File of the open segment."""
        return self._path

    def fileno(self) -> int:
        """Return the descriptor of the open segment; another one after each roll, told by `number`."""
        return self._fd

    def append(self, signal: int, payload: bytes, append_unix_ns: int, *, whole: bool = False) -> None:
        """Append one frame; it is in the kernel when this returns, or nothing of it is in a segment's readable part.

        Raises:
            JournalFullError: Disk, quota or file size limit; the frame was not written.
            JournalError: Anything else; the frame was not written.
        """
        # Each row comes through here, so a frame is put together as `encode_frame` does it, with no call of Python's.
        length = len(payload)
        size = HEAD_BYTES + length
        if self._size + size > self._limit and (self._size > self._first or self._limit < 0):
            self._roll(append_unix_ns)
        if length > MAX_RECORD_BYTES:
            raise too_long(length)
        kind = signal | WHOLE if whole else signal
        head = pack_head(self._start, length, kind, append_unix_ns, crc32(payload))
        frame = seal_head(head, crc32(head)) + payload
        try:
            written = write(self._fd, frame)
            self._size += written
            if written != size:
                self._write_rest(frame, written)
        except OSError as exc:
            # A segment at the limit of a file's size (ulimit -f) is left for a new one.
            if exc.errno != errno.EFBIG or self._size <= self._first:
                raise _error(exc, self._path, "cannot be appended to") from exc
            self._roll(append_unix_ns)
            self.append(signal, payload, append_unix_ns, whole=whole)

    def linked(self) -> bool:
        """Say whether the open segment still stands in a folder: writes into a deleted file succeed."""
        try:
            status = os.fstat(self._fd)
        except OSError:
            return False
        # A program that closes all descriptors may have given the number away.
        return status.st_nlink > 0 and (status.st_dev, status.st_ino) == self._identity

    def sync(self) -> None:
        """Wait until all that was appended to the open segment is on the disk.

        Raises:
            JournalFullError: The disk turned out to be full.
            JournalError: The disk refused.
        """
        try:
            _sync(self._fd)
        except OSError as exc:
            raise _error(exc, self._path, "cannot be synced") from exc

    def close(self) -> None:
        """Close the open segment. May be called twice."""
        if self._fd >= 0:
            self._closed_at = self.offset
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _open(self, header: SegmentHeader) -> None:
        """Create the segment of *header* and make it the open one; on an error nothing has changed."""
        name = segment_name(header.instance_id, header.number)
        path, unfinished = self._segments_dir / f"{name}{SUFFIX}", self._segments_dir / f".{name}.tmp"
        data = header.to_bytes()
        if len(data) > MAX_HEADER_BYTES:
            raise JournalError(f"header of {len(data)} bytes, at most {MAX_HEADER_BYTES}; shorten the resource")
        fd = -1
        try:
            if path.exists():
                raise FileExistsError(errno.EEXIST, "there is one of this name")
            # Under another name until its header stands in it, so that no reader sees half of one.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(unfinished, flags, 0o600)
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            unfinished.rename(path)
            status = os.fstat(fd)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
                with contextlib.suppress(OSError):
                    unfinished.unlink()
            raise _error(exc, path, "cannot be created") from exc
        self.close()
        self._fd, self._path, self._header = fd, path, header
        self._identity = (status.st_dev, status.st_ino)
        self._start = start_of(stream_of(name))
        self._size = self._first = len(data)
        self._limit = self._segment_bytes

    def _roll(self, append_unix_ns: int) -> None:
        if self._fd < 0:
            raise JournalError(f"{self._path}: the segment is closed; open a new writer")
        self._open(replace(self._header, number=self._header.number + 1, created_unix_ns=append_unix_ns))

    def _write_rest(self, frame: bytes, written: int) -> None:
        """Write the rest of a frame of which *written* bytes were; take those back when it does not fit.

        Raises:
            OSError: It does not fit.
        """
        begin = os.lseek(self._fd, 0, os.SEEK_CUR) - written
        try:
            while written < len(frame):
                more = os.write(self._fd, memoryview(frame)[written:])
                if not more:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += more
                self._size += more
        except OSError:
            self._take_back(begin)
            raise

    def _take_back(self, begin: int) -> None:
        try:
            os.ftruncate(self._fd, begin)
            os.lseek(self._fd, begin, os.SEEK_SET)
            self._size = begin
        except OSError:
            self._limit = -1  # the torn frame stays: the next frame begins a new segment


def read_segment(path: Path, offset: int, *, limit_bytes: int, final: bool) -> tuple[SegmentHeader | None, Scan]:
    """Read the frames of a segment from *offset* on.

    Args:
        path: The segment.
        offset: 0, or `Scan.end` of the call before.
        limit_bytes: How much to read at about; more when one frame, or one stretch of bad bytes, is larger.
        final: Nothing more will be appended (its process was seen dead *before* this call, or its next segment was
            there): an unfinished tail counts as a gap.

    Returns:
        The header when *offset* is 0 and it can be read, else ``None``; and what was read.

    Raises:
        FormatVersionError: A newer version wrote the segment.
        JournalError: The file cannot be read, e.g. it was deleted.
    """
    stream = stream_of(path.name.removesuffix(SUFFIX))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise _error(exc, path, "cannot be opened") from exc
    try:
        return _read(fd, offset, max(limit_bytes, HEAD_BYTES), final, stream)
    except OSError as exc:
        raise _error(exc, path, "cannot be read") from exc
    finally:
        os.close(fd)


def _read(fd: int, offset: int, limit: int, final: bool, stream: int) -> tuple[SegmentHeader | None, Scan]:
    while True:
        size = os.fstat(fd).st_size
        data = _pread(fd, min(limit, max(size - offset, 0)), offset)
        at_end = offset + len(data) >= size
        header = _header(data) if offset == 0 else None
        found = scan(data, offset, final=final and at_end, stream=stream)
        if found.end > offset or at_end:
            return header, found
        needed = pending_end(data, offset, stream=stream)
        if needed is not None and needed > size and not final:
            return header, found
        limit = (needed - offset) if needed is not None and needed <= size else limit * 2


def _pread(fd: int, count: int, offset: int) -> bytes:
    data = os.pread(fd, count, offset)
    while 0 < len(data) < count:  # one call moves at most 2,147,479,552 bytes
        more = os.pread(fd, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _header(data: bytes) -> SegmentHeader | None:
    if header_end(data) is None:
        return None
    try:
        return SegmentHeader.from_bytes(data)
    except InvalidRecordError:
        return None


def _error(exc: OSError, path: Path, what: str) -> JournalError:
    if exc.errno in _FULL:
        return JournalFullError(
            f"{path} {what}: {exc.strerror}; free space on that disk, or set OTEL_BRIDGE_DIR to another"
        )
    return JournalError(f"{path} {what}: {exc.strerror or exc}; expected a writable folder, see OTEL_BRIDGE_DIR")
