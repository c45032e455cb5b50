"""How this process ends -> the status of the runs that it left open: the one rule for native and captured programs.

The exit code decides, and an uncaught exception of the main thread. The interpreter shows an exit handler neither the
argument of ``sys.exit()`` nor the exit code, and a worker of multiprocessing runs no exit handlers at all: it ends by
``os._exit()``, after the finalizers of its own package.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn

from otel_bridge.emit.arguments import EndStatus

_NOTES_EXIT_CODE: Final = "otel_bridge_exit_code"
"""Attribute of a ``sys.exit`` that notes its argument."""


class _Exit:
    """Holds what is known of the end of this process."""

    code: object = None
    watched_pid: int = 0


def watch_process_end(end_runs: Callable[[], None]) -> None:
    """Note how this process ends; in a worker of multiprocessing also call *end_runs* when it ends.

    May be called for every run that begins, and again in a forked child.
    """
    _note_exit_codes()
    if _Exit.watched_pid == os.getpid():
        return
    _Exit.watched_pid = os.getpid()
    _call_at_worker_end(end_runs)


def call_at_worker_end(end: Callable[[EndStatus], object], *, first: bool = False) -> None:
    """Call *end* with the status when a worker of multiprocessing ends; elsewhere nothing happens.

    Args:
        end: Called once.
        first: Whether it records, and so is called before what ends the runs.
    """
    _call_at_worker_end(lambda: end(status_at_exit()), exitpriority=int(first))


def _call_at_worker_end(end: Callable[[], object], *, exitpriority: int = 0) -> None:
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _at_worker_end, args=(end,), exitpriority=exitpriority)


def _at_worker_end(end: Callable[[], object]) -> None:
    # Finalizers run in the `finally` of the worker's body (multiprocessing/process.py, `_bootstrap`), so that an
    # exception that ends the worker is the one being handled here. A fork inside an `except` block inherits the
    # parent's exception as well, and its noted exit code: neither has passed this worker's body.
    error = sys.exc_info()[1]
    traceback = None if error is None else error.__traceback__
    _Exit.code = None
    if traceback is not None and traceback.tb_frame.f_code.co_name == "_bootstrap":
        _Exit.code = error.code if isinstance(error, SystemExit) else 1
    end()


def _note_exit_codes() -> None:
    """Let ``sys.exit()`` note its argument, as wandb's own ``ExitHooks`` do.

    ``hydra.main()``, click and a spawned worker print an exception and call ``sys.exit(1)``.
    """
    real = sys.exit
    if hasattr(real, _NOTES_EXIT_CODE):
        return

    @wraps(real)
    def exit_noting_code(code: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # in another thread it ends that thread alone
            _Exit.code = code
        real(code)

    setattr(exit_noting_code, _NOTES_EXIT_CODE, True)
    sys.exit = exit_noting_code


def is_good_exit(code: object) -> bool:
    """Return whether an argument of ``sys.exit()``, which may be any object, is exit code 0."""
    return code is None or (isinstance(code, int) and code == 0)


def status_at_exit() -> EndStatus:
    """Return the status of runs that end with the process: ``failed`` after an exception or a noted exit code."""
    if not is_good_exit(_Exit.code):
        return "failed"
    interactive = hasattr(sys, "ps1")
    return "failed" if getattr(sys, "last_value", None) is not None and not interactive else "finished"
