"""Defines the plugin contract: an `Exporter` is one entry point of group ``otel_bridge.exporters``.

The module of an entry point imports no tracker; `Exporter.open` does. The bridge is responsible for delivery: retries,
order and dead letters. A `RunWriter` only writes one run to one tracker, and reports a failed write by its error.
"""

# ruff: noqa: ARG002  # methods of `RunWriter` do nothing with their arguments
from __future__ import annotations

import importlib.util
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    ExporterError,
    MissingExtraError,
    RetryableError,
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
from otel_bridge.settings import Setting
from otel_bridge.text.addresses import without_credentials

GROUP = "otel_bridge.exporters"
OTLP = "otlp"
"""The only exporter without a writer: the bridge forwards the bytes of the segments."""
WEBHOOK = "webhook"
"""The exporter of alerts alone; a bridge adds it to its runs when the address is set."""
NONE = "none"
NEW_RUN_HINT = "--new or OTEL_BRIDGE_NEW_RUN=1 starts another"
"""End of the line that reports that a tracker already holds the run."""
SIGNALS = ("metrics", "traces", "logs")
UNKNOWN_ALERTS = "alerts that may not have arrived; they are not sent again"
"""Reason in ``left_out`` of alerts whose outcome is unknown."""
_ALERTS_THROUGH = "alerts/through"
_ALERT_BEGUN = "alerts/begun"
_RUNNING_STEPS = "running_steps"
_log = logging.getLogger("otel_bridge")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Describes the run that a writer is opened for.

    Attributes:
        id: Run id, the same in every process and after a restart.
        name: Display name.
        folder: The run folder; a writer stores its own files in ``folder / <exporter name>``.
        identity: The trackers' identity found in the producers' environment, e.g. ``rl.wandb.run_id`` to its value;
            and facts about the first process: ``host.name``, ``process.command``, ``vcs.ref.head.revision`` ….
        keys: Every key seen so far to its axis key; axes must be defined before the first record is written.
        configs: The merged config of each role, as passed to `RunWriter.write_config` right after open.
        summaries: The last values of each role, as passed to `WritesSummary.write_summary` right after open.
        reopened: Whether data arrived after an end had been written.
        node_rank: Number of this machine in the job.
        local: Whether no endpoint collects the job's data, so that another machine may have a bridge of this run too.
        name_generated: Whether `name` was generated; it must then not replace a name that the tracker already has.
        oldest: Position of the oldest record that still exists; records before it cannot be written again.
    """

    id: str
    project: str
    name: str
    folder: Path
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    job_type: str | None = None
    entity: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    configs: Mapping[str | None, Mapping[str, Json]] = field(
        default_factory=dict[str | None, Mapping[str, Json]]
    )
    reopened: bool = False
    node_rank: int = 0
    local: bool = True
    oldest: Position = 1
    name_generated: bool = False
    summaries: Mapping[str | None, Mapping[str, Scalar]] = field(
        default_factory=dict[str | None, Mapping[str, Scalar]]
    )


class WriterMemory(Protocol):
    """Stores key-value pairs of one destination in the ledger. A `put` is committed when it returns.

    The writer that uses the table keeps it small. Each call may raise `JournalError` (a full disk, a
    ledger that cannot be used), and then nothing is stored. The writer lets it pass: the bridge makes
    the call again after a second at least, and rebuilds a damaged ledger.
    """

    def get(self, key: str) -> bytes | None:
        """Return the value of *key*, ``None`` when there is none."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        ...

    def delete(self, key: str) -> None:
        """Delete a key; an unknown key is ignored."""
        ...

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        ...


