"""What one captured W&B run is given -> rows, rollouts, config and status of an otel-bridge run.

Shared by the capture of the real ``wandb`` and by `otel_bridge.compat.wandb`. Nothing raises.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Final, cast

from otel_bridge import semconv
from otel_bridge.capture.config import record_config
from otel_bridge.capture.counts import counts
from otel_bridge.capture.media import media_of
from otel_bridge.capture.rows import MergedRows
from otel_bridge.capture.wandb.earlier import EarlierRun, SavedRun
from otel_bridge.capture.wandb.logged_tables import TableRecorder
from otel_bridge.capture.wandb.metric_summaries import ShownSummaries
from otel_bridge.emit.encode.values import is_array, is_scalar
from otel_bridge.emit.run import Run

_PLAIN: Final = frozenset({int, float, bool, str, type(None)})
_KEYS: Final = frozenset({str})
_SHOWN: Final = _PLAIN | {dict}
_MAX_DEPTH: Final = 32
_NUMBERS: Final = frozenset({int, float, bool})
_OBJECTS: Final = ("wandb.", "otel_bridge.compat.", "otel_bridge.emit.media.", "PIL.", "matplotlib.")
"""Packages whose objects are media and tables."""
_MAX_TYPES: Final = 256
_MAX_FILES: Final = 10_000
_MAX_SUMMARY: Final = 100_000
_CONFIG_OF_WANDB: Final = "_wandb"
_OWN_KEYS: Final = frozenset({"_step", "_runtime", "_timestamp"})
"""Keys of a row that W&B sets itself."""


class WandbRecording:
    """Records one W&B run.

    Args:
        run: The run of otel-bridge.
        earlier: What is known of a run that is resumed.

    Attributes:
        run: The run of otel-bridge.
        rows: Its rows.
        last: The summary: the last value of each key.
    """

    def __init__(self, run: Run, earlier: EarlierRun | None = None) -> None:
        counts.captured("wandb.init")
        self.run = run
        last = run.last_step()
        counter = None if earlier is None else earlier.step
        self.rows = MergedRows(run, counter or (0 if last is None else last + 1), self._completed)
        self.last, self._saved = RecordedSummary(self.summary), SavedRun(run)
        self.last.note({} if earlier is None else earlier.summary)
        self._row: Collection[str] = ()
        self._folder = ""
        self._began = time.time()
        self._tables = TableRecorder(run)
        self._special: dict[type, bool] = {}
        self._summaries = ShownSummaries()
        run.call_before_end(lambda _run: self._end())

    def log(self, data: Any, step: Any = None, commit: Any = None) -> None:
        """Record one ``log()`` call; tables of prompts and responses become rollouts, others and media are media."""
        counts.captured("wandb.log")
        try:
            if not isinstance(data, Mapping):
                self.run.log(data)
                return
            values = cast("Mapping[str, Any]", data)
            if not _KEYS.issuperset(map(type, values)):
                values = {str(key): value for key, value in values.items()}
            if not _OWN_KEYS.isdisjoint(values):
                values = {key: value for key, value in values.items() if key not in _OWN_KEYS}
            if odd := [key for key, value in values.items() if type(value) not in _PLAIN]:
                values = self._without_objects(values, odd, step)
            else:
                self._row = tuple(values)
            self.rows.log(values, step, commit)
        except Exception:  # noqa: BLE001  # objects of the user's
            self.run.count_drop("internal_error")

    def _without_objects(self, given: Mapping[str, Any], odd: Collection[str], step: Any) -> Mapping[str, Any]:
        """Record media and tables among the values *odd*; return the others, arrays of one number as a number."""
        special: dict[str, Any] = {}
        values = dict(given)
        for key in odd:
            self._sort(values, key, str(key), special, 0)
        if special:
            for key, value in special.items():
                self._take(key, value, step, values)
        else:
            self._row = tuple(given)
        return values

    def _sort(self, values: dict[str, Any], key: str, shown: str, special: dict[str, Any], depth: int) -> None:
        """Move the value of *key* to *special* if it is media or a table, also within nested dicts."""
        value = values[key]
        if type(value) is dict:
            if depth < _MAX_DEPTH:
                inner: dict[str, Any] = dict(cast("dict[str, Any]", value))
                for name in [name for name, one in inner.items() if type(one) not in _PLAIN]:
                    self._sort(inner, name, f"{shown}/{name}", special, depth + 1)
                values[key] = inner
        elif self._is_special(value):
            special[shown] = values.pop(key)
        else:
            values[key] = single_number(value)

    def _completed(self, values: Mapping[str, Any], step: int) -> None:
        """Show a complete row in the summary, as W&B does."""
        now = time.time()
        own = {"_step": step, "_timestamp": now, "_runtime": now - self._began}
        self.last.note({**self._summaries.of_row(values), **own})
        self._saved.save(self.last)

    def define_metric(
        self, name: str, step_metric: str | None = None, summary: Collection[str] = (), *, overwrite: bool = False
    ) -> None:
        """Note the step metric of a key or glob, and the summaries that W&B would show of it."""
        counts.captured("wandb.define_metric")
        if step_metric or overwrite or not self.rows.axes.defines(name):
            self.rows.axes.define(name, step_metric)
        for kind in self._summaries.define(name, summary, self.last, replace=overwrite):
            self.not_captured(f"define_metric(summary={kind!r})")
        if summary or overwrite:
            self._define_summaries({name: self._summaries.kinds_of(name)})

    def _define_summaries(self, kinds: dict[str, str]) -> None:
        """Let the bridge compute summaries, so that a kill of this process loses none."""
        recorder = self.run.recorder
        if recorder is None:
            return
        for name, chosen in kinds.items():
            role = self.rows.step_of(name.removesuffix("*"))[0]
            pairs = {semconv.ROLE: role} if role else {}
            recorder.event(semconv.EVENT_METRIC_SUMMARY, pairs, {name: chosen})

    def config(self, changed: Mapping[str, Any]) -> None:
        """Record entries of the config."""
        shown = {key: value for key, value in changed.items() if key != _CONFIG_OF_WANDB}
        if shown:
            counts.captured("wandb.config", len(shown))
            record_config(self.run, shown)
            self._saved.note_config(shown)
            self._saved.save(self.last)

    def config_callback(self, key: Any = None, val: Any = None, data: Mapping[str, Any] | None = None) -> None:
        """Record a change of a ``wandb.Config``: one entry, or several."""
        self.config({str(key): val} if data is None else data)

    def summary(self, changed: Mapping[str, Any]) -> None:
        """Record entries of the summary that the program sets itself."""
        counts.captured("wandb.summary", len(changed))
        self._define_summaries(dict.fromkeys(self._summaries.forget(changed), ""))
        self.run.summary(changed)

    def not_captured(self, call: str) -> None:
        """Count a call that has no counterpart."""
        counts.not_captured(call)
        self.run.count_drop("not_captured", key=call)

    def alert(self, title: Any, text: Any, level: Any) -> None:
        """Record an alert."""
        counts.captured("wandb.alert")
        self.run.alert(title, text, level or "info")

    def folder(self) -> str:
        """Return a folder for files of the program, which stay on this machine."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="otel-bridge-wandb-")
        return self._folder

    def _count_files(self) -> None:
        """Count the files that the program has left in the folder, which W&B would upload."""
        names = (name for _, _, found in os.walk(self._folder) for name in found) if self._folder else ()
        for name in islice(names, _MAX_FILES):
            counts.not_captured("files in wandb.run.dir")
            self.run.count_drop("not_captured", key=f"wandb.run.dir: {name}")

    def finish(self, exit_code: Any = None) -> None:
        """End the run; an exit code other than 0 means failed."""
        self.run.finish("failed" if exit_code else "finished")

    def _end(self) -> None:
        self.rows.end()
        self._count_files()
        self._saved.save(self.last, at_once=True)

    def _is_special(self, value: Any) -> bool:
        kind = cast("type[object]", type(value))
        if kind in {list, tuple}:
            return bool(value) and self._is_special(value[0])
        known = self._special.get(kind)
        if known is None:
            histogram = any(base.__name__ == "Histogram" for base in kind.__mro__)
            known = f"{kind.__module__}.".startswith(_OBJECTS) and not histogram
            if len(self._special) < _MAX_TYPES:
                self._special[kind] = known
        return known

    def _take(self, key: str, value: Any, step: Any, row: Mapping[str, Any]) -> None:
        one: Any = value[0] if type(value) in {list, tuple} else value
        kind = cast("type[object]", type(one))
        name = f"wandb.{kind.__name__.removeprefix('Wandb')}"
        place = self.rows.step_of(key, step, row)
        try:
            is_table = any(base.__name__.endswith("Table") for base in kind.__mro__)
            logged = (*self.last, *self.rows.pending_keys)
            if is_table and self._tables.record(key, one, place, logged=logged, row=self._row):
                return
        except Exception:  # noqa: BLE001  # what the program put into the table
            self.run.count_drop("rollout_unreadable", key=key)
            return
        media = media_of(value)
        if media is None:
            counts.not_captured(name)
            self.run.count_drop("not_captured", key=f"{key} ({name})")
            return
        counts.captured(name)
        self.run.log({key: media}, place[1], role=place[0])


