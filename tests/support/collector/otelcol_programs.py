"""The stock Collector and what belongs to it, as processes of a test: built by ``collector/otelcol/build.sh``.

Where a program is missing the test is left out and says so; under CI its absence is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from support.waiting import HANG_S

OTELCOL = Path(__file__).resolve().parents[3] / "collector" / "otelcol"
TOKEN = "of-the-tests"
WAIT_S = HANG_S
_HERE = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")


def program(name: str) -> str:
    """The path of ``otelcol`` or ``telemetrygen``."""
    done = subprocess.run(
        [str(OTELCOL / "build.sh"), "--path", name],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    if done.returncode:
        missing(
            f"{name} is not built: `collector/otelcol/build.sh {name}` does it with Go (not at {done.stdout.strip()})"
        )
    return done.stdout.strip()


def command(name: str, what_for: str) -> str:
    """The path of a command of the machine."""
    return shutil.which(name) or missing(f"no {name} on this machine: {what_for}")


def missing(why: str) -> NoReturn:
    """Leave the test out; under CI, where everything is there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}; CI must have it")
    pytest.skip(why)


def cache() -> Path:
    """The folder in which tests keep what they install."""
    return Path(
        os.environ.get("OTEL_BRIDGE_CACHE") or Path.home() / ".cache" / "otel-bridge"
    )


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@dataclass
class Service:
    """A process that listens on *port* (0: on none), and can be killed and started again; its output is in a file.

    It is started when it listens on *second_port* too.
    """

    command: list[str]
    env: Mapping[str, str]
    port: int
    log: Path
    second_port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=dict(self.env),
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + WAIT_S
        while not all(listens(port) for port in (self.port, self.second_port) if port):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """End it politely; returns its exit code."""
        return self._signal(signal.SIGTERM)

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-4000:]

    def _signal(self, number: int) -> int:
        process = self.process
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        try:
            return process.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.process = None


@contextmanager
def services() -> Iterator[ExitStack]:
    """Take services by ``enter_context(running(…))``; all are killed at the end, the last one first."""
    with ExitStack() as stack:
        yield stack


@contextmanager
def running(service: Service) -> Iterator[Service]:
    """Start *service*; it is killed at the end, whatever became of the test."""
    try:
        service.start()
        yield service
    finally:
        service.kill()


def collector(
    folder: Path, config: str, port: int, **variables: str | int | Path
) -> Service:
    """``otelcol`` with an otel-bridge pipeline; *port* is one of those that it listens on."""
    return Service(
        [program("otelcol"), "--config", str(OTELCOL / f"{config}.yaml")],
        collector_environment(**variables),
        port,
        folder / f"{config}-{port}.log",
    )


def collector_environment(**variables: str | int | Path) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in _HERE if name in os.environ},
        "OTEL_BRIDGE_TOKEN": TOKEN,
        **{name: str(value) for name, value in variables.items()},
    }


def bridge(base: Path, port: int, exporters: str, **variables: str) -> Service:
    """A bridge as a service: ``otel-bridge serve``; gRPC on *port*, HTTP on the next one, run folders below *base*."""
    base.parent.mkdir(parents=True, exist_ok=True)
    env = {**collector_environment(), "OTEL_BRIDGE_END_GRACE_S": "0.2", **variables}
    where = [
        "--grpc",
        f"127.0.0.1:{port}",
        "--http",
        f"127.0.0.1:{port + 1}",
        "--dir",
        str(base),
    ]
    serve = [
        str(Path(sys.executable).parent / "otel-bridge"),
        "serve",
        "--exporters",
        exporters,
        *where,
    ]
    return Service(serve, env, port, base.parent / f"{base.name}.log", port + 1)
