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

from otel_bridge.capture.metric_axes import Group, MetricAxes
from otel_bridge.emit.encode.values import flatten, to_step
from otel_bridge.emit.recording.recorder import OpenRow, Recorder
from otel_bridge.emit.run import Run
from otel_bridge.values.plain import CountKeyedDrop, count_nothing

_KEPT = frozenset({int, float, bool, str, type(None), dict})
RowCompleted: TypeAlias = Callable[[Mapping[str, Any], int], None]
"""Called with the values of a complete row, of a merged one without arrays and lists, and with W&B's step of it."""


def _ignore(_values: Mapping[str, Any], _step: int) -> None:
    """Do nothing with a complete row.

    The default where no summary is shown.
    """


class _PendingStep:
    """Holds the open rows of one step, one for each group of values.

    Several rows, because each role has its own step; one summary, because W&B shows one a run.

    Attributes:
        counter: Step of W&B's counter.
        values: Plain values of all of them.
    """

    def __init__(
        self, recorder: Recorder | None, axes: MetricAxes, counter: int
    ) -> None:
        self.counter = counter
        self.values: dict[str, Any] = {}
        self._recorder = recorder
        self._axes = axes
        self._rows: dict[Group, OpenRow] = {}
        # Values of step metrics: they are the steps of these rows only, not of the rows before and
        # after.
        self._steps: dict[str, Any] = {}

    def add(self, values: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Append *row*, the values as they are recorded, and keep the plain *values*.

        Nothing is appended where the run records nothing; the values are kept all the same, for the
        summary. Arrays are appended only, so that they are not kept in memory until the row is
        complete.
        """
        plain = {key: value for key, value in values.items() if type(value) in _KEPT}
        self.values.update(plain)
        self._steps |= self._axes.of_row(row)
        for group, part in self._axes.split(row):
            if part and self._recorder is not None:
                open_row = self._rows.setdefault(group, OpenRow(group.role))
                self._recorder.add_part(open_row, part, self._step_of(group))

    def end(self) -> None:
        """Complete the rows; the last value of a step metric in them is their step.

        A kill before it loses nothing: the parts are appended.
        """
        for group, row in self._rows.items():
            if self._recorder is not None:
                self._recorder.end_row(row, self._step_of(group))

    def _step_of(self, group: Group) -> int:
        return self._axes.step_of(group, self.counter, self._steps)


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
        self, run: Run, counter: int = 0, completed: RowCompleted = _ignore
    ) -> None:
        self.axes = MetricAxes()
        self._completed = completed
        self._run = run
        # Guards counter and pending rows, which all threads of the program share, as in W&B.
        self._lock = threading.RLock()
        self._counter = counter
        self._pending: _PendingStep | None = None
        _merged_rows.add(self)

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

        An unreadable *step* is the counter, and is not counted here: `log` counts it with the row.
        Nothing is recorded.

        Args:
            key: Its key.
            step: Step given to ``log()``.
            row: The other values of the call, which may hold the step metric.
        """
        group = self.axes.group_of(key)
        explicit_step = to_step(step, count_nothing)
        return group.role, self.axes.step_of(
            group,
            self._counter if explicit_step is None else explicit_step,
            self._with_joined_keys(row or {}, count_nothing),
        )

    def log(
        self, values: Mapping[str, Any], step: Any = None, commit: Any = None
    ) -> None:
        """Record one ``log()`` call, by W&B's rules for *step* and *commit* (wandb 0.31, ``Run.log``).

        Without a step, ``commit`` is on, and the row is the counter's; with one it is off. A step
        that cannot be read is counted as ``bad_step``, and the row gets the counter's. What the
        callback raises is raised.
        """
        explicit_step = to_step(step, self._run.count_drop)
        # W&B: a call with a step and without `commit` leaves its row open.
        commits = explicit_step is None if commit is None else bool(commit)
        with self._lock:
            # Beside *values*, which the summary shows nested as they are given.
            row = self._with_joined_keys(values, self._run.count_drop)
            # W&B drops a step below its counter; here each such call is a row of its own.
            if explicit_step is not None and explicit_step < self._counter:
                self._write(row, explicit_step)
                return
            self._advance(explicit_step)
            # After the row of the step before: these values are not its steps.
            self.axes.note(row)
            if commits and self._pending is None:
                # Nearly every call: a whole row with its number, in one record.
                self._write(row, self._counter)
                self._completed(values, self._counter)
            else:
                self._add(values, row)
            if commits:
                self._end_pending()
                self._counter += 1

    def advance(self, step: Any) -> None:
        """Complete the rows of the steps before *step*, before media of that step are recorded.

        Without a step, or with a lower one, nothing happens.
        """
        with self._lock:
            self._advance(to_step(step, count_nothing))

    def end(self) -> None:
        """Complete the pending row."""
        with self._lock:
            self._end_pending()

    def _advance(self, step: int | None) -> None:
        """Go on to a higher step, as W&B does.

        The pending row is complete then; a lower step changes nothing here, because `log` makes it
        a row of its own.
        """
        if step is not None and step > self._counter:
            self._end_pending()
            self._counter = step

    def _with_joined_keys(
        self, values: Mapping[str, Any], drop: CountKeyedDrop
    ) -> Mapping[str, Any]:
        """Return the numbers in *values* by joined keys, as `flatten` does, if a step metric is defined.

        Definitions name nested values by such keys. Without any, as in nearly every program,
        *values* are returned as they are: the recorder joins the keys.
        """
        if self.axes.defined:
            return flatten(values, drop)
        return values

    def _write(self, values: Mapping[str, Any], counter: int) -> None:
        """Record values as whole rows, one for each group.

        A group whose only value is its step has none.
        """
        for group, part in self.axes.split(values):
            if part:
                step = self.axes.step_of(group, counter, values)
                self._run.log(part, step, role=group.role)

    def _add(self, values: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        if self._pending is None:
            self._pending = _PendingStep(self._run.recorder, self.axes, self._counter)
        self._pending.add(values, row)

    def _end_pending(self) -> None:
        """Complete the pending row, if there is one, and show it.

        It is forgotten first: what the callback raises must not complete it twice.
        """
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.end()
            self._completed(pending.values, pending.counter)

    def begin_in_child(self) -> None:
        """Forget the pending row of the parent process, which completes it.

        A new lock, because another thread of the parent may have held the old one during the fork.
        """
        self._lock = threading.RLock()
        self._pending = None


def _after_fork() -> None:
    for rows in list(_merged_rows):
        rows.begin_in_child()


_merged_rows: weakref.WeakSet[MergedRows] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
