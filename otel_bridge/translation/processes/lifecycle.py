"""Track the run's processes: which are open, what a killed or silent one becomes, and when the run ends. Pure.

A process ends by its ``rl.run.end``, by the end that a bridge writes for a dead one, or, from a receiver, by silence.
The run ends when none is open; see the design, "When a run ends". Owns ``proc/<instance>`` and ``run/life`` of the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from otel_bridge.records import End, Status
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import PREFIX, Process, ProcessStart
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.state import TranslationState

_KEY = "run/life"
MAX_PROCESSES = 4_096
"""Processes remembered; beyond it those that ended first are folded into what is known of the run."""
_MAX_BOOTS = 256
"""Boots whose clocks are remembered; processes of further ones are placed by their wall clocks."""
_BADNESS = {Status.FINISHED: 0, Status.FAILED: 1, Status.KILLED: 2}


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of *statuses*, finished when there is none."""
    return max(statuses, key=_BADNESS.__getitem__, default=Status.FINISHED)


@dataclass(frozen=True, slots=True)
class EndEvent:
    """An ``rl.run.end``.

    Attributes:
        seq: Event number; 0: a bridge wrote it for a process that could not.
        last_row: Number of the process's last row, 0 when not known.
    """

    status: Status
    seq: int
    last_row: int
    time_unix_ns: int


