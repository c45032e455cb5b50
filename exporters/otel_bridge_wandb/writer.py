"""Writes one run to W&B, from one delivery thread."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.exporter import call_within
from otel_bridge.otlp.json_text import utf8
from otel_bridge.records import (
    Alert,
    Evaluation,
    Json,
    MediaRecord,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge.values.mappings import only
from otel_bridge_wandb.axes import WandbAxes
from otel_bridge_wandb.bulk import AT_ONCE
from otel_bridge_wandb.content.alerts import WandbAlerts
from otel_bridge_wandb.content.media import WandbMedia
from otel_bridge_wandb.content.payload import (
    Histogram,
    beside_roles,
    clean,
    payload_of,
    shown_key,
)
from otel_bridge_wandb.content.rollout_tables import Increment, Tables
from otel_bridge_wandb.errors import as_bridge_errors, outcome, refused
from otel_bridge_wandb.offline.store import OfflineStore
from otel_bridge_wandb.online.store import OnlineStore
from otel_bridge_wandb.sdk import leave_open
from otel_bridge_wandb.shared_mode.run import SharedRun

EXIT_CODES = {Status.FINISHED: 0, Status.FAILED: 1, Status.KILLED: 255}
"""Exit codes by status; wandb itself sends 255 for an interrupted run, which its page shows as
killed."""
R = TypeVar("R", Row, RolloutRecord, Evaluation, MediaRecord)


RunStore: TypeAlias = OnlineStore | OfflineStore
"""Tracks which records are durable: offline none is, online the server's line count decides."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Holds an open wandb run and its helpers.

    Attributes:
        run: ``wandb.Run``.
        histogram: ``wandb.Histogram`` of counts and edges.
        axes: Its step axes.
        tables: Its tables.
        store: Tracks which records are durable.
        media: Makes W&B's objects of media.
        alerts: Raises alerts.
        url: Address of the run's page; ``None`` offline.
        run_id: Id of the run in W&B.
        degraded: One sentence for each ability that this wandb lacks.
        deadline_s: Longest time of ``finish()``; ``None`` when wandb itself sets a limit.
        shared: Duties of a writer in shared mode; ``None`` for the only writer of a run.
        missed: Returns, for the number of declared names and whether there is a config, what the
            finished run lacks of them. wandb never retries an upload that was answered 403, and
            does not report it.
        bulk: Returns a block whose rows are sent at its end, which raises `ExporterError` only.
    """

    run: Any
    histogram: Histogram
    axes: WandbAxes
    tables: Tables
    store: RunStore
    media: WandbMedia
    alerts: WandbAlerts
    url: str | None = None
    run_id: str | None = None
    degraded: tuple[str, ...] = ()
    deadline_s: float | None = None
    shared: SharedRun | None = None
    missed: Callable[[int, bool], str] | None = None
    bulk: Callable[[], AbstractContextManager[None]] = nullcontext


class WandbRunWriter:
    """Writes one run to Weights & Biases, from one delivery thread.

    Once it was closed, or its end failed, each call but `durable`, `close` and a second `end` after
    a success raises `RetryableError`: the bridge then opens another writer. A memory that cannot be
    written raises `JournalError`, and the bridge makes the call again.

    After a `RetryableError` the bridge makes the call again later, after some in a row through a
    new writer. After a `BlockedError` it shows the help and opens a new writer every minute. After a
    `PermanentError` the record is a dead letter, and those behind it follow.
    """

    def __init__(self, opened: OpenRun) -> None:
        self._opened = opened
        self._is_open = True
        self._close_error = ""
        self.tracker_run_id = opened.run_id
        self.found = ""
        self.degraded = opened.degraded
        self._durable: Position | None = opened.store.durable()
        self._ended = False
        self._configs: dict[str, dict[str, object]] = {}
        self._summary: dict[str, object] = {}
        self._replaced: set[str] = set()

    @property
    def url(self) -> str | None:
        """Return the address of the run's page; ``None`` offline."""
        return self._opened.url

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Log *rows*, one call per row; those that the server holds already are skipped.

        Raises:
            PermanentError: W&B cannot take a row; the rows before it are logged.
            RetryableError: The upload is dead or late, or a row could not be sent.
            BlockedError: A person must act.
        """
        opened = self._open()
        lines: list[tuple[Row, dict[str, object]]] = []
        bad: PermanentError | None = None
        for row in _due(rows, opened.store):
            try:
                line = payload_of(row, opened.histogram)
            except PermanentError as exc:
                # The rows before it are logged first: the error names it as the first one not
                # written.
                bad = exc
                break
            if line is not None:
                lines.append((row, line))
        # Before the rows: those that are logged before an error do not come again.
        if self._summary:
            for _, line in lines:
                self._replaced |= self._summary.keys() & line.keys()
        _log_rows(opened, lines)
        # Behind the rows, because W&B takes the last value that it got.
        if self._replaced:
            self._keep_summary(opened)
        if bad is not None:
            # It has no line, so that nothing must wait for one.
            opened.store.passed(bad.position or 0)
            raise bad
        if rows:
            # Rows without values have no line: without this they would never be durable.
            opened.store.passed(rows[-1].position)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Log one increment for each key among *rollouts*.

        Neighbours with one key share an increment, because each increment is a line and an upload
        of its own.

        Raises:
            RetryableError: The upload is dead or late, or wandb failed; the increments before it
                are logged.
            BlockedError: A person must act.
        """
        opened = self._open()
        for key, grouped in groupby(_due(rollouts, opened.store), attrgetter("key")):
            group = list(grouped)
            with as_bridge_errors("logging rollouts", group[0].position):
                increment = opened.tables.rollouts(key, group)
                _log_table(opened, increment, group, group[-1].end_unix_ns)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Log *media*, one line for each record; one without items has no line.

        Raises:
            PermanentError: The bytes are not what they claim to be, or wandb refuses them.
            RetryableError: The upload is dead or late, or the disk is full.
            BlockedError: A person must act.
        """
        opened = self._open()
        for record in _due(media, opened.store):
            with (
                as_bridge_errors("logging media", record.position),
                # wandb copies the files while they are logged, so that they may be deleted then.
                tempfile.TemporaryDirectory() as folder,
            ):
                line = opened.media.values_of(record, Path(folder))
                if not line:
                    opened.store.passed(record.position)
                    continue
                if record.axis is not None:
                    opened.axes.bind((), record.axis)
                    line[record.axis] = record.step
                line["_timestamp"] = record.time_unix_ns / 1e9
                if opened.shared is not None:
                    opened.shared.number([line])
                with opened.store.lines([record.position], has_files=True) as logged:
                    opened.media.log(opened.run.log, line, record)
                    logged.append(line)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Return what W&B could not show since this writer was opened: reason to count."""
        return self._opened.media.left_out + self._opened.alerts.left_out

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Log one increment of the table of evaluations for each rollout key among *values*.

        In a table of their own, since a logged row of a table cannot be changed. A rollout that W&B
        does not have makes no difference. Raises as `write_rollouts`.
        """
        opened = self._open()
        for key, grouped in groupby(
            _due(values, opened.store), attrgetter("rollout_key")
        ):
            group = list(grouped)
            with as_bridge_errors("logging evaluations", group[0].position):
                increment = opened.tables.evaluations(key, group)
                _log_table(opened, increment, group, group[-1].time_unix_ns)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the config of *role*: under the role's name, without a role at the top.

        An entry at the top with the name of a role is shown as ``<role>_value``, like a key with
        the name of an axis. In shared mode the server is first asked for the others' entries.

        Raises:
            RetryableError: wandb's service or the server did not answer.
            BlockedError: A person must act.
        """
        opened = self._open()
        role_name = utf8(role or "")
        self._configs[role_name] = cast("dict[str, object]", clean({**config}))
        entries = beside_roles(self._configs, role_name)
        with as_bridge_errors("writing the config"):
            _update_config(opened, entries)

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Set entries of the run's summary, under the keys that rows have.

        A role of its own is part of each key. In shared mode they are entries ``summary/…`` of the
        config, because W&B derives the summary from rows alone there.

        Raises:
            RetryableError: wandb's service or the server did not answer.
            BlockedError: A person must act.
        """
        del role
        opened = self._open()
        summary: dict[str, Json] = {}
        for key, value in values.items():
            summary[shown_key(key, None)] = value
        entries = cast("dict[str, object]", clean(summary))
        with as_bridge_errors("writing the summary"):
            if opened.shared is not None:
                # W&B then derives the summary from rows alone.
                in_config = {f"summary/{key}": value for key, value in entries.items()}
                _update_config(opened, in_config)
                return
            self._summary |= entries
            opened.run.summary.update(entries)

    def _keep_summary(self, opened: OpenRun) -> None:
        """Set entries again that rows replaced: W&B makes each row's values the summary's.

        Raises as `write_summary`; the rows are logged already, and are not logged again.
        """
        with as_bridge_errors("writing the summary"):
            opened.run.summary.update(only(self._summary, self._replaced))
        self._replaced.clear()

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Raise *alerts*, each once.

        Raises:
            RetryableError: wandb did not queue one; it is raised again.
            BlockedError: A person must act.
        """
        opened = self._open()
        with as_bridge_errors("raising an alert", alerts[0].position):
            opened.alerts.write(alerts)

    def passed(self, position: Position) -> None:
        """Note that records up to *position* that this writer did not get belong to another writer.

        Without this a run that shares its destination with another would wait for their lines.
        Raises `RetryableError` when this writer is closed.
        """
        self._open().store.passed(position)

    def durable(self) -> Position | None:
        """Return the last position that W&B is known to hold; offline 0.

        Also sends what is deferred: the bridge asks regularly, so that no thread is needed for it.
        A closed writer returns what was last known.

        Raises:
            RetryableError: The upload is dead, or wandb did not take the deferred definitions.
            BlockedError: The upload was refused, or another process writes the run.
        """
        if self._is_open:
            self._durable = self._opened.store.durable()
            with as_bridge_errors("declaring the axes"):
                if self._opened.shared is not None:
                    self._opened.shared.look()
                self._opened.axes.send_definitions()
        return self._durable

    def end(self, status: Status) -> None:
        """Upload everything and end the run with the exit code of *status*, within the finish timeout.

        Raises:
            RetryableError: Time ran out, or the server lacks something; a new writer sends the
                rest.
            BlockedError: A person must act.
        """
        # Repeated after an error behind the end: nothing is left to do.
        if self._ended:
            return
        opened = self._open()
        if opened.shared is not None:
            with as_bridge_errors("ending the run"):
                opened.shared.before_end()
        self._finish(
            "ending the run", EXIT_CODES[status], functools.partial(_ended, opened)
        )
        self._ended = True

    def close(self) -> None:
        """Upload what was logged, within the finish timeout, and leave the run open in W&B.

        Nothing happens when it is closed already. Raises as `_finish`; the bridge logs that, and
        the next writer sends what the server lacks.
        """
        if not self._is_open:
            return
        with as_bridge_errors("closing the run"):
            leave_open(self._opened.run)
        self._finish("closing the run", 0, self._opened.store.left)

    def _finish(
        self, doing: str, exit_code: int, check: Callable[[], Position | None]
    ) -> None:
        """Finish wandb's run and *check* what arrived; whatever comes of it, this writer is closed.

        Raises:
            RetryableError: ``finish()`` ran out of time, or *check* found that something is
                missing.
            BlockedError: A person must act.
        """
        opened = self._open()
        # First: after finish(), whatever came of it, wandb's run takes no more lines.
        self._is_open = False
        try:
            with as_bridge_errors(doing):
                # Deferred ones too: the upload of finish() is the last one.
                opened.axes.send_definitions(now=True)
                try:
                    _finish_run(opened, exit_code)
                except TimeoutError:
                    # Noted, so that the next try gets twice the time.
                    opened.store.timed_out()
                    raise
            _ = self.left_out  # read while wandb's log of the run is there
            self._durable = check()
        except ExporterError as exc:
            # The bridge makes the call again before it opens another writer, and shows that error.
            self._close_error = str(exc)
            raise
        finally:
            # Whatever happened: a new writer opens the run again, and a wandb.Table belongs to one
            # run.
            opened.tables.forget()
            opened.store.close()

    def _open(self) -> OpenRun:
        """Return the open run.

        Raises:
            RetryableError: It was closed, also by an end that failed, whose reason it then has: the
                bridge opens a new writer.
        """
        if not self._is_open:
            raise RetryableError(
                self._close_error or "W&B: this writer was closed; open another one"
            )
        return self._opened


