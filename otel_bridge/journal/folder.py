"""Names and creates the files of the run folder ``<base>/<run id>/``.

.. code-block:: text

    folder.json     format and run id            report.json     what the bridge has read and written
    segments/       frames, by process           ledger.sqlite   the bridge's ledger
    processes/      one life file per process    bridge.lock     held by the bridge, names its process
    control/        control requests             bridge.log      the bridge's stdout and stderr
    companions-*/   runs of one process that share this run's bridge, a note each
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, cast

import orjson

from otel_bridge.errors import FormatVersionError, JournalError, JournalFullError
from otel_bridge.journal.base_dir import DEFAULT_NAME, why_not_ours
from otel_bridge.journal.files import (
    DISK_FULL,
    create_regular,
    names_in,
    open_regular,
    read_regular,
)
from otel_bridge.journal.locks import RecordLock, content, holder_pid
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.journal.segment import (
    SUFFIX,
    SegmentFile,
    parsed_segment_name,
    segment_name,
)
from otel_bridge.otlp.json_text import utf8
from otel_bridge.text.printable import printable

FORMAT = 1
LEDGER_FORMAT = 11
"""Rises with each change of the tables, records or state in a ledger: no bridge reads another one."""
_SQLITE_HEAD_BYTES = 100
COMPANIONS = "companions-"
_LIFE = ".life"
_LOCK = ".lock"
_LONGEST_NAME = 160
"""Most characters of a run id that are part of a name; file systems allow 255 bytes in all."""
_YOUNG_NS = 2_000_000_000
"""Age of a change below which another one may leave the same time of change."""
_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def refuse_ledger_format(path: Path, version: int) -> None:
    """Raise `FormatVersionError` if *version*, of the ledger at *path*, is another one than this version's; 0: new."""
    if version not in {0, LEDGER_FORMAT}:
        raise FormatVersionError(
            f"{path}: ledger of format {version}, this version reads {LEDGER_FORMAT}; deliver the run with the "
            "version of otel-bridge that wrote it"
        )


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Describes the bridge that holds, or last held, a run folder's lock, as that bridge wrote it."""

    pid: int
    host: str
    boot_id: str
    heartbeat_unix_ns: int


class SegmentListing(NamedTuple):
    """Holds what has the name of a segment in a run folder.

    Attributes:
        files: The regular files.
        without_content: Names of empty files and of what is not a regular file. Something has replaced
            or cut a segment, or only looks like one.
    """

    files: list[SegmentFile]
    without_content: list[str]


