"""A real Trackio server on loopback, over a folder of its own; it can be killed and started again on its port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from support.free_ports import free_port
from support.waiting import HANG_S

TOKEN = "let-me-in"
# The oldest servers make a token of their own, whatever TRACKIO_WRITE_TOKEN is.
_SHOW = f"import trackio.server; trackio.server.write_token = {TOKEN!r}; from trackio.cli import main; main()"


class TrackioServer:
    """One server.

    Attributes:
        url: Its address.
    """

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.port, self._env = folder, free_port(), env
        self.url = f"http://127.0.0.1:{self.port}/"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> TrackioServer:
        """Start it and wait until it answers."""
        environment = {
            **os.environ, "TRACKIO_DIR": str(self.folder / "store"), "GRADIO_SERVER_PORT": str(self.port),
            "TRACKIO_WRITE_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False",
            "HOME": str(self.folder), "TRACKIO_INBOX_POLL_INTERVAL": "5", **self._env,
        }  # fmt: skip
        command = [sys.executable, "-c", _SHOW, "show", "--host", "127.0.0.1"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                urlopen(f"{self.url}version", timeout=2) as answer,
            ):
                if answer.status == 200:
                    return self
            time.sleep(0.05)
        raise RuntimeError(
            f"trackio show did not start: {(self.folder / 'server.log').read_text()[-2000:]}"
        )

    def kill(self) -> None:
        """End it as a power cut does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None
