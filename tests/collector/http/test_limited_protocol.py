"""Connections that send nothing, too little, too slowly or no HTTP keep nobody else out."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from otel_bridge_collector import Receiver, ReceiverSettings, limits
from otel_bridge_collector.http import limited_protocol
from support.waiting import ANSWER_S

POST = b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\nContent-Length: "


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    listening = Receiver(
        ReceiverSettings.from_environment(
            {"OTEL_BRIDGE_REQUEST_BYTES": "1MiB"}, tmp_path
        )
    )
    yield listening
    listening.stop()


def connected(receiver: Receiver, *sent: bytes) -> socket.socket:
    made = socket.create_connection(
        ("127.0.0.1", urlsplit(receiver.http_endpoint).port or 0), timeout=ANSWER_S
    )
    for one in sent:
        made.sendall(one)
    return made


def status(connection: socket.socket) -> bytes:
    """The first line of the next answer; what it has more is read too."""
    return connection.recv(1 << 16).partition(b"\r\n")[0]


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "before", [b"", POST + b"0\r\n\r\n"], ids=["the first", "a later one"]
)
def test_a_head_that_does_not_come_to_its_end_is_cut(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.2)
    with connected(receiver, before) as slow:
        if before:
            assert status(slow) == b"HTTP/1.1 200 OK"
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")

        assert is_closed(slow)


def test_the_body_of_an_answer_does_not_wait_for_an_acknowledgement_of_its_head(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_delay: list[int] = []
    connection_made = limited_protocol._LimitedProtocol.connection_made

    def noted(
        connection: limited_protocol._LimitedProtocol, transport: asyncio.Transport
    ) -> None:
        accepted = transport.get_extra_info("socket")
        no_delay.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        connection_made(connection, transport)

    monkeypatch.setattr(limited_protocol._LimitedProtocol, "connection_made", noted)
    with connected(receiver, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        assert status(client) == b"HTTP/1.1 200 OK"

    assert no_delay == [1]


def test_of_too_many_connections_the_longest_silent_one_goes_and_no_request_is_cut(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    under_way = connected(receiver, POST + b"2\r\n\r\n", b"\x0a")
    kept = connected(receiver, POST + b"0\r\n\r\n")
    assert status(kept) == b"HTTP/1.1 200 OK"
    silent = [connected(receiver, b"GET /") for _ in range(6)]

    assert all(is_closed(one) for one in (kept, *silent[:4]))
    with urllib.request.urlopen(
        f"{receiver.http_endpoint}/healthz", timeout=ANSWER_S
    ) as answer:
        assert answer.status == 200
    under_way.sendall(b"\x00")
    assert status(under_way) == b"HTTP/1.1 200 OK"
    for one in (under_way, kept, *silent):
        one.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        POST + b"-1\r\n\r\n",
    ],
)
def test_what_is_not_a_http_is_answered_counted_and_reported_where_it_belongs(
    receiver: Receiver, garbage: bytes
) -> None:
    with connected(receiver, garbage) as connection:
        answer = connection.recv(1 << 16)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"gRPC has its own port (4317)" in answer
    assert receiver.counters.refused == {"invalid": 1}


def test_requests_sent_at_one_go_are_answered_in_their_order(
    receiver: Receiver,
) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    with connected(
        receiver, POST + b"0\r\n\r\n" + ask + POST + b"1\r\n\r\n\xff" + ask
    ) as connection:
        answers = b""
        while answers.count(b"alive\n") < 2:
            answers += connection.recv(1 << 16)

    heads = [line for line in answers.split(b"\r\n") if b"HTTP/1.1 " in line]
    assert [head.partition(b"HTTP/1.1 ")[2][:3] for head in heads] == [
        b"200",
        b"200",
        b"400",
        b"200",
    ]


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(
    receiver: Receiver,
) -> None:
    with connected(receiver, POST + b"9999999999\r\n\r\n") as connection:
        assert status(connection) == b"HTTP/1.1 413 Request Entity Too Large"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"POST /v1/metrics/ HTTP/1.1\r\nHost: a", b"404"),
        (b"GET /%0d%0a%1b[2J HTTP/1.1\r\nHost: [", b"404"),
        (b"PUT /v1/metrics HTTP/1.1\r\nHost: [::1", b"405"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a", b"404"),
        (b"HEAD /v1/metrics HTTP/1.1\r\nHost: a", b"405"),
        (b"HEAD /healthz HTTP/1.1\r\nHost: a", b"200"),
    ],
)
def test_no_path_method_or_host_is_an_error_of_otel_bridge(
    receiver: Receiver, line: bytes, answer: bytes
) -> None:
    with connected(receiver, line + b"\r\nContent-Length: 0\r\n\r\n") as connection:
        assert status(connection).split()[1] == answer

    assert "internal" not in receiver.counters.refused
