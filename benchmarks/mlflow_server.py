"""A real ``mlflow server`` with one worker over a fresh SQLite file, on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import requests

_START_S = 300.0


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Yield its address; *folder* is its own.

    Raises:
        RuntimeError: It did not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        f"{folder}/files",
    ]
    env = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    env.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, folder / "server.log")
        yield url
    finally:
        # Its own session: the group holds the server and its worker, nothing else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def _wait(url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"{url}/health", timeout=2).ok:
                return
        time.sleep(0.1)
    raise RuntimeError(f"mlflow server did not start: {log.read_text()[-2000:]}")
