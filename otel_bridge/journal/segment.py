"""Writes and reads segments: append-only files of frames, with one writer and any number of concurrent readers.

A frame is written by one ``os.write`` to a file opened with ``O_APPEND``. Once the call has
returned, the kernel has the frame, and no crash of the process can lose it. A reader sees whole
frames and at most one unfinished frame at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass, replace
from os import write
from pathlib import Path

from otel_bridge.errors import (
    InvalidRecordError,
    JournalError,
    JournalFullError,
    SegmentClosedError,
)
from otel_bridge.journal.files import (
    DISK_FULL,
    Identity,
    create_regular,
    identity_of,
    open_regular,
    to_high_number,
)
from otel_bridge.journal.frames import (
    HEAD_BYTES,
    ScanResult,
    encode_frame,
    pending_end,
    scan,
    start_of,
)
from otel_bridge.journal.header import (
    MAX_HEADER_BYTES,
    SegmentHeader,
    announced_bytes,
    header_end,
)
from otel_bridge.settings import SEGMENT_BYTES

SUFFIX = ".seg"
PASS_BYTES = 8 << 20
"""Most bytes without a frame that are held in memory at a time; a sparse file may have any number of them."""
_NAME = re.compile(r"(.+)-([0-9]{6,9})\.seg", re.ASCII | re.DOTALL)
_sync = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """Describes a segment file as it was when listed."""

    path: Path
    instance_id: str
    number: int
    size_bytes: int
    mtime_ns: int


def segment_name(instance_id: str, number: int) -> str:
    """Return the file name of a segment, without the suffix."""
    return f"{instance_id}-{number:06d}"


def parsed_segment_name(name: str) -> tuple[str, int] | None:
    """Return the process and the number in a segment's file name, ``None`` when *name* is not such a name.

    Only a number as `segment_name` writes it is accepted: ASCII digits, no additional zeros.

    So two names never mean the same segment, and copies by a person are left aside.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    instance_id = match[1]
    number = int(match[2])
    if f"{segment_name(instance_id, number)}{SUFFIX}" == name:
        return (instance_id, number)
    return None


