"""Kills a writer: what a real kill leaves behind cannot be had in the process of the test.

That is locks, half a transaction, threads that never ended. The memory lies in a file, as a
bridge's does, so that it survives.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name

from otel_bridge.exporter import Exporter, RunInfo
from otel_bridge.records import Record
from otel_bridge.testing.delivery import deliver, open_writer
from otel_bridge.testing.memory import MemoryTable

TIMEOUT_S = 120.0


def kill_writer(
    target: str,
    environment: Mapping[str, str],
    run: RunInfo,
    memory: Path,
    calls: Sequence[Sequence[Record]],
) -> None:
    """Open a writer in a process of its own, make *calls*, and kill it right behind the last one.

    Args:
        target: Where the exporter is, ``module:attribute``.
        environment: Variables of the process.
        run: The run.
        memory: File of its memory; the process works in its folder.
        calls: One list of placed records of one kind a call.

    Raises:
        AssertionError: The process was not killed; its error is on standard error.
    """
    # A new interpreter, because this one has imported the tracker and runs its threads.
    process = multiprocessing.get_context("spawn").Process(
        target=_write_and_die, args=(target, dict(environment), run, memory, calls)
    )
    process.start()
    process.join(TIMEOUT_S)
    ended_with = process.exitcode
    process.kill()
    if ended_with != -signal.SIGKILL:
        raise AssertionError(
            f"the writer's process ended with {ended_with} (None: not within {TIMEOUT_S:g} s), expected a kill"
        )


def _write_and_die(
    target: str,
    environment: Mapping[str, str],
    run: RunInfo,
    memory: Path,
    calls: Sequence[Sequence[Record]],
) -> None:
    """Run in the child: write, and end by SIGKILL.

    An exception ends it with a traceback instead.
    """
    os.chdir(memory.parent)
    # Before the tracker is imported. They name the store of the test, not that of the user.
    os.environ.update(environment)
    exporter = load_target(target)
    settings = exporter.read_settings(environment, memory.parent)
    writer = open_writer(exporter, run, settings, MemoryTable(memory))
    durable = writer.durable()
    for call in calls:
        deliver(writer, call, held=durable)
    # Of itself: nothing is closed, flushed or joined.
    os.kill(os.getpid(), signal.SIGKILL)


def load_target(target: str) -> Exporter:
    """Return the exporter at ``module:attribute``.

    Raises:
        TypeError: The attribute is not an exporter.
        ImportError: The module cannot be imported.
        AttributeError: The module has no such attribute.
    """
    exporter: object = resolve_name(target)
    if not isinstance(exporter, Exporter):
        raise TypeError(
            f"{target} is a {type(exporter).__name__}, expected an Exporter"
        )
    return exporter