@runtime_checkable
class RunWriter(Protocol):
    """Writes one run to one tracker, from one thread. Any call may be repeated after a kill.

    Every method raises only `RetryableError`, `BlockedError` or `PermanentError`, which name the first record that was
    not written. The bridge then makes the call again after a pause; asks a person, and tries once a minute; or makes
    this record a dead letter, and goes on behind it. After an exception of another package the call is repeated a
    few times, and then halved until the record that causes it is found.

    A writer that derives from this class may leave out methods; those here do nothing.

    A writer may have two more attributes, which the bridge reads right after open. ``tracker_run_id: str | None`` is
    the tracker's own id of the run (``Run.id_in`` returns it). ``found: str`` is one line on what the tracker already
    held of the run when this destination first opened it, and is empty otherwise.

    A writer that supports several versions of a tracker may have two others. ``degraded: tuple[str, ...]``, read right
    after open, has one sentence for each ability that the installed version lacks (`otel_bridge.capabilities`).
    ``left_out: Mapping[str, int]``, read after each call, counts since open what the writer did not write because the
    tracker lacks an ability. A key ends the line "trackio left out 12 …", e.g. ``spans: Trackio 0.36 has none``.
    """

    @property
    def url(self) -> str | None:
        """Return the address at which a person can see the run, ``None`` when there is none."""
        return None

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write *rows* in order."""
        return

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Write *rollouts* in order."""
        return

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Attach *values* to rollouts that are already written."""
        return

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the whole config of one role (``None``: of the run).

        Also called for each role right after open.
        """
        return

    def durable(self) -> Position | None:
        """Return the last position that the tracker's store holds; right after open, what it already holds.

        ``None`` means that the writer cannot know. A write that returned then counts as durable.
        """
        return None

    def end(self, status: Status) -> None:
        """End the run in the tracker; a later write opens it again through a new writer."""
        return

    def close(self) -> None:
        """Release the tracker without ending the run."""
        return


@runtime_checkable
class WritesPlainTraces(Protocol):
    """Extends a `RunWriter` whose exporter sets `Exporter.takes_traces` or `Exporter.takes_late_spans`."""

    def write_traces(self, traces: Sequence[PlainTrace]) -> None:
        """Write traces that are not rollouts, and spans of rollouts that are already written, in order."""
        ...


@runtime_checkable
class WritesAlerts(Protocol):
    """Extends a `RunWriter` that shows alerts."""

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Raise *alerts* in order. An alert that is given again (same id) must not be raised twice."""
        ...


@runtime_checkable
class WritesSummary(Protocol):
    """Extends a `RunWriter` that shows last values of keys."""

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Show *values* (full key to value) as last values of these keys; other keys keep their values.

        Also called for each role right after open with all known values, so it must be safe to repeat. A value applies
        until the next one of its key, even when rows with that key follow.
        """
        ...


@runtime_checkable
class WritesMedia(Protocol):
    """Extends a `RunWriter` that shows media. Media of any other writer are counted as left out."""

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Write *media* in order. Kinds that the tracker cannot show are counted in ``left_out``."""
        ...


def caution_of(settings: ExporterSettings) -> str:
    """Return what the destination of *settings* does not keep; empty when it keeps everything."""
    return _text_of(settings, "caution")


def shown_by(settings: ExporterSettings, run: RunInfo) -> tuple[str, str]:
    """Return what shows *run* and the command that uploads it, as `ExporterSettings` says.

    Each is empty where the exporter's own code raises or gives no text: a link ends neither the
    training nor the delivery to other exporters. The contract suite finds such an exporter.
    """
    return _link(settings.view, run), _link(getattr(settings, "upload", None), run)


def _link(link_of: Callable[[RunInfo], object] | None, run: RunInfo) -> str:
    """Return the text that *link_of* gives for *run*; empty without one, or where it raises."""
    if link_of is None:
        return ""
    try:
        link = link_of(run)
    except Exception:  # noqa: BLE001  # code of a third party
        return ""
    if isinstance(link, str):
        return link
    return ""


def tracker_run_id_of(writer: RunWriter) -> str | None:
    """Return the tracker's own id of the run, ``None`` when *writer* names none."""
    return _text_of(writer, "tracker_run_id") or None


def found_of(writer: RunWriter) -> str:
    """Return *writer*'s line on what the tracker already held of the run, empty when there is none."""
    return _text_of(writer, "found")


