"""Rows as received -> `Row` records: once each, whole, in order within a process. Pure.

From a local segment rows arrive whole and in order. From a receiver rows may arrive cut, doubled
and reordered. A row waits until it is whole, and a whole row until the rows before it have arrived,
both at most ``row_wait_ns``. Waiting rows are stored under ``row/<instance>/<time>`` of the state.
A row without a number is *open*: its process adds to it, so that the row waits for its number or
for the end of its process. From a receiver it may be a row that was cut, whose number is lost: once
a number is missing, the row waits as rows with a number do.
"""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.records import Row, Value
from otel_bridge.translation.decode.rows import RowFragment
from otel_bridge.translation.metrics.keys import SAME_KEY
from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.processes.process import PendingRow, Process
from otel_bridge.translation.processes.sequence import SequenceTracker
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count, named

INCOMPLETE = "row/incomplete"
_PREFIX = "row/"
_MAX_WRITTEN = 10_000
"""Most incomplete written rows remembered per process, so that a later fragment finds its row."""
_FOREVER = 1 << 63


class RowAssembler:
    """Assembles the rows of all native processes of one run."""

    def __init__(self, run: RunContext) -> None:
        self._state = run.state
        self._options = run.options
        self._axes = run.axes
        self._receive_clock = run.receive_clock
        self._holding: dict[Process, None] = {}
        self._changed: set[tuple[Process, int]] = set()
        self._waiting_bytes = 0
        self.redelivered = 0
        self._restore(run.processes)

    @property
    def waiting(self) -> int:
        """Return the number of waiting rows."""
        return sum(len(process.waiting) for process in self._holding)

    def waiting_of(self) -> dict[str, int]:
        """Return the number of waiting rows of each process, by instance."""
        return {process.instance: len(process.waiting) for process in self._holding}

    def take(
        self,
        process: Process,
        fragment: RowFragment,
        now_unix_ns: int,
        *,
        waits_for_earlier: bool,
    ) -> list[Row]:
        """Add a row or a fragment of one.

        Nothing while the row waits, or for what was redelivered, which is counted in `redelivered`.
        Never raises.

        Args:
            process: Process that sent the row.
            fragment: The row or fragment.
            now_unix_ns: Time of arrival.
            waits_for_earlier: Whether the row waits for earlier rows, which may still arrive.

        Returns:
            The rows that this one releases, in order.
        """
        process.mark_changed()
        # A cut row that was written is not in `waiting`, so its fragments must be found first.
        if fragment.time_ns in process.written:
            return self._further(process, fragment)
        row = process.waiting.get(fragment.time_ns)
        if row is None:
            if _is_redelivered(process.rows, fragment):
                self.redelivered += 1
                return []
            # Nearly every row of a run is whole and the next one: it waits for nothing.
            is_next = fragment.whole and fragment.seq == process.rows.high + 1
            if is_next and not process.waiting:
                return [self._next(process, fragment)]
            row = self._wait(process, fragment, now_unix_ns)
        if not self._fill(row, fragment):
            self.redelivered += 1
            return []
        self._changed.add((process, fragment.time_ns))
        if row.whole:
            # By number as well, because rows leave in that order and wait by their times.
            process.ready[row.seq] = row
        rows: list[Row] = []
        # Without a receiver nothing from before the row can still arrive.
        if row.whole and (not waits_for_earlier or row.seq <= process.rows.high):
            rows.append(self._write(process, row))
        rows += self._in_order(process)
        return rows + self._within_bounds()

    def _next(self, process: Process, fragment: RowFragment) -> Row:
        """Return the record of a whole row that follows the last one."""
        if fragment.same:
            count(self._state, SAME_KEY, fragment.same)
        process.rows.add(fragment.seq, fragment.time_ns)
        id_ = f"m:{process.instance}:{fragment.seq}"
        return self._record(process, fragment, id_, fragment.values, late=False)

    def tick(self, now_unix_ns: int) -> list[Row]:
        """Release the rows that have waited long enough.

        Incomplete ones are counted (``row/incomplete``).
        """
        rows: list[Row] = []
        # A copy, because a process without waiting rows leaves the list.
        for process in list(self._holding):
            for time_ns in self._due(process, now_unix_ns):
                # A row given up before it may have released this one in its order.
                if time_ns in process.waiting:
                    rows += self._give_up(process, process.waiting[time_ns])
        return rows

    def _due(self, process: Process, now_unix_ns: int) -> list[int]:
        """Return the times of the rows of *process* that have waited long enough, in the order of their times."""
        due: list[int] = []
        for row in process.waiting.values():  # in the order in which they began to wait
            if self._due_ns(process, row) <= now_unix_ns:
                due.append(row.time_ns)
            elif process.remote and row.seq:
                break  # those that follow began to wait later; an open row may wait longer than they
        return sorted(due)

    def close(self) -> list[Row]:
        """Release all rows, since no more data will arrive."""
        return self.tick(_FOREVER)

    def flush(self) -> None:
        """Write the waiting rows to the state.

        Rows already written while incomplete too: a fragment that arrives after a restart must find
        its row.
        """
        for process, time_ns in self._changed:
            key = f"{_PREFIX}{process.instance}/{time_ns}"
            row = process.waiting.get(time_ns) or process.written.get(time_ns)
            if row is None:
                self._state.delete(key)
            else:
                self._state.set(key, packed(row))
        self._changed.clear()

    def forget(self, process: Process) -> list[Row]:
        """Release the waiting rows of a process that has ended, and forget the process.

        Nothing is left of it in the state: its number of rows is kept by the lifecycle.
        """
        rows: list[Row] = []
        while process.waiting:
            rows += self._give_up(process, next(iter(process.waiting.values())))
        released = set(process.written)
        # A copy, because entries are removed on the way.
        for changed, time_ns in list(self._changed):
            if changed is process:
                self._changed.discard((process, time_ns))
                released.add(time_ns)
        for time_ns in released:
            self._state.delete(f"{_PREFIX}{process.instance}/{time_ns}")
        return rows

    def _due_ns(self, process: Process, row: PendingRow) -> int:
        """Return the time at which *row* is released although fragments of it, or rows before it, are missing.

        A row without a number is still open: its process may add to it until the process ends. Of a
        remote one, a later row that is ready shows that the number is lost.
        """
        wait_ns = self._options.row_wait_ns
        if not process.remote:
            if row.seq == 0:
                if process.status is None:
                    return _FOREVER
                return 0
            return row.since_ns + wait_ns
        since_ns = row.since_ns
        if row.seq == 0 and process.status is None:
            if not process.ready:  # no number is missing
                return _FOREVER
            since_ns = max(
                since_ns, min(ready.since_ns for ready in process.ready.values())
            )
        return self._receive_clock.due(since_ns, wait_ns)

    # --- one row ----------------------------------------------------------------------------------
    def _wait(
        self, process: Process, fragment: RowFragment, now_unix_ns: int
    ) -> PendingRow:
        row = PendingRow(
            fragment.role, fragment.step, fragment.time_ns, since_ns=now_unix_ns
        )
        process.waiting[fragment.time_ns] = row
        self._holding[process] = None
        return row

    def _fill(self, row: PendingRow, fragment: RowFragment) -> bool:
        """Add the content of *fragment* to *row*; return whether any of it is new.

        A later value of an open row replaces an earlier one, and its step is the last one.
        """
        new: dict[str, Value] = {}
        for key, value in fragment.values.items():
            is_replaced = row.is_open and row.values.get(key) != value
            if key not in row.values or is_replaced:
                new[key] = value
        return self._add_new(row, fragment, new)

    def _add_new(
        self, row: PendingRow, fragment: RowFragment, new: dict[str, Value]
    ) -> bool:
        """Add *new* values, number and step of *fragment* to *row*; return ``False`` when it brings nothing of these.

        The number comes once, with the fragment that has ``rl.row``; the step changes only while
        the row is open: the step of a row of several calls is known with the last one.
        """
        brings_number = fragment.seq > 0 and row.seq == 0
        brings_step = row.is_open and row.step != fragment.step
        if not (new or brings_number or brings_step):
            return False
        if brings_step:
            row.step = fragment.step
        if brings_number:
            row.set_number(fragment.seq, fragment.value_count, fragment.own_ns)
        if fragment.same:
            count(self._state, SAME_KEY, fragment.same)
        self._waiting_bytes += row.extend(new, fragment.same)
        return True

    def _in_order(self, process: Process) -> list[Row]:
        """Write the whole rows that follow the last one written; none behind a missing number."""
        rows: list[Row] = []
        while process.ready:
            row = process.ready.get(process.rows.high + 1)
            if row is None:
                break
            rows.append(self._write(process, row))
        return rows

    def _give_up(self, process: Process, oldest: PendingRow) -> list[Row]:
        """Release *oldest* although it is cut or rows before it are missing.

        Whole earlier rows go first.

        Their order is that of the process, which trackers keep; the rows that follow directly are
        released too.
        """
        earlier = [
            row for row in process.ready.values() if row.time_ns < oldest.time_ns
        ]
        rows = [
            self._write(process, row)
            for row in sorted(earlier, key=lambda row: row.seq)
        ]
        rows.append(
            self._write(process, oldest)
            if oldest.whole
            else self._write_cut(process, oldest)
        )
        return rows + self._in_order(process)

    def _write(self, process: Process, row: PendingRow) -> Row:
        """Return the record of a whole row."""
        late = row.seq <= process.rows.high
        self._done(process, row)
        process.rows.add(row.seq, row.time_ns)
        return self._record(
            process, row, f"m:{process.instance}:{row.seq}", row.values, late=late
        )

    def _write_cut(self, process: Process, row: PendingRow) -> Row:
        """Return a record of an incomplete row, and remember the row for its missing fragments.

        It is counted (``row/incomplete``), except an open row of a local process, which lacks
        nothing. The oldest remembered row is dropped beyond `_MAX_WRITTEN`; late fragments of it
        count as redelivered. It is shown rather than dropped: the values that have arrived are
        right.
        """
        late = row.time_ns <= process.rows.high_ns
        self._done(process, row)
        row.begin_writing(f"m:{process.instance}:{row.seq or f't{row.time_ns}'}")
        if row.seq:
            process.rows.add(row.seq, row.time_ns)
        process.written[row.time_ns] = row
        if len(process.written) > _MAX_WRITTEN:
            oldest = next(iter(process.written))
            del process.written[oldest]
            self._changed.add((process, oldest))
        # An open row of a local process that ended has all that was ever appended.
        if row.seq or process.remote:
            count(self._state, INCOMPLETE)
        return self._record(process, row, row.base_id, dict(row.values), late=late)

    def _further(self, process: Process, fragment: RowFragment) -> list[Row]:
        """Return a further record, of the same step and time, for a late fragment of a row already written.

        No record for a redelivered fragment; rows behind the gap that it closes follow. Only values
        that were not written yet are in the record, so that none is shown twice.
        """
        row = process.written[fragment.time_ns]
        written_values = dict(row.values)
        if not self._fill(row, fragment):
            self.redelivered += 1
            return []
        self._waiting_bytes -= row.release()
        # It was written under its time; now its number is known, and its gap is closed.
        if row.seq and not process.rows.seen(row.seq):
            process.rows.add(row.seq, row.time_ns)
        if row.whole:
            del process.written[row.time_ns]
        self._changed.add((process, row.time_ns))
        values = {
            key: value
            for key, value in fragment.values.items()
            if key not in written_values
        }
        if not values:
            return self._in_order(process)
        record = self._record(process, row, row.next_id(), values, late=True)
        return [record, *self._in_order(process)]

    def _done(self, process: Process, row: PendingRow) -> None:
        del process.waiting[row.time_ns]
        process.ready.pop(row.seq, None)
        self._waiting_bytes -= row.release()
        self._changed.add((process, row.time_ns))
        if not process.waiting:
            self._holding.pop(process, None)

    def _record(
        self,
        process: Process,
        row: RowFragment,
        id_: str,
        values: Mapping[str, Value],
        *,
        late: bool,
    ) -> Row:
        """Return the record of a row with *values*, and mark its process as changed: its numbers are stored with it.

        *late*: whether a later row was written before.
        """
        process.mark_changed()
        return self._axes.row(
            id_,
            process,
            role=row.role,
            step=row.step,
            time_unix_ns=row.own_ns or row.time_ns,
            values=values,
            late=late,
        )

    # --- bounds and state -------------------------------------------------------------------------
    def _within_bounds(self) -> list[Row]:
        """Release the oldest waiting rows while they take more than ``max_waiting_bytes``.

        Nothing below it.
        """
        rows: list[Row] = []
        while self._waiting_bytes > self._options.max_waiting_bytes and self._holding:
            # The first of each process is its oldest, so that one comparison a process is enough.
            process = min(
                self._holding, key=lambda p: next(iter(p.waiting.values())).since_ns
            )
            rows += self._give_up(process, next(iter(process.waiting.values())))
        return rows

    def _restore(self, processes: Mapping[str, Process]) -> None:
        """Read the rows that waited when the state was written, in the order in which they began to wait.

        Rows of a process that is not known any more were released when it was forgotten. `_due`
        stops at the first row that is not due, for which the order must be kept.
        """
        rows: list[tuple[Process, PendingRow]] = []
        for name, value in named(self._state, _PREFIX).items():
            instance = name.rpartition("/")[0]
            # Rows of a forgotten process were released with it.
            if instance in processes:
                rows.append((processes[instance], unpacked(PendingRow, value)))
        for process, row in sorted(
            rows, key=lambda pair: (pair[1].since_ns, pair[1].time_ns)
        ):
            if row.records_made:
                process.written[row.time_ns] = row
                continue
            process.waiting[row.time_ns] = row
            self._holding[process] = None
            self._waiting_bytes += row.size_bytes
            if row.whole:
                process.ready[row.seq] = row


def _is_redelivered(received: SequenceTracker, fragment: RowFragment) -> bool:
    """Return whether the row of *fragment* was received before."""
    # A fragment without a number is placed by its time, which is unique within its process.
    if not fragment.seq:
        return received.covers(fragment.time_ns)
    return received.seen(fragment.seq)
