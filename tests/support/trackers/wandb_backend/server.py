"""A stand-in W&B server on loopback, for tests that drive the real SDK: it records what arrives and can misbehave.

.. code-block:: python

    with WandbServer() as server:
        os.environ |= server.environment()         # WANDB_BASE_URL and a key that means nothing
        …                                          # wandb.init(), run.log(), run.finish()
        assert server.run("my-run").history == [{"loss": 1.0, …}]
        server.answer(503, what="filestream", times=3)

It uses what wandb 0.31 asks: upserts, resume, viewer, filestream, run files, artifacts (incremental tables
included), sweeps and their agents, the run queries of ``wandb.Api()``, and the saved views of
wandb-workspaces. It is not W&B: it computes nothing, and lets everybody in.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, cast

from otel_bridge.records import Json
from support.trackers.wandb_backend.graphql import ENTITY, Resolver
from support.trackers.wandb_backend.state import WandbRun, WandbStore
from support.trackers.wandb_backend.sweeps import NoSweepError

KEY: Final = "f" * 40
_OPERATION: Final = re.compile(r"\b(?:query|mutation)\s+(\w+)")
_HANG_S: Final = 600.0


@dataclass(slots=True)
class _Fault:
    """How requests of one kind are answered, `left` more times."""

    what: str
    left: float
    status: int = 0
    hang: bool = False
    drop: bool = False
    take: bool = False
    wait_s: float = 0.0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """One request: seconds since the start, kind (``graphql``, ``filestream``, ``files``), name, status answered."""

    at_s: float
    what: str
    name: str
    status: int


class WandbServer:
    """The server; a context manager. All methods may be called from any thread.

    Args:
        port: 0: a free one.
        features: Server features to switch on, e.g. ``EXPAND_DEFINED_METRIC_GLOBS``.
    """

    def __init__(self, port: int = 0, *, features: tuple[str, ...] = ()) -> None:
        self.store = WandbStore()
        self.received: list[Received] = []
        self.errors: list[str] = []
        """Faults of the stand-in itself; a test with any has shown nothing."""
        self._began_s = time.monotonic()
        self._faults: list[_Fault] = []
        self._faults_lock = threading.Lock()
        self._healed = threading.Event()
        self._http: _Http | None = None
        self._port = port
        self.resolver = Resolver(self.store, lambda: self.url, self._clock_s)
        self.resolver.features = features
        self.listen()

    def __enter__(self) -> WandbServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """``WANDB_BASE_URL`` of this server."""
        return f"http://127.0.0.1:{self._port}"

    def environment(self) -> dict[str, str]:
        """Variables that send the SDK here."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_MODE": "online",
        }

    # --- what arrived -------------------------------------------------------------------------------------------------
    def run(self, run_id: str) -> WandbRun:
        """Return the run with this id; raises `KeyError`."""
        with self.store.lock:
            return self.store.by_id(run_id)

    def lines(self, run_id: str) -> int:
        """Return how many history lines a run has; 0 for an unknown one."""
        with self.store.lock:
            return sum(
                len(run.lines)
                for key, run in self.store.runs.items()
                if key[2] == run_id
            )

    def table(self, run_id: str, key: str) -> list[dict[str, Json]]:
        """Return the committed rows of a run's incremental table."""
        with self.store.lock:
            return self.store.table(run_id, key)

    # --- faults -------------------------------------------------------------------------------------------------------
    def answer(
        self,
        status: int,
        *,
        what: str = "",
        times: float = float("inf"),
        retry_after_s: float | None = None,
    ) -> None:
        """Answer requests with an HTTP status.

        Args:
            status: E.g. 503, 403, 429.
            what: ``graphql``, ``filestream``, ``files``, the name of a GraphQL operation; empty: all.
            times: How many requests.
            retry_after_s: Sent as ``Retry-After``.
        """
        self._fault(_Fault(what, times, status=status, retry_after_s=retry_after_s))

    def hang(self, *, what: str = "", times: float = float("inf")) -> None:
        """Take requests and answer none until `heal`."""
        self._fault(_Fault(what, times, hang=True))

    def slow(
        self, wait_s: float, *, what: str = "", times: float = float("inf")
    ) -> None:
        """Act on requests at once and answer them after *wait_s*, or when healed."""
        self._fault(_Fault(what, times, take=True, wait_s=wait_s))

    def drop(
        self, *, what: str = "", times: float = float("inf"), take: bool = False
    ) -> None:
        """Close the connection instead of an answer; with *take* after the request was acted on."""
        self._fault(_Fault(what, times, drop=True, take=take))

    def refuse(self) -> None:
        """Stop listening and cut what is open, until `listen`."""
        http, self._http = self._http, None
        if http is not None:
            http.cut()

    def listen(self) -> None:
        """Listen (again), on the same port."""
        if self._http is None:
            self._http = _Http(self._port, self)
            self._port = self._http.server_address[1]

    def heal(self) -> None:
        """End all faults and let hanging requests go."""
        with self._faults_lock:
            self._faults.clear()
            self._healed.set()
        self.listen()

    def close(self) -> None:
        """Stop."""
        with self._faults_lock:
            self._faults.clear()
            self._healed.set()
        self.refuse()

    def _fault(self, fault: _Fault) -> None:
        with self._faults_lock:
            self._healed.clear()
            self._faults.append(fault)

    def fault_for(self, what: str, name: str) -> _Fault | None:
        """Return the fault that this request meets, counted; for the handler."""
        with self._faults_lock:
            for fault in self._faults:
                if fault.left >= 1 and fault.what in {"", what, name}:
                    fault.left -= 1
                    return fault
        return None

    def wait_healed(self, timeout_s: float = _HANG_S) -> None:
        """Block a hanging or slow request."""
        self._healed.wait(timeout_s)

    def note(self, what: str, name: str, status: int) -> None:
        """Remember a request."""
        self.received.append(Received(self._clock_s(), what, name, status))

    def _clock_s(self) -> float:
        return time.monotonic() - self._began_s


