"""The exporter ``file``: writes every record as one JSON line under the run folder, in rotated files of limited size.

A line contains the record's position, and a writer continues after the last whole line. So each
record is stored once, also after a kill in the middle of a write.

The bridge repeats a call after a `RetryableError`, waits for a person after a `BlockedError`, and
makes a dead letter of the record that a `PermanentError` names.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from otel_bridge import settings as core
from otel_bridge.errors import PermanentError
from otel_bridge.exporter import (
    ExporterSettings,
    RunInfo,
    RunWriter,
    TrackerCounts,
    WriterMemory,
    file_errors,
    settings_as,
)
from otel_bridge.journal.files import open_regular, read_regular
from otel_bridge.media_files import put_media
from otel_bridge.records import (
    Alert,
    Evaluation,
    Json,
    MediaItem,
    MediaRecord,
    PlainTrace,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge_local.payload import Payload, Written, json_line, plain, record_payload

_PATTERN = f"records-{'[0-9]' * 6}.jsonl"
"""Names of the files; a copy that a user made under another name is neither read nor deleted."""
_FILES = 8
"""Number of files that share the limit, so that deleting the oldest one deletes a small part."""
_OWNED = "first file"


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Holds the limit for all files of one run, in bytes."""

    max_bytes: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> FileSettings:
        """Read ``OTEL_BRIDGE_FILE_BYTES``; raises `ConfigError`."""
        del cwd
        return cls(max_bytes=core.FILE_BYTES.read(env))

    @property
    def destination(self) -> Mapping[str, str]:
        """Return an empty mapping, because the files are always in the run folder."""
        return {}

    def view(self, run: RunInfo) -> str:
        """Return the command that shows the records."""
        return f"cat {shlex.quote(str(run.folder / 'file'))}/*.jsonl"


