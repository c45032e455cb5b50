"""One run in W&B, from one delivery thread."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

from otel_bridge.errors import ExporterError, PermanentError, RetryableError
from otel_bridge.records import Json, LateValue, Position, Rollout, Row, Status
from otel_bridge_wandb.axes import Axes
from otel_bridge_wandb.errors import as_bridge_errors, outcome, refused
from otel_bridge_wandb.payload import Histogram, payload_of
from otel_bridge_wandb.table import Tables
from otel_bridge_wandb.together import AT_ONCE

EXIT_CODES: Final = {Status.FINISHED: 0, Status.FAILED: 1, Status.KILLED: 255}
"""255 is what wandb itself sends for an interrupted run; its page then says killed."""
_INT_LIMIT: Final = 1 << 63
R = TypeVar("R", Row, Rollout, LateValue)


class Store(Protocol):
    """What became of the records: offline nothing is ever safe, online the server's line count says."""

    def due(self, positions: Sequence[Position], /) -> Sequence[Position]:
        """Return those of *positions* that are neither in the store nor on their way."""
        ...

    def passed(self, position: Position, /) -> None:
        """The record at *position* makes no line."""
        ...

    def announce(self, positions: Sequence[Position], /) -> None:
        """Remember that the next lines are *positions*; raises when none may be logged."""
        ...

    def logged(self, count: int, /) -> None:
        """So many of the lines announced were logged, and no more will be."""
        ...

    def announce_table(self, key: str, positions: Sequence[Position], /) -> None:
        """Remember that the next line is an increment of the table *key* with *positions*."""
        ...

    def log_table(self, log: Callable[[], None], /) -> None:
        """Log the increment just announced by calling *log*."""
        ...

    def safe(self) -> Position | None:
        """Return the last position up to which all is in the store; raises when no more will arrive."""
        ...

    def ran_out(self) -> None:
        """The run was not finished in time."""
        ...

    def ended(self) -> Position | None:
        """The run was finished: return what `safe` would; raises unless all that was logged is in the store."""
        ...

    def left(self) -> Position | None:
        """The run was finished, but not marked complete: return what `safe` would."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Shared(Protocol):
    """What a writer of a run with several writers does more than the one writer of a run."""

    def number(self, lines: Sequence[dict[str, object]], /) -> None:
        """Number the lines that are about to be logged, so that this writer's own can be told at the server."""
        ...

    def gather(self, mine: Iterable[str], /) -> None:
        """Take over what the others have said of config and axes, but entries *mine*: the next upload replaces it."""
        ...

    def before_end(self) -> None:
        """The run is about to be finished: what its uploads say holds for good."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """An open wandb run and what goes with it.

    Attributes:
        run: ``wandb.Run``.
        histogram: ``wandb.Histogram`` of counts and edges.
        axes: Its step axes.
        tables: Its tables.
        store: What became of its records.
        let_go: Makes the coming ``finish()`` leave the run open.
        url: Where a person sees it; ``None`` offline.
        run_id: Id of the run in W&B.
        shared: What a writer beside others does more; ``None`` for the one writer of a run.
        missed: From how many names were declared, and whether there is a config, to what the finished run lacks of
            them: an upload of them that was answered 403 is never tried again, and nobody says so.
        together: Makes a block whose rows are sent at its end, which raises `ExporterError` only.
    """

    run: Any
    histogram: Histogram
    axes: Axes
    tables: Tables
    store: Store
    let_go: Callable[[Any], None]
    url: str | None = None
    run_id: str | None = None
    shared: Shared | None = None
    missed: Callable[[int, bool], str] | None = None
    together: Callable[[], AbstractContextManager[None]] = nullcontext


class WandbRunWriter:
    """Writes one run to Weights & Biases, from one delivery thread."""

    def __init__(self, opened: Opened) -> None:
        self._opened: Opened | None = opened
        self._url = opened.url
        self.tracker_run_id, self.found = opened.run_id, ""
        self._safe: Position | None = opened.store.safe()
        self._ended = False

    @property
    def url(self) -> str | None:
        """The run's page; ``None`` offline."""
        return self._url

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Log *rows*, one call a row; raises `RetryableError`, `BlockedError` or `PermanentError` only."""
        opened = self._open()
        lines: list[tuple[Row, dict[str, object]]] = []
        bad: PermanentError | None = None
        for row in _due(rows, opened.store):
            try:
                line = payload_of(row, opened.histogram)
            except PermanentError as exc:
                bad = exc
                break
            if line is not None:
                lines.append((row, line))
        _log_rows(opened, lines)
        if bad is not None:
            opened.store.passed(bad.position or 0)
            raise bad
        if rows:
            opened.store.passed(rows[-1].position)

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Log one increment for each key among *rollouts*."""
        opened = self._open()
        for key, grouped in groupby(_due(rollouts, opened.store), _rollout_key):
            group = list(grouped)
            with as_bridge_errors("logging rollouts", group[0].position):
                shown, table = opened.tables.rollouts(key, group)
                _log_table(opened, shown, table, [rollout.position for rollout in group], group[-1].end_unix_ns)

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Log one increment of the table of late values for each rollout key among *values*."""
        opened = self._open()
        for key, grouped in groupby(_due(values, opened.store), _late_key):
            group = list(grouped)
            with as_bridge_errors("logging late values", group[0].position):
                shown, table = opened.tables.late(key, group)
                _log_table(opened, shown, table, [value.position for value in group], group[-1].time_unix_ns)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the config of *role*: under the role's name, without a role at the top."""
        opened = self._open()
        clean = _clean_map(config)
        entries: dict[str, object] = {_clean_text(role): clean} if role else clean
        with as_bridge_errors("writing the config"):
            if opened.shared is not None:
                opened.shared.gather(entries)
            opened.run.config.update(entries, allow_val_change=True)

    def passed(self, position: Position) -> None:
        """The records up to *position* that were not given to this writer are another's."""
        self._open().store.passed(position)

    def safe(self) -> Position | None:
        """Return the last position W&B is known to hold; offline 0."""
        if self._opened is not None:
            self._safe = self._opened.store.safe()
            with as_bridge_errors("declaring the axes"):
                self._opened.axes.tell()
        return self._safe

    def end(self, status: Status) -> None:
        """Upload all and end the run with the exit code of *status*, within the finish timeout."""
        if self._opened is None and self._ended:
            return
        opened = self._open()
        if opened.shared is not None:
            with as_bridge_errors("ending the run"):
                opened.shared.before_end()
        self._finish("ending the run", EXIT_CODES[status], functools.partial(_ended, opened))
        self._ended = True

    def close(self) -> None:
        """Upload what was logged, within the finish timeout, and leave the run open in W&B."""
        if self._opened is None:
            return
        with as_bridge_errors("closing the run"):
            self._opened.let_go(self._opened.run)
        self._finish("closing the run", 0, self._opened.store.left)

    def _finish(self, doing: str, exit_code: int, check: Callable[[], Position | None]) -> None:
        opened = self._open()
        self._opened = None
        try:
            with as_bridge_errors(doing):
                opened.axes.tell(now=True)
                try:
                    opened.run.finish(exit_code)
                except TimeoutError:
                    opened.store.ran_out()
                    raise
            self._safe = check()
        finally:
            opened.tables.forget()
            opened.store.close()

    def _open(self) -> Opened:
        if self._opened is None:
            raise RetryableError("W&B: this writer was closed; open another one")
        return self._opened


