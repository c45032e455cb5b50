"""Ends of a run's processes -> the status of the run. Pure.

The owner role's process that started last decides, if there was one. Else the worst status since
the run's last end decides, so that a resumed run may finish after a failure. A launcher's status
counts beside those of the processes that ended with the launcher; the worse wins. A process with a
successor does not count (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from otel_bridge.records import Status
from otel_bridge.translation.processes.process import Process

_BADNESS = {Status.FINISHED: 0, Status.FAILED: 1, Status.KILLED: 2}
RestartKey: TypeAlias = tuple[str | None, int, bool, bool]


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of *statuses*, finished when *statuses* is empty."""
    return max(statuses, key=_BADNESS.__getitem__, default=Status.FINISHED)


@dataclass(slots=True)
class ForgottenEnds:
    """Holds what processes that are no longer remembered add to the status of their run.

    Attributes:
        missing_rows: Number of rows of those processes that are known to be missing.
        owner_start: `Process.start_order` of the last process of the owner role; before every start
            without one.
        owner_status: Status of that process; ``None`` without one.
        generation: Number of ends that the run had when the latest of the processes ended; -1
            without one.
        worst: Worst status of the processes of that generation.
    """

    missing_rows: int = 0
    owner_start: tuple[int, int] = (-1, -1)
    owner_status: Status | None = None
    generation: int = -1
    worst: Status = Status.FINISHED

    def worst_of(self, generation: int) -> list[Status]:
        """Return the worst status among the processes of *generation*.

        Nothing without such a process.
        """
        if self.generation == generation:
            return [self.worst]
        return []

    def add(self, process: Process, owner_role: str) -> None:
        """Remember the part of *process*, which has ended and is forgotten.

        What it adds follows the rules of `run_status`, so that the status of a run with more
        processes than are remembered is the same.
        """
        self.missing_rows += process.rows.missing + process.tail_missing
        # Its missing rows are kept above; its end would never decide the status.
        if not process.determines_status:
            return
        status = end_of(process)
        if process.role == owner_role and process.start_order > self.owner_start:
            self.owner_start = process.start_order
            self.owner_status = status
        # Only processes since the run's last end count, so an older worst one is dropped.
        if process.generation >= self.generation:
            self.worst = worst([status, *self.worst_of(process.generation)])
            self.generation = process.generation


def run_status(
    processes: Collection[Process], forgotten: ForgottenEnds, owner_role: str
) -> Status:
    """Return the status of a run, derived from those of its *processes* that have ended.

    Finished when none has ended. A launcher counts too, since a command may fail although its
    processes ended well.
    """
    ended = [process for process in processes if process.status is not None]
    counted = without_predecessors(ended, latest_starts(processes))
    # Also a process with a successor shows how often the run had ended.
    latest = max((process.generation for process in ended), default=0)
    owner = _last_owner(counted, owner_role)
    # A remembered owner may have begun before a forgotten one: the last start decides.
    if owner is not None and owner.start_order > forgotten.owner_start:
        return worst(
            [end_of(owner), *_ends_of_launchers(counted, {latest, owner.generation})]
        )
    launchers = _ends_of_launchers(counted, {latest})
    if forgotten.owner_status is not None:
        return worst([forgotten.owner_status, *launchers])
    return worst(
        [*_ends_of_others(counted, latest), *forgotten.worst_of(latest), *launchers]
    )


def _last_owner(counted: Iterable[Process], owner_role: str) -> Process | None:
    """Return the process of the owner role that started last: the newest start of a resumed run.

    ``None`` when none of *counted* has the role and `Process.determines_status`.
    """
    owners = [
        process
        for process in counted
        if process.determines_status and process.role == owner_role
    ]
    return max(owners, key=lambda process: process.start_order, default=None)


def _ends_of_others(counted: Iterable[Process], generation: int) -> list[Status]:
    """Return the statuses of processes of *generation*.

    Forked children and ranks above 0 only without any others.
    """
    workers = [process for process in counted if not process.launcher]
    deciding = [process for process in workers if process.determines_status] or workers
    return [end_of(process) for process in deciding if process.generation == generation]


def _ends_of_launchers(ended: Iterable[Process], generations: set[int]) -> list[Status]:
    """Return the statuses of launchers that ended with the processes of *generations*."""
    return [
        end_of(process)
        for process in ended
        if process.launcher and process.generation in generations
    ]


def end_of(process: Process) -> Status:
    """Return the status of *process*, which has ended."""
    return process.status or Status.FINISHED


def latest_starts(processes: Iterable[Process]) -> Mapping[RestartKey, Process]:
    """Return, for each `Process.restart_key`, the process that started last."""
    latest: dict[RestartKey, Process] = {}
    for process in processes:
        rival = latest.get(process.restart_key)
        if rival is None or process.start_order > rival.start_order:
            latest[process.restart_key] = process
    return latest


def without_predecessors(
    processes: Iterable[Process], latest: Mapping[RestartKey, Process]
) -> list[Process]:
    """Return those of *processes* that none of the *latest* starts succeeds."""
    return [
        process
        for process in processes
        if not latest[process.restart_key].succeeds(process)
    ]
