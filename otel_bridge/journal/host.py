"""This machine and the processes on it: names that tell two boots and two processes of one pid apart."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = "/proc/self/ns/pid"
_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine since its last boot."""

    name: str
    boot_id: str


@cache
def this_host() -> Host:
    """Return this machine; containers of one kernel share the boot id."""
    return Host(os.uname().nodename, _boot_id())


def start_ticks(pid: int) -> int:
    """Return when *pid* started, in clock ticks since boot; 0 when there is no such process, or only its zombie."""
    if sys.platform != "linux":
        return _start_ticks_elsewhere(pid)
    try:
        # The name in parentheses may hold anything, parentheses too: proc_pid_stat(5), fields 3 and 22.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0].decode() in _DEAD_STATES else int(fields[19])


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
        import psutil  # noqa: PLC0415  # costs 15 ms, and only where there is no /proc

        return f"{os.uname().nodename}-{int(psutil.boot_time())}"


def _start_ticks_elsewhere(pid: int) -> int:
    import psutil  # noqa: PLC0415

    try:
        process = psutil.Process(pid)
        return 0 if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 100)
    except psutil.Error:
        return 0
