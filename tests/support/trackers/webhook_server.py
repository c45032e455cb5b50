"""A webhook on this machine that answers as a test says, and keeps what was posted."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Answer = int | Literal["reset", "hang", "drip"]
SECRET = "/services/T0SECRET/B0SECRET/xoxSECRETsecretSECRET"


@dataclass
class Webhook:
    """What a running webhook was sent.

    Attributes:
        url: Its address.
        answers: What it answers to the next requests, a status or a fault; then 200.
        texts: The ``text`` of each request, in the order of arrival.
        came: Set when a request has arrived.
        released: Lets hanging requests end.
    """

    url: str
    answers: list[Answer] = field(default_factory=list[Answer])
    texts: list[str] = field(default_factory=list[str])
    bodies: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    came: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def titles(self) -> list[str]:
        return [text.split("*")[1] for text in self.texts]


@contextmanager
def webhook(*answers: Answer) -> Generator[Webhook]:
    """Run a webhook that gives *answers* to its first requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.bodies.append(body)
            found.texts.append(body["text"])
            answer = found.answers.pop(0) if found.answers else 200
            found.came.set()
            if answer == "hang":
                found.released.wait()
            elif answer == "drip":
                while not found.released.wait(0.05):
                    self.wfile.write(b"X")
            elif answer == "reset":
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
            else:
                self.send_response(int(answer))
                self.send_header("Retry-After", "0")
                self.send_header(
                    "Location", f"http://127.0.0.1:{server.server_port}/elsewhere"
                )
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Webhook(f"http://127.0.0.1:{server.server_port}{SECRET}", list(answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
