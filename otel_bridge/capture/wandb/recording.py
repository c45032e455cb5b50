"""What one captured W&B run is given -> rows, rollouts, config and status of an otel-bridge run.

Nothing raises but `WandbRecording.folder`, where no folder can be made.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, cast

from otel_bridge import semconv
from otel_bridge.capture.config import record_config
from otel_bridge.capture.counts import counts
from otel_bridge.capture.media import media_of
from otel_bridge.capture.rows import MergedRows
from otel_bridge.capture.wandb.alerts import AlertWaits
from otel_bridge.capture.wandb.earlier import EarlierRun, SavedRun
from otel_bridge.capture.wandb.run_files import RunFiles
from otel_bridge.capture.wandb.values.logged_tables import TableRecorder
from otel_bridge.capture.wandb.values.logged_values import LatestValues, ValueSorter
from otel_bridge.capture.wandb.values.shown_summaries import ShownSummaries
from otel_bridge.capture.wandb.values.shown_values import recorded_value
from otel_bridge.capture.wandb.values.summary import ShownSummary, put_below
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.run import Run
from otel_bridge.errors import any_error_but_signals
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import by_text

_KEYS = frozenset({str})
_NUMBERS = frozenset({int, float, bool})
_CONFIG_OF_WANDB = "_wandb"
_OWN_KEYS = frozenset({"_step", "_runtime", "_timestamp"})
"""Keys of a row that W&B sets itself."""


class WandbRecording:
    """Records one W&B run.

    Args:
        run: The run of otel-bridge.
        earlier: What is known of a run that is resumed.

    Attributes:
        run: The run of otel-bridge.
        rows: Its rows.
        last: What ``run.summary`` shows.
    """

    def __init__(self, run: Run, earlier: EarlierRun | None = None) -> None:
        counts.captured("wandb.init", run=run)
        self.run = run
        counter = None if earlier is None else earlier.step
        self.rows = MergedRows(run, counter or run.next_step(), self._completed)
        self.last = ShownSummary()
        self._saved = SavedRun(run)
        self.last.show({} if earlier is None else earlier.summary)
        self._row: Collection[str] = ()
        self._waits = AlertWaits()
        self._files = RunFiles(lambda name: run.count_drop("not_captured", key=name))
        self._began = time.time()
        self._tables = TableRecorder(run)
        self._sorter = ValueSorter(run.count_drop)
        self._latest = LatestValues(run.summary, run.count_drop)
        self._summaries = ShownSummaries()
        # Also at the exit of the process, where the program has not called finish().
        run.call_before_end(lambda _run: self._end())

    def log(
        self, data: Any, step: Any = None, commit: Any = None, **_keywords: Any
    ) -> None:
        """Record one ``log()`` call; older versions of W&B have further arguments.

        Tables of prompts and responses become rollouts, others and media are media.

        What is not a mapping is counted by its kind, a value that cannot be recorded by its reason,
        and an object of the program that raises costs the rest of the call, as ``internal_error``.
        Keys that W&B sets itself are left out.
        """
        counts.captured("wandb.log", run=self.run)
        try:
            if not isinstance(data, Mapping):
                self.run.log(data)
                return
            values = cast("Mapping[str, Any]", data)
            # Nearly every call has texts as keys and numbers as values: three checks, and no copy.
            if not _KEYS.issuperset(map(type, values)):
                values = by_text(values, self.run.count_drop)
            if not _OWN_KEYS.isdisjoint(values):
                values = without(values, _OWN_KEYS)
            if _NUMBERS.issuperset(map(type, values.values())):
                self._row = tuple(values)
            else:
                values = self._without_objects(values, step)
            self.rows.log(values, step, commit)
        except any_error_but_signals():  # objects of the user's
            self.run.count_drop(INTERNAL_ERROR)

    def _without_objects(
        self, values: Mapping[str, Any], step: Any
    ) -> Mapping[str, Any]:
        """Record the media, tables and texts of a call.

        Return the others, arrays of one number as a number.

        Keys of a call with media do not become those of the row before, by which a table without
        numbers beside it finds its split.
        """
        logged = self._sorter.sort(values)
        if logged.texts or logged.media:
            # Rows of earlier steps come before them, in the order of the calls.
            self.rows.advance(step)
        if logged.texts:
            counts.captured("wandb.log: texts", len(logged.texts), run=self.run)
            self._latest.note(logged.texts)
        for key, value in logged.media.items():
            self._take(key, value, step, logged.row)
        if not logged.media:
            self._row = tuple(values)
        summary_values = logged.shown
        texts = {
            key: value
            for key, value in summary_values.items()
            if value is None or isinstance(value, str)
        }
        plain, results = self._summaries.of_row(texts)
        # Of those with a summary the summary alone is shown.
        for key in texts.keys() - plain.keys():
            del summary_values[key]
        self.last.show(summary_values)
        self.last.values.update(results)
        return logged.row

    def _completed(self, values: Mapping[str, Any], step: int) -> None:
        """Show a complete row in the summary, as W&B does.

        Called once a row, with the lock of the rows held.
        """
        now = time.time()
        wandb_values = {"_step": step, "_timestamp": now, "_runtime": now - self._began}
        plain, results = self._summaries.of_row(values)
        self.last.note({**plain, **wandb_values})
        # In place of the dicts of their keys, which may have had other kinds.
        self.last.values.update(results)
        # Trackers show a last value in place of the row's.
        self._latest.note_row(plain)
        self._saved.save(self.last.values)

    def define_metric(
        self,
        name: str,
        step_metric: str | None = None,
        summary: Collection[str] = (),
        *,
        overwrite: bool = False,
    ) -> None:
        """Note the step metric of a key or glob, and the summaries that W&B would show of it.

        Kinds that trackers cannot show are counted as ``not_captured``. ``hidden`` and
        ``step_sync`` have no effect: they change W&B's page only.
        """
        counts.captured("wandb.define_metric", run=self.run)
        if step_metric or overwrite:
            self.rows.axes.define(name, step_metric)
        for kind in self._summaries.define(
            name, summary, self.last.values, replace=overwrite
        ):
            self.not_captured(f"define_metric(summary={kind!r})")
        if summary or overwrite:
            self._define_summaries({name: self._summaries.kinds_of(name)})

    def _define_summaries(self, kinds: dict[str, str]) -> None:
        """Let the bridge compute summaries, so that a kill of this process loses none.

        The role is that of the keys' rows, by which the bridge knows them. Nothing happens where
        nothing is recorded.
        """
        recorder = self.run.recorder
        if recorder is None:
            return
        for name, chosen in kinds.items():
            role = self.rows.step_of(name.removesuffix("*"))[0]
            pairs = {semconv.ROLE: role} if role else {}
            recorder.event(semconv.EVENT_METRIC_SUMMARY, pairs, {name: chosen})

    def config(self, changed: Mapping[str, Any]) -> None:
        """Record entries of the config; nothing without entries.

        Not the entry ``_wandb``, in which W&B keeps facts of its own. What cannot be read is counted,
        see `record_config`.
        """
        entries = {
            key: value for key, value in changed.items() if key != _CONFIG_OF_WANDB
        }
        if entries:
            counts.captured("wandb.config", len(entries), run=self.run)
            record_config(self.run, entries)
            self._saved.save(self.last.values, entries)

    def config_callback(
        self, key: Any = None, val: Any = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record a change of a ``wandb.Config``: one entry, or several.

        wandb calls it with a key and value, or with *data* alone (``Config``, 0.31).
        """
        self.config({str(key): val} if data is None else data)

    def summary_callback(self, record: Any) -> None:
        """Record a ``SummaryRecord`` of W&B: entries that the program sets itself, also in nested dicts.

        Entries that it removes are removed for itself only: trackers keep last values.
        """
        counts.captured("wandb.summary", len(record.update), run=self.run)
        changed: dict[Any, Any] = {}
        for item in record.update:
            self.last.put(item.key, item.value)
            put_below(changed, item.key, item.value)
        for item in record.remove:
            self.last.remove(item.key)
        drop = self.run.count_drop
        values = by_text(changed, drop)
        # Else an earlier text of a key, which waits, would be recorded after this value.
        self._latest.note_set(values)
        # No kind ends the summary that the bridge computes of a key.
        self._define_summaries(dict.fromkeys(self._summaries.forget(values), ""))
        self.run.summary(
            {key: recorded_value(value, key, drop) for key, value in values.items()}
        )

    def not_captured(self, call: str) -> None:
        """Count a call that has no counterpart."""
        counts.not_captured(call)
        self.run.count_drop("not_captured", key=call)

    def alert(
        self, title: Any, text: Any, level: Any = None, wait_duration: Any = None
    ) -> None:
        """Record an alert, unless one of its title was raised within the wait that was given with it.

        ``info`` is W&B's default level; another one than its three is counted by the run, and is
        ``warn``.
        """
        counts.captured("wandb.alert", run=self.run)
        if self._waits.passes(title, wait_duration):
            self.run.alert(title, text, level or "info")

    def folder(self) -> str:
        """Return a folder for files of the program, which stay on this machine.

        A program writes to it without asking whether the run has one. Raises `OSError` where it
        cannot be made.
        """
        return self._files.folder()

    def finish(self, exit_code: Any = None, **_keywords: Any) -> None:
        """End the run; an exit code other than 0 means failed.

        It waits for delivery as `Run.finish` does. Without an exit code the run is finished, as in
        W&B. A second call does nothing.
        """
        self.run.finish("failed" if exit_code else "finished")

    def _end(self) -> None:
        """Complete what waits: the pending row, the latest values, the names of files, the file for a resumed run.

        Called once before the run's end: by ``finish()``, by another run in its place, or at the
        exit of the process.
        """
        self.rows.end()
        self._latest.flush()
        self._files.end()
        self._saved.save(self.last.values, at_once=True)

    def _take(self, key: str, value: Any, step: Any, row: Mapping[str, Any]) -> None:
        """Record one medium or table of a call.

        A table of prompts and responses becomes rollouts; if it cannot be read it is counted as
        ``rollout_unreadable``. Any other object becomes a medium of its own record, as rows hold
        numbers only; one that is not known, such as a plot, is counted as ``not_captured``.
        """
        entries: Any = value if type(value) in {list, tuple} else [value]
        kind = cast("type[object]", type(entries[0]))
        name = f"wandb.{kind.__name__}"
        place = self.rows.step_of(key, step, row)
        try:
            is_table = any(base.__name__.endswith("Table") for base in kind.__mro__)
            logged = (*self.last.values, *self.rows.pending_keys)
            if is_table and self._tables.record(
                key, entries[0], place, logged=logged, row_keys=(row, self._row)
            ):
                # As with media: one key has one table, by which rows of before are found.
                if len(entries) > 1:
                    self.run.count_drop("media_mixed", len(entries) - 1, key)
                return
        except any_error_but_signals():  # what the program put into the table
            self.run.count_drop("rollout_unreadable", key=key)
            return
        media = media_of(value)
        if media is None:
            counts.not_captured(name)
            self.run.count_drop("not_captured", key=f"{key} ({name})")
            return
        counts.captured(name, run=self.run)
        self.run.log({key: media}, place[1], role=place[0])
