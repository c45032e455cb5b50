"""Writes one run to Trackio, with event times and any ``<role>/step`` as x axis.

``log_id`` identifies redeliveries.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import (
    NEW_RUN_HINT,
    ExporterSettings,
    RunInfo,
    RunningSteps,
    TrackerCounts,
    WriterMemory,
    file_errors,
    settings_as,
)
from otel_bridge.records import (
    Alert,
    Evaluation,
    Json,
    MediaRecord,
    PlainTrace,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge.text.counts import counted
from otel_bridge_trackio.config import RunConfig
from otel_bridge_trackio.inbox import Inbox
from otel_bridge_trackio.media import Put, media_metrics
from otel_bridge_trackio.names import name_of
from otel_bridge_trackio.payload import (
    Payload,
    evaluation_trace,
    late_spans,
    rollout_trace,
    row_metrics,
    step_axes,
    timestamp,
)
from otel_bridge_trackio.remote import RemoteStore, abilities_at, count_remote
from otel_bridge_trackio.settings import TrackioSettings, project_of
from otel_bridge_trackio.sink import EntrySink, StoreEntry
from otel_bridge_trackio.store import WRITABLE, LocalStore, abilities_in, count
from otel_bridge_trackio.versions import of_inbox

_log = logging.getLogger(__name__)
REFUSED_CONFIG = "config: Trackio, or a proxy before it, refuses it"
NO_MEDIA = "media: this Trackio, or its inbox, takes no files"
_LAST = "last"
_CREATED = "created"


def open_writer(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> TrackioRunWriter:
    """Import Trackio and open the run in its store.

    Raises:
        RetryableError: The store is locked, or the server cannot be reached now.
        BlockedError: The store cannot be used in its present state.
    """
    return TrackioRunWriter(run, settings_as(settings, TrackioSettings), memory)


def _stored_media(record: MediaRecord, put_file: Put) -> Payload:
    """Store the files of *record* and return the metrics that name them.

    The errors of a server and of the file system know only the file.

    Raises:
        ExporterError: The files cannot be stored; it has the position of the record.
    """
    try:
        with file_errors("Trackio's media", WRITABLE, record.position):
            return media_metrics(record, put_file, record.step or 0)
    except ExporterError as exc:
        exc.position = record.position
        raise


def probe(settings: ExporterSettings) -> Sequence[str]:
    """Return one sentence for each ability that Trackio, or the server's Trackio, lacks.

    Opens no run.

    Raises:
        RetryableError: A server cannot be reached now.
        BlockedError: Nothing can be written with this Trackio.
    """
    destination = settings_as(settings, TrackioSettings)
    if destination.remote is not None:
        return abilities_at(destination.remote).degraded
    if destination.inbox:
        return of_inbox().degraded
    return abilities_in(destination.directory).degraded


def tracker_counts(run: RunInfo, settings: ExporterSettings) -> TrackerCounts:
    """Return the counts of what Trackio's own API shows of *run*; none of a run or project that it does not know.

    Rows in an inbox count once a dashboard has imported them.

    Raises:
        RetryableError: The store is locked, or the server cannot be reached now.
        BlockedError: The store cannot be read.
    """
    destination = settings_as(settings, TrackioSettings)
    if destination.remote is not None:
        return TrackerCounts(
            *count_remote(destination.remote, project_of(run), run.id, run.name)
        )
    return TrackerCounts(
        *count(destination.directory, project_of(run), run.id, run.name)
    )


class TrackioRunWriter:
    """Writes one run to Trackio, from one delivery thread.

    When a call returns, its data is durable. Calls that write raise as `EntrySink.write`. A memory
    that cannot be written raises `JournalError`, and the bridge makes the call again.

    After a `RetryableError` the bridge makes the call again later, after a `BlockedError` every
    minute, with its help shown; what is stored already is recognised by its id. After a
    `PermanentError` the record is a dead letter, and those behind it follow.
    """

    def __init__(
        self, run: RunInfo, settings: TrackioSettings, memory: WriterMemory
    ) -> None:
        self.url = None
        if settings.remote is not None:
            self.url = settings.view(run)
        self._store = _opened(settings, run, memory)
        self.degraded = self._store.abilities.degraded
        if settings.caution:
            _log.warning("%s", settings.caution)
        self._memory = memory
        self.tracker_run_id = run.id
        self.found = ""
        if memory.get(_LAST) is None:
            self.found = _found(self._store, project_of(run))
        self._all_series = settings.all_series
        self.left_out: Counter[str] = Counter()
        self._config = RunConfig(self._store.config, run.group)
        self._steps = RunningSteps(memory)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Store *rows* in one transaction.

        A server gets them in requests of its size.
        """
        running_steps = self._steps.of([row for row in rows if row.step is None])
        entries: list[StoreEntry] = []
        for row in rows:
            metrics = row_metrics(row, all_series=self._all_series)
            entry = self._entry(row, self._log_id(row.id), row.time_unix_ns, metrics)
            if row.step is None:
                # Trackio requires a step.
                entry = entry._replace(step=running_steps[row.position])
            entries.append(entry)
        self._write(entries)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Store *rollouts*, each under its own id, so that the dashboard shows it as the Trace ID.

        One that is stored already changes nothing.
        """
        entries: list[StoreEntry] = []
        for rollout in rollouts:
            trace = rollout_trace(rollout, spans=self._store.abilities.spans)
            metrics: Payload = {rollout.key: [trace]}
            entries.append(
                self._entry(rollout, rollout.id, rollout.start_unix_ns, metrics)
            )
        self._write(entries)

    def write_traces(self, traces: Sequence[PlainTrace]) -> None:
        """Store spans that arrived late as traces that name their rollout.

        Other traces are skipped.
        """
        entries: list[StoreEntry] = []
        for trace in traces:
            if not trace.rollout_key:
                continue
            spans = late_spans(trace, spans=self._store.abilities.spans)
            # Each span arrives once, so that its id makes this id unique.
            log_id = self._log_id(f"{trace.id}:{trace.spans[0].id}")
            metrics: Payload = {f"{trace.rollout_key}/late": [spans]}
            entries.append(self._entry(trace, log_id, trace.start_unix_ns, metrics))
        self._write(entries)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Store the files of *media*, then the rows that name them.

        Without a folder for files they are counted as left out: to wait for one would hold up all
        records.

        Raises:
            ExporterError: The files or the row cannot be stored; it has the position of the record.
        """
        with_items = [record for record in media if record.items]
        if not with_items:
            return
        try:
            put_file = self._put
        except ExporterError as exc:
            exc.position = with_items[0].position
            raise
        # Counted and passed: without a folder for files, retrying would hold up every later record.
        if put_file is None:
            self.left_out[NO_MEDIA] += len(with_items)
            return
        # One call a record: an error has its position, and those before it are not sent again.
        for record in with_items:
            metrics: Payload = {}
            if self._all_series:
                metrics |= step_axes(record.steps)
            metrics |= _stored_media(record, put_file)
            log_id = self._log_id(record.id)
            self._write([self._entry(record, log_id, record.time_unix_ns, metrics)])

    @cached_property
    def _put(self) -> Put | None:
        return self._store.media()  # asks a server

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Add *values* to the traces of their rollouts, or store them as traces that name the rollout.

        Also those of a rollout that the store does not have.
        """
        entries: list[StoreEntry] = []
        for evaluation in self._store.add_late_values(values):
            # "late" is what a user sees: the value arrived after the trace of its rollout.
            metrics: Payload = {
                f"{evaluation.rollout_key}/late": [evaluation_trace(evaluation)]
            }
            log_id = self._log_id(evaluation.id)
            entries.append(
                self._entry(evaluation, log_id, evaluation.time_unix_ns, metrics)
            )
        self._write(entries)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Store the config.

        Before the run's first record, keep it to be stored with that record.
        """
        self._config.set(role, config)
        self._store_config()

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Store *alerts*, each once; where Trackio takes none they are counted."""
        if not self._store.alert(alerts):
            self.left_out["alerts: this Trackio, or its inbox, takes none"] += len(
                alerts
            )

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Store *values* as entries ``summary/<key>`` of the config, which is what Trackio has for facts of a run."""
        del role
        self._config.summarize(values)
        self._store_config()

    def _store_config(self) -> None:
        """Store the config with a record that the store has.

        Nothing before the first, which brings it.
        """
        created = self._memory.get(_CREATED)
        last = self._memory.get(_LAST)
        if created is not None and last is not None:
            # Trackio stores a config only with a record. A record whose id it already has changes
            # only the config. If a user deleted the run it is stored, so that its time must be that
            # of the run.
            self._write([StoreEntry(0, last.decode(), 0, created.decode(), {})])

    def durable(self) -> Position | None:
        """Return ``None``: when a call returns, its data is in the store."""
        return None

    def end(self, status: Status) -> None:  # noqa: ARG002  # Trackio keeps none
        """Store the config once more if another bridge replaced it.

        Trackio has no status of a run.
        """
        # All records are stored, so that an unreachable server must not delay the end.
        with suppress(ExporterError):
            self._config.check(now=True)
        if self._config.due:
            self._store_config()

    def close(self) -> None:
        """Release the store; Trackio's own store keeps nothing open between calls."""
        self._store.close()

    def _entry(
        self,
        record: Row | RolloutRecord | PlainTrace | MediaRecord | Evaluation,
        log_id: str,
        time_unix_ns: int,
        metrics: Payload,
    ) -> StoreEntry:
        """Return what Trackio stores of *record*, at step 0 without a step of its own."""
        return StoreEntry(
            record.position, log_id, record.step or 0, timestamp(time_unix_ns), metrics
        )

    def _log_id(self, record_id: str) -> str:
        """Return an id that is unique in the project, because Trackio's index covers all runs of a project."""
        return f"{self.tracker_run_id}:{record_id}"

    def _write(self, entries: Sequence[StoreEntry]) -> None:
        """Store *entries*, and with them the config, if it is due; nothing without entries.

        Trackio stores a config only with a record. Raises as `EntrySink.write`.
        """
        if not entries:
            return
        self._config.check()
        config = None
        if self._config.due:
            # The time of the first record, not of this one: a config after a restart keeps the
            # run's begin.
            first = self._memory.get(_CREATED) or entries[0].timestamp.encode()
            config = self._config.payload(created=first.decode())
        try:
            is_stored = self._stored_with(entries, config)
        except ExporterError as exc:
            # Entries come in the order of their positions: the first decides whether any is stored.
            if entries[0].position < (exc.position or 0):
                self._remember(entries[:1])
            raise
        if is_stored:
            # Only after success: a failed call stores the config with the next one.
            self._config.written()
        self._remember(entries)

    def _stored_with(
        self, entries: Sequence[StoreEntry], config: Payload | None
    ) -> bool:
        """Store *entries*, and *config* with the first of them; return whether a config was stored.

        A config that is refused is left out and counted. Raises as `EntrySink.write`.
        """
        try:
            self._store.write(entries, config)
        except PermanentError as exc:
            if config is None or exc.position != entries[0].position:
                raise
            # The config, not the first record, may be at fault, such as one larger than a proxy lets
            # through: it would make a dead letter of each record that it comes with. What is stored
            # already is recognised by its id.
            self._store.write(entries)
            self._config.refused()
            self.left_out[REFUSED_CONFIG] += 1
            _log.warning("the config is left out: %s", exc)
            return False
        return config is not None

    def _remember(self, entries: Sequence[StoreEntry]) -> None:
        """Note the first call whose entries are stored.

        Any id of them can bring a later config (`_store_config`), and their time is that of the
        run's creation.
        """
        if entries and self._memory.get(_LAST) is None:
            # _LAST is the one that counts, so it comes second: a kill in between repeats both.
            self._memory.put(_CREATED, entries[0].timestamp.encode())
            self._memory.put(_LAST, entries[-1].log_id.encode())