class RunFolder:
    """Gives the paths of one run folder and lists its files.

    Its constructor does not access the disk.

    Args:
        base: The base directory, see `otel_bridge.journal.base_dir`.
        run_id: Any text; characters that a file name cannot hold are escaped.
    """

    def __init__(self, base: Path, run_id: str) -> None:
        self.run_id = run_id
        self._set_path(base / _folder_name(run_id))

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Return the run folder at *path*."""
        folder = cls.__new__(cls)
        folder.run_id = _run_id_of(path)
        folder._set_path(path)
        return folder

    def _set_path(self, path: Path) -> None:
        self.base = path.parent
        self.path = path

    # Computed on demand: a service lists thousands of folders and needs two paths of each.
    @property
    def segments_dir(self) -> Path:
        """Return the path of the folder of segments."""
        return self.path / "segments"

    @property
    def processes_dir(self) -> Path:
        """Return the path of the folder of life files."""
        return self.path / "processes"

    @property
    def control_dir(self) -> Path:
        """Return the path of the folder of control requests."""
        return self.path / "control"

    @property
    def report_path(self) -> Path:
        """Return the path of the bridge's report."""
        return self.path / "report.json"

    @property
    def ledger_path(self) -> Path:
        """Return the path of the ledger."""
        return self.path / "ledger.sqlite"

    @property
    def log_path(self) -> Path:
        """Return the path of the bridge's log."""
        return self.path / "bridge.log"

    @property
    def lock_path(self) -> Path:
        """Return the path of the bridge's lock."""
        return self.path / "bridge.lock"

    def companions_dir(self, mark: str) -> Path:
        """Return the path of the notes of the process *mark*: its runs that share this run's bridge."""
        return self.path / f"{COMPANIONS}{mark}"

    def companions_lock_path(self, mark: str) -> Path:
        """Return the path of the lock of the bridge that serves these runs.

        No run folder has such a name.
        """
        return self.companions_dir(mark) / f"bridge{_LOCK}"

    @property
    def format_path(self) -> Path:
        """Return the path of the file with the format and the run id."""
        return self.path / "folder.json"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def create(self) -> None:
        """Create the folder and its parents, readable by their owner only.

        A base directory that is created here gets a ``.gitignore`` that excludes it.

        What exists already is kept, so that every process of a run may call it.

        Raises:
            FormatVersionError: A newer version created the folder, or it holds another run.
            JournalFullError: The disk is full.
            JournalError: The folder cannot be created, is not writable, or belongs to another user.
        """
        self.check_owner()
        # Before anything is made in it: a newer version may have another layout.
        self.check_format()
        try:
            _make_base(self.base)
            self.check_owner()  # another user may have created it between the check and mkdir
            for path in (
                self.path,
                self.segments_dir,
                self.processes_dir,
                self.control_dir,
            ):
                path.mkdir(mode=0o700, exist_ok=True)
            if not self.format_path.exists():
                facts = orjson.dumps({"format": FORMAT, "run_id": utf8(self.run_id)})
                put_file(self.format_path, facts)
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        if not os.access(self.segments_dir, os.W_OK | os.X_OK):
            raise JournalError(
                f"{self.segments_dir} is not writable; make it yours or set OTEL_BRIDGE_DIR to a writable folder"
            )

    def check_owner(self) -> None:
        """Raise `JournalError` when the folder or its base belongs to another user, or the folder is or has a link.

        Through a link at the name of one of its folders, such as ``segments``, a bridge of root
        would deliver and then delete the records of another user. Links at names of files are not
        followed.
        """
        for path, may_be_link in ((self.base, True), (self.path, False)):
            if reason := why_not_ours(path, may_be_link=may_be_link):
                raise JournalError(f"{reason}; see OTEL_BRIDGE_DIR")
        for link in _links_to_folders(self.path):
            raise JournalError(
                f"{link} is a symbolic link to a folder, expected a folder; remove it"
            )

    def check_format(self) -> None:
        """Raise `FormatVersionError` when a newer version created the folder, or when it holds another run.

        A missing or unreadable ``folder.json`` passes, since the segments name their run too.
        """
        facts = _facts_of(self.path)
        version = facts.get("format")
        run_id = facts.get("run_id")
        if isinstance(version, int) and version > FORMAT:
            raise FormatVersionError(
                f"{self.path} has format {version}, this version knows up to {FORMAT}; upgrade otel-bridge"
            )
        if isinstance(run_id, str) and run_id != utf8(self.run_id):
            # A renamed or copied folder: its records name their run, and would be dropped as those
            # of another one.
            raise FormatVersionError(
                f"{self.path} holds the run {printable(run_id)}; rename the folder to {_folder_name(run_id)}, which no"
                " other folder next to it may have"
            )

    def ledger_problem(self) -> str:
        """Return why bridges of this version refuse the ledger, with what to do.

        Empty when they do not.

        Only for a process that never opens the ledger: closing the file would release SQLite's
        locks.
        """
        try:
            with open(open_regular(self.ledger_path), "rb") as ledger:
                head = ledger.read(_SQLITE_HEAD_BYTES)
            # sqlite.org/fileformat.html, 1.3: the user version is the big-endian integer at offset
            # 60. The bridge replaces a file of another format by a new ledger.
            if len(head) == _SQLITE_HEAD_BYTES and head.startswith(
                b"SQLite format 3\0"
            ):
                refuse_ledger_format(
                    self.ledger_path, int.from_bytes(head[60:64], "big")
                )
        except FormatVersionError as exc:
            return str(exc)
        except OSError:
            # No ledger yet, or another kind of file in its place, which the bridge reports.
            return ""
        return ""

    def exists(self) -> bool:
        """Return whether the run folder exists."""
        return self.segments_dir.is_dir()

    def segments(self) -> list[SegmentFile]:
        """Return the existing segments, ordered by process and number.

        Empty when the folder does not exist. What is not a regular file with the name of a segment
        is skipped, and so is one that is deleted meanwhile.
        """
        return self.listed_segments().files

    def listed_segments(self) -> SegmentListing:
        """Return the existing segments, ordered by process and number, and the names of those without content.

        Both are empty when the folder does not exist.
        """
        segments: list[SegmentFile] = []
        without_content: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self.segments_dir) as entries:
            for entry in entries:
                instance_and_number = parsed_segment_name(entry.name)
                if instance_and_number is None:
                    continue
                with contextlib.suppress(OSError):  # deleted meanwhile
                    status = entry.stat(follow_symlinks=False)
                    is_regular = stat.S_ISREG(status.st_mode)
                    if is_regular:
                        size = (status.st_size, status.st_mtime_ns)
                        segments.append(
                            SegmentFile(Path(entry.path), *instance_and_number, *size)
                        )
                    # A segment gets its name when it has its header, so that it is never empty.
                    if not (is_regular and status.st_size):
                        # Any bytes may be a name; the ledger takes only UTF-8.
                        without_content.append(utf8(entry.name))
        segments.sort(key=lambda file: (file.instance_id, file.number))
        return SegmentListing(segments, without_content)

    def segments_changed_ns(self) -> int | None:
        """Return when a segment was last created or deleted.

        ``None`` when that was so recently that a further change may leave the same time, or when the
        folder cannot be read.
        """
        try:
            changed_ns = os.stat(self.segments_dir).st_mtime_ns
        except OSError:
            return None
        if time.time_ns() - changed_ns < _YOUNG_NS:
            return None
        return changed_ns

    def segment_path(self, instance_id: str, number: int) -> Path:
        """Return the path of a segment."""
        return self.segments_dir / f"{segment_name(instance_id, number)}{SUFFIX}"

    def life_path(self, instance_id: str) -> Path:
        """Return the path of the life file of a process."""
        return self.processes_dir / f"{instance_id}{_LIFE}"

    def lock(self) -> RecordLock:
        """Return the bridge's lock, not yet acquired."""
        return RecordLock(self.lock_path)

    def write_heartbeat(self, lock: RecordLock, now_unix_ns: int) -> None:
        """Write this process and a heartbeat into the held *lock*.

        Raises as `RecordLock.write` does.
        """
        host = this_host()
        holder = LockHolder(os.getpid(), host.name, host.boot_id, now_unix_ns)
        lock.write(orjson.dumps(holder))

    def holder(self) -> LockHolder | None:
        """Return which process holds, or last held, the bridge's lock.

        `probe` returns whether the lock is held.

        ``None`` means that the lock file is missing or not readable.

        A process that crashed leaves what it wrote.

        Commands name it in their messages, so that a person can stop it. `bridge_pid` is what may
        be killed.
        """
        try:
            facts = cast("dict[str, object]", orjson.loads(content(self.lock_path)))
            return LockHolder(
                int(cast("int", facts["pid"])),
                str(facts["host"]),
                str(facts["boot_id"]),
                int(cast("int", facts["heartbeat_unix_ns"])),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def bridge_pid(self) -> int:
        """Return the id of the process that holds the bridge's lock, to kill it.

        0 when none does, for one of another machine or pid namespace, and before its first
        heartbeat. The id in the lock's file alone would not do: the process that wrote it may have
        ended, or have another id here, and a process with that id may be any.

        Raises:
            JournalError: The lock cannot be probed.
        """
        holder = self.holder()
        if holder is None or holder.boot_id != this_host().boot_id:
            return 0
        return holder_pid(self.lock_path)


def companions_mark() -> str:
    """Return this process's mark for `RunFolder.companions_dir`, which no later process has."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}"


def run_folders(base: Path) -> list[RunFolder]:
    """Return every run folder in *base*, sorted by name; none when *base* does not exist.

    A folder without segments is not a run, such as one of `COMPANIONS`.
    """
    folders: list[RunFolder] = []
    for name in names_in(base):
        # Paths as text: there may be thousands.
        if os.path.isdir(f"{base}/{name}/segments"):
            folders.append(RunFolder.at(base / name))
    return folders


def _links_to_folders(path: Path) -> list[str]:
    """Return the entries of *path* that are symbolic links to folders.

    None when it does not exist or cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            links: list[str] = []
            for entry in entries:
                # Not `entry.is_dir`: it raises for a link to itself, which would hide the others.
                if entry.is_symlink() and os.path.isdir(entry.path):
                    links.append(entry.path)
            return links
    except OSError:
        return []


def put_file(path: Path, data: bytes) -> None:
    """Replace a file atomically, with mode 0600.

    A reader sees the old content or the new one, never a part.

    It is not synced: after a power cut the old content may be back.

    Raises:
        OSError: The file cannot be written; the old content stays.
    """
    # Two processes may write the file at once. In containers that share a directory they may have
    # one pid.
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        fd = create_regular(unfinished)
        with open(fd, "wb") as file:
            file.write(data)
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _make_base(base: Path) -> None:
    """Create the base directory, and a ``.gitignore`` in it if it is new or otel-bridge chose its name.

    The run folders hold prompts and must not be committed by accident.

    Raises:
        OSError: It cannot be created or written.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        # No .gitignore in a directory that a person made, which may hold other files.
        if base.name != DEFAULT_NAME:
            return
    ignore = base / ".gitignore"
    if not ignore.exists():
        put_file(ignore, b"*\n")


def _unusable(path: Path, exc: OSError) -> JournalError:
    if exc.errno in DISK_FULL:
        return JournalFullError(
            f"{path} cannot be created: {exc.strerror}; free space, or inodes, on that disk"
        )
    return JournalError(
        f"{path} cannot be used as a run folder: {exc.strerror or exc}; set OTEL_BRIDGE_DIR to a writable folder"
    )


def _folder_name(run_id: str) -> str:
    """Return a safe file name for a run id, which any client may send.

    The name is unescaped again by `_run_id_of`, except a long one, whose id stands in
    ``folder.json``.
    """
    raw = run_id.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], raw).decode()
    # Also "." and "..", which name other folders.
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if name.endswith(
        _LOCK
    ):  # reserved for files of the base directory, e.g. the lock of a service
        name = f"{name.removesuffix(_LOCK)}%2E{_LOCK[1:]}"
    # "%~" begins no escape, so that no other id leads to this name.
    if not name or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}%~{sha256(raw).hexdigest()[:16]}"
    return name


def _run_id_of(path: Path) -> str:
    """Return the run id of a folder, from its name, else from ``folder.json``, else the name itself.

    A name that this version would write otherwise is of another program or renamed; nothing raises
    here, because all folders of a directory are listed.
    """
    raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), os.fsencode(path.name))
    with contextlib.suppress(UnicodeDecodeError):
        run_id = raw.decode("utf-8", "surrogatepass")
        if _folder_name(run_id) == path.name:
            return run_id
    stored = _facts_of(path).get("run_id")  # its name was too long
    if isinstance(stored, str):
        return stored
    return path.name


def _facts_of(path: Path) -> dict[str, object]:
    try:
        facts: object = orjson.loads(read_regular(path / "folder.json"))
    except (OSError, orjson.JSONDecodeError):
        return {}
    if isinstance(facts, dict):
        return cast("dict[str, object]", facts)
    return {}
