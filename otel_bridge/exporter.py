"""The plugin contract: an `Exporter` is one entry point of group ``otel_bridge.exporters``; its writer talks to one.

The module of an entry point imports no tracker; `Exporter.open` does. Delivery (retry, order, dead letters) is the
bridge's; a writer only writes, and says by its error what became of a write.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.records import Json, LateValue, OtherTrace, Position, Rollout, Row, Status
from otel_bridge.settings import Setting

GROUP: Final = "otel_bridge.exporters"
OTLP: Final = "otlp"
"""The one exporter without a writer: the bridge forwards the bytes of the segments."""
NONE: Final = "none"
NEW_RUN_HINT: Final = "--new or OTEL_BRIDGE_NEW_RUN=1 starts another"
"""Ends the line that says that a tracker already holds the run."""
SIGNALS: Final = ("metrics", "traces", "logs")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that a writer is opened for.

    Attributes:
        id: Run id, the same in every process and after a restart.
        name: Display name.
        folder: The run folder; what a writer puts on disk of its own goes to ``folder / <exporter name>``.
        identity: The trackers' identity found in the emitters' environment, e.g. ``rl.wandb.run_id`` to its value;
            and what the first process runs: ``host.name``, ``process.command``, ``vcs.ref.head.revision`` ….
        keys: Every key seen so far to its axis key; axes must stand before the first record.
        configs: The merged config of each role, as given to `RunWriter.write_config` right after open.
        reopened: Data came after an end had been written.
        node_rank: Number of this machine in the job.
        local: No endpoint gathers the job: another machine may have a bridge of this run too.
        oldest: Position of the oldest record still there: what lies before it cannot be written anew.
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
    configs: Mapping[str | None, Mapping[str, Json]] = field(default_factory=dict[str | None, Mapping[str, Json]])
    reopened: bool = False
    node_rank: int = 0
    local: bool = True
    oldest: Position = 1


class Memory(Protocol):
    """This destination's key-value table in the ledger; committed when a `put` returns. Kept small by its user."""

    def get(self, key: str) -> bytes | None:
        """Return the value, ``None`` when there is none."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        ...

    def delete(self, key: str) -> None:
        """Forget a key; unknown keys are fine."""
        ...

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        ...


@runtime_checkable
class RunWriter(Protocol):
    """Writes one run to one tracker, from one thread. Any call may come again after a kill.

    Every method raises only `RetryableError`, `BlockedError` or `PermanentError`, which name the first record that was
    not done.

    A writer may have two more attributes, read right after open: ``tracker_run_id: str | None``, the tracker's own id
    of the run (``Run.id_in`` returns it), and ``found: str``, one line on what the tracker already held of the run when
    this destination first opened it, empty otherwise.
    """

    @property
    def url(self) -> str | None:
        """Where a person looks at the run, ``None`` when there is no such place."""
        ...

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write *rows* in their order."""
        ...

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Write *rollouts* in their order."""
        ...

    def write_late(self, values: Sequence[LateValue]) -> None:
        """Attach *values* to rollouts that are already written."""
        ...

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the whole config of one role (``None``: of the run); called for each right after open too."""
        ...

    def safe(self) -> Position | None:
        """Return the last position that the tracker's store holds; right after open: what it already holds.

        ``None``: it cannot tell; then a write that returned counts as safe.
        """
        ...

    def end(self, status: Status) -> None:
        """End the run in the tracker; a later write opens it again through a new writer."""
        ...

    def close(self) -> None:
        """Let go of the tracker without ending the run."""
        ...


@runtime_checkable
class CatchesUp(Protocol):
    """What a `RunWriter` may have besides: work that its calls put off, since rows and rollouts go before it.

    A call that puts something off notes it in `Memory` before it returns, so that it survives a kill and counts as
    written. A writer may have one more attribute, ``put_off: int``: how much waits, for the report and ``status``.
    """

    def catch_up(self) -> bool:
        """Do a little of it, at most about 50 ms; return whether nothing is left.

        Called while no record waits, and before `RunWriter.end` until nothing is left. Raises as a writer does.
        """
        ...


