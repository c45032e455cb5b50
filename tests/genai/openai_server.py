"""A local server with OpenAI's chat completions API, and one that records OTLP requests. Loopback only.

The model answers in two turns when it is offered a tool: it calls the tool, then answers. A model named ``broken``
refuses with an error that repeats the question.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

CANARY = "CANARY"
"""In every text that a model reads or writes here; never in a name."""
QUESTION = f"{CANARY} question: what is the weather in Paris?"
SYSTEM = f"{CANARY} system: you are terse"
ANSWER = f"{CANARY} answer: sunny in Paris"
PLACE = f"{CANARY} Paris"
WEATHER = f"{CANARY} result: sun all day"
DESCRIPTION = f"{CANARY} description: look up the weather"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.respond(body)

    def respond(self, body: bytes) -> None:
        raise NotImplementedError

    def send(
        self, status: int, payload: bytes, content_type: str = "application/json"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass


class _Model(_Handler):
    def respond(self, body: bytes) -> None:
        asked = json.loads(body)
        if asked.get("model") == "broken":
            error = {
                "message": f"cannot answer: {QUESTION}",
                "type": "invalid_request_error",
                "code": None,
            }
            self.send(400, json.dumps({"error": error}).encode())
            return
        answered = any(message.get("role") == "tool" for message in asked["messages"])
        tools = asked.get("tools")
        message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
        reason = "stop"
        if tools and not answered:
            function = {
                "name": tools[0]["function"]["name"],
                "arguments": json.dumps({"place": PLACE}),
            }
            message = {"role": "assistant", "content": None}
            message["tool_calls"] = [
                {"id": "call_1", "type": "function", "function": function}
            ]
            reason = "tool_calls"
        self.send(
            200, json.dumps(_completion(asked["model"], message, reason)).encode()
        )


def _completion(model: str, message: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": f"{model}-2026",
        "choices": [
            {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


@contextmanager
def openai_server() -> Generator[str]:
    """Serve the model; yield the base URL for its clients."""
    with _serving(_Model) as address:
        yield f"{address}/v1"


@contextmanager
def otlp_recorder() -> Generator[tuple[str, list[tuple[str, bytes]]]]:
    """Serve OTLP over HTTP; yield the endpoint, and a list that gets (path, request) for each request."""
    requests: list[tuple[str, bytes]] = []

    class Recorder(_Handler):
        def respond(self, body: bytes) -> None:
            requests.append((self.path, body))
            self.send(200, b"", "application/x-protobuf")

    with _serving(Recorder) as address:
        yield address, requests


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
