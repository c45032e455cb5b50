"""Capture of TensorBoard's event writers: each scalar becomes a row too.

The event files are written as before.

torch's ``SummaryWriter`` writes with TensorBoard's ``EventFileWriter``, tensorboardX's with its
own. Both are extended where one event is written, so that key, step and value are those of the
event file.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from otel_bridge.capture import hook
from otel_bridge.capture.counts import counts
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.console import notify
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from otel_bridge.errors import OtelBridgeError, any_error_but_signals
from otel_bridge.values.mappings import living

_NAME = "tensorboard"
_FIRST_TIME_S = 1e8
"""Earliest time of a row: 1973; a smaller one is not a Unix time."""
_MARK = "otel_bridge_capture"
_GRAPHS = frozenset({"graph_def", "meta_graph_def"})
"""Events of ``add_graph`` and ``add_onnx_graph``, which have no summary."""


def install(module: ModuleType, mode: str) -> None:
    """Extend the ``EventFileWriter`` of *module*, so that its events are recorded and its open writers are known.

    A second call changes nothing, and the mode has no effect.

    Raises `KeyError` where the module has no such class, which the import hook prints.
    """
    del mode
    writer: Any = module.__dict__["EventFileWriter"]
    real: Callable[[Any, Any], None] = writer.add_event
    if getattr(real, _MARK, False):
        return
    real_init: Callable[..., None] = writer.__init__
    real_close: Callable[[Any], None] = writer.close

    @functools.wraps(real_init)
    def init(self: Any, *positional: Any, **keywords: Any) -> None:
        """Open the event file, and remember its writer; raises what opening it raises."""
        real_init(self, *positional, **keywords)
        _open_writers[self] = None

    @functools.wraps(real_close)
    def close(self: Any) -> None:
        """Close the event file; raises what closing it raises."""
        # First: a writer that a program keeps is not above the folders of its next run.
        _open_writers.pop(self, None)
        real_close(self)

    def add_event(self: Any, event: Any) -> None:
        """Write the event to its file, and record its scalars."""
        # The program's own file first: recording must not cost it an event.
        real(self, event)
        record_event(self, event)

    add_event.__dict__[_MARK] = True
    writer.add_event = add_event
    writer.__init__ = init
    writer.close = close


def sync(run: Run) -> None:
    """Record the scalars of all event writers in *run* until it ends, as W&B's ``sync_tensorboard=True`` does.

    Where nothing but such runs captures TensorBoard, scalars before and after them begin no run of
    their own.

    The latest run goes first, and the process's own run is used again once all of them have ended.
    """
    if _NAME not in hook.captured():
        hook.capture(_NAME, mode="replace")
        _begins_no_more.set()
    _synced[run] = None


def leave_out(folder: str) -> None:
    """Record nothing of event writers in *folder*: an adapter records the same values.

    It stays so until the process ends.

    Args:
        folder: Folder of event files.
    """
    _left_out.add(os.path.abspath(folder))


def record_event(writer: Any, event: Any) -> None:
    """Record the scalars of *event* in the process's run, which is begun when there is none.

    Never raises.

    Nothing is recorded after the end of a run until another one begins, and where no run can begin.
    What raises is counted as ``internal_error`` in the process's run.

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
        folder = os.path.abspath(str(writer.get_logdir()))
        if folder in _left_out:
            return
        # When the program's own run has ended, a scalar that follows belongs to no other.
        if not runs.has_begun:
            _begin_once()
        run = _synced_run() or runs.current
        if run is None:
            return
        if is_graph:
            _not_captured(run, "graph", "graph")
            return
        row = _scalars_of(summaries, run, _prefix(run, folder))
        if row:
            counts.captured("tensorboard scalar", len(row), run=run)
            run.log(row, int(event.step), time_unix_ns=_time_of(event))
    except any_error_but_signals():  # the program's own writing must continue
        if runs.current is not None:
            runs.current.count_drop(INTERNAL_ERROR)


def _scalars_of(summaries: Sequence[Any], run: Run, prefix: str) -> dict[str, float]:
    """Return the scalars of a summary by tag.

    Its other values are counted as ``not_captured``, each by its tag.
    """
    row: dict[str, float] = {}
    for value in summaries:
        number = _number(value)
        if number is None:
            _not_captured(run, _kind(value), f"{value.tag} ({_kind(value)})")
        else:
            row[prefix + value.tag] = number
    return row


