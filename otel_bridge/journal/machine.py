"""Identifies this machine and its processes, so that two boots and two processes of one pid are distinguished."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = "/proc/self/ns/pid"
_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Machine:
    """Identifies one boot of a machine."""

    name: str
    boot_id: str


@cache
def this_host() -> Machine:
    """Return this machine; containers of one kernel share the boot id."""
    return Machine(os.uname().nodename, _boot_id())


def start_ticks(pid: int) -> int:
    """Return when *pid* started, in clock ticks since boot.

    0 when the process is gone, only its zombie is left, or ``/proc`` hides it.

    Pids are used again; with the ticks they identify one process of a boot.
    """
    if sys.platform != "linux":
        return _start_ticks_elsewhere(pid)
    try:
        # The name in parentheses may hold anything, parentheses too: proc_pid_stat(5), fields 3 and
        # 22.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    if fields[0].decode() in _DEAD_STATES:
        return 0
    return int(fields[19])


def pid_namespace() -> int:
    """Return the number of this process's pid namespace, 0 where there are none."""
    try:
        return os.stat(_PID_NAMESPACE).st_ino
    except OSError:
        return 0


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        import psutil  # noqa: PLC0415  # costs 15 ms, and only where /proc is missing

        return f"{os.uname().nodename}-{int(psutil.boot_time())}"


def _start_ticks_elsewhere(pid: int) -> int:
    """Return as `start_ticks` does on systems without ``/proc``, in hundredths of a second since the epoch."""
    import psutil  # noqa: PLC0415

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return 0
        return int(process.create_time() * 100)
    except psutil.Error:
        return 0


# The file system of a folder, and whether it is shared over a network.
#
# Source: ``/proc/self/mountinfo``, proc_pid_mountinfo(5).

_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
# fmt: off
_NETWORK = frozenset({
    "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "gpfs", "lustre", "mmfs", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb", "smb2", "smb3", "smbfs", "webdav", "wekafs",
})
# fmt: on
# fmt: off
_NETWORK_FUSE = frozenset({
    "alluxio", "alluxio-fuse", "beegfs", "beeond", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs",
    "cvmfs2", "davfs", "davfs2", "dfs", "dfuse", "gcsfuse", "glusterfs", "goofys", "gpfs", "hf3fs", "juicefs",
    "lizardfs", "lustre", "mfs", "moosefs", "mount-s3", "orangefs", "quobyte", "rclone", "s3fs", "saunafs",
    "seaweedfs", "smbnetfs", "sshfs", "weka",
})
# fmt: on


def network_file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """Return the type of the network file system that *path* is on, ``None`` when it is a local one.

    Args:
        path: Any path; it need not exist.
        mountinfo: Text of ``/proc/self/mountinfo``; read here when not given.
    """
    kind = file_system(path, mountinfo)
    if kind is not None and is_network(kind):
        return kind
    return None


def is_network(kind: str) -> bool:
    """Return whether a file system of this type is shared over a network (``fuse.sshfs``, ``nfs4``)."""
    name, _, program = kind.lower().partition(".")
    if name in {"fuse", "fuseblk"}:
        return program in _NETWORK_FUSE
    return name in _NETWORK


def file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """Return the type of the file system that *path* is on, ``None`` when it cannot be determined.

    *path* need not exist; links in it are resolved.

    Record locks and SQLite are not safe on network file systems, so that the base directory avoids
    them.
    """
    mounts = _mounts() if mountinfo is None else _parse(mountinfo)
    target = os.path.realpath(path)
    best = -1
    kind = None
    for point, fstype in mounts:
        inside = point in {"/", target} or target.startswith(f"{point}/")
        if (
            inside and len(point) >= best
        ):  # of two mounts on one point the later covers the earlier
            best = len(point)
            kind = fstype
    return kind


def _mounts() -> list[tuple[str, str]]:
    """Return mount point and type of each file system, from psutil where ``/proc`` is missing."""
    with contextlib.suppress(OSError):
        return _parse(_MOUNTINFO.read_text(errors="surrogateescape"))
    import psutil  # noqa: PLC0415  # costs 15 ms, and only where /proc is missing

    return [
        (partition.mountpoint, partition.fstype)
        for partition in psutil.disk_partitions(all=True)
    ]


def _parse(mountinfo: str) -> list[tuple[str, str]]:
    """Return mount point and type of each line of *mountinfo*; lines of another form are skipped.

    Spaces in mount points are octal escapes there.
    """
    mounts: list[tuple[str, str]] = []
    for line in mountinfo.splitlines():
        place, separator, right = line.partition(" - ")
        fields = place.split()
        kinds = right.split()
        if separator and len(fields) > 4 and kinds:
            mounts.append(
                (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]), kinds[0])
            )
    return mounts
