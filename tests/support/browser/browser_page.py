"""One page in a headless Chromium of its own, reached over the DevTools protocol on loopback."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import connect

from support.waiting import HANG_S

CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_WAIT_S = HANG_S


class Page:
    """The page; every call waits for its answer."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self._ids = itertools.count(1)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call one method of the protocol."""
        number = next(self._ids)
        self._websocket.send(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            answer = json.loads(self._websocket.recv(timeout=_WAIT_S))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def go(self, url: str) -> None:
        """Open *url*."""
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """Return the value of *expression*."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self) -> str:
        """Return what a person can read on the page."""
        return str(self.js("document.body ? document.body.innerText : ''"))

    def until(self, expression: str, what: str) -> Any:
        """Wait until *expression* is true; returns its value."""
        deadline = time.monotonic() + _WAIT_S
        while not (value := self.js(expression)):
            assert time.monotonic() < deadline, (
                f"the page never showed {what}; it says: {self.text()[:2000]}"
            )
            time.sleep(0.1)
        return value

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element of *selector* that holds *text*, once it is there."""
        holds = f"e => e.innerText.includes({json.dumps(text)})"
        found = f"[...document.querySelectorAll({json.dumps(selector)})].find({holds})"
        self.until(f"!!({found})", f"{selector} with {text!r}")
        self.js(f"({found}).click()")

    def picture(self, path: Path) -> None:
        """Save what is seen as PNG."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )


@contextmanager
def open_page(folder: Path, *, width: int = 1600, height: int = 1000) -> Iterator[Page]:
    """Start Chromium with a profile and a home below *folder*; its whole process group is ended afterwards."""
    assert CHROMIUM is not None
    profile = folder / "profile"
    profile.mkdir(parents=True)
    command = [
        CHROMIUM,
        *_FLAGS,
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
        "about:blank",
    ]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
            start_new_session=True,
        )
    try:
        address = _address(profile / "DevToolsActivePort", process)
        with connect(address, max_size=1 << 28, open_timeout=_WAIT_S) as websocket:
            page = Page(websocket)
            page.call("Page.enable")
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )
            try:
                yield page
            finally:
                with suppress(Exception):
                    page.call("Browser.close")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _WAIT_S
    while not file.exists() or not file.read_text("utf-8").strip():
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < deadline, "Chromium did not open its port"
        time.sleep(0.05)
    port = file.read_text("utf-8").split()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_WAIT_S) as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    return str(pages[0]["webSocketDebuggerUrl"])