def degraded_of(writer: RunWriter) -> tuple[str, ...]:
    """Return one sentence for each ability that *writer* reports its tracker to lack.

    Empty if it reports none.
    """
    value: object = getattr(writer, "degraded", ())
    if isinstance(value, (tuple, list)):
        return tuple(map(str, cast("Sequence[object]", value)))
    return ()


def left_out_of(writer: RunWriter) -> Mapping[str, int]:
    """Return what *writer* did not write since open because its tracker lacks an ability, reason to count.

    A copy, since the writer counts on; empty if it counts nothing.
    """
    value: object = getattr(writer, "left_out", None)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, int]", value))
    return {}


def _text_of(part: object, name: str) -> str:
    """Return an optional text of a third party's class.

    Empty where it is missing or of another type.
    """
    value: object = getattr(part, name, None)
    if isinstance(value, str):
        return value
    return ""


@runtime_checkable
class ExporterSettings(Protocol):
    """Holds where an exporter delivers, read from an environment.

    Settings may have one more attribute, ``caution: str``. It names what this destination does not keep, and ``init()``
    prints it; empty when the destination keeps everything. They may have a method ``upload(run) -> str``. It returns
    the command that uploads a run which `view` shows on this machine only; empty when nothing is to be uploaded.
    """

    @property
    def destination(self) -> Mapping[str, str]:
        """Return the variables that define the destination, made absolute.

        `destination_of` removes credentials from addresses.
        """
        ...

    def view(self, run: RunInfo) -> str:
        """Return the command, address or folder that shows the run.

        Empty when this process knows none.
        """
        ...


def settings_as(settings: ExporterSettings, kind: type[S]) -> S:
    """Return *settings* as *kind*; raises `TypeError` if they are those of another exporter."""
    if not isinstance(settings, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(settings).__name__}")
    return settings


@contextmanager
def file_errors(
    doing: str, help_: str, position: Position | None = None
) -> Generator[None]:
    """Raise errors of the file system as those of a writer. Other exceptions pass as they are.

    Args:
        doing: Beginning of the message.
        help_: What a person does when rights are missing, or a file is in the way of a folder.
        position: First record that was not written.

    Raises:
        BlockedError: Rights are missing, or a file is in the way of a folder.
        RetryableError: Any other `OSError`, as on a full disk.
    """
    try:
        yield
    except (PermissionError, NotADirectoryError) as exc:
        raise BlockedError(f"{doing}: {exc}", position=position, help=help_) from exc
    # A full disk, for instance, passes: the bridge tries again.
    except OSError as exc:
        raise RetryableError(f"{doing}: {exc}", position=position) from exc


def call_within(timeout_s: float, call: Callable[[], S]) -> S:
    """Return what *call*, which has no timeout of its own, returns from a thread; its exception is raised here.

    For libraries without a time-out, which would block the thread of delivery for ever.

    Raises:
        TimeoutError: The call has not returned in time. Its thread continues.
    """
    outcome: Future[S] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as exc:  # noqa: BLE001  # raised in the waiting thread
            outcome.set_exception(exc)

    # A daemon, which no executor has: a call that never returns must not keep the process from
    # ending.
    threading.Thread(target=run, name="call-within", daemon=True).start()
    if not wait([outcome], timeout_s).done:
        raise TimeoutError(f"the call did not return within {timeout_s:g} s")
    return outcome.result()


