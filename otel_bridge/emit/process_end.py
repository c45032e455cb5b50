"""How this process ends -> the status of the runs that it left open: the one rule for native and captured programs.

The exit code decides, and an uncaught exception of the main thread. The interpreter shows an exit
handler neither the argument of ``sys.exit()`` nor the exit code, so calls that raise ``SystemExit``
note it. A program may catch its own ``SystemExit``; then its outermost frame returns, and the note
means nothing. A worker of multiprocessing runs no exit handlers at all: it ends by ``os._exit()``,
after the finalizers of its own package.
"""

from __future__ import annotations

import builtins
import gc
import opcode
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from otel_bridge.emit.arguments import EndStatus

_NOTES_EXIT_CODE = "otel_bridge_exit_code"
"""Attribute of a function that notes its argument: ``sys.exit``, and what ``exit()`` and ``quit()`` call."""

_PROGRAMS = frozenset({"<module>", "_run_module_as_main"})
"""Functions in which a program begins: its module, or that of ``python -m``."""


class _Exit:
    """Holds what is known of the end of this process."""

    code: object = None
    outermost: FrameType | None = None
    """Outermost frame of the main thread, whose last instruction shows whether it returned."""
    watched_pid: int = 0


def watch_process_end(end_runs: Callable[[EndStatus], object]) -> None:
    """Note how this process ends; in a worker of multiprocessing also call *end_runs* when it ends.

    May be called for every run that begins, and again in a forked child: the outermost frame may be
    another one there, and a finalizer of the parent is not the child's.
    """
    _note_exit_codes()
    _Exit.outermost = _outermost_frame()
    if _Exit.watched_pid == os.getpid():
        return
    _Exit.watched_pid = os.getpid()
    # Once a process: a worker's finalizers would end the runs once for each run.
    call_at_worker_end(end_runs)


def call_at_worker_end(
    end: Callable[[EndStatus], object], *, first: bool = False
) -> None:
    """Call *end* with the status when a worker of multiprocessing ends; elsewhere nothing happens.

    Such a worker runs no exit handlers. The module is not imported for this: a program without it
    has no workers.

    Args:
        end: Called once; what it raises, multiprocessing prints, and goes on.
        first: Whether it records, and so is called before what ends the runs.
    """
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if (
        util is not None
        and process is not None
        and process.parent_process() is not None
    ):
        util.Finalize(None, _at_worker_end, args=(end,), exitpriority=int(first))


def _at_worker_end(end: Callable[[EndStatus], object]) -> None:
    """Call *end* with the status of a worker that ends, failed after an exception that left its body."""
    # Finalizers run in the `finally` of the worker's body (multiprocessing/process.py,
    # `_bootstrap`), so that an exception that ends the worker is the one being handled here. A fork
    # inside an `except` block inherits the parent's exception as well, and its noted exit code:
    # neither has passed this worker's body.
    error = sys.exc_info()[1]
    traceback = None if error is None else error.__traceback__
    is_of_worker = (
        traceback is not None and traceback.tb_frame.f_code.co_name == "_bootstrap"
    )
    _Exit.code = int(status_after(error if is_of_worker else None) == "failed")
    end(status_at_exit())


def _note_exit_codes() -> None:
    """Let ``sys.exit()``, ``exit()`` and ``quit()`` note their argument, once a process.

    ``hydra.main()``, click and a spawned worker print an exception and call ``sys.exit(1)``, after
    which nothing else shows it. wandb's own ``ExitHooks`` do so for the first.
    """
    _note_argument(sys, "exit")
    # A program without `site` has no quit(), and IPython has its own.
    quit_call: object = getattr(builtins, "quit", None)
    quitter = type(quit_call)
    if quitter.__module__ == "_sitebuiltins":
        _note_argument(quitter, "__call__", first=1)


def _note_argument(holder: Any, name: str, *, first: int = 0) -> None:
    """Replace the function *name* of *holder* by one that notes its argument, which follows *first* others; once."""
    real = getattr(holder, name)
    # Each run that begins comes here, and layers would grow with every one.
    if hasattr(real, _NOTES_EXIT_CODE):
        return

    @wraps(real)
    def noting(*arguments_given: Any, **keywords: Any) -> Any:
        # In another thread it ends that thread alone.
        if threading.current_thread() is threading.main_thread():
            arguments = [*arguments_given[first:], *keywords.values()]
            _Exit.code = arguments[0] if arguments else None
        return real(*arguments_given, **keywords)

    setattr(noting, _NOTES_EXIT_CODE, True)
    setattr(holder, name, noting)


def _outermost_frame() -> FrameType | None:
    """Return the frame in which the main thread began; ``None`` if it is not that of a program.

    A frame keeps its variables. Those of a module live until the exit anyway, those of a host's
    function do not. ``None`` means that the exit code alone decides.
    """
    # No variable may hold all frames: this one is among them, and such a cycle would keep the
    # variables of every caller alive until a garbage collection, which trainers disable.
    frame = _frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name in _PROGRAMS:
        return frame
    return None


def _frame_of_main_thread() -> FrameType | None:
    """Return what the main thread runs now; ``None`` where it has ended."""
    main_thread = threading.main_thread().ident or 0
    if threading.get_ident() == main_thread:
        return sys._getframe()  # pyright: ignore[reportPrivateUsage]  # documented
    # A garbage collection within the call waits for ever if it frees a `threading.local` (CPython
    # 3.11, gh-106883).
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(main_thread)  # pyright: ignore[reportPrivateUsage]  # documented, for debuggers
    finally:
        if was_enabled:
            gc.enable()


def _main_returned() -> bool:
    """Return whether the main thread's outermost frame ended by ``return``, not by an exception, or not yet."""
    frame = _Exit.outermost
    if frame is None or frame.f_lasti < 0:
        return False
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def status_after(error: BaseException | None) -> EndStatus:
    """Return the status of a run that ends while *error* propagates.

    Failed, unless it is an exit with code 0. A generator whose loop breaks off is closed by
    `GeneratorExit`: nothing failed. Without an error: finished.
    """
    if error is None or isinstance(error, GeneratorExit):
        return "finished"
    if isinstance(error, SystemExit) and _is_good(error.code):
        return "finished"
    return "failed"


def status_now() -> EndStatus:
    """Return the status of a run that a framework ends in a ``finally``: failed while an exception propagates."""
    return status_after(sys.exc_info()[1])


def status_at_exit() -> EndStatus:
    """Return the status of runs that end with the process.

    Failed after an exception or a noted exit code. A program that returned at its end has caught
    the ``SystemExit`` that was noted, or logged an exception of its own.
    """
    if _main_returned():
        return "finished"
    if not _is_good(_Exit.code):
        return "failed"
    # An interactive session goes on after an exception, so its last one says nothing of the end.
    interactive = hasattr(sys, "ps1")
    if getattr(sys, "last_value", None) is not None and not interactive:
        return "failed"
    return "finished"


def _is_good(code: object) -> bool:
    """Return whether an argument of ``sys.exit()``, which may be any object, gives exit code 0.

    The system keeps the lowest eight bits of a code.
    """
    return code is None or (isinstance(code, int) and code & 0xFF == 0)