class SegmentWriter:
    """Writes the segments of one process. Not thread-safe: its owner locks.

    A record that an error kept out is lost unless the caller appends it again: the program counts it
    as dropped, the receiver has its client send it again.

    Args:
        segments_dir: The folder of segments, already created.
        header: Header of the first segment; later ones differ by number and time.
        segment_bytes: Size at which a segment is closed and the next one opened.

    Raises:
        JournalFullError: The disk is full.
        JournalError: The segment cannot be created.
    """

    def __init__(
        self,
        segments_dir: Path,
        header: SegmentHeader,
        *,
        segment_bytes: int = SEGMENT_BYTES.default,
    ) -> None:
        self._segments_dir = segments_dir
        self._header = header
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._closed_at = 0
        self._open(header)

    @property
    def instance_id(self) -> str:
        """Return the instance id of the process whose segments these are."""
        return self._header.instance_id

    @property
    def number(self) -> int:
        """Return the number of the open segment."""
        return self._header.number

    @property
    def offset(self) -> int:
        """Return the offset of the next frame, if it does not begin a new segment.

        Of a closed segment its size. Raises `OSError` when the program has closed the descriptor.
        """
        # The kernel keeps it, so that a signal handler that raises right after the write cannot
        # make it wrong.
        if self._fd >= 0:
            return os.lseek(self._fd, 0, os.SEEK_CUR)
        return self._closed_at

    @property
    def path(self) -> Path:
        """Return the path of the open segment."""
        return self._path

    def fileno(self) -> int:
        """Return the descriptor of the open segment.

        It changes whenever `number` does, -1 once closed.
        """
        return self._fd

    def append(
        self, signal: int, payload: bytes, append_unix_ns: int, *, whole: bool = False
    ) -> None:
        """Append one frame. When this returns, the kernel has the frame.

        On an error, no reader sees any of it.

        A full disk is not tried again here: the caller counts the record as dropped and goes on.

        Raises:
            JournalFullError: Disk, quota or file size limit; the frame was not written.
            SegmentClosedError: The descriptor was closed, or the folder moved or deleted; the frame
                was not written.
            JournalError: Anything else, as a payload above `MAX_RECORD_BYTES`, or a writer that was
                closed; the frame was not written.
        """
        size = HEAD_BYTES + len(payload)
        is_full = self._size + size > self._segment_bytes
        # A record larger than a segment gets one of its own.
        if self._is_torn or (is_full and self._size > self._header_size):
            self._roll(append_unix_ns)
        frame = encode_frame(
            signal, payload, append_unix_ns, start=self._start, whole=whole
        )
        try:
            written = write(self._fd, frame)
            self._size += written
            if written != size:
                self._write_rest(frame, written)
        except OSError as exc:
            # A segment that has reached the limit of a file's size (ulimit -f) is replaced by a new
            # one.
            if exc.errno != errno.EFBIG or self._size <= self._header_size:
                raise _error(exc, self._path, "cannot be appended to") from exc
            self._roll(append_unix_ns)
            self.append(signal, payload, append_unix_ns, whole=whole)

    def linked(self) -> bool:
        """Return whether the open segment is at its path: writes into a moved or deleted file succeed."""
        return identity_of(self._path) == self._identity and self._is_open()

    def _is_open(self) -> bool:
        """Return whether the descriptor is that of the segment: a program may close it, and use its number again."""
        return identity_of(self._fd) == self._identity

    def sync(self) -> None:
        """Wait until everything appended to the open segment is on the disk.

        Raises:
            JournalFullError: The disk is full.
            SegmentClosedError: The program has closed the descriptor.
            JournalError: The segment cannot be synced; what of it is on the disk is unknown.
        """
        try:
            _sync(self._fd)
        except OSError as exc:
            raise _error(exc, self._path, "cannot be synced") from exc

    def close(self) -> None:
        """Close the open segment. May be called twice."""
        fd = self._fd
        if fd >= 0 and self._is_open():
            self._closed_at = self.offset
            os.close(fd)
        self._fd = -1

    def _open(self, header: SegmentHeader) -> None:
        """Create the segment of *header* and make it the open one.

        On an error nothing is changed.

        A segment of that name is never overwritten, since it may hold records that are not
        delivered.

        Raises:
            JournalError: It cannot be created, or its header is too large.
        """
        name = segment_name(header.instance_id, header.number)
        path = self._segments_dir / f"{name}{SUFFIX}"
        unfinished = self._segments_dir / f".{name}.tmp"
        data = header.to_bytes()
        if len(data) > MAX_HEADER_BYTES:
            raise JournalError(
                f"header of {len(data)} bytes, at most {MAX_HEADER_BYTES}; shorten the resource"
            )
        fd = -1
        try:
            if path.exists():
                raise FileExistsError(errno.EEXIST, "a segment of this name exists")
            # Under another name until it has its header, so that no reader sees half of a header.
            fd = to_high_number(create_regular(unfinished, os.O_WRONLY | os.O_APPEND))
            # A short write of a file is a disk, quota or file limit without space.
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            unfinished.rename(path)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
                with contextlib.suppress(OSError):
                    unfinished.unlink()
            raise _error(exc, path, "cannot be created") from exc
        # Last, so that the old segment stays usable when the new one cannot be made.
        self.close()
        self._fd = fd
        self._path = path
        self._header = header
        self._identity = identity_of(fd)
        self._start = start_of(name)
        self._size = len(data)
        self._header_size = len(data)
        self._is_torn = False

    def _roll(self, append_unix_ns: int) -> None:
        """Close the segment and open the next one.

        The numbers of the segments are those of their process, so that readers find the next one by
        its name.

        Raises:
            SegmentClosedError: The segment's file was moved or deleted.
            JournalError: The next segment cannot be created; the old one stays open.
        """
        if self._fd < 0:
            raise JournalError(
                f"{self._path}: the segment is closed; open a new writer"
            )
        header = replace(
            self._header, number=self._header.number + 1, created_unix_ns=append_unix_ns
        )
        try:
            self._open(header)
        except JournalError as exc:
            # The folder is there, e.g. on a full disk: the old segment goes on once there is space.
            if self.linked():
                raise
            raise SegmentClosedError(
                f"{self._path} was moved or deleted; open another"
            ) from exc

    def _write_rest(self, frame: bytes, written: int) -> None:
        """Write the rest of a frame after its first *written* bytes.

        Raises:
            OSError: The rest cannot be written, as on a full disk; what was written is removed.
        """
        # A write moves the position to its end, also of a file opened with O_APPEND.
        begin = os.lseek(self._fd, 0, os.SEEK_CUR) - written
        try:
            while written < len(frame):
                count = os.write(self._fd, memoryview(frame)[written:])
                # A file that takes nothing more would keep this loop here for ever.
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += count
                self._size += count
        except OSError:
            # A frame is whole or not there: a part of one would be read as a gap.
            self._take_back(begin)
            raise

    def _take_back(self, begin: int) -> None:
        """Cut the open segment off at *begin*, where its torn frame begins.

        Never raise: where that fails, the next frame begins a new segment, and readers skip the
        torn one as a gap.
        """
        try:
            os.ftruncate(self._fd, begin)
            os.lseek(self._fd, begin, os.SEEK_SET)
            self._size = begin
        except OSError:
            self._is_torn = True


