"""A process that opens a writer, writes, and is killed: ``python -m otel_bridge.testing.child <job file>``.

What a real kill leaves behind (locks, half a transaction, threads that never ended) cannot be had
in the process of the test. The memory table lies in a SQLite file, as a bridge's does, so that it
survives.
"""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from otel_bridge.exporter import Exporter, RunInfo
from otel_bridge.records import Record
from otel_bridge.testing.delivery import deliver, open_writer

TIMEOUT_S = 120.0


class FileMemory:
    """Stores a writer's memory in a file; a `put` that returned survives a kill."""

    def __init__(self, path: Path) -> None:
        # Each statement is a transaction: what `put` stored survives the kill, as in a bridge's
        # ledger.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS memory (key TEXT PRIMARY KEY, value BLOB)"
        )

    def get(self, key: str) -> bytes | None:
        """Return the value, ``None`` when there is none."""
        row: tuple[bytes] | None = self._connection.execute(
            "SELECT value FROM memory WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        return row[0]

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        self._connection.execute(
            "INSERT OR REPLACE INTO memory VALUES (?, ?)", (key, value)
        )

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._connection.execute("DELETE FROM memory WHERE key = ?", (key,))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        rows: list[tuple[str, bytes]] = self._connection.execute(
            "SELECT key, value FROM memory ORDER BY key"
        ).fetchall()
        yield from ((key, value) for key, value in rows if key.startswith(prefix))


@dataclass(frozen=True, slots=True)
class ChildJob:
    """Describes what the child does: open, write each of *calls*, kill itself.

    Attributes:
        target: Where the exporter is, ``module:attribute``.
        calls: One list of placed records of one kind a call.
        kill: With SIGKILL after the last call; else it closes its writer and exits.
    """

    target: str
    environment: Mapping[str, str]
    cwd: Path
    run: RunInfo
    memory: Path
    calls: Sequence[Sequence[Record]]
    kill: bool = True


def run_child(job: ChildJob, folder: Path) -> int:
    """Run *job* in a process of its own and return its exit status (-9 after a kill).

    Args:
        job: What it does.
        folder: For the job file.

    Raises:
        AssertionError: The child failed by itself; the message holds its output.
    """
    path = folder / f"job-{os.urandom(4).hex()}.pickle"
    # Pickle, because records are dataclasses of our own, and both ends are this program.
    path.write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "otel_bridge.testing.child", str(path)]
    # The exporter's variables last: they name the store of the test, not that of the user.
    environment = {**os.environ, **job.environment}
    done = subprocess.run(
        command,
        env=environment,
        cwd=job.cwd,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != (-signal.SIGKILL if job.kill else 0):
        raise AssertionError(
            f"the child ended with {done.returncode}: {done.stderr.decode(errors='replace')[-4000:]}"
        )
    return done.returncode


def load_target(target: str) -> Exporter:
    """Return the exporter at ``module:attribute``."""
    module, _, attribute = target.partition(":")
    exporter: object = getattr(import_module(module), attribute)
    if not isinstance(exporter, Exporter):
        raise TypeError(
            f"{target} is a {type(exporter).__name__}, expected an Exporter"
        )
    return exporter


def main(argv: Sequence[str]) -> int:
    """Do the job that lies pickled at ``argv[0]``."""
    job: ChildJob = pickle.loads(Path(argv[0]).read_bytes())  # noqa: S301  # written by run_child
    exporter = load_target(job.target)
    settings = exporter.read_settings(job.environment, job.cwd)
    writer = open_writer(exporter, job.run, settings, FileMemory(job.memory))
    durable = writer.durable()
    for call in job.calls:
        deliver(writer, call, held=durable)
    if job.kill:
        # Of itself, and right behind the last call: nothing is closed, flushed or joined.
        os.kill(os.getpid(), signal.SIGKILL)
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
