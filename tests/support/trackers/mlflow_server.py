"""A real ``mlflow server`` on loopback, and a proxy before it that fails to order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.free_ports import free_port
from support.waiting import ANSWER_S, HANG_S

PYTHON = os.environ.get("OTEL_BRIDGE_TEST_MLFLOW_SERVER_PYTHON", sys.executable)
"""The interpreter of the server: one of another environment runs it with another version than the client's."""


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Start a server with one worker over a fresh SQLite file in *folder*; yield its address."""
    port = free_port()
    command = [
        PYTHON,
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
        str(folder / "files"),
    ]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        # Its own session: the group holds the server and its worker, nothing else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(10)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(url, timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"mlflow server did not start: {log.read_text()[-2000:]}")


class FaultProxy:
    """Passes requests to *target*; answers with `status` instead, or hangs, while asked to.

    Attributes:
        status: Answer every request whose path contains `path` with this status; 0 passes it on.
        body: What such an answer says, with `headers`.
        after: Let this many such requests through first.
        lose_answer: Pass the request on and drop the answer, as a broken network does.
        cut: Pass the request on and break the connection in the middle of the answer.
        hang: Do not answer before `release` is set.
        hang_above: Hang for requests with a larger body alone.
        largest: Answer 413 to requests with a larger body, as proxies do.
        required: Headers without which a request is answered 401.
        seen: ``METHOD path`` of all requests.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.status, self.path, self.after = 0, "", 0
        self.headers: dict[str, str] = {}
        self.body = b"<html>no</html>"
        self.required: dict[str, str] = {}
        self.lose_answer = self.hang = self.cut = self.refusing = False
        self.hang_above = 0
        self.largest: int | None = None
        self.release = threading.Event()
        self.seen: list[str] = []
        self.authorizations: list[str | None] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.handle(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self._handler = Handler
        self._server = self._listen(0)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.release.set()
        if not self.refusing:
            self._server.shutdown()
            self._server.server_close()

    def refuse(self) -> None:
        """Let nobody connect, and drop who is connected, until `heal`."""
        self.refusing = True
        self._server.shutdown()
        self._server.server_close()

    def heal(self) -> None:
        self.status, self.after, self.headers = 0, 0, {}
        self.lose_answer = self.hang = self.cut = False
        self.hang_above = 0
        self.largest = None
        self.release.set()
        self.release = threading.Event()
        if self.refusing:
            self.refusing, self._server = False, self._listen(self.port)

    def _listen(self, port: int) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        server.daemon_threads = True
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return server

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.seen.append(f"{request.command} {request.path}")
        self.authorizations.append(request.headers.get("Authorization"))
        if self.refusing:
            request.close_connection = True
            return
        if any(
            request.headers.get(name) != value for name, value in self.required.items()
        ):
            _answer(request, 401, b"who are you?", {"WWW-Authenticate": "Basic"})
            return
        if self.largest is not None and len(body) > self.largest:
            _answer(
                request, 413, b"<html>too large</html>", {"Content-Type": "text/html"}
            )
            return
        hit = self.path in request.path
        if hit and self.after > 0:
            self.after, hit = self.after - 1, False
        if hit and self.hang and len(body) > self.hang_above:
            self.release.wait(30)
            request.close_connection = True
            return
        if hit and self.status:
            _answer(
                request,
                self.status,
                self.body,
                {"Content-Type": "text/html", **self.headers},
            )
            return
        status, answer, headers = self._pass_on(request, body)
        if hit and (self.lose_answer or self.cut):
            request.close_connection = True
            if self.cut:
                request.connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
                )
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        _answer(request, status, answer, headers)

    def _pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() not in {"host", "accept-encoding"}
        }
        sent = urllib.request.Request(
            self.target + request.path, body or None, headers, method=request.command
        )
        try:
            with urllib.request.urlopen(sent, timeout=ANSWER_S) as answer:
                return (
                    answer.status,
                    answer.read(),
                    {"Content-Type": answer.headers.get("Content-Type", "")},
                )
        except urllib.error.HTTPError as exc:
            return (
                exc.code,
                exc.read(),
                {"Content-Type": exc.headers.get("Content-Type", "")},
            )


def _answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
) -> None:
    request.send_response(status)
    for key, value in headers.items():
        request.send_header(key, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