def single_number(value: Any) -> Any:
    """Return the number in an array or tensor of one element, as W&B does; any other value as it is."""
    try:
        if is_scalar(value) or (is_array(value) and math.prod(tuple(value.shape)) == 1):
            number = value.item()
            return number if type(number) in _NUMBERS else value
    except Exception:  # noqa: BLE001  # an object of the user's; the recorder counts it
        return value
    return value


class AttributeDict(dict[str, Any]):
    """A dict whose entries are attributes too, as W&B's config and summary have them."""

    __slots__ = ()

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value


class RecordedSummary(AttributeDict):
    """The summary of a captured run: the last value of each key, and what the program sets itself."""

    __slots__ = ("record",)
    record: Callable[[Mapping[str, Any]], None]

    def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        object.__setattr__(self, "record", record)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _shown(value))
        self.record({key: value})

    def __delattr__(self, key: str) -> None:
        self.pop(key, None)

    def update(self, *given: Any, **named: Any) -> None:
        """Set and record entries."""
        new: dict[str, Any] = dict(*given, **named)
        self.note(new)
        self.record(new)

    def note(self, row: Mapping[str, Any]) -> None:
        """Set the last numbers and texts of a row, which are recorded as such; arrays are not kept alive."""
        if len(self) < _MAX_SUMMARY:
            super().update({key: _shown(value) for key, value in row.items() if type(value) in _SHOWN})


def _shown(value: Any) -> Any:
    """Return *value* as the summary shows it: a dict has its entries as attributes."""
    if type(value) is not dict:
        return value
    inner: dict[str, Any] = cast("dict[str, Any]", value)
    return AttributeDict({str(key): _shown(one) for key, one in inner.items()})