def _update_config(opened: OpenRun, entries: Mapping[str, object]) -> None:
    """Set entries of wandb's config; raises wandb's own exceptions.

    In shared mode the entries of the other writers first, which the upload would replace.
    """
    if opened.shared is not None:
        opened.shared.gather(entries)
    opened.run.config.update(entries, allow_val_change=True)


def _finish_run(opened: OpenRun, exit_code: int) -> None:
    """Finish wandb's run; below 0.27 with a time limit of our own.

    Raises:
        TimeoutError: The limit has passed; the call goes on in its thread.
        Exception: wandb's own.
    """
    if opened.deadline_s is None:
        opened.run.finish(exit_code)
    else:
        call_within(opened.deadline_s, functools.partial(opened.run.finish, exit_code))


def _ended(opened: OpenRun) -> Position | None:
    """Return the last position after the end of the run.

    Raises:
        RetryableError: Lines, increments, axes or config did not arrive. Axes and config are sent
            again without a pause, since the server answers.
        BlockedError: The server refuses the question.
    """
    position = opened.store.ended()
    lacking = ""
    if opened.missed is not None:
        lacking = opened.missed(opened.axes.count, bool(opened.run.config.keys()))
    if lacking:
        raise RetryableError(
            f"W&B did not take {lacking} of the run; it is opened anew and sent again",
            retry_after_s=0.0,
        )
    return position