def read_segment(
    path: Path, offset: int, *, limit_bytes: int, final: bool
) -> tuple[SegmentHeader | None, ScanResult]:
    """Read the frames of a segment from *offset* on.

    Args:
        path: The segment.
        offset: 0, or `ScanResult.end` of the call before.
        limit_bytes: Approximate number of bytes to read; more when one frame, or one gap, is
            larger.
        final: Whether nothing more will be appended, because *before* this call its process was
            dead or its next segment existed. An unfinished tail then counts as a gap.

    Returns:
        The header when *offset* is 0 and the header can be read and is of this name, else ``None``;
        and the result of the scan.

    Raises:
        FormatVersionError: A newer version wrote the segment.
        JournalError: The file cannot be read, e.g. it was deleted.
    """
    name = path.name.removesuffix(SUFFIX)
    start = start_of(name)
    try:
        fd = open_regular(path)
    except OSError as exc:
        raise _error(exc, path, "cannot be opened") from exc
    try:
        header, scanned = _read(fd, offset, max(limit_bytes, HEAD_BYTES), final, start)
    except OSError as exc:
        raise _error(exc, path, "cannot be read") from exc
    finally:
        os.close(fd)
    # The frames of a renamed file are not read either, and its process may have no segment here.
    if header is not None and segment_name(header.instance_id, header.number) != name:
        header = None
    return header, scanned


def header_in(path: Path) -> SegmentHeader | None:
    """Return the header of a segment.

    ``None`` when the file is gone or its header is damaged or of a newer version.
    """
    with contextlib.suppress(JournalError):
        return read_segment(path, 0, limit_bytes=0, final=False)[0]
    return None


def _read(
    fd: int, offset: int, limit: int, final: bool, start: bytes
) -> tuple[SegmentHeader | None, ScanResult]:
    """Read and scan more and more bytes, from *limit* on, until there is a frame, or none can begin at *offset*.

    Raises:
        OSError: The file cannot be read.
    """
    while True:
        size = os.fstat(fd).st_size
        header, data = _read_bytes(fd, offset, limit, size)
        at_end = offset + len(data) >= size
        scanned = scan(data, offset, final=final and at_end, start=start)
        if scanned.end > offset or at_end:
            return header, scanned
        frame_end = pending_end(data, offset, start)
        if frame_end is not None and frame_end <= size:
            limit = frame_end - offset
        elif frame_end is not None and not final:  # its process still writes it
            return header, scanned
        elif limit < PASS_BYTES:
            limit *= 2
        else:  # no frame begins here, except perhaps one whose head continues beyond the bytes read
            return header, _passed_over(fd, offset, len(data) - HEAD_BYTES + 1)