class RunLifecycle:
    """The processes of one run."""

    def __init__(self, state: TranslationState, options: TranslationOptions, receive_clock: ReceiveClock) -> None:
        self._state, self._options, self._receive_clock = state, options, receive_clock
        self.processes: dict[str, Process] = {
            key.removeprefix(PREFIX): Process.from_state(key.removeprefix(PREFIX), value)
            for key, value in state.items(PREFIX)
        }
        stored = cast("dict[str, object]", state.get(_KEY) or {})
        self.ended = bool(stored.get("ended", False))
        self._ends = cast("int", stored.get("ends", 0))
        self._next_order = cast("int", stored.get("next_order", 0))
        self._due_ns = cast("int", stored.get("due_ns", 0))
        self._folded: dict[str, list[object]] = dict(cast("dict[str, list[object]]", stored.get("folded", {})))
        self._folded_missing = cast("int", stored.get("folded_missing", 0))
        self._boots: dict[str, int] = dict(cast("dict[str, int]", stored.get("boots", {})))
        self._open = {process.instance for process in self.processes.values() if process.status is None}
        self._changed = False
        self._awaited = ""

    # --- what is received ---------------------------------------------------------------------------------------------
    def process(self, producer: Producer, kind: str, now_unix_ns: int, *, start: ProcessStart | None = None) -> Process:
        """Return the process of *producer*, new or known.

        Args:
            producer: Its resource.
            kind: Kind of the segment that it was found in.
            now_unix_ns: Now.
            start: When it joined the run, as the header of its own segment says.
        """
        process = self.processes.get(producer.instance)
        if process is None:
            process = Process(
                instance=producer.instance,
                kind=kind,
                role=producer.foreign_role if producer.foreign else producer.role,
                rank=producer.rank,
                forked=producer.forked,
                launcher=producer.launcher or kind == "launcher",
                foreign=producer.foreign,
                attempt=producer.attempt,
                order=self._next_order,
                started_ns=self._started_ns(producer, start, now_unix_ns),
                seen_ns=now_unix_ns,
                began_ns=now_unix_ns,
                anonymous=producer.anonymous,
            )
            self._next_order += 1
            self.processes[process.instance] = process
            self._open.add(process.instance)
            self._changed = True
        return process

    def _started_ns(self, producer: Producer, start: ProcessStart | None, now_unix_ns: int) -> int:
        """Return when a process joined the run, on one time line for all of them.

        Processes of one boot are placed by its monotonic clock, so that a wall clock that is set back between two of
        them does not reverse them. A producer elsewhere cannot have started after it was first received.
        """
        if start is None:
            return min(producer.started_unix_ns or now_unix_ns, now_unix_ns)
        if not start.monotonic_ns:
            return start.unix_ns
        if start.boot_id not in self._boots and len(self._boots) < _MAX_BOOTS:
            self._boots[start.boot_id] = start.unix_ns - start.monotonic_ns
        booted_ns = self._boots.get(start.boot_id)
        return start.unix_ns if booted_ns is None else booted_ns + start.monotonic_ns

    def on_data(self, process: Process, now_unix_ns: int) -> None:
        """Note a word of *process*: one that was only silent is open again."""
        process.touch(now_unix_ns)
        if process.silent:
            self._reopen(process)

    def row(self, process: Process, now_unix_ns: int) -> None:
        """Note a row, or a part of one, that is new: it opens the run again, and others may come right behind it."""
        process.row_came(now_unix_ns)
        self.data(process, now_unix_ns)

    def data(self, process: Process, now_unix_ns: int, *, event: int = 0) -> None:
        """Note data of *process* (a row, a rollout, a config): it opens the run again.

        A process that goes on behind its end is open again itself; rows that only come late do not open it, and nothing
        opens one that a bridge has found dead.
        """
        said = process.status is not None and not process.died
        behind = event > process.end_event or (0 < process.last_seq < process.rows.high)
        if process.end_event == 0:  # a bridge's word on a process that lives; of remote ones rows may only come late
            behind = not process.remote
        if said and behind:
            self._reopen(process)
        if self.ended:
            self.more(now_unix_ns)

    def more(self, now_unix_ns: int) -> None:
        """Open the run again: something follows its end. With no process open it ends again after a while."""
        self.ended, self._changed = False, True
        self._due_ns = 0 if self._open else now_unix_ns + self._options.end_grace_ns

    def end(self, process: Process, event: EndEvent, now_unix_ns: int) -> None:
        """Note the end of *process*; a bridge's word does not change what the process said itself."""
        if process.status is not None and (process.end_event or not event.seq) and event.seq <= process.end_event:
            return
        process.report_end(event.seq, event.last_row, died=event.seq == 0 and event.status is Status.KILLED)
        self._due_ns, self._changed = 0, True
        process.end(event.status, event.time_unix_ns, now_unix_ns, self._ends)
        self._closed(process)

    def _closed(self, process: Process) -> None:
        self._open.discard(process.instance)
        if self.ended:  # an end that came after the run's may change its status
            self.ended, self._changed = False, True

    def _reopen(self, process: Process) -> None:
        process.reopen()
        self._open.add(process.instance)

    # --- what follows -------------------------------------------------------------------------------------------------
    def expire_silent(self, now_unix_ns: int) -> None:
        """Take remote processes that have been silent for too long, while they could be received, for ended."""
        limit = now_unix_ns - self._options.liveness_timeout_ns
        if self._receive_clock.opened_ns > limit:
            return
        quiet = (self.processes[instance] for instance in self._open)
        self._fall_silent([process for process in quiet if process.remote and process.seen_ns <= limit], now_unix_ns)

    def close(self, now_unix_ns: int, status: Status | None = None) -> None:
        """Nothing more will come: remote processes end now, and no end is waited for.

        With *status*, a person's word, those that did not say their end themselves ended so.
        """
        self._fall_silent([p for p in map(self.processes.__getitem__, self._open) if p.remote], now_unix_ns)
        if status is not None:
            for process in self.processes.values():
                if process.status not in {None, status} and process.end_event == 0:
                    process.end_as(status, now_unix_ns, self._ends)
                    self._closed(process)

    def end_third_party(self, now_unix_ns: int) -> None:
        """Let processes of a run of third-party producers alone end now: such producers never send an end.

        A run with a living process of our API stays open. Later data opens the run again.
        """
        living = [self.processes[instance] for instance in self._open]
        if all(process.foreign and process.remote for process in living):
            self._fall_silent(living, now_unix_ns)

    def _fall_silent(self, processes: Iterable[Process], now_unix_ns: int) -> None:
        for process in processes:
            status = Status.FINISHED if process.foreign else Status.KILLED
            process.expire(status, now_unix_ns, self._ends)
            self._closed(process)

    def due(self, now_unix_ns: int, *, closing: bool = False) -> bool:
        """Return whether the run ends now: none is open, and nothing of those that ended is waited for."""
        if self.ended or self._open or not (self.processes or self._folded):
            return False
        return closing or (self._due_ns <= now_unix_ns and not self._awaits(now_unix_ns))

    def _awaits(self, now_unix_ns: int) -> bool:
        """Return whether the run waits for one of its processes.

        The one found last is asked first: this is called for each frame, and a run may have thousands of processes.
        """
        awaited = self.processes.get(self._awaited)
        if awaited is not None and not awaited.died and self._due_of(awaited, restartable=False) > now_unix_ns:
            return True
        latest, restartable = _latest_starts(self.processes.values()), self._restartable()
        for process in self.processes.values():
            may_come = restartable(process) and not latest[process.place].succeeds(process)
            if self._due_of(process, restartable=may_come) > now_unix_ns:
                self._awaited = process.instance
                return True
        return False

    def _restartable(self) -> Callable[[Process], bool]:
        """Return what decides whether the run waits for a new start of a process that died."""
        any_determines = any(process.determines_status for process in self.processes.values())
        return lambda process: process.died and (process.determines_status or not any_determines)

    def _due_of(self, process: Process, *, restartable: bool) -> int:
        """Return until when the run waits for *process*: a *restartable* one may be started anew until then."""
        if process.silent:
            return 0
        if restartable:
            return process.ended_ns + self._options.end_grace_ns
        since_ns = max(process.ended_ns, process.came_ns)
        if process.tail_missing and process.remote:  # rows that its end event reports are still under way
            return max(since_ns, self._receive_clock.opened_ns) + self._options.end_of_stream_wait_ns
        if not (process.waiting or process.tail_missing):
            return 0
        wait_ns = self._options.row_wait_ns
        return self._receive_clock.due(since_ns, wait_ns) if process.remote else since_ns + wait_ns

    def run_end(self) -> End:
        """End the run."""
        self._ends += 1
        self.ended, self._due_ns, self._changed = True, 0, True
        times = [process.end_time_ns for process in self.processes.values()]
        return End(f"e:{self._ends}", self.status(), max(times, default=0))

    def missing_rows(self) -> int:
        """Return how many rows are known to be missing."""
        return self._folded_missing + sum(p.rows.missing + p.tail_missing for p in self.processes.values())

    def status(self) -> Status:
        """Return the status of the run as far as its processes have ended.

        That of the owner role's process that started last, if there was one; else the worst of those that ended since
        the run's last end, so that a run that failed and was taken up again may finish. A launcher's counts beside
        those that it ended with; the worse holds. A process that was started again after its end does not count.
        """
        all_ended = [process for process in self.processes.values() if process.status is not None]
        starts = _latest_starts(self.processes.values())
        ended = [process for process in all_ended if not starts[process.place].succeeds(process)]
        latest = max((process.generation for process in all_ended), default=0)
        deciding = [process for process in ended if process.determines_status]
        folded = {key: (cast("int", one[0]), Status(cast("str", one[1]))) for key, one in self._folded.items()}
        owners = [process for process in deciding if process.role == self._options.owner_role]
        last = max(owners, key=lambda process: process.start_order, default=None)
        if last is not None and last.start_order > _folded_start(self._folded.get("owner")):
            return worst([_status(last), *_launchers(ended, {latest, last.generation})])
        launchers = _launchers(ended, {latest})
        if "owner" in folded:
            return worst([folded["owner"][1], *launchers])
        others = deciding or [process for process in ended if not process.launcher]
        before = [status for key, (generation, status) in folded.items() if key == "worst" and generation == latest]
        return worst([*(_status(p) for p in others if p.generation == latest), *before, *launchers])

    # --- bounds and state ---------------------------------------------------------------------------------------------
    def over_limit(self, now_unix_ns: int) -> list[Process]:
        """Return the processes to be forgotten: those that ended first, and last those that rows are waited for of.

        The caller releases their rows first.
        """
        over = len(self.processes) - MAX_PROCESSES
        if over <= 0:
            return []
        restartable = self._restartable()
        ended = sorted(
            (process for process in self.processes.values() if process.status is not None),
            key=lambda process: (
                self._due_of(process, restartable=restartable(process)) > now_unix_ns,
                process.ended_ns,
            ),
        )
        if len(ended) < over:
            remote = sorted((p for p in self.processes.values() if p.status is None and p.remote), key=_last_word)
            self._fall_silent(remote[: over - len(ended)], _last_word(remote[-1]) if remote else 0)
            ended += remote[: over - len(ended)]
        return ended[:over]

    def forget(self, process: Process) -> None:
        """Forget a process that has ended; its part in the run's status stays."""
        del self.processes[process.instance]
        self._state.delete(f"{PREFIX}{process.instance}")
        self._folded_missing += process.rows.missing + process.tail_missing
        if process.determines_status:
            self._fold(process)
        self._changed = True

    def _fold(self, process: Process) -> None:
        """Remember the last process of the owner role, and the worst end since the run's last one."""
        owner = self._folded.get("owner")
        if process.role == self._options.owner_role and process.start_order > _folded_start(owner):
            self._folded["owner"] = [process.order, _status(process).value, process.started_ns]
        before = self._folded.get("worst")
        known = [Status(cast("str", before[1]))] if before is not None and before[0] == process.generation else []
        if before is None or cast("int", before[0]) <= process.generation:
            self._folded["worst"] = [process.generation, worst([_status(process), *known]).value]

    def flush(self) -> None:
        """Write what changed to the state."""
        for process in self.processes.values():
            if process.dirty:
                self._state.set(f"{PREFIX}{process.instance}", process.to_state())
                process.stored()
        if self._changed:
            self._changed = False
            self._state.set(
                _KEY,
                {
                    "ended": self.ended,
                    "ends": self._ends,
                    "status": self.status().value if self.ended else "running",
                    "next_order": self._next_order,
                    "due_ns": self._due_ns,
                    "folded": dict(self._folded),
                    "folded_missing": self._folded_missing,
                    "boots": dict(self._boots),
                },
            )


def _status(process: Process) -> Status:
    return process.status or Status.FINISHED


def _launchers(ended: Iterable[Process], generations: set[int]) -> list[Status]:
    return [_status(process) for process in ended if process.launcher and process.generation in generations]


def _latest_starts(processes: Iterable[Process]) -> Mapping[tuple[str | None, int, bool, bool], Process]:
    """Return the process of each place (role, rank) that started last."""
    latest: dict[tuple[str | None, int, bool, bool], Process] = {}
    for process in processes:
        known = latest.get(process.place)
        if known is None or process.start_order > known.start_order:
            latest[process.place] = process
    return latest


def _folded_start(owner: list[object] | None) -> tuple[int, int]:
    """Return the start of the owner that was forgotten; ``folded`` of older versions holds its order alone."""
    if owner is None:
        return -1, -1
    return cast("int", owner[2]) if len(owner) > 2 else 0, cast("int", owner[0])


def _last_word(process: Process) -> int:
    return process.seen_ns