def _ended(opened: Opened) -> Position | None:
    position = opened.store.ended()
    lacking = opened.missed(opened.axes.count, bool(opened.run.config.keys())) if opened.missed is not None else ""
    if lacking:
        raise RetryableError(
            f"W&B did not take {lacking} of the run; it is opened anew and told again", retry_after_s=0.0
        )
    return position


def _log_rows(opened: Opened, lines: Sequence[tuple[Row, dict[str, object]]]) -> None:
    if not lines:
        return
    if opened.shared is not None:
        opened.shared.number([line for _, line in lines])
    opened.store.announce([row.position for row, _ in lines])
    log, bind, at, done = opened.run.log, opened.axes.bind, 0, 0
    try:
        for at in range(0, len(lines), AT_ONCE):
            with opened.together():
                for row, line in lines[at : at + AT_ONCE]:
                    if row.axis is not None:
                        bind(line, row.axis)
                    # No step=: W&B drops any step below its last (core/internal/stream/handler.go).
                    log(line)
                    done += 1
                opened.axes.tell()
    except (TypeError, ValueError) as exc:  # raised before anything of the row is sent
        raise refused(str(exc), lines[done][0].position) from exc
    except ExporterError as exc:  # of what was handed over together; some of it may have arrived
        exc.position = lines[at][0].position
        raise
    except Exception as exc:
        raise outcome(exc, "logging a row", lines[done][0].position) from exc
    finally:
        opened.store.logged(done)


def _log_table(opened: Opened, key: str, table: Any, positions: Sequence[Position], time_unix_ns: int) -> None:
    opened.store.announce_table(key, positions)
    line: dict[str, object] = {key: table, "_timestamp": time_unix_ns / 1e9}
    if opened.shared is not None:
        opened.shared.number([line])
    opened.store.log_table(lambda: opened.run.log(line))


def _rollout_key(rollout: Rollout) -> str:
    return rollout.key


def _late_key(value: LateValue) -> str:
    return value.rollout_key


def _due(records: Sequence[R], store: Store) -> Sequence[R]:
    positions = [record.position for record in records]
    due = store.due(positions)
    if len(due) == len(positions):
        return records
    wanted = set(due)
    return [record for record in records if record.position in wanted]


def _clean_map(config: Mapping[str, Json]) -> dict[str, object]:
    return {_clean_text(key): _clean(value) for key, value in config.items()}


def _clean(value: Json) -> object:
    """Return *value* as JSON that every server parses: no NaN tokens, no lone surrogates, no endless integers."""
    if isinstance(value, dict):
        return _clean_map(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT_LIMIT <= value < _INT_LIMIT:
        return str(value)
    return value


def _clean_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