def _opened(settings: TrackioSettings, run: RunInfo, memory: WriterMemory) -> EntrySink:
    """Open the sink that *settings* name, under the one name by which Trackio lists the run.

    Raises as `_sink` and `name_of`.
    """
    store = _sink(settings, run, memory)
    # The name can be read only from an open store; each store writes under the name it is opened
    # with.
    name = name_of(store, run, memory)
    if name == run.name:
        return store
    store.close()
    return _sink(settings, replace(run, name=name), memory)


def _sink(settings: TrackioSettings, run: RunInfo, memory: WriterMemory) -> EntrySink:
    """Open the server, the inbox or the local store that *settings* name; raises as its class.

    They exclude each other: a server is written to over HTTP whatever the folder, the inbox
    replaces a database on a network file system.
    """
    project = project_of(run)
    if settings.remote is not None:
        return RemoteStore(settings.remote, project, run.id, run.name, memory)
    sink_of = Inbox if settings.inbox else LocalStore
    return sink_of(settings.directory, project, run.id, run.name)


def _found(store: EntrySink, project: str) -> str:
    """Return a line about records of this run from another run folder: equal project and name mean the same run.

    Empty without any, and where they cannot be read (an inbox). Raises as `EntrySink.rows`.
    """
    rows = store.rows()
    if not rows:
        return ""
    size = counted(rows, "row")
    return f"the Trackio project {project} already holds this run with {size}, continuing it; {NEW_RUN_HINT}"