def _read_bytes(
    fd: int, offset: int, limit: int, size: int
) -> tuple[SegmentHeader | None, bytes]:
    """Return the header, if *offset* is 0 and it is valid, and *limit* bytes.

    More if the header is larger.
    """
    data = os.pread(fd, min(limit, max(size - offset, 0)), offset)
    if offset > 0:
        return None, data
    header_bytes = announced_bytes(data)
    if len(data) < header_bytes <= size:
        data = os.pread(fd, min(header_bytes + HEAD_BYTES, size), 0)
    return _header(data), data


def _passed_over(fd: int, offset: int, count: int) -> ScanResult:
    """Return the result for *count* bytes without a frame: a gap up to their end, or to the end of a hole there.

    A sparse file may have a hole of any size, which would take for ever to read.
    """
    end = offset + count
    if hasattr(os, "SEEK_DATA"):
        try:
            end = max(end, os.lseek(fd, end, os.SEEK_DATA))
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole up to the end of the file
                end = os.fstat(fd).st_size
    return ScanResult([], end, end - offset, 1)


def _header(data: bytes) -> SegmentHeader | None:
    """Return the header that *data* begins with; ``None`` when it is cut off or damaged.

    Raises:
        FormatVersionError: A newer version wrote it.
    """
    if header_end(data) is None:
        return None
    try:
        return SegmentHeader.from_bytes(data)
    except InvalidRecordError:
        return None


def _error(exc: OSError, path: Path, failure: str) -> JournalError:
    """Return the error of this project for *exc*; *failure* is the end of the sentence about *path*.

    By its class the caller knows whether to wait for space or to open another segment.
    """
    if exc.errno in DISK_FULL:
        return JournalFullError(
            f"{path} {failure}: {exc.strerror}; free space on that disk, or set OTEL_BRIDGE_DIR to another"
        )
    if exc.errno == errno.EBADF:
        return SegmentClosedError(
            f"{path} {failure}: this process closed its descriptor; open another segment"
        )
    return JournalError(
        f"{path} {failure}: {exc.strerror or exc}; expected a writable folder, see OTEL_BRIDGE_DIR"
    )


# Disk space reserved for the last records of a process, released when the disk has no room for
# them.
#
# The file has no name, so that its space is free as soon as the process has ended, however it ends.

PORTION_BYTES = 8 << 10
"""Bytes that one call of `Spare.give_up` frees: room for one record, in whole pages of any file system."""
_PORTIONS = 4
"""Records that fit on a full disk: the counts of drops and the end of the process are among them."""


class Spare:
    """Reserves space on the disk of a folder. Not thread-safe: its owner locks.

    On a disk without enough room it reserves nothing.

    Args:
        directory: The folder.
        name: A file name that does not exist in the folder.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._fd = -1
        self._size = 0
        self._identity: Identity | None = None
        path = directory / name
        with contextlib.suppress(OSError):
            self._fd = to_high_number(create_regular(path, os.O_RDWR))
            path.unlink()
            self._identity = identity_of(self._fd)
            # Written, not only extended: a hole reserves no space.
            # macOS has no posix_fallocate.
            self._size = os.write(self._fd, bytes(_PORTIONS * PORTION_BYTES))

    def give_up(self) -> bool:
        """Free one portion; return ``False`` when there is none left.

        A descriptor that the program has closed gives nothing.
        """
        if not self._size or not self._is_ours():
            return False
        self._size = max(self._size - PORTION_BYTES, 0)
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Release the space; in a forked child, close only the child's descriptor."""
        fd = self._fd
        is_ours = self._is_ours()
        self._fd = -1
        self._size = 0
        if is_ours:
            os.close(fd)

    def _is_ours(self) -> bool:
        """Return whether the descriptor is still the reserved file: a program may have closed it and reused it."""
        return self._identity is not None and identity_of(self._fd) == self._identity