class AlertsOnce:
    """Raises alerts where a second one would call a person twice, because nothing recognises it. For one thread.

    An alert's id is stored as begun before it is raised. After a kill meanwhile its outcome is
    unknown: it is not raised again, but counted.

    Args:
        memory: Keeps the last position that was raised, and the id of the alert that was begun.
        left_out: Counts alerts whose outcome is unknown.
    """

    def __init__(self, memory: WriterMemory, left_out: Counter[str]) -> None:
        self._memory = memory
        self._left_out = left_out

    def write(
        self, alerts: Sequence[Alert], raise_alert: Callable[[Alert], str]
    ) -> None:
        """Raise those of *alerts* that were not raised before.

        An exception of *raise_alert* is raised, with the alert's position in one of otel-bridge: the
        alerts before it stay raised, and the bridge gives this one and those behind it again.

        Args:
            alerts: Alerts by position.
            raise_alert: Returns why the outcome is unknown, empty if the alert arrived. It raises if
                the alert certainly did not arrive; it is raised again then.
        """
        for alert in alerts:
            through = int(self._memory.get(_ALERTS_THROUGH) or 0)
            # Delivered by an earlier bridge that was killed before it stored its own position. A dead
            # letter that is tried again has no position.
            if 0 < alert.position <= through:
                continue
            if self._memory.get(_ALERT_BEGUN) == alert.id.encode():
                unknown = "its bridge was killed meanwhile"
            else:
                unknown = self._begin(alert, raise_alert)
            if unknown:
                self._left_out[UNKNOWN_ALERTS] += 1
                _log.warning(
                    "the alert %r may not have arrived (%s); it is not sent again",
                    alert.title,
                    unknown,
                )
            # Last, so that a kill before it finds the alert as begun.
            if alert.position:
                position = str(alert.position).encode()
                self._memory.put(_ALERTS_THROUGH, position)

    def _begin(self, alert: Alert, raise_alert: Callable[[Alert], str]) -> str:
        """Raise *alert*, noted as begun until it is answered.

        Return why it may not have arrived, empty when it did. An error removes the note, so that
        the alert is sent again.
        """
        # Before the call: a kill during it must be seen by the next writer.
        self._memory.put(_ALERT_BEGUN, alert.id.encode())
        try:
            return raise_alert(alert)
        except Exception as exc:
            self._memory.delete(_ALERT_BEGUN)
            if isinstance(exc, ExporterError):
                exc.position = alert.position
            raise


class RunningSteps:
    """Numbers rows without a step, for trackers that require one. For one thread.

    A row gets the highest count of its keys, so that no key has a step twice. The steps of the last
    two calls are stored before their data is sent. Delivery repeats at most its last call, so that
    redelivered rows get the same steps.

    Args:
        memory: Keeps the next count of each key, and the steps by position.
    """

    def __init__(self, memory: WriterMemory) -> None:
        self._memory = memory
        stored = json.loads(memory.get(_RUNNING_STEPS) or b'{"next": {}, "steps": []}')
        self._next: dict[str, int] = stored["next"]
        self._steps: dict[Position, int] = dict(stored["steps"])
        self._last_first: Position = 0
        self._is_stored = True

    def of(self, rows: Sequence[Row]) -> Mapping[Position, int]:
        """Return the steps of *rows*, all without a step, by position; those of the call before are among them.

        What the memory raises is raised, before any data is sent.
        """
        for row in rows:
            # Those without a position are dead letters that are tried again, each another row.
            if row.position and row.position in self._steps:
                continue
            step = 0
            for key in row.values:
                step = max(step, self._next.get(key, 0))
            self._next.update(dict.fromkeys(row.values, step + 1))
            self._steps[row.position] = step
            self._is_stored = False
        # Also those of a call before, which the memory did not take.
        if rows and not self._is_stored:
            self._store(rows[0].position)
        return self._steps

    def _store(self, first: Position) -> None:
        """Store the steps that may come again.

        Those of older calls are dropped, so that the memory stays small.
        """
        # The call before is kept too, because a kill may come before the bridge stored its
        # position.
        oldest = min(self._last_first, first)
        for position in tuple(self._steps):
            if position < oldest:
                del self._steps[position]
        stored = {"next": self._next, "steps": [*self._steps.items()]}
        self._memory.put(_RUNNING_STEPS, json.dumps(stored).encode())
        self._last_first = first
        self._is_stored = True


def destination_of(settings: ExporterSettings) -> dict[str, str]:
    """Return the destination of *settings* without credentials, so that it may be stored and shown."""
    return {
        name: without_credentials(value) for name, value in settings.destination.items()
    }