def _log_rows(opened: OpenRun, lines: Sequence[tuple[Row, dict[str, object]]]) -> None:
    """Log *lines* in blocks of `AT_ONCE`; nothing without lines.

    Raises:
        PermanentError: wandb refuses a row; those before it are logged.
        RetryableError: There was no room, or a row or block could not be sent.
        BlockedError: A person must act.
    """
    if not lines:
        return
    if opened.shared is not None:
        opened.shared.number([line for _, line in lines])
    # Looked up once: the loop below is the hot path.
    log = opened.run.log
    bind = opened.axes.bind
    start = 0
    with opened.store.lines([row.position for row, _ in lines]) as logged:
        try:
            for start in range(0, len(lines), AT_ONCE):
                with opened.bulk():
                    for row, line in lines[start : start + AT_ONCE]:
                        if row.axis is not None:
                            bind(line, row.axis)
                        # No step=: W&B drops any step below its last (stream/handler.go of its
                        # core).
                        log(line)
                        logged.append(line)
                    # Within the block, behind its rows: one change of threads for both.
                    opened.axes.send_definitions()
        except (TypeError, ValueError) as exc:  # raised before the row is sent
            raise refused(str(exc), _reached(lines, logged)) from exc
        except (
            ExporterError
        ) as exc:  # of a block of rows; some of them may have arrived
            exc.position = lines[start][0].position
            raise
        except Exception as exc:
            raise outcome(exc, "logging a row", _reached(lines, logged)) from exc


