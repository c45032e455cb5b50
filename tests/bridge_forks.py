"""Bridges that are forked and killed, many a second: forked by a small process of one thread, not by that of the tests.

``python bridge_forks.py BASE FILE MODE`` forks a bridge into `bridge_file_tracker`'s file for each line of its standard
input and prints its pid, then how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bridge_doubles import options
from bridge_file_tracker import file_exporter

from otel_bridge.bridge.host import Host


class Bridges:
    """Begins one bridge after the other."""

    def __init__(self, forks: subprocess.Popen[str]) -> None:
        assert forks.stdin is not None
        assert forks.stdout is not None
        self._asks, self._answers = forks.stdin, forks.stdout
        self._pid = 0

    def begin(self) -> None:
        """Fork one."""
        self._asks.write("\n")
        self._asks.flush()
        self._pid = int(self._answers.readline())

    def kill(self) -> None:
        """Kill the one that was begun last."""
        os.kill(self._pid, signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def ended(self) -> int:
        """Wait for it; return how it ended."""
        return int(self._answers.readline())


@contextmanager
def forked_bridges(base: Path, file: Path, mode: str) -> Iterator[Bridges]:
    """Bridges over *base* into *file*; in *mode* ``safe`` the tracker says what it holds."""
    command = [sys.executable, __file__, str(base), str(file), mode]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as forks:
        yield Bridges(forks)
        assert forks.stdin is not None
        forks.stdin.close()
        assert forks.wait(30) == 0


def main(base: Path, file: Path, mode: str) -> None:
    exporter = file_exporter(file, tells_safe=mode == "safe")
    how = options()
    how = replace(how, places=replace(how.places, load=lambda name: exporter))
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                Host(base, how, until_done=True).serve()
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
