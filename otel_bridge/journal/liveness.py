"""Determines which processes are alive: a process is alive while it holds the record lock on its life file.

Without record locks or a life file, pid, start ticks and boot id are compared instead. A process of
another boot (another host on a shared file system) counts as alive until its segments have not
grown for ten minutes.

The report of a bridge that was killed may show processes as alive that died together with the
bridge. `judge_processes` corrects that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import NO_FREE_FILE, open_regular
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.locks import LockUnsupportedError, RecordLock, content, probe
from otel_bridge.journal.machine import pid_namespace, start_ticks, this_host
from otel_bridge.journal.report import ProcessReport, Report, RoleReport, read_report
from otel_bridge.journal.segment import SegmentFile, header_in
from otel_bridge.settings import LIVENESS_TIMEOUT_S

_LIVENESS_TIMEOUT_NS = int(LIVENESS_TIMEOUT_S.default * 1e9)


def hold_life(folder: RunFolder, instance_id: str) -> RecordLock:
    """Create the life file of *instance_id* and lock it: this process is alive until the lock is released.

    On a file system without record locks the file is written, and the returned lock is not held.

    The lock ends with the process, however it ends: a bridge on this machine sees a crash at once.

    Raises:
        JournalError: The file cannot be created or written, as on a full disk, or another process
            holds its lock. This process does not hold the lock then.
    """
    lock = RecordLock(folder.life_path(instance_id))
    try:
        if not lock.acquire():
            raise JournalError(
                f"{lock.path} is held by another process; "
                "every process needs an instance id of its own"
            )
        lock.write(_facts())
    except LockUnsupportedError:
        _write_unlocked(lock.path)
    except BaseException:
        # The caller gets no lock, so nothing else would close its file.
        lock.release()
        raise
    return lock


def alive(
    folder: RunFolder,
    header: SegmentHeader,
    now_unix_ns: int,
    *,
    liveness_timeout_ns: int = _LIVENESS_TIMEOUT_NS,
    appended_ns: int | None = None,
) -> bool:
    """Return whether the process that wrote *header* may still append.

    On this boot the lock on the life file decides, without one the process table. It never raises:
    without any evidence a process of this boot counts as dead, but not for lack of a free file to
    open its life file.

    Args:
        folder: Its run folder.
        header: Header of one of its segments.
        now_unix_ns: The time now.
        liveness_timeout_ns: Time that a process of another boot may append nothing and still count
            as alive.
        appended_ns: When the process last appended; ``None`` to search its segments.
    """

    def grew() -> bool:
        last_ns = appended_ns
        if last_ns is None:
            last_ns = _last_append_ns(folder, header.instance_id, now_unix_ns)
        return now_unix_ns - last_ns < liveness_timeout_ns

    if header.boot_id != this_host().boot_id:
        return grew()
    path = folder.life_path(header.instance_id)
    try:
        if os.path.exists(path):
            return probe(path)
    except LockUnsupportedError:
        # A pid says nothing in another pid namespace: only growth shows life there.
        namespace = _namespace_of(path)
        if namespace not in {0, pid_namespace()}:
            return grew()
    except JournalError as exc:
        # Without a free file the process table cannot be read either: the next check decides.
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in NO_FREE_FILE:
            return True
        # Else another kind of file has the life file's name: the process table decides.
    ticks = start_ticks(header.pid)
    # A pid that the system has used again has other start ticks.
    return ticks > 0 and ticks == header.start_ticks


def _last_append_ns(folder: RunFolder, instance_id: str, now_unix_ns: int) -> int:
    """Return when a segment of the process last changed; 0 when none of it is left.

    Now for a folder without any segment: it cannot be listed, as without a free file, and so does
    not show that the process is silent.
    """
    segments = folder.segments()
    if not segments:
        return now_unix_ns
    times = (file.mtime_ns for file in segments if file.instance_id == instance_id)
    return max(times, default=0)


def _facts() -> bytes:
    """Return what identifies this process in its life file, as JSON.

    The pid namespace decides later whether the pid means anything to the reader.
    """
    host = this_host()
    pid = os.getpid()
    return orjson.dumps(
        {
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "host": host.name,
            "boot_id": host.boot_id,
            "pid_namespace": pid_namespace(),
        }
    )


def _write_unlocked(path: Path) -> None:
    """Write the life file at *path* without a lock; raises `JournalError` when that fails."""
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(fd, "wb") as file:
            file.write(_facts())
    except OSError as exc:
        raise JournalError(
            f"{path} cannot be written: {exc.strerror}; is the disk full?"
        ) from exc


def _namespace_of(path: Path) -> int:
    """Return the pid namespace in the life file at *path*.

    0 when it cannot be read or names none.
    """
    try:
        facts = cast("dict[str, object]", orjson.loads(content(path)))
        namespace = facts["pid_namespace"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    if isinstance(namespace, int):
        return namespace
    return 0


# The processes in the report of a bridge that no longer runs.

_RECEIVER = "receiver"
_COUNTED = "process"
"""Kind of the segments whose process counts in its role; launchers, receivers and bridges do not."""


class JudgedReport(NamedTuple):
    """Holds a report in which the run folder, not the bridge that wrote it, decides which processes are alive.

    Attributes:
        report: The report.
        unseen_senders: Whether a receiver that has exited got data from processes elsewhere. The
            folder does not show whether these are alive, so that their roles have the counts of the
            last bridge.
    """

    report: Report
    unseen_senders: bool = False


def present_report(folder: RunFolder, liveness_timeout_ns: int) -> Report | None:
    """Return the last report of *folder* with the processes that are alive now.

    An empty report with these processes if no bridge has written one yet; ``None`` where no process
    has begun either.

    A bridge that was killed cannot correct its last report.

    Args:
        folder: The run folder.
        liveness_timeout_ns: As of `alive`.
    """
    report = read_report(folder)
    is_written = report is not None
    segments = folder.segments()
    if report is None:
        if not segments:
            return None
        report = Report()
    with contextlib.suppress(JournalError):
        # A running bridge updates the report; where no lock can be probed, it is shown as it is.
        if not (is_written and probe(folder.lock_path)):
            judged = judge_processes(
                folder,
                report,
                segments,
                time.time_ns(),
                liveness_timeout_ns=liveness_timeout_ns,
            )
            return judged.report
    return report


def judge_processes(
    folder: RunFolder,
    report: Report,
    segments: Iterable[SegmentFile],
    now_unix_ns: int,
    *,
    liveness_timeout_ns: int,
) -> JudgedReport:
    """Return *report*, which no running bridge updates, with the processes that are alive now.

    A process without a readable header counts as running: it may be about to write one.

    Args:
        folder: The run folder; no process holds its lock.
        report: Its last report, which is not changed.
        segments: All segments of the folder, ordered by process and number.
        now_unix_ns: The time now.
        liveness_timeout_ns: As of `alive`.
    """
    newest = {file.instance_id: file for file in segments}
    running: set[str] = set()
    running_headers: list[SegmentHeader] = []
    unseen_senders = False
    for name, file in newest.items():
        if not _is_undecided(report, name):
            continue
        header = header_in(file.path)
        if header is None:  # a process may be about to write it
            running.add(name)
        elif alive(
            folder,
            header,
            now_unix_ns,
            liveness_timeout_ns=liveness_timeout_ns,
            appended_ns=file.mtime_ns,
        ):
            running.add(name)
            running_headers.append(header)
        elif header.kind == _RECEIVER:
            unseen_senders = True
    processes: dict[str, ProcessReport] = {}
    for name, process in report.processes.items():
        processes[name] = replace(process, alive=name in running)
    roles = _roles(report, processes, running_headers)
    if not running and not unseen_senders:
        for role, role_report in roles.items():
            roles[role] = replace(role_report, alive=0)
    return JudgedReport(
        replace(report, processes=processes, roles=roles), unseen_senders
    )


def _is_undecided(report: Report, name: str) -> bool:
    """Return whether a process may be alive: the report has it as alive, or does not have it yet."""
    process = report.processes.get(name)
    return process is None or (process.alive and not process.bridge)


def _roles(
    report: Report,
    processes: Mapping[str, ProcessReport],
    running: Iterable[SegmentHeader],
) -> dict[str, RoleReport]:
    """Return the roles of *report* without the processes that died, and with those that started after it.

    A role never has more running processes than the report and the folder show together.
    """
    running_counts: Counter[str] = Counter()
    new_counts: Counter[str] = Counter()
    for header in running:
        if header.kind == _COUNTED:
            role = header.role or ""
            running_counts[role] += 1
            if header.instance_id not in processes:
                new_counts[role] += 1
    died: Counter[str] = Counter()
    for name, process in report.processes.items():
        if process.alive and not processes[name].alive:
            died[process.role or ""] += 1
    roles: dict[str, RoleReport] = {}
    for role in dict.fromkeys([*report.roles, *new_counts]):
        reported = report.roles.get(role, RoleReport())
        # A process that has ended and goes on is reported as alive for a moment, but its role does
        # not count it.
        remaining = (
            min(
                reported.alive,
                max(
                    reported.alive - died[role], running_counts[role] - new_counts[role]
                ),
            )
            + new_counts[role]
        )
        roles[role] = RoleReport(remaining, max(reported.processes, remaining))
    return roles