@runtime_checkable
class TakesTraces(Protocol):
    """What a `RunWriter` has whose exporter says `Exporter.takes_traces`."""

    def write_traces(self, traces: Sequence[OtherTrace]) -> None:
        """Write traces that are no rollouts, in their order."""
        ...


def caution_of(settings: ExporterSettings) -> str:
    """Return what the destination of *settings* does not keep, empty when nothing is said."""
    return _text_of(settings, "caution")


def tracker_run_id_of(writer: RunWriter) -> str | None:
    """Return the tracker's own id of the run, ``None`` when *writer* says none."""
    return _text_of(writer, "tracker_run_id") or None


def found_of(writer: RunWriter) -> str:
    """Return what *writer* says the tracker already held of the run, empty when it says nothing."""
    return _text_of(writer, "found")


def put_off_of(writer: RunWriter) -> int:
    """Return how much *writer* says it has put off, 0 when it says nothing."""
    value: object = getattr(writer, "put_off", None)
    return value if isinstance(value, int) else 0


def _text_of(part: object, name: str) -> str:
    value: object = getattr(part, name, None)
    return value if isinstance(value, str) else ""


@runtime_checkable
class ExporterSettings(Protocol):
    """Where an exporter delivers, read from an environment.

    It may have one more attribute, ``caution: str``: what this destination does not keep, said by ``init()``; or empty.
    """

    @property
    def destination(self) -> Mapping[str, str]:
        """The variables that say where, made absolute, never credentials; positions are kept per destination."""
        ...

    def view(self, run: RunInfo) -> str:
        """Return the command or address that shows the run."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """What a tracker shows of a run: how many numbers (distributions not counted), and how many rollouts."""

    numbers: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Exporter:
    """A backend.

    Attributes:
        settings: From an environment and the working folder to the settings; raises `ConfigError`. Imports no tracker.
        ordered: Calls must follow the ledger's order; else a window is sorted by kind.
        open: Imports the tracker and returns the writer; raises as a writer's methods do.
        requires: Modules that must be installed.
        extra: Extra of otel-bridge that installs them.
        held: Reads back through the tracker's own API, after the writer has closed; ``None``: nothing can be read back.
        declares: The variables that it reads besides those of its destination, for ``otel-bridge doctor``.
        takes_traces: Its writer is a `TakesTraces`: traces that are no rollouts go to it too.
        window_records: How many records it is given at most before *written* moves; more where each call costs much.
    """

    settings: Callable[[Mapping[str, str], Path], ExporterSettings]
    ordered: bool
    open: Callable[[RunInfo, ExporterSettings, Memory], RunWriter]
    requires: tuple[str, ...] = ()
    extra: str | None = None
    held: Callable[[RunInfo, ExporterSettings], Held] | None = None
    declares: tuple[Setting[Any], ...] = ()
    takes_traces: bool = False
    window_records: int = 1_000


def available() -> tuple[str, ...]:
    """Return the names that can be chosen, `OTLP` included, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)} | {OTLP}))


def unknown(name: str) -> str:
    """Return what is said of a name that no exporter has: which there are, and which was meant, as it seems."""
    import difflib  # noqa: PLC0415  # for a typing error only

    names = (*available(), NONE)
    nearest = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"exporter {name!r} is not known; choose from {', '.join(names)}{meant}"


def load(name: str) -> Exporter:
    """Return the exporter called *name*.

    Raises:
        ConfigError: There is none of this name, or its module cannot be imported.
        MissingExtraError: What it needs is not installed.
    """
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        raise ConfigError(unknown(name))
    try:
        exporter: object = point.load()
    except Exception as exc:
        raise ConfigError(f"exporter {name!r}: its module {point.value} cannot be imported: {exc}") from exc
    if not isinstance(exporter, Exporter):
        raise ConfigError(f"exporter {name!r}: {point.value} is a {type(exporter).__name__}, expected an Exporter")
    missing = [module for module in exporter.requires if importlib.util.find_spec(module) is None]
    if missing:
        package = f"otel-bridge[{exporter.extra}]" if exporter.extra else " ".join(missing)
        raise MissingExtraError(f"exporter {name!r} needs {', '.join(missing)}: pip install '{package}'")
    return exporter