@dataclass(frozen=True, slots=True)
class TrackerCounts:
    """Counts what a tracker shows of a short run: numbers (without distributions) and rollouts.

    ``doctor --send`` asks for one row and one rollout. Of a long run, the beginning is enough.
    """

    numbers: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Exporter:
    """Describes one tracker to the bridge, and opens its writers.

    Attributes:
        read_settings: Returns the settings of an environment and a working folder; raises `ConfigError`. Imports no
            tracker.
        ordered: Whether calls must follow the ledger's order; else a batch is sorted by kind.
        open: Imports the tracker and returns the writer; raises the same errors as a writer's methods.
        requires: Modules that must be installed.
        extra: Extra of otel-bridge that installs them.
        read_back: Counts what the tracker shows, through its own API, after the writer has closed; raises the same
            errors as *open*. ``None`` when it cannot.
        settings: The variables that the exporter reads besides those of its destination, for ``otel-bridge doctor``.
        takes_traces: Whether its writer is a `WritesPlainTraces`, which also gets traces that are not rollouts.
        takes_late_spans: Whether its writer is a `WritesPlainTraces` that shows late spans of rollouts, and skips
            traces without `PlainTrace.rollout_key`.
        window_records: Most records of one batch, after which *written* advances; larger when each call is expensive.
        probe: Imports the tracker and returns what a writer's ``degraded`` would be, for ``otel-bridge doctor``; opens
            no run, and raises the same errors as *open*.
        tested_with: Versions of the tracker that the exporter was tested with, for ``otel-bridge doctor``.
    """

    read_settings: Callable[[Mapping[str, str], Path], ExporterSettings]
    ordered: bool
    open: Callable[[RunInfo, ExporterSettings, WriterMemory], RunWriter]
    requires: tuple[str, ...] = ()
    extra: str | None = None
    read_back: Callable[[RunInfo, ExporterSettings], TrackerCounts] | None = None
    settings: tuple[Setting[Any], ...] = ()
    takes_traces: bool = False
    takes_late_spans: bool = False
    window_records: int = 1_000
    probe: Callable[[ExporterSettings], Sequence[str]] | None = None
    tested_with: str = ""


def available() -> tuple[str, ...]:
    """Return the names that can be chosen, `OTLP` included, sorted.

    Also those whose tracker is not installed.
    """
    return tuple(sorted({*entry_points(group=GROUP).names, OTLP}))


def unknown(name: str) -> str:
    """Return the message about an unknown exporter *name*: the known names, and the most similar one."""
    import difflib  # noqa: PLC0415  # for a typing error only

    names = (*available(), NONE)
    nearest = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"exporter {name!r} is not known; choose from {', '.join(names)}{meant}"


def load(name: str) -> Exporter:
    """Return the exporter called *name*, ready to be opened in this environment.

    Raises:
        ConfigError: No exporter has this name, or its module cannot be imported.
        MissingExtraError: A package that it needs is not installed.
    """
    exporter = described(name)
    if missing := missing_of(name, exporter):
        raise MissingExtraError(missing)
    return exporter


def missing_of(name: str, exporter: Exporter) -> str:
    """Return what *exporter* needs and this environment lacks, with the command to install it; empty if complete.

    Modules are looked up, not imported: importing a tracker takes seconds.
    """
    missing = [
        module
        for module in exporter.requires
        if importlib.util.find_spec(module) is None
    ]
    if not missing:
        return ""
    package = f"otel-bridge[{exporter.extra}]" if exporter.extra else " ".join(missing)
    return f"exporter {name!r} needs {', '.join(missing)}: pip install '{package}'"


def described(name: str) -> Exporter:
    """Return the exporter called *name*, even if its tracker is not installed, so that its settings can be read.

    Raises:
        ConfigError: No exporter has this name, or its module cannot be imported.
    """
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        raise ConfigError(unknown(name))
    try:
        exporter: object = point.load()
    except Exception as exc:
        raise ConfigError(
            f"exporter {name!r}: its module {point.value} cannot be imported: {exc}"
        ) from exc
    if not isinstance(exporter, Exporter):
        raise ConfigError(
            f"exporter {name!r}: {point.value} is a {type(exporter).__name__}, expected an Exporter"
        )
    return exporter
