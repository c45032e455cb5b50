"""A service that may open few files, or has run out of them: all is delivered, or refused and sent again."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.limits import max_connections
from support.bridge.bridge_doubles import until
from support.collector.service_process import service
from support.collector.service_senders import Sender
from support.otlp.journal_samples import no_files_left
from support.otlp.otlp_samples import metrics_request, row, who
from support.trainers.command_runs import environment
from support.waiting import ANSWER_S

RUNS = 24
FILES = 120


@pytest.fixture
def limited() -> Generator[None]:
    """Limit the files of this process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def all_files_taken() -> Generator[None]:
    """Take every file that this process may open, until the end; another thread may still close some."""
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_more_runs_than_files_are_all_delivered_and_the_service_says_that_it_is_ready(
    tmp_path: Path,
) -> None:
    with service(
        tmp_path, environment(tmp_path), "--exporters", "file", files=FILES
    ) as running:
        port = int(running.http.rpartition(":")[2])
        for number in range(RUNS):
            sender = Sender("http", port, f"p{number}", run_id=f"run-{number:03d}")
            sender.send(3)
            sender.finish()

        until(lambda: sum(_delivered(tmp_path)) == 3 * RUNS)
        with urllib.request.urlopen(
            f"{running.http}/readyz", timeout=ANSWER_S
        ) as ready:
            assert ready.status == 200
        assert running.end()[0] == 0


def test_more_silent_connections_than_files_shut_nobody_out_and_fill_no_log(
    tmp_path: Path,
) -> None:
    with (
        service(
            tmp_path, environment(tmp_path), "--exporters", "file", files=FILES
        ) as running,
        contextlib.ExitStack() as connections,
    ):
        port = int(running.http.rpartition(":")[2])
        for _ in range(2 * FILES):
            connections.enter_context(
                socket.create_connection(("127.0.0.1", port), ANSWER_S)
            )
        status = running.send(1)
        code, log = running.end()

    assert (status, code) == (200, 0)
    assert "out of system resource" not in log
    assert "nothing remains" in log


@pytest.mark.usefixtures("limited")
def test_a_receiver_that_can_open_no_file_is_not_ready_and_logs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path, grpc_port=None))
    port = int(receiver.http_endpoint.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    waiting = [socket.socket() for _ in range(3)]
    try:
        ready = _readyz(connection)
        with no_files_left():
            for client in waiting:
                client.connect(("127.0.0.1", port))
            until(lambda: bool(caplog.messages))
            unready = _readyz(connection)
        again = _readyz(connection)
    finally:
        connection.close()
        for client in waiting:
            client.close()
        receiver.stop()

    in_use = "all 3 files that this process may open are in use; raise that limit (`ulimit -n`)"
    assert [ready, unready, again] == [(200, "ready"), (503, in_use), (200, "ready")]
    assert caplog.messages == [f"no connection can be accepted: {in_use}"]


@pytest.mark.usefixtures("limited")
def test_a_receiver_whose_connections_of_grpc_are_all_taken_is_not_ready(
    tmp_path: Path,
) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path))
    port = int(receiver.grpc_endpoint.rpartition(":")[2])
    silent: list[socket.socket] = []
    try:
        ready = receiver.unready()
        for _ in range(max_connections()):
            client = socket.create_connection(("127.0.0.1", port))
            assert client.recv(1), "the settings of HTTP/2"
            silent.append(client)
        unready = receiver.unready()
        for client in silent:
            client.close()
        until(lambda: receiver.unready() == [])
    finally:
        for client in silent:
            client.close()
        receiver.stop()

    assert ready == []
    assert unready == [
        "all 128 connections of gRPC are taken; silent ones are closed after 120 s"
    ]


@pytest.mark.usefixtures("limited")
def test_without_a_file_left_a_request_is_refused_to_be_sent_again_and_then_taken(
    tmp_path: Path,
) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path, grpc_port=None))
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(receiver.http_endpoint.rpartition(":")[2]), timeout=ANSWER_S
    )
    try:
        first = _post(connection, b"no request")
        with no_files_left():
            refused = _post(connection, _rows("new"))
        taken = _post(connection, _rows("new"))
    finally:
        connection.close()
        receiver.stop()

    assert [first[0], refused[:2], taken[0]] == [400, (503, "1"), 200]


@pytest.mark.usefixtures("limited")
def test_without_a_file_left_the_receiver_closes_the_run_that_was_silent_longest_for_a_new_one(
    tmp_path: Path,
) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path, grpc_port=None))
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(receiver.http_endpoint.rpartition(":")[2]), timeout=ANSWER_S
    )
    try:
        before = [_post(connection, _rows(f"run-{number}"))[0] for number in range(4)]
        with all_files_taken():
            statuses = [_post(connection, _rows("new-0"))[0]]
            # A file that another thread closed meanwhile serves a run or two more.
            while receiver.open_runs > len(before):
                statuses.append(_post(connection, _rows(f"new-{len(statuses)}"))[0])
        open_runs = receiver.open_runs
    finally:
        connection.close()
        receiver.stop()

    assert (set(before + statuses), open_runs) == ({200}, 3)


def _post(
    connection: http.client.HTTPConnection, body: bytes
) -> tuple[int, str | None]:
    connection.request(
        "POST", "/v1/metrics", body, {"Content-Type": "application/x-protobuf"}
    )
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers["Retry-After"]


def _readyz(connection: http.client.HTTPConnection) -> tuple[int, str]:
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    return answer.status, answer.read().decode().strip()


def _rows(run_id: str) -> bytes:
    return metrics_request(
        ({**who("i1"), "rl.run.id": run_id}, [row(1, {"loss": 0.5})])
    )


def _delivered(cwd: Path) -> list[int]:
    reports = [read_report(folder) for folder in run_folders(cwd / ".otel-bridge")]
    return [
        0
        if report is None or "file" not in report.exporters
        else report.exporters["file"].rows
        for report in reports
    ]
