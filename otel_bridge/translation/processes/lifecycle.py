"""Lifecycle of a run: its open processes, killed and silent processes, and the end of the run. Pure.

A process ends by its ``rl.run.end``, by the end that a bridge writes for a dead process, or, when
remote, by silence. The run ends when no process is open (docs/emitting.md, "Flush and finish").
Owns ``proc/<instance>`` and ``run/life`` of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from otel_bridge.records import End, Status
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.packing import packed, unpacked, unpacked_below
from otel_bridge.translation.processes.process import PREFIX, Process, ProcessStart
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.processes.run_status import (
    ForgottenEnds,
    latest_starts,
    run_status,
    without_predecessors,
)
from otel_bridge.translation.state import TranslationState

_KEY = "run/life"
MAX_PROCESSES = 4_096
"""Most processes remembered; beyond it the processes that ended first are folded into the state of
the run."""
_MAX_BOOTS = 256
"""Most boots whose clocks are remembered; processes of further boots are placed by their wall
clocks."""


@dataclass(frozen=True, slots=True)
class EndEvent:
    """Holds an ``rl.run.end``.

    Attributes:
        seq: Event number; 0: a bridge wrote the event for a process that could not.
        last_row: Number of the process's last row, 0 when unknown.
    """

    status: Status
    seq: int
    last_row: int
    time_unix_ns: int


@dataclass(slots=True)
class StartTimes:
    """Places the starts of all processes of a run on one time line.

    Attributes:
        order: Number of processes seen.
        boots: Unix ns at which the monotonic clock of each boot began.
    """

    order: int = 0
    boots: dict[str, int] = field(default_factory=dict[str, int])

    def next_order(self) -> int:
        """Return the place of a new process in the order in which processes were first seen."""
        self.order += 1
        return self.order - 1

    def started_ns(
        self, producer: Producer, start: ProcessStart | None, now_unix_ns: int
    ) -> int:
        """Return the time at which a process joined the run.

        Processes of one boot are placed by its monotonic clock, so that setting back the wall clock
        does not reverse their order. A remote producer cannot have started after its first data
        were received.

        Beyond `_MAX_BOOTS` boots the wall clock alone places a start.
        """
        if start is None:
            return min(producer.started_unix_ns or now_unix_ns, now_unix_ns)
        if not start.monotonic_ns:
            return start.unix_ns
        # The first start of a boot fixes where its clock lies; later settings of the clock do not.
        if start.boot_id not in self.boots and len(self.boots) < _MAX_BOOTS:
            self.boots[start.boot_id] = start.unix_ns - start.monotonic_ns
        booted_ns = self.boots.get(start.boot_id)
        if booted_ns is None:
            return start.unix_ns
        return booted_ns + start.monotonic_ns


@dataclass(slots=True)
class _RunFacts:
    """Holds what is stored of the run beside its processes.

    Attributes:
        ended: Whether the run has ended.
        ends: How often it has ended.
        due_ns: Time before which the run does not end; 0: any.
    """

    ended: bool = False
    ends: int = 0
    due_ns: int = 0
    starts: StartTimes = field(default_factory=StartTimes)
    forgotten: ForgottenEnds = field(default_factory=ForgottenEnds)


class RunLifecycle:
    """Tracks the processes of one run, and ends and reopens the run."""

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        receive_clock: ReceiveClock,
    ) -> None:
        self._state = state
        self._options = options
        self._receive_clock = receive_clock
        self.processes = unpacked_below(Process, state, PREFIX)
        stored = state.get(_KEY)
        self._run = _RunFacts() if stored is None else unpacked(_RunFacts, stored)
        self._open: set[str] = set()
        for process in self.processes.values():
            process.stored()
            if process.status is None and not process.scraped:
                self._open.add(process.instance)
        self._changed = False
        self._awaited = ""

    @property
    def ended(self) -> bool:
        """Return whether the run has ended."""
        return self._run.ended

    # --- what is received -------------------------------------------------------------------------
    def process(
        self,
        producer: Producer,
        kind: str,
        now_unix_ns: int,
        *,
        start: ProcessStart | None = None,
    ) -> Process:
        """Return the process of *producer*, a known or a new one.

        The facts of the first resource stay, whatever later ones of the same process state: what
        was made of its data so far depends on them.

        Args:
            producer: The producer.
            kind: Kind of the segment that names the producer.
            now_unix_ns: Now.
            start: Time at which the process joined the run, from the header of its own segment.
        """
        process = self.processes.get(producer.instance)
        if process is None:
            role = producer.role
            if producer.third_party:
                role = producer.third_party_role
            process = Process(
                instance=producer.instance,
                kind=kind,
                role=role,
                rank=producer.rank,
                forked=producer.forked,
                launcher=producer.launcher or kind == "launcher",
                third_party=producer.third_party,
                attempt=producer.attempt,
                order=self._run.starts.next_order(),
                started_ns=self._run.starts.started_ns(producer, start, now_unix_ns),
                seen_ns=now_unix_ns,
                began_ns=now_unix_ns,
                anonymous=producer.anonymous,
                merge_world=producer.merge_world,
            )
            self.processes[process.instance] = process
            # An engine outlives the jobs that use it, and a Collector never stops asking it: no run
            # waits for its end.
            if not process.scraped:
                self._open.add(process.instance)
            self._changed = True
        return process

    def on_frame(self, process: Process, now_unix_ns: int) -> None:
        """Note that a frame of *process* was read; a process that only timed out is reopened."""
        process.touch(now_unix_ns)
        # Only silence had ended it, and it is silent no longer.
        if process.timed_out:
            self._reopen_process(process)

    def on_row(self, process: Process, now_unix_ns: int) -> None:
        """Note a new row or fragment: it reopens the run, and other rows may follow directly."""
        process.mark_row(now_unix_ns)
        self.on_record(process, now_unix_ns)

    def on_record(self, process: Process, now_unix_ns: int, *, event: int = 0) -> None:
        """Note a record of *process* (a row, a rollout, a config): it reopens the run.

        A process that continues after its end is reopened too. Rows that are merely late do not
        reopen the process, and nothing reopens a process that a bridge found dead.
        """
        # A bridge has seen a crashed process dead, so what arrives of it was merely under way.
        ended_itself = process.status is not None and not process.crashed
        # An event or a row with a higher number than its end names was sent after that end.
        behind = event > process.end_event or (0 < process.last_seq < process.rows.high)
        # A bridge ended a living process; rows of a remote one may only be late.
        if process.end_event == 0:
            behind = not process.remote
        if ended_itself and behind:
            self._reopen_process(process)
        if self._run.ended:
            self.reopen(now_unix_ns)

    def reopen(self, now_unix_ns: int) -> None:
        """Reopen the run, because data follow its end. Without an open process the run ends again after a while."""
        self._run.ended = False
        self._changed = True
        self._run.due_ns = 0
        if not self._open:
            self._run.due_ns = now_unix_ns + self._options.end_grace_ns

    def end(self, process: Process, event: EndEvent, now_unix_ns: int) -> None:
        """Note the end of *process*.

        An end written by a bridge does not replace the process's own, and an older end of the
        process not a newer one. An end that comes after the run's end may change the run's status,
        so the run ends once more.
        """
        # The process knows how it ended; a bridge only infers it from its death.
        is_own_end = bool(event.seq) and not process.end_event
        if (
            process.status is not None
            and not is_own_end
            and event.seq <= process.end_event
        ):
            return
        # Such a process may be restarted, for which the run stays open (`end_grace_ns`).
        has_crashed = event.seq == 0 and event.status is Status.KILLED
        process.report_end(event.seq, event.last_row, crashed=has_crashed)
        self._run.due_ns = 0
        self._changed = True
        process.end(event.status, event.time_unix_ns, now_unix_ns, self._run.ends)
        self._closed(process)

    def _closed(self, process: Process) -> None:
        self._open.discard(process.instance)
        # An end that arrives after the run's end may change the run's status.
        if self._run.ended:
            self._run.ended = False
            self._changed = True

    def _reopen_process(self, process: Process) -> None:
        process.reopen()
        self._open.add(process.instance)

    # --- what follows -----------------------------------------------------------------------------
    def expire_silent(self, now_unix_ns: int) -> None:
        """End remote processes that were silent for too long while a receiver was up.

        Nobody while no receiver was up for the whole time-out. A native process is then ``killed``;
        a third-party one, which never reports an end, ``finished``.
        """
        limit = now_unix_ns - self._options.liveness_timeout_ns
        # No receiver was up for the whole time: the producers could not have been received.
        if self._receive_clock.opened_ns > limit:
            return
        self._fall_silent(
            [process for process in self._open_remote() if process.seen_ns <= limit],
            now_unix_ns,
        )

    def close(self, now_unix_ns: int, status: Status | None = None) -> None:
        """End remote processes and stop waiting for ends, since no more data will arrive.

        *status*, a person's statement, replaces the status of processes that did not report their
        own end.

        Local processes stay open: their bridge sees whether they run.
        """
        self._fall_silent(self._open_remote(), now_unix_ns)
        if status is not None:
            for process in self.processes.values():
                # A process that reported its own end knows better than the person.
                if process.status not in {None, status} and process.end_event == 0:
                    process.end_as(status, now_unix_ns, self._run.ends)
                    self._closed(process)

    def end_third_party(self, now_unix_ns: int) -> None:
        """End the processes of a run of third-party producers alone, which never send an end.

        A run with a living process of our API stays open. Later data reopen the run.
        """
        living = self._living()
        if all(process.third_party and process.remote for process in living):
            self._fall_silent(living, now_unix_ns)

    def _open_remote(self) -> list[Process]:
        """Return the open processes of which only silence can show that they died."""
        return [process for process in self._living() if process.remote]

    def _living(self) -> list[Process]:
        """Return the processes that are open."""
        return [self.processes[instance] for instance in self._open]

    def _fall_silent(self, processes: Iterable[Process], now_unix_ns: int) -> None:
        for process in processes:
            status = Status.KILLED
            if process.third_party:
                status = Status.FINISHED
            process.expire(status, now_unix_ns, self._run.ends)
            self._closed(process)

    def due(self, now_unix_ns: int, *, closing: bool = False) -> bool:
        """Return whether the run ends now: no process is open, and no data of ended processes are awaited.

        ``False`` for a run that has ended, and for one of inference engines alone, which no job has
        used yet. *closing*: nothing is awaited any more.
        """
        # Checked first: this runs for each frame, and while a process is open nothing else matters.
        if self._run.ended or self._open:
            return False
        has_had_processes = self._run.forgotten.generation >= 0
        if not has_had_processes and all(
            process.scraped for process in self.processes.values()
        ):
            return False
        return closing or (
            self._run.due_ns <= now_unix_ns and not self._awaits(now_unix_ns)
        )

    def _awaits(self, now_unix_ns: int) -> bool:
        """Return whether the run waits for one of its processes.

        The process found last is checked first: this runs for each frame, and a run may have
        thousands of processes.

        It waits for rows that are known to be missing, and for a restart of a process that crashed.
        """
        # A crashed one is left to the loop, since only that knows whether it has a successor.
        awaited = self.processes.get(self._awaited)
        due_ns = 0
        if awaited is not None and not awaited.crashed:
            due_ns = self._due_of(awaited, restartable=False)
        if due_ns > now_unix_ns:
            return True
        latest = latest_starts(self.processes.values())
        restartable = self._restartable()
        for process in self.processes.values():
            may_come = restartable(process) and not latest[
                process.restart_key
            ].succeeds(process)
            if self._due_of(process, restartable=may_come) > now_unix_ns:
                self._awaited = process.instance
                return True
        return False

    def _restartable(self) -> Callable[[Process], bool]:
        """Return the predicate that decides whether the run waits for a restart of a process that died.

        A process that does not determine the run's status, such as a forked child, is waited for
        only where no other does.
        """
        any_determines = any(
            process.determines_status for process in self.processes.values()
        )
        return lambda process: (
            process.crashed and (process.determines_status or not any_determines)
        )

    def _due_of(self, process: Process, *, restartable: bool) -> int:
        """Return the time until which the run waits for *process*, or for a restart when *restartable*.

        0 when nothing of it is awaited. Silence that ended it has been waited for already.
        """
        if process.timed_out:
            return 0
        if restartable:
            return process.ended_ns + self._options.end_grace_ns
        since_ns = max(process.ended_ns, process.row_arrived_ns)
        # Rows that its end event reports are still under way.
        if process.tail_missing and process.remote:
            since_ns = max(since_ns, self._receive_clock.opened_ns)
            return since_ns + self._options.end_of_stream_wait_ns
        if not (process.waiting or process.tail_missing):
            return 0
        wait_ns = self._options.row_wait_ns
        if process.remote:
            return self._receive_clock.due(since_ns, wait_ns)
        return since_ns + wait_ns

    def run_end(self) -> End:
        """End the run and return its end record.

        Its time is that of the last end, 0 when every process is forgotten.
        """
        # Part of the id: a run that was reopened ends with a further record.
        self._run.ends += 1
        self._run.ended = True
        self._run.due_ns = 0
        self._changed = True
        times = [process.end_time_ns for process in self.processes.values()]
        return End(f"e:{self._run.ends}", self.status(), max(times, default=0))

    def missing_rows(self) -> int:
        """Return the number of rows known to be missing."""
        missing = self._run.forgotten.missing_rows
        for process in self.processes.values():
            missing += process.rows.missing + process.tail_missing
        return missing

    def status(self) -> Status:
        """Return the status of the run, derived from the processes that have ended."""
        return run_status(
            self.processes.values(), self._run.forgotten, self._options.owner_role
        )

    def counts_by_role(self) -> dict[str, tuple[int, int]]:
        """Return, by role, how many processes are open, and how many there are.

        Empty before the first process; an empty role for those without one. A launcher does not
        count, nor does a process with a successor: a restarted worker would else count twice.
        """
        counts: dict[str, tuple[int, int]] = {}
        for process in without_predecessors(
            self.processes.values(), latest_starts(self.processes.values())
        ):
            if not process.launcher:
                role = process.role or ""
                open_processes, processes = counts.get(role, (0, 0))
                counts[role] = open_processes + (process.status is None), processes + 1
        return counts

    # --- bounds and state -------------------------------------------------------------------------
    def over_limit(self, now_unix_ns: int) -> list[Process]:
        """Return the processes to forget: those that ended first, and those with awaited rows last.

        Empty below `MAX_PROCESSES`. Open local processes are never among them: they still append, so
        that a run with more of them stays over the limit. Open remote ones end here, as by silence.
        The caller releases the rows of all these first.
        """
        over = len(self.processes) - MAX_PROCESSES
        if over <= 0:
            return []
        restartable = self._restartable()

        def order(process: Process) -> tuple[bool, int]:
            due_ns = self._due_of(process, restartable=restartable(process))
            return due_ns > now_unix_ns, process.ended_ns

        ended = [
            process for process in self.processes.values() if process.status is not None
        ]
        ended.sort(key=order)
        # All others are open: silence is assumed for the remote ones that were silent longest.
        if len(ended) < over:
            remote = [
                process
                for process in self.processes.values()
                if process.status is None and process.remote
            ]
            remote.sort(key=lambda process: process.seen_ns)
            silent = remote[: over - len(ended)]
            if silent:
                self._fall_silent(silent, remote[-1].seen_ns)
            ended += silent
        return ended[:over]

    def forget(self, process: Process) -> None:
        """Forget a process, one of `over_limit`; its part in the run's status stays.

        Later data of it are those of a new process.
        """
        del self.processes[process.instance]
        self._state.delete(f"{PREFIX}{process.instance}")
        self._run.forgotten.add(process, self._options.owner_role)
        self._changed = True

    def flush(self) -> None:
        """Write what changed to the state."""
        for process in self.processes.values():
            if process.dirty:
                self._state.set(f"{PREFIX}{process.instance}", packed(process))
                process.stored()
        if self._changed:
            self._changed = False
            self._state.set(_KEY, packed(self._run))
