"""Rows by W&B's rules: ``log(step=)`` and ``commit=`` merge several calls into one row.

Each call is appended before it returns, so that a kill loses nothing. The row is completed by a
commit, by a call for another step, or by the end of the run. A step lower than the counter, which
W&B drops, is a row of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from otel_bridge.capture.metric_axes import COUNTER, Group, MetricAxes
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.recording.recorder import OpenRow, Recorder
from otel_bridge.emit.run import Run
from otel_bridge.emit.values.plain import count_nothing

_KEPT = frozenset({int, float, bool, str, type(None), dict})
RowCompleted: TypeAlias = Callable[[Mapping[str, Any], int], None]
"""Called with the values of a complete row, of a merged one without arrays and lists, and with W&B's step of it."""


class _PendingStep:
    """Holds the open rows of one step, one for each group of values.

    Attributes:
        counter: Step of W&B's counter.
        values: Plain values of all of them.
        axes: Values of step metrics in them: they are the steps of these rows only, not of the rows
            before and after.
    """

    def __init__(self, recorder: Recorder, axes: MetricAxes, counter: int) -> None:
        self.counter = counter
        self._recorder = recorder
        self._axes = axes
        self._rows: dict[Group, OpenRow] = {}
        self.values: dict[str, Any] = {}
        self.axes: dict[str, Any] = {}

    def note(self, values: Mapping[str, Any]) -> None:
        """Keep the plain ones of *values*."""
        self.values.update(
            {key: value for key, value in values.items() if type(value) in _KEPT}
        )

    def add(self, group: Group, values: Mapping[str, Any]) -> None:
        """Append values of one group."""
        row = self._rows.get(group)
        if row is None:
            row = OpenRow(group.role)
            self._rows[group] = row
        self._recorder.add_part(
            row, values, self._axes.step_of(group, self.counter, self.axes)
        )

    def end(self) -> None:
        """Complete the rows; the last value of a step metric in them is their step."""
        for group, row in self._rows.items():
            self._recorder.end_row(
                row, self._axes.step_of(group, self.counter, self.axes)
            )
        self._rows = {}


class MergedRows:
    """Merges the calls of one run into rows. Thread-safe.

    A forked child begins with no pending row.

    Args:
        run: The run of otel-bridge.
        counter: First step of the counter.
        completed: Called at the end of each row whose step is not below the counter.

    Attributes:
        axes: Definitions of step metrics.
    """

    def __init__(
        self, run: Run, counter: int = 0, completed: RowCompleted | None = None
    ) -> None:
        self.axes = MetricAxes()
        self._completed = completed
        self._run = run
        # Guards counter and pending rows, which all threads of the program share, as in W&B.
        self._lock = threading.RLock()
        self._counter = counter
        self._pending: _PendingStep | None = None
        self._lower: _PendingStep | None = None
        self._recorder = run.recorder
        _all.add(self)

    @property
    def step(self) -> int:
        """Return W&B's counter: the step of the next row without a step."""
        return self._counter

    @property
    def pending_keys(self) -> Iterable[str]:
        """Return the keys of the pending row."""
        with self._lock:
            if self._pending is None:
                return ()
            return tuple(self._pending.values)

    def step_of(
        self, key: str, step: Any = None, row: Mapping[str, Any] | None = None
    ) -> tuple[str | None, int]:
        """Return role and step that a value of *key* would have now.

        Args:
            key: Its key.
            step: Step given to ``log()``.
            row: The other values of the call, which may hold the step metric.
        """
        group = self.axes.group_of(key) if self.axes.defined else COUNTER
        explicit_step = None if step is None else to_step(step, count_nothing)
        return group.role, self.axes.step_of(
            group, self._counter if explicit_step is None else explicit_step, row or {}
        )

    def log(
        self, values: Mapping[str, Any], step: Any = None, commit: Any = None
    ) -> None:
        """Record one ``log()`` call."""
        if step is None:
            explicit_step = None
        else:
            explicit_step = to_step(step, self._run.count_drop)
        # W&B: a call with a step and without `commit` leaves its row open.
        commits = explicit_step is None if commit is None else bool(commit)
        with self._lock:
            # Under the exporter `none` the program still reads its counter and summary.
            if self._recorder is None:
                self._counter = max(self._counter, explicit_step or 0)
                if self._completed is not None:
                    self._completed(values, self._counter)
                self._counter += commits
                return
            # W&B drops a step below its counter; here it is a row of its own.
            if explicit_step is not None and explicit_step < self._counter:
                self._log_lower(values, explicit_step, commits=commits)
                return
            self._end_lower()
            if explicit_step is not None and explicit_step > self._counter:
                self._end_pending()
                self._counter = explicit_step
            # After the row of the step before: these values are not its steps.
            if self.axes.defined:
                self.axes.note(values)
            self._add(values, commits=commits)
            if commits:
                self._counter += 1

    def advance(self, step: Any) -> None:
        """Complete the rows of the steps before *step*, before media of that step are recorded."""
        explicit_step = None if step is None else to_step(step, count_nothing)
        with self._lock:
            if explicit_step is not None and explicit_step > self._counter:
                self._end_lower()
                self._end_pending()
                self._counter = explicit_step

    def end(self) -> None:
        """Complete the pending rows."""
        with self._lock:
            self._end_lower()
            self._end_pending()

    def _add(self, values: Mapping[str, Any], *, commits: bool) -> None:
        if commits and self._pending is None:
            # Nearly every call: a whole row with its number, in one record.
            self._write(values, self._counter)
            if self._completed is not None:
                self._completed(values, self._counter)
            return
        if self._pending is None:
            self._pending = self._begin(self._counter)
        self._add_to(self._pending, values)
        if self._completed is not None and self._pending is not None:
            self._pending.note(values)
        if commits:
            self._end_pending()

    def _log_lower(
        self, values: Mapping[str, Any], step: int, *, commits: bool
    ) -> None:
        """Record values of a step before the counter, without touching the pending row."""
        if self._lower is not None and self._lower.counter != step:
            self._end_lower()
        if self._lower is None:
            self._lower = self._begin(step)
        self._add_to(self._lower, values)
        if commits:
            self._end_lower()

    def _begin(self, counter: int) -> _PendingStep | None:
        if self._recorder is None:
            return None
        return _PendingStep(self._recorder, self.axes, counter)

    def _write(self, values: Mapping[str, Any], counter: int) -> None:
        if not self.axes.defined:
            if values:
                self._run.log(values, counter)
            return
        for group, part in self.axes.split(values):
            if part:
                self._run.log(
                    part, self.axes.step_of(group, counter, values), role=group.role
                )

    def _add_to(self, pending: _PendingStep | None, values: Mapping[str, Any]) -> None:
        if pending is None or not values:
            return
        if self.axes.defined:
            pending.axes |= self.axes.of_row(values)
        for group, part in (
            self.axes.split(values) if self.axes.defined else ((COUNTER, values),)
        ):
            if part:
                pending.add(group, part)

    def _end_pending(self) -> None:
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.end()
            if self._completed is not None:
                self._completed(pending.values, pending.counter)

    def _end_lower(self) -> None:
        lower = self._lower
        self._lower = None
        if lower is not None:
            lower.end()

    def begin_in_child(self) -> None:
        """Forget the pending rows of the parent process, which completes them."""
        self._lock = threading.RLock()
        self._pending = None
        self._lower = None


def _after_fork() -> None:
    for rows in list(_all):
        rows.begin_in_child()


_all: weakref.WeakSet[MergedRows] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