def _not_captured(run: Run, kind: str, key: str) -> None:
    counts.not_captured(f"tensorboard {kind}")
    run.count_drop("not_captured", key=key)


def _time_of(event: Any) -> int | None:
    """Return the event's ``walltime`` in Unix ns.

    ``None`` where it is a time since some other moment.
    """
    if _FIRST_TIME_S <= event.wall_time < math.inf:
        return int(event.wall_time * 1e9)
    return None


def _number(value: Any) -> float | None:
    """Return the scalar of a summary value: a ``simple_value``, or a tensor of the plugin ``scalars``.

    ``None`` for every other value, e.g. histograms and texts, and for a tensor of several numbers.
    With ``new_style=True`` torch writes a scalar as a tensor.
    """
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
    """Return the plugin that shows a summary value, empty without one.

    A tensor is a scalar, a text or a histogram by its plugin alone.
    """
    return str(value.metadata.plugin_data.plugin_name)


def _kind(value: Any) -> str:
    return _plugin(value) or str(value.WhichOneof("value"))


def _synced_run() -> Run | None:
    """Return the latest run of another capture that records all event writers.

    ``None`` without one.
    """
    running = [run for run in living(_synced) if run.recording]
    if running:
        return running[-1]
    return None


def _begin_once() -> None:
    """Begin the process's run, unless it has begun, or cannot begin.

    Of several threads one begins it, and the scalars of the others wait for it.
    """
    with _Beginning.lock:
        if not (runs.has_begun or _begins_no_more.is_set()):
            _begin_first()


def _begin_first() -> None:
    """Begin the process's run, if possible one that an adapter has announced.

    Where it cannot begin, the reason is printed, and `record_event` finds no run. `record_event`
    catches an exception that is not otel-bridge's own. Either way this is not called again.
    """
    # Set first, so that the reason is printed once, not with every scalar.
    _begins_no_more.set()
    announced = runs.take_announced()
    try:
        if announced is not None:
            announced.begin()
        if runs.current is None:
            # As rank 0, whose rows are recorded: Megatron writes event files on its last rank.
            runs.begin(RunRequest(rank=0))
    except OtelBridgeError as exc:
        notify(f"TensorBoard's scalars are not recorded: {exc}", always=True)


def _prefix(run: Run, folder: str) -> str:
    """Return what precedes the tags of event files in *folder*, as in W&B.

    It is the part of the path that the first folder of *run* does not share, and nothing for that
    folder. A folder above the first one shares all of its path: it has its own name.
    """
    if run not in _first_folders:
        _first_folders[run] = _top_folder(folder)
    first_folder = _first_folders[run]
    if folder == first_folder:
        return ""
    parts = os.path.relpath(folder, first_folder).split(os.sep)
    below = [part for part in parts if part != os.pardir]
    return "".join(f"{part}/" for part in below or [os.path.basename(folder)])


def _top_folder(folder: str) -> str:
    """Return the topmost folder of an open writer that *folder* is in; *folder* itself where none is above it.

    ``add_hparams()`` and ``add_scalars()`` of a ``SummaryWriter`` write to folders below its own, by
    writers of their own (torch 2.15, tensorboardX 2.6). Programs call the first before any scalar.
    """
    top = folder
    for writer in living(_open_writers):
        opened = os.path.abspath(str(writer.get_logdir()))
        if f"{top}{os.sep}".startswith(f"{opened}{os.sep}"):
            top = opened
    return top


class _Beginning:
    """Holds the lock of the run's begin, re-entrant for signal handlers."""

    lock = threading.RLock()

    @classmethod
    def begin_in_child(cls) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Beginning.begin_in_child)

_left_out: set[str] = set()
_begins_no_more = threading.Event()
"""Set when no scalar begins the process's run any more."""
_open_writers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
# Weak keys: runs are not kept in memory.
_first_folders: weakref.WeakKeyDictionary[Run, str] = weakref.WeakKeyDictionary()
_synced: weakref.WeakKeyDictionary[Run, None] = weakref.WeakKeyDictionary()
"""Runs of other captures that record all event writers, in the order of their begin."""
