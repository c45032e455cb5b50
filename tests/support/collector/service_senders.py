"""Clients that send rows to a service until it says that it has them, whatever becomes of it meanwhile."""

from __future__ import annotations

import http.client
import random
import threading
import time
import urllib.request
from collections.abc import Callable
from urllib.error import HTTPError

import grpc

from support.otlp.otlp_samples import RUN, end, logs_request, metrics_request, row, who
from support.waiting import HANG_S

METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
_BETWEEN_S = 0.002
_AGAIN_S = 0.01
_ANSWER_S = 10.0


class Sender:
    """A process of a run, played by a thread that sends its rows in order, each request until it is acknowledged.

    Attributes:
        acknowledged: How many rows the service has answered for.
        again: How many requests had to be sent again.
    """

    def __init__(
        self,
        kind: str,
        port: int,
        instance: str,
        *,
        run_id: str = RUN,
        pace_s: float = _BETWEEN_S,
    ) -> None:
        self.instance, self.run_id = instance, run_id
        self.acknowledged = self.again = 0
        self._chance, self._pace_s = random.Random(instance), pace_s
        self._send: Callable[[str, bytes], bool] = {
            "grpc": _over_grpc,
            "http": _over_http,
        }[kind](port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, count: int) -> None:
        """Send one request of *count* rows from this thread, where it was not started."""
        seqs = range(self.acknowledged + 1, self.acknowledged + 1 + count)
        rows = [row(seq, {"loss": seq / 2, "lr": 1e-3}) for seq in seqs]
        self._until_taken(METRICS, metrics_request((self._who(), rows)))
        self.acknowledged += count

    def finish(self) -> None:
        """Stop, say the end of the process, and return when that was acknowledged."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        assert not self._thread.is_alive(), (
            f"{self.instance}: a request was never answered"
        )
        said = logs_request(
            (self._who(), [end("finished", 1, last_row=self.acknowledged)])
        )
        self._until_taken(LOGS, said)

    @property
    def row_ids(self) -> list[str]:
        """Ids of all rows that were acknowledged, in order."""
        return [f"m:{self.instance}:{seq}" for seq in range(1, self.acknowledged + 1)]

    def _run(self) -> None:
        while not self._stop.wait(self._pace_s):
            self.send(self._chance.randint(1, 8))

    def _until_taken(self, method: str, body: bytes) -> None:
        deadline = time.monotonic() + HANG_S
        while not self._send(method, body):
            self.again += 1
            assert time.monotonic() < deadline, (
                f"{self.instance}: the service does not take anything"
            )
            time.sleep(_AGAIN_S)

    def _who(self) -> dict[str, object]:
        return {**who(self.instance, self.instance), "rl.run.id": self.run_id}


def post(endpoint: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send metrics once over HTTP; returns status, headers with small names, and body of the answer."""
    asked = urllib.request.Request(
        f"{endpoint}/v1/metrics", body, {"Content-Type": "application/x-protobuf"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=_ANSWER_S) as answer:
            return (
                answer.status,
                {name.lower(): text for name, text in answer.headers.items()},
                answer.read(),
            )
    except HTTPError as exc:
        return (
            exc.code,
            {name.lower(): text for name, text in exc.headers.items()},
            exc.read(),
        )


def _over_grpc(port: int) -> Callable[[str, bytes], bool]:
    backoff = [
        ("grpc.initial_reconnect_backoff_ms", 20),
        ("grpc.max_reconnect_backoff_ms", 50),
    ]
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=backoff)

    def send(method: str, body: bytes) -> bool:
        try:
            channel.unary_unary(method)(body, timeout=_ANSWER_S)
        except grpc.RpcError as exc:
            if exc.code() in {
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            }:
                return False
            raise
        return True

    return send


def _over_http(port: int) -> Callable[[str, bytes], bool]:
    path = {METRICS: "/v1/metrics", LOGS: "/v1/logs"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)

    def send(method: str, body: bytes) -> bool:
        try:
            connection.request(
                "POST", path[method], body, {"Content-Type": "application/x-protobuf"}
            )
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
        assert answer.status in {200, 503}, answer.status
        return answer.status == 200

    return send