def open_file(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> FileRunWriter:
    """Return a writer that continues the run's files after the last whole line."""
    return FileRunWriter(run, settings_as(settings, FileSettings), memory)


def tracker_counts(run: RunInfo, settings: ExporterSettings) -> TrackerCounts:
    """Return the counts of what the files hold of *run*; 0 without files.

    After the writer has closed, so that no file changes.

    Raises:
        orjson.JSONDecodeError: A line is damaged.
        OSError: A file cannot be read.
    """
    del settings
    numbers = 0
    rollouts = 0
    for path in (run.folder / "file").glob(_PATTERN):
        for line in path.read_bytes().splitlines():
            record: dict[str, Json] = orjson.loads(line)
            values = record.get("values")
            numbers += len(values) if isinstance(values, dict) else 0
            rollouts += record.get("kind") == "rollout"
    return TrackerCounts(numbers, rollouts)


class FileRunWriter(RunWriter):
    """Writes one run as JSON lines, from one delivery thread; each record once.

    Raises:
        BlockedError: This user may not write the folder, or something else is in its place.
        RetryableError: Another error of the file system. Each method raises both too, as `_append`.
    """

    def __init__(
        self, run: RunInfo, settings: FileSettings, memory: WriterMemory
    ) -> None:
        self._folder = run.folder / "file"
        self._limit_bytes = settings.max_bytes
        with _as_bridge_errors(None):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Names have six digits, so that their order is that of the files.
            files = sorted(self._folder.glob(_PATTERN))
            self._number = _number(files[-1]) if files else 1
            first = memory.get(_OWNED)
            # Another ledger wrote these files: its positions are not comparable.
            if first is None:
                self._number += bool(files)
                first = str(self._number).encode()
                memory.put(_OWNED, first)
            # The first file may be missing: after a kill, or on a disk that was full.
            self._number = max(self._number, int(first))
            # What the files hold decides where to go on: they may be ahead of the ledger after a
            # kill.
            while files and _number(files[0]) < int(first):
                del files[0]
            self._last = _last_position(files)
            self._descriptor = self._open(self._number)
            self._media = MediaFolder(self._folder / "media", settings.max_bytes // 2)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Append *rows*."""
        self._append(rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Append *rollouts*."""
        self._append(rollouts)

    def write_traces(self, traces: Sequence[PlainTrace]) -> None:
        """Append *traces*."""
        self._append(traces)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Write the files of *media*, then append the lines that name them."""
        for record in media:
            if not self._holds(record):
                # Files before their line: a kill in between leaves a file that the redelivered
                # record names.
                with _as_bridge_errors(record.position):
                    self._media.put([*record.items, *record.cells])
                self._append([record])

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Append *values*."""
        self._append(values)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Append the config; the last line of a role is valid."""
        self._put_beside({"kind": "config", "role": role, "config": plain(config)})

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Append *alerts*."""
        self._append(alerts)

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Append the values; the last one of a key is valid."""
        self._put_beside({"kind": "summary", "role": role, "summary": plain(values)})

    def durable(self) -> Position | None:
        """Return the position of the last whole line."""
        return self._last

    def end(self, status: Status) -> None:
        """Append the end."""
        self._put_beside({"kind": "end", "status": status.value})

    def close(self) -> None:
        """Close the file. May be called twice; all lines are written by then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _put_beside(self, payload: Payload) -> None:
        """Append a line that has no position."""
        self._put(json_line(payload), self._last)

    def _append(self, records: Sequence[Written]) -> None:
        """Append *records* that are not in a file yet, at once as far as a file has room.

        Raises:
            PermanentError: A record is not JSON; the lines before it are written.
            RetryableError: The disk is full, for instance; whole lines before the error stay.
            BlockedError: This user may not write the file.
        """
        lines: list[bytes] = []
        size_bytes = 0
        last = self._last
        file_limit_bytes = self._file_limit_bytes()
        for record in records:
            if self._holds(record):
                continue
            try:
                line = json_line(record_payload(record))
            except (TypeError, ValueError, OverflowError) as exc:
                # The lines before it first: by the error the bridge knows that they are written.
                self._put(b"".join(lines), last)
                message = f"record {record.id} cannot be written as JSON: {exc}"
                raise PermanentError(message, position=record.position) from exc
            # A batch may be larger than a file, and all files together than the limit then.
            if size_bytes + len(line) > file_limit_bytes:
                self._put(b"".join(lines), last)
                lines = []
                size_bytes = 0
            lines.append(line)
            size_bytes += len(line)
            last = max(last, record.position)
        self._put(b"".join(lines), last)

    def _holds(self, record: Written) -> bool:
        """Return whether the files have *record*.

        Never one without a position, which is a dead letter again.
        """
        return 0 < record.position <= self._last

    def _put(self, data: bytes, last: Position) -> None:
        """Write *data*, after which the files hold the records up to *last*; nothing without data.

        A file that would become too large is closed first, so that a line is never in two files.
        Raises as `file_errors`.
        """
        if not data:
            return
        # All of it is repeated after an error, as nothing of it stays in the file.
        with _as_bridge_errors(self._last + 1):
            size_bytes = os.fstat(self._descriptor).st_size
            if size_bytes and size_bytes + len(data) > self._file_limit_bytes():
                self._roll()
                size_bytes = 0
            self._write_whole(data, size_bytes)
            # After the whole write: a part that failed is removed, and comes again.
            self._last = last

    def _file_limit_bytes(self) -> int:
        """Return the limit of one file of lines.

        All of them share half of the whole once there are media.
        """
        limit_bytes = self._limit_bytes
        if (self._folder / "media").exists():
            limit_bytes //= 2
        return limit_bytes // _FILES

    def _write_whole(self, data: bytes, size_bytes: int) -> None:
        """Write all of *data* behind *size_bytes*.

        Raises `OSError`, and nothing of *data* stays then.
        """
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # A part of a line would hide the lines after it.
            os.ftruncate(self._descriptor, size_bytes)
            raise

    def _roll(self) -> None:
        """Open the next file, and delete the oldest ones until it has room within the limit.

        Raises as `_open`; the file before stays the open one then.
        """
        descriptor = self._open(self._number + 1)
        # Only now: the number of a closed descriptor may soon be that of another file.
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._number += 1
        # After the new file is open: a full disk or a kill in between leaves one file too many, no
        # gap.
        # By size and not by number: files may be larger than a share of the limit, which media and
        # a lower setting reduce, and so may a single record.
        room_bytes = self._file_limit_bytes() * (_FILES - 1)
        for path in sorted(self._folder.glob(_PATTERN), reverse=True):
            room_bytes -= _size_bytes(path)
            if room_bytes < 0:
                path.unlink(missing_ok=True)

    def _open(self, number: int) -> int:
        """Open the file with *number* without a torn last line; returns its descriptor.

        Raises:
            OSError: It cannot be opened, or is not a regular file.
        """
        path = self._folder / f"records-{number:06d}.jsonl"
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            data = path.read_bytes()
            # Remove a line that a kill has torn.
            os.ftruncate(descriptor, data.rfind(b"\n") + 1)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


class MediaFolder:
    """Stores media files up to a limit of size; each file is named by what it holds.

    Args:
        path: The folder, created with its first file.
        max_bytes: Most bytes of its files; the oldest files are deleted first, never one that was
            just put.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._size_bytes = -1

    def put(self, items: Sequence[MediaItem]) -> None:
        """Write the files of *items*.

        The oldest files are deleted when the folder becomes too large.

        Raises:
            OSError: A file cannot be written, or the folder is a symbolic link.
        """
        if (
            self._path.is_symlink()
        ):  # the files of another folder would be deleted to make room
            raise OSError(
                errno.ELOOP,
                "it is a symbolic link, expected a folder; remove it",
                os.fspath(self._path),
            )
        self._path.mkdir(mode=0o700, exist_ok=True)
        if self._size_bytes < 0:
            self._size_bytes = sum(map(_size_bytes, self._path.iterdir()))
        new_paths: set[Path] = set()
        for item in items:
            new_paths.add(put_media(self._path, item))
            # Files that were there count twice, until the next look at the folder: too early is
            # harmless.
            self._size_bytes += len(item.data)
        if self._size_bytes > self._max_bytes:
            self._delete_oldest(new_paths)

    def _delete_oldest(self, new_paths: Collection[Path]) -> None:
        """Delete the oldest files until the limit is met, without those of *new_paths*, whose lines follow.

        Raises:
            OSError: A file was deleted meanwhile, or cannot be; the call of the writer is repeated.
        """
        files = sorted(self._path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        # Counted anew: a kill, or a user who deleted files, makes the running sum wrong.
        self._size_bytes = sum(map(_size_bytes, files))
        for path in files:
            if self._size_bytes <= self._max_bytes:
                return
            if path not in new_paths:
                self._size_bytes -= _size_bytes(path)
                path.unlink(missing_ok=True)


def _size_bytes(path: Path) -> int:
    return path.stat().st_size


_READ_BYTES = 1 << 40  # a file may be as large as OTEL_BRIDGE_FILE_BYTES says


def _number(path: Path) -> int:
    """Return the number in the name of a file of lines."""
    return int(path.stem.rpartition("-")[2])


def _last_position(files: Sequence[Path]) -> Position:
    """Return the position of the last whole line of *files*, 0 without one.

    Lines of config, summary and end, and of dead letters that were tried again, have no position, so
    that lines before them are looked at.

    Raises:
        OSError: A file cannot be read, or is not a regular file.
    """
    for path in reversed(files):
        data = read_regular(path, _READ_BYTES)
        for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
            try:
                record: Any = orjson.loads(line)
            except orjson.JSONDecodeError:
                # A damaged line: the one before it has the position to go on from.
                continue
            if isinstance(record, dict):
                position = cast("dict[str, object]", record).get("position")
                if isinstance(position, int) and position:
                    return position
    return 0


def _as_bridge_errors(position: Position | None) -> AbstractContextManager[None]:
    """Raise errors of the file system as `file_errors`; *position*: the first record that was not written."""
    return file_errors(
        "file exporter", "make the run folder writable for this user", position
    )
