"""``otel-bridge serve`` as a process of its own, for the measurements that send to one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

FREE = "127.0.0.1:0"
OFF = "off"
_LOOK_S = 0.005
_END_S = 60.0


class Service:
    """Takes data from construction on, until `end` or `kill`; its runs are in ``runs``, its log is ``service.log``.

    Args:
        folder: Its working folder.
        env: Its environment, all of it.
        exporters: Names, with commas; empty: what comes is only kept.
        grpc: Where it listens for gRPC, `FREE` or `OFF`.
        http: The same for HTTP.

    Attributes:
        grpc: ``host:port`` of gRPC; empty where there is none.
        http: The same of HTTP.
        process: To look at.

    Raises:
        RuntimeError: It ended instead.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        *,
        exporters: str = "",
        grpc: str = FREE,
        http: str = FREE,
    ) -> None:
        log = folder / "service.log"
        call = [
            str(Path(sys.executable).with_name("otel-bridge")),
            "serve",
            "--dir",
            str(folder / "runs"),
        ]
        call += [
            "--grpc",
            grpc,
            "--http",
            http,
            *(["--exporters", exporters] if exporters else []),
        ]
        # To a file: nobody need read on, and what a tracker starts may hold it open for longer than the service lives.
        with log.open("ab") as said:
            before = said.tell()
            self._child = subprocess.Popen(
                call, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=said
            )
        ends = iter(self._ends(log, before))
        self.grpc = next(ends) if grpc != OFF else ""
        self.http = next(ends) if http != OFF else ""
        self.process = psutil.Process(self._child.pid)

    def _ends(self, log: Path, before: int) -> list[str]:
        while True:
            ended = self._child.poll() is not None
            said = log.read_bytes()[before:].decode(errors="replace")
            found = re.search(r"receives at (.*?);", said)
            if found is not None:
                return re.findall(r"http://([^\s;]+)", found[1])
            if ended:
                raise RuntimeError(f"serve did not begin: {said}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """Kill it, as with ``kill -9``."""
        self._child.kill()
        self._child.wait()

    def end(self, timeout_s: float = _END_S) -> int:
        """Ask it to end and return its exit code; it is killed where it takes longer than *timeout_s*."""
        self._child.terminate()
        try:
            return self._child.wait(timeout_s)
        finally:
            self.kill()


@contextmanager
def service(
    folder: Path,
    env: Mapping[str, str],
    *,
    exporters: str = "",
    grpc: str = FREE,
    http: str = FREE,
) -> Iterator[Service]:
    """Yield a `Service`, which ends with the block."""
    running = Service(folder, env, exporters=exporters, grpc=grpc, http=http)
    try:
        yield running
    finally:
        running.end()
