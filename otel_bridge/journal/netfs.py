"""Which file system a folder is on, and whether others share it over a network.

Source: ``/proc/self/mountinfo``, proc_pid_mountinfo(5).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
# fmt: off
_NETWORK: Final = frozenset({
    "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "gpfs", "lustre", "mmfs", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb", "smb2", "smb3", "smbfs", "webdav", "wekafs",
})
# fmt: on
# fmt: off
_NETWORK_FUSE: Final = frozenset({
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
    return kind if kind is not None and is_network(kind) else None


def is_network(kind: str) -> bool:
    """Say whether a file system of this type is shared over a network (``fuse.sshfs``, ``nfs4``)."""
    name, _, program = kind.lower().partition(".")
    if name in {"fuse", "fuseblk"}:
        return program in _NETWORK_FUSE
    return name in _NETWORK


def file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """Return the type of the file system that *path* is on, ``None`` when it cannot be told."""
    mounts = _mounts() if mountinfo is None else _parse(mountinfo)
    target = os.path.realpath(path)
    best, kind = -1, None
    for point, fstype in mounts:
        inside = point in {"/", target} or target.startswith(f"{point}/")
        if inside and len(point) >= best:  # of two mounts on one point the later covers the earlier
            best, kind = len(point), fstype
    return kind


def _mounts() -> list[tuple[str, str]]:
    with contextlib.suppress(OSError):
        return _parse(_MOUNTINFO.read_text(errors="surrogateescape"))
    import psutil  # noqa: PLC0415  # costs 15 ms, and only where there is no /proc

    return [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]


def _parse(mountinfo: str) -> list[tuple[str, str]]:
    mounts: list[tuple[str, str]] = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if separator and len(fields) > 4 and kinds:
            mounts.append((_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]), kinds[0]))
    return mounts
