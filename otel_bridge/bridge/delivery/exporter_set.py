"""Owns the active exporters of one run: one `ExporterWorker` each, started and stopped as processes name them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from otel_bridge.bridge.delivery.context import DeliveryRequests, FinalPosition, Names
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import OTLP
from otel_bridge.records import Position

CreateWorker: TypeAlias = Callable[
    [str, Mapping[str, str], DeliveryRequests], ExporterWorker
]
"""Returns the worker of an exporter, not yet started, from its name, the variables that the run's
processes set for it, and what it shall deliver."""


class ExporterSet:
    """Owns the workers of one run. One thread.

    Args:
        ledger: The run's ledger.
        create: Creates the worker of an exporter, not yet started.
        log_line: Takes one line for the log.
    """

    def __init__(
        self, ledger: Ledger, create: CreateWorker, log_line: Callable[[str], None]
    ) -> None:
        self.by_name: dict[str, ExporterWorker] = {}
        self._ledger = ledger
        self._create = create
        self._log_line = log_line
        self._names: Names = {}
        self._leaving: list[ExporterWorker] = []
        self._marked = (set[int](), set[str]())

    def states(self) -> dict[str, ExporterState]:
        """Return the state of each active exporter."""
        return {name: worker.exporter_state for name, worker in self.by_name.items()}

    @property
    def names(self) -> Names:
        """Return the current exporters, each with its signals."""
        return self._names

    def choose(
        self,
        names: Names,
        destinations: Mapping[str, Mapping[str, str]],
        final_positions: Mapping[str, FinalPosition],
    ) -> bool:
        """Start and stop workers so that they are those of *names*.

        Return whether anything changed. Workers that leave are not waited for: their writers close
        on their own threads.

        Args:
            names: Exporter to signals.
            destinations: Exporter to the destination that the run's processes name for it.
            final_positions: Exporter to where its records end, if no process requests it any more.

        Raises:
            RuntimeError: The machine allows no more threads. What was begun stays, and the next
                call begins the rest.
            JournalError: The ledger cannot be read for a new worker; likewise.
        """
        for name, worker in self.by_name.items():
            worker.requests.stop_at(final_positions.get(name))
        # Without a wait: a writer that hangs must not stop the thread that reads.
        self._leaving = [worker for worker in self._leaving if not worker.join(0.0)]
        if names == self._names:
            return False
        for name in self._names.keys() - names.keys():
            self._remove(name)
        for name, signals in names.items():
            if name not in self.by_name:
                requests = DeliveryRequests(signals, final_positions.get(name))
                worker = self._create(name, destinations.get(name, {}), requests)
                # Before it is listed: if no more threads are allowed, the next choice tries again.
                worker.start()
                self.by_name[name] = worker
            elif self._names[name] != signals:
                self.by_name[name].requests.set_signals(signals)
            self._names[name] = signals
        return True

    def _remove(self, name: str) -> None:
        """Stop a worker, and remember it until its thread has ended, so that `join` waits for it too."""
        worker = self.by_name.pop(name)
        del self._names[name]
        worker.stop()
        self._leaving.append(worker)

    def release_unrequested(self) -> None:
        """Remove exporters that no process requests any more: what only they lack is evicted first.

        Called once, as a run that has everything delivered is closed. When they are the only ones,
        they stay: without any exporter, the bridge could not decide what may be deleted, and would
        keep all records.

        Raises:
            JournalError: The ledger refuses the marks. The caller ignores it: the next bridge of
                the run releases them.
        """
        unrequested: list[str] = []
        for name, state in self.states().items():
            if state.final_position is not None:
                unrequested.append(name)
        if len(unrequested) == len(self.by_name):
            return
        for name in unrequested:
            self._remove(name)
        self.mark_named()

    def widen(self, names: Names) -> None:
        """Deliver the signals of *names* too, to active exporters, before such records exist.

        An exporter that is not active is passed over: `choose` starts it, and it begins at the
        oldest record. An active one has passed over records of signals that it did not have.
        """
        for name, signals in names.items():
            present = self._names.get(name, signals)
            wider = tuple(dict.fromkeys((*present, *signals)))
            if wider != present:
                self._names[name] = wider
                self.by_name[name].requests.set_signals(wider)

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify all workers of new records; see `ExporterWorker.notify`."""
        for worker in self.by_name.values():
            worker.notify(retry=retry, flush=flush)

    def retry_dead_letters(self, dead_letters: Mapping[str, Sequence[int]]) -> None:
        """Retry dead letters, ids by exporter.

        Those of an exporter that the run does not have stay as they are.
        """
        for name, ids in dead_letters.items():
            if name in self.by_name:
                self.by_name[name].requests.retry_dead_letters(ids)
            else:
                self._log_line(
                    f"{name} is not among the run's exporters: its dead letters stay as they are"
                )

    def mark_named(self) -> None:
        """Mark in the ledger which destinations the run has now, if that changed.

        Near the limit of the directory, records of the others are evicted first. An exporter whose
        destination is unknown here may get one at any moment, on its own thread, so that the marks
        of its destinations stay. Raises `JournalError` when the ledger refuses; the next call
        repeats it.
        """
        ids: set[int] = set()
        unresolved: set[str] = set()
        for name, state in self.states().items():
            if state.resolved:
                ids.add(state.id)
            else:
                unresolved.add(name)
        if (ids, unresolved) != self._marked:
            self._ledger.name_destinations(ids, unresolved=unresolved)
            self._marked = (ids, unresolved)

    def unresolved(self) -> bool:
        """Return whether any exporter's destination is still unknown, so that nothing may be deleted.

        ``otlp`` does not count, because it delivers segments and has no destination in the ledger.
        """
        states = self.states()
        states.pop(OTLP, None)
        return not all(state.resolved for state in states.values())

    def delivered(self, position: Position) -> bool:
        """Return whether every exporter has all records to *position*.

        ``True`` without any exporter: the ledger keeps the records.
        """
        return not self._unfinished(position)

    def parked(self, position: Position, failing_before_s: float) -> bool:
        """Return whether every exporter that lacks records is parked: the bridge may end, and the next one continues.

        Parked means that it is blocked, so that nothing moves until a person acts, or that it has
        failed since `time.monotonic` was *failing_before_s*, or longer.
        """
        for state in self._unfinished(position):
            if state.state == "blocked":
                continue
            failing_since_s = state.failing_since_s
            if failing_since_s is None or failing_since_s > failing_before_s:
                return False
        return True

    def _unfinished(self, position: Position) -> list[ExporterState]:
        """Return the exporters that lack records to *position*, or have dead letters to retry."""
        unfinished: list[ExporterState] = []
        for worker in self.by_name.values():
            state = worker.exporter_state
            if worker.dead_letters_waiting() or not state.is_done(position):
                unfinished.append(state)
        return unfinished

    def stop(self) -> None:
        """Request that all workers stop."""
        for worker in (*self.by_name.values(), *self._leaving):
            worker.stop()

    def join(self, deadline_s: float) -> list[str]:
        """Wait for all workers until `time.monotonic` is *deadline_s*.

        Return the names of those that hang.
        """
        workers = (*self.by_name.values(), *self._leaving)
        hanging: list[str] = []
        for worker in workers:
            if not worker.join(deadline_s - time.monotonic()):
                hanging.append(worker.exporter_state.exporter)
        return hanging