def _reached(
    lines: Sequence[tuple[Row, dict[str, object]]], logged: Sequence[object]
) -> Position:
    """Return the position of the first row that was not logged; of the last one if its definitions failed."""
    return lines[min(len(logged), len(lines) - 1)][0].position


def _log_table(
    opened: OpenRun,
    increment: Increment,
    records: Sequence[RolloutRecord | Evaluation],
    time_unix_ns: int,
) -> None:
    """Log *increment*, whose rows are *records*; raises as `OnlineStore.lines` and ``Run.log``.

    The rows go into the table only once there is room, because a later try sends all of them. They
    leave it after any error, or that try would send them twice.
    """
    positions = [record.position for record in records]
    with opened.store.lines(positions, increment.key, has_files=True) as logged:
        try:
            line: dict[str, object] = {
                increment.key: increment.add(),
                "_timestamp": time_unix_ns / 1e9,
            }
            if opened.shared is not None:
                opened.shared.number([line])
            opened.run.log(line)
        except BaseException:
            increment.undo()
            raise
        logged.append(line)


def _due(records: Sequence[R], store: RunStore) -> Sequence[R]:
    """Return the *records* that the store does not hold: after a kill the bridge gives some again.

    Empty when it holds all of them; offline it holds none.
    """
    positions = [record.position for record in records]
    due = store.due(positions)
    if len(due) == len(positions):
        return records
    due_positions = set(due)
    return [record for record in records if record.position in due_positions]