class _Http(ThreadingHTTPServer):
    """Listens; knows its connections, so that they can be cut."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, port: int, owner: WandbServer) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.02,), name="wandb-stand-in", daemon=True
        )
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not an error of otel-bridge."""

    def cut(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            _close(connection)
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve("files", self.path)

    def do_PUT(self) -> None:
        self._serve("files", self.path)

    def do_POST(self) -> None:
        body = self._body()
        if self.path.startswith("/graphql"):
            asked = cast("dict[str, Any]", json.loads(body))
            found = _OPERATION.search(str(asked.get("query", "")))
            self._serve(
                "graphql",
                str(asked.get("operationName") or (found[1] if found else "")),
                asked,
            )
        elif self.path.endswith("/file_stream"):
            self._serve(
                "filestream", self.path, cast("dict[str, Any]", json.loads(body))
            )
        else:
            self._answer(404, b"{}")

    def _serve(self, what: str, name: str, asked: dict[str, Any] | None = None) -> None:
        owner = cast("_Http", self.server).owner
        upload = self._body() if self.command == "PUT" else b""
        fault = owner.fault_for(what, name)
        if fault is not None and fault.hang:
            owner.note(what, name, 0)
            owner.wait_healed()
        if fault is not None and fault.status:
            owner.note(what, name, fault.status)
            self._answer(
                fault.status,
                b'{"error": "stand-in"}',
                retry_after_s=fault.retry_after_s,
            )
            return
        if fault is None or fault.take or fault.hang:
            status, answer = self._acted(owner, what, name, asked, upload)
        else:
            status, answer = 0, b""
        owner.note(what, name, status)
        if fault is not None and fault.wait_s:
            owner.wait_healed(fault.wait_s)
        if fault is not None and fault.drop:
            self.close_connection = True
            _close(self.connection)
            return
        self._answer(status, answer)

    def _acted(
        self,
        owner: WandbServer,
        what: str,
        name: str,
        asked: dict[str, Any] | None,
        upload: bytes,
    ) -> tuple[int, bytes]:
        try:
            return self._act(owner, what, name, asked, upload)
        except NoSweepError as exc:
            return 404, json.dumps(
                {"errors": [{"message": f"could not find sweep {exc}"}]}
            ).encode()
        except Exception:  # noqa: BLE001  # a fault of the stand-in: shown to the test, not hidden behind retries
            owner.errors.append(f"{what} {name}: {traceback.format_exc()}")
            return 400, b'{"errors": [{"message": "the stand-in failed"}]}'

    def _act(
        self,
        owner: WandbServer,
        what: str,
        name: str,
        asked: dict[str, Any] | None,
        upload: bytes,
    ) -> tuple[int, bytes]:
        if what == "graphql" and asked is not None:
            variables = cast("dict[str, Any]", asked.get("variables") or {})
            return 200, json.dumps(
                owner.resolver.answer(name, str(asked.get("query", "")), variables)
            ).encode()
        with owner.store.lock:
            if what == "filestream" and asked is not None:
                return _stream(
                    owner.store,
                    name,
                    asked,
                    self.headers.get("X-WANDB-ASYNC-CLIENT-ID") or "",
                )
            key = (
                bytes.fromhex(name.rpartition("/")[2]).decode()
                if name.startswith("/storage/")
                else ""
            )
            if self.command == "PUT":
                owner.store.put_blob(key, upload)
                return 200, b""
            content = owner.store.blobs.get(key)
        return (404, b"") if content is None else (200, content)

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return (
            gzip.decompress(body)
            if self.headers.get("Content-Encoding") == "gzip"
            else body
        )

    def _answer(
        self, status: int, body: bytes, *, retry_after_s: float | None = None
    ) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if retry_after_s is not None:
                self.send_header("Retry-After", str(retry_after_s))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


def _stream(
    store: WandbStore, path: str, body: dict[str, Any], client: str
) -> tuple[int, bytes]:
    _, _, entity, project, run_id, _ = path.split("/")
    run = store.find(entity or ENTITY, project, run_id)
    if run is None:
        return 404, b'{"error": "run not found"}'
    run.heartbeat_unix_s = time.time()
    run.stream(body, client)
    return 200, json.dumps(
        {"exitcode": None, "limits": {}, "stopped": run.stopped}
    ).encode()


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def main() -> None:
    """Serve until a signal or the end of standard input; the first line says the variables that lead here."""
    with WandbServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as server:
        sys.stdout.write(
            " ".join(f"{name}={value}" for name, value in server.environment().items())
            + "\n"
        )
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
        for run in server.store.runs.values():
            sys.stdout.write(
                f"{run.entity}/{run.project}/{run.id}: {len(run.lines)} lines, {run.state}\n"
            )


if __name__ == "__main__":
    main()
