"""Capture of TensorBoard's event writers: each scalar becomes a row too.

The event files are written as before.

torch's ``SummaryWriter`` writes with TensorBoard's ``EventFileWriter``, tensorboardX's with its
own. Both are extended where one event is written, so that key, step and value are those of the
event file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_bridge.capture import hook
from otel_bridge.capture.counts import counts
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.console import notify
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from otel_bridge.errors import OtelBridgeError, any_error

_NAME = "tensorboard"
_FIRST_TIME_S = 1e8
"""Earliest time of a row: 1973; a smaller one is not a Unix time."""
_MARK = "otel_bridge_capture"
_GRAPHS = frozenset({"graph_def", "meta_graph_def"})
"""Events of ``add_graph`` and ``add_onnx_graph``, which have no summary."""


def install(module: ModuleType, mode: str) -> None:
    """Extend the ``EventFileWriter`` of *module*.

    A second call changes nothing, and the mode has no effect.
    """
    del mode
    writer: Any = module.__dict__["EventFileWriter"]
    real: Callable[[Any, Any], None] = writer.add_event
    if getattr(real, _MARK, False):
        return

    def add_event(self: Any, event: Any) -> None:
        """Write the event to its file, and record its scalars."""
        # The program's own file first: recording must not cost it an event.
        real(self, event)
        record_event(self, event)

    add_event.__dict__[_MARK] = True
    writer.add_event = add_event


def sync(run: Run) -> None:
    """Record the scalars of all event writers in *run* until it ends, as W&B's ``sync_tensorboard=True`` does.

    Where nothing but such runs captures TensorBoard, scalars before and after them begin no run of
    their own.
    """
    if _NAME not in hook.captured():
        hook.capture(_NAME, mode="replace")
        _first_run.forbid()
    _synced.add(run)


def leave_out(folder: str) -> None:
    """Record nothing of event writers in *folder*: an adapter records the same values.

    Args:
        folder: Folder of event files.
    """
    _left_out.add(os.path.abspath(folder))


def record_event(writer: Any, event: Any) -> None:
    """Record the scalars of *event* in the process's run, which is begun when there is none.

    Never raises.

    Args:
        writer: The ``EventFileWriter``.
        event: A TensorBoard ``Event``; those without a summary or graph, such as the file's
            version, are ignored.
    """
    try:
        summaries = list(event.summary.value)
        is_graph = event.WhichOneof("what") in _GRAPHS
        if not summaries and not is_graph:
            return
        if _left_out and os.path.abspath(str(writer.get_logdir())) in _left_out:
            return
        run = _synced.run() or runs.current or _first_run.begin()
        if run is None:
            return
        if is_graph:
            _not_captured(run, "graph", "graph")
            return
        prefix = _folders.prefix(run, writer)
        row: dict[str, float] = {}
        for value in summaries:
            number = _number(value)
            if number is None:
                _not_captured(run, _kind(value), f"{value.tag} ({_kind(value)})")
            else:
                row[prefix + value.tag] = number
        if row:
            counts.captured("tensorboard scalar", len(row), run=run)
            run.log(row, int(event.step), time_unix_ns=_time_of(event))
    except any_error():  # the program's own writing must continue
        _count(runs.current)


def _not_captured(run: Run, kind: str, key: str) -> None:
    counts.not_captured(f"tensorboard {kind}")
    run.count_drop("not_captured", key=key)


def _time_of(event: Any) -> int | None:
    """Return the event's ``walltime`` in Unix ns.

    ``None`` where it is a time since some other moment.
    """
    if event.wall_time >= _FIRST_TIME_S:
        return int(event.wall_time * 1e9)
    return None


def _count(run: Run | None) -> None:
    if run is not None:
        run.count_drop(INTERNAL_ERROR)


def _number(value: Any) -> float | None:
    """Return the scalar of a summary value: a ``simple_value``, or a tensor of the plugin ``scalars``."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or _plugin(value) not in {"scalars", ""}:
        return None
    tensor = value.tensor
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None
    numbers = [
        *tensor.float_val,
        *tensor.double_val,
        *tensor.int_val,
        *tensor.int64_val,
    ]
    if len(numbers) == 1:
        return float(numbers[0])
    return None


def _plugin(value: Any) -> str:
    return str(value.metadata.plugin_data.plugin_name)


def _kind(value: Any) -> str:
    return _plugin(value) or str(value.WhichOneof("value"))


class _WriterFolders:
    """Gives the keys of each further folder of event files of a run a prefix, as W&B does.

    The first has none.
    """

    def __init__(self) -> None:
        # Weak keys: neither runs nor writers are kept in memory.
        self._roots: weakref.WeakKeyDictionary[Run, str] = weakref.WeakKeyDictionary()
        self._prefixes: weakref.WeakKeyDictionary[
            Run, weakref.WeakKeyDictionary[Any, str]
        ] = weakref.WeakKeyDictionary()

    def prefix(self, run: Run, writer: Any) -> str:
        """Return what precedes the tags of *writer*: the part of its path that the first folder does not share."""
        prefixes = self._prefixes.setdefault(run, weakref.WeakKeyDictionary())
        earlier_prefix = prefixes.get(writer)
        if earlier_prefix is not None:
            return earlier_prefix
        folder = os.path.abspath(str(writer.get_logdir()))
        parts = os.path.relpath(folder, self._roots.setdefault(run, folder)).split(
            os.sep
        )
        new_prefix = "".join(
            f"{part}/" for part in parts if part not in {os.curdir, os.pardir}
        )
        prefixes[writer] = new_prefix
        return new_prefix


class _SyncedRuns:
    """Holds the runs of other captures that record all event writers."""

    def __init__(self) -> None:
        self._runs: list[weakref.ref[Run]] = []

    def add(self, run: Run) -> None:
        """Note a run that was begun just now, and forget those that have ended."""
        earlier_runs = [(reference, reference()) for reference in self._runs]
        self._runs = [
            reference
            for reference, earlier_run in earlier_runs
            if earlier_run is not None and earlier_run.recording
        ]
        self._runs.append(weakref.ref(run))

    def run(self) -> Run | None:
        """Return the latest of the runs that have not ended; ``None`` without one."""
        for reference in reversed(self._runs):
            run = reference()
            if run is not None and run.recording:
                return run
        return None


class _FirstRun:
    """Begins the process's run once.

    Events that arrive after the run was finished do not begin another.
    """

    def __init__(self) -> None:
        self._may_begin = True

    def forbid(self) -> None:
        """Begin no run from now on."""
        self._may_begin = False

    def begin(self) -> Run | None:
        """Return a new run, if possible one that an adapter has announced.

        After the first call return ``None``, and, with a message, where none can begin. So too when
        the program has begun a run itself: its run has ended, and a scalar that follows belongs to
        no other.
        """
        if runs.has_begun or not self._may_begin:
            return None
        # Before the begin: an error is printed once, not with every scalar.
        self._may_begin = False
        announced = runs.take_announced()
        try:
            return (None if announced is None else announced.begin()) or runs.begin(
                RunRequest()
            )
        except OtelBridgeError as exc:
            notify(f"TensorBoard's scalars are not recorded: {exc}", always=True)
            return None


_left_out: set[str] = set()
_first_run = _FirstRun()
_folders = _WriterFolders()
_synced = _SyncedRuns()
