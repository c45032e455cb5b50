"""The run folder ``<base>/<run id>/``: what of one run lies on this machine, and where the base is.

.. code-block:: text

    folder.json     format and run id            report.json     what the bridge has read and written
    segments/       frames, by process           ledger.sqlite   the bridge's
    processes/      one life file a process      bridge.lock     held by the bridge, says who it is
    ask/            what the bridge is asked     bridge.log      its stdout and stderr
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import orjson

from otel_bridge.errors import FormatVersionError, JournalError
from otel_bridge.journal.base import DEFAULT_NAME, base_dir
from otel_bridge.journal.host import this_host
from otel_bridge.journal.locks import RecordLock, content
from otel_bridge.journal.segment import SUFFIX, SegmentFile, segment_name

__all__ = ["LockHolder", "RunFolder", "base_dir", "put_file", "run_folders"]

FORMAT: Final = 1
_LIFE: Final = ".life"
_LOCK: Final = ".lock"
_LONGEST_NAME: Final = 160
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9._-]")
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The bridge that holds, or held last, a run folder's lock, in its own words."""

    pid: int
    host: str
    boot_id: str
    heartbeat_unix_ns: int


class RunFolder:
    """Paths and listing of one run folder. Constructing it touches nothing.

    Args:
        base: The folder of run folders, see `base_dir`.
        run_id: Any text; what a file name cannot hold is escaped.
    """

    def __init__(self, base: Path, run_id: str) -> None:
        self.run_id = run_id
        self._place(base / _folder_name(run_id))

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Return the run folder that lies at *path*."""
        folder = cls(path.parent, _run_id_of(path))
        folder._place(path)
        return folder

    def _place(self, path: Path) -> None:
        self.base = path.parent
        self.path = path
        self.segments_dir = self.path / "segments"
        self.processes_dir = self.path / "processes"
        self.ask_dir = self.path / "ask"
        self.report_path = self.path / "report.json"
        self.ledger_path = self.path / "ledger.sqlite"
        self.log_path = self.path / "bridge.log"
        self.lock_path = self.path / "bridge.lock"
        self.format_path = self.path / "folder.json"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def create(self) -> None:
        """Make the folder and what is above it, readable by its owner only; a base made here ignores itself in git.

        Raises:
            FormatVersionError: A newer version made it.
            JournalError: It cannot be made or is not writable.
        """
        try:
            _make_base(self.base)
            for path in (self.path, self.segments_dir, self.processes_dir, self.ask_dir):
                path.mkdir(mode=0o700, exist_ok=True)
            self.check_format()
            if not self.format_path.exists():
                facts = orjson.dumps({"format": FORMAT, "run_id": _utf8(self.run_id)})
                put_file(self.format_path, facts)
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        if not os.access(self.segments_dir, os.W_OK | os.X_OK):
            raise JournalError(
                f"{self.segments_dir} is not writable; make it yours or set OTEL_BRIDGE_DIR to a writable folder"
            )

    def check_format(self) -> None:
        """Raise `FormatVersionError` when a newer version made the folder."""
        version = _facts_of(self.path).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise FormatVersionError(
                f"{self.path} has format {version}, this version knows up to {FORMAT}; upgrade otel-bridge"
            )

    def exists(self) -> bool:
        """Say whether there is such a run folder."""
        return self.segments_dir.is_dir()

    def segments(self) -> list[SegmentFile]:
        """Return the segments there are, by process and number."""
        found: list[SegmentFile] = []
        with contextlib.suppress(OSError), os.scandir(self.segments_dir) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                instance_id, dash, number = stem.rpartition("-")
                if suffix != SUFFIX or not dash or not number.isdecimal():
                    continue
                with contextlib.suppress(OSError):  # deleted meanwhile
                    status = entry.stat()
                    found.append(
                        SegmentFile(Path(entry.path), instance_id, int(number), status.st_size, status.st_mtime_ns)
                    )
        found.sort(key=lambda file: (file.instance_id, file.number))
        return found

    def segment_path(self, instance_id: str, number: int) -> Path:
        """Return the file of a segment."""
        return self.segments_dir / f"{segment_name(instance_id, number)}{SUFFIX}"

    def processes(self) -> list[str]:
        """Return the instance ids that have a life file, sorted."""
        try:
            names = os.listdir(self.processes_dir)
        except OSError:
            return []
        return sorted(name.removesuffix(_LIFE) for name in names if name.endswith(_LIFE))

    def life_path(self, instance_id: str) -> Path:
        """Return the life file of a process."""
        return self.processes_dir / f"{instance_id}{_LIFE}"

    def lock(self) -> RecordLock:
        """Return the bridge's lock, not yet taken."""
        return RecordLock(self.lock_path)

    def beat(self, lock: RecordLock, now_unix_ns: int) -> None:
        """Write into the held *lock* who holds it, and that it lives now."""
        host = this_host()
        holder = LockHolder(os.getpid(), host.name, host.boot_id, now_unix_ns)
        lock.write(orjson.dumps(holder))

    def holder(self) -> LockHolder | None:
        """Return who holds, or held last, the bridge's lock; whether it is held, `probe` of `lock_path` says."""
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


def run_folders(base: Path) -> list[RunFolder]:
    """Return every run folder below *base*, sorted by name; none when there is no such folder."""
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [RunFolder.at(base / name) for name in names if (base / name / "segments").is_dir()]


def put_file(path: Path, data: bytes) -> None:
    """Put a file in place at once, 0600; a reader sees the old one or the new one, never a part.

    Raises:
        OSError: It cannot be written; the old one stands.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _make_base(base: Path) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        # Not in a folder that somebody chose and that holds other things.
        if base.name != DEFAULT_NAME:
            return
    ignore = base / ".gitignore"
    if not ignore.exists():
        put_file(ignore, b"*\n")


def _unusable(path: Path, exc: OSError) -> JournalError:
    return JournalError(
        f"{path} cannot be used as a run folder: {exc.strerror or exc}; set OTEL_BRIDGE_DIR to a writable folder"
    )


def _folder_name(run_id: str) -> str:
    """Escape a run id, which anybody may send, into one harmless file name."""
    raw = run_id.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode()
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if name.endswith(_LOCK):  # files of the base itself, as the one that a service holds
        name = f"{name.removesuffix(_LOCK)}%2E{_LOCK[1:]}"
    if not name or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}%~{sha256(raw).hexdigest()[:16]}"
    return name


def _run_id_of(path: Path) -> str:
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), os.fsencode(path.name))
    with contextlib.suppress(UnicodeDecodeError):
        run_id = raw.decode("utf-8", "surrogatepass")
        if _folder_name(run_id) == path.name:
            return run_id
    stored = _facts_of(path).get("run_id")  # its name was too long
    return stored if isinstance(stored, str) else path.name


def _facts_of(path: Path) -> dict[str, object]:
    try:
        facts: object = orjson.loads((path / "folder.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return cast("dict[str, object]", facts) if isinstance(facts, dict) else {}


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
