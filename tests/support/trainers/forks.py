"""Children that are forked one after the other, many a second: by a small process of one thread.

That of the tests has threads, of gRPC's too, and what is forked from it may die of them. The program calls
`fork_for_each_line`, a test `forks`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Forks:
    """Begins one child after the other.

    Attributes:
        killed: How many of those that ended were killed.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.killed = self._pid = 0

    def begin(self, line: str = "") -> int:
        """Fork one that is given *line*; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._pid = int(self._said())
        return self._pid

    def ended(self) -> int:
        """Wait for the end of the one that was begun last; returns the exit code, negative for a signal."""
        code = int(self._said())
        self.killed += code == -signal.SIGKILL
        return code

    def kill(self) -> None:
        """Kill the one that was begun last."""
        os.kill(self._pid, signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def forks(program: str, *arguments: str) -> Iterator[Forks]:
    """Run *program*, a file that calls `fork_for_each_line`; it and its children are killed at the end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, program, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Forks(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def fork_for_each_line(child: Callable[[str], None]) -> None:
    """Run *child* in a fork for each line of standard input, one at a time; print its pid, then its exit code."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(line.strip())
                code = 0
            except BaseException:  # noqa: BLE001  # said, as the interpreter would
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
