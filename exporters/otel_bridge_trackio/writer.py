"""The writer of Trackio: one run, exact redelivery by ``log_id``, event times, any ``<role>/step`` as x axis."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otel_bridge.errors import ExporterError
from otel_bridge.exporter import NEW_RUN_HINT, ExporterSettings, Held, Memory, RunInfo
from otel_bridge.records import Json, LateValue, Position, Rollout, Row, Status
from otel_bridge_trackio.config import beside, config_payload
from otel_bridge_trackio.payload import late_trace, rollout_trace, row_metrics, timestamp
from otel_bridge_trackio.remote import count_remote
from otel_bridge_trackio.settings import TrackioSettings, project_of
from otel_bridge_trackio.sink import Sink, open_sink
from otel_bridge_trackio.store import Entry, count

_log = logging.getLogger(__name__)
_LAST: Final = "last"
_CREATED: Final = "created"
_COUNT: Final = "count/"


def open_writer(run: RunInfo, settings: ExporterSettings, memory: Memory) -> TrackioRunWriter:
    """Open the run in Trackio's store; imports Trackio.

    Raises:
        BlockedError: The store cannot be used as it is.
    """
    if not isinstance(settings, TrackioSettings):
        raise TypeError(f"expected TrackioSettings, got {type(settings).__name__}")
    return TrackioRunWriter(run, settings, memory)


def held(run: RunInfo, settings: ExporterSettings) -> Held:
    """Count what Trackio's own API shows of *run*."""
    if not isinstance(settings, TrackioSettings):
        raise TypeError(f"expected TrackioSettings, got {type(settings).__name__}")
    if settings.remote is not None:
        return Held(*count_remote(settings.remote, project_of(run), run.id, run.name))
    return Held(*count(settings.directory, project_of(run), run.id, run.name))


class TrackioRunWriter:
    """Writes one run to Trackio, from one delivery thread; what returned is safe."""

    def __init__(self, run: RunInfo, settings: TrackioSettings, memory: Memory) -> None:
        self.url = None if settings.remote is None else settings.view(run)
        self._store = open_sink(settings, run)
        if settings.caution:
            _log.warning("%s", settings.caution)
        self._memory = memory
        self.tracker_run_id = self._run_id = run.id
        self.found = _found(self._store, project_of(run)) if memory.get(_LAST) is None else ""
        self._group = run.group
        self._configs: dict[str | None, Mapping[str, Json]] = {}
        self._config_due = False
        self._counts: dict[str, int] = {key.removeprefix(_COUNT): int(value) for key, value in memory.items(_COUNT)}

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Store *rows* in one transaction."""
        steps = _Steps(self._counts)
        entries: list[Entry] = []
        for row in rows:
            step = row.step if row.step is not None else steps.next(row)
            entries.append(
                Entry(row.position, self._log_id(row.id), step, timestamp(row.time_unix_ns), row_metrics(row))
            )
        try:
            self._write(entries)
        except ExporterError as exc:
            self._keep_counts(row for row in rows if row.position < (exc.position or 0))
            raise
        self._keep_counts(rows)

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Store *rollouts*, each under its own id, so that the dashboard shows it as the Trace ID."""
        self._write(
            [
                Entry(
                    rollout.position,
                    rollout.id,
                    rollout.step if rollout.step is not None else 0,
                    timestamp(rollout.start_unix_ns),
                    {rollout.key: [rollout_trace(rollout)]},
                )
                for rollout in rollouts
            ]
        )

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Store *values* as records that name their rollout."""
        self._write(
            [
                Entry(
                    late.position,
                    self._log_id(late.id),
                    late.step if late.step is not None else 0,
                    timestamp(late.time_unix_ns),
                    {f"{late.rollout_key}/late": [late_trace(late)]},
                )
                for late in values
            ]
        )

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Store the config; before the run's first record it is kept for that one."""
        self._configs[role] = config
        self._config_due = True
        last = self._memory.get(_LAST)
        if last is not None:
            # Trackio stores a config only with a record: an id that it has already changes nothing but the config.
            self._write([Entry(0, last.decode(), 0, timestamp(0), {})])

    def safe(self) -> Position | None:
        """Return ``None``: what a call has returned from is in the store."""
        return None

    def end(self, status: Status) -> None:
        """Trackio keeps no status."""

    def close(self) -> None:
        """Let go of the store; Trackio's own holds nothing open between calls."""
        self._store.close()

    def _log_id(self, record_id: str) -> str:
        """Return an id unique in the project: Trackio's index on it spans all runs of one."""
        return f"{self._run_id}:{record_id}"

    def _write(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        config = None
        if self._config_due:
            first = self._memory.get(_CREATED)
            created = entries[0].timestamp if first is None else first.decode()
            config = beside(self._store.config(), config_payload(self._configs), group=self._group, created=created)
        try:
            self._store.write(entries, config)
        except ExporterError as exc:
            self._remember([entry for entry in entries if entry.position < (exc.position or 0)])
            raise
        self._config_due = False
        self._remember(entries)

    def _remember(self, entries: Sequence[Entry]) -> None:
        if entries and self._memory.get(_LAST) is None:
            self._memory.put(_CREATED, entries[0].timestamp.encode())
            self._memory.put(_LAST, entries[-1].log_id.encode())

    def _keep_counts(self, done: Iterable[Row]) -> None:
        steps = _Steps(self._counts)
        for row in done:
            if row.step is None:
                steps.next(row)
        for key, known in steps.counts.items():
            self._counts[key] = known
            self._memory.put(_COUNT + key, str(known).encode())


def _found(store: Sink, project: str) -> str:
    """Say what another run folder has written of this run: the same project and name are the same run."""
    rows = store.rows()
    if not rows:
        return ""
    what = f"{rows:,} row{'' if rows == 1 else 's'}"
    return f"the Trackio project {project} already holds this run with {what}, going on in it; {NEW_RUN_HINT}"


class _Steps:
    """Steps for rows without one: the running count of their keys, since Trackio knows no row without a step."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = known
        self.counts: dict[str, int] = {}

    def next(self, row: Row) -> int:
        step = max((self.counts.get(key, self._known.get(key, 0)) for key in row.values), default=0)
        self.counts.update(dict.fromkeys(row.values, step + 1))
        return step
