"""Rows that several calls fill, as those of W&B's ``commit=False``: each part is appended at once, the number last.

A kill therefore loses no part: the bridge completes a row without a number when its process has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Final

from otel_bridge.emit.encode.values import distinct, flatten
from otel_bridge.emit.recorder import Recorder
from otel_bridge.journal.frames import Signal
from otel_bridge.records import key_of

_METRICS: Final = int(Signal.METRICS)


@dataclass(slots=True)
class OpenRow:
    """Collects a row without a number.

    Attributes:
        role: Another role than the run's own.
        time_ns: Time of all its points; 0 before the first part.
        keys: Keys appended so far, as trackers show them.
    """

    role: str | None = None
    time_ns: int = 0
    keys: set[str] = field(default_factory=set[str])


class OpenRowRecorder(Recorder):
    """Records rows, also in parts. Nothing raises."""

    def add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        """Append *values* to *row*; a later value of a key replaces an earlier one. *step* may change until the end."""
        self._do(self._add_part, row, values, step)

    def end_row(self, row: OpenRow, step: int) -> None:
        """Append the number of *row*, and its final step; nothing happens without a part."""
        self._do(self._end_row, row, step)

    def _begin(self) -> None:
        super()._begin()
        self._part_names: tuple[str | None, ...] = ()
        self._part_keys: frozenset[str] = frozenset()

    def _add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        role = self._other_role(row.role)
        shown = role or self._role
        now = time_ns()
        if not self._last_ns < now < self._check_again:
            now = self._irregular(now)
        at, payload = row.time_ns or now, None
        given: tuple[object, ...] = (shown, *values) if values.__class__ is dict else ()
        if given and given == self._part_names:  # most parts have the names of the previous one
            payload = self._encoder.encode_known_part(values, at, step, role, self._seq + 1)
        if payload is None:
            numbers = flatten(values, self.drops.count)
            if not numbers:
                return
            names = (shown, *numbers)
            if names != self._part_names:
                numbers = distinct(numbers, shown, self.drops.count)
                self._part_names = names if len(numbers) == len(names) - 1 else ()
                self._part_keys = frozenset(key_of(shown, key) for key in numbers)
            payload = self._encoder.encode_part(numbers, at, step, role)
        if not row.time_ns:
            self._last_ns = row.time_ns = at
        if self._append(_METRICS, payload, now):
            row.keys |= self._part_keys

    def _end_row(self, row: OpenRow, step: int) -> None:
        if not row.keys:
            return
        role = self._other_role(row.role)
        self._steps[role] = step
        self._seq += 1
        payload = self._encoder.encode_number(len(row.keys), row.time_ns, step, role, self._seq)
        if not self._append(_METRICS, payload, time_ns()):
            self._seq -= 1
