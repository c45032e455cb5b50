"""Requests of otel-bridge carry the credentials they were given, to the server they are for, and no other login."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.cli.doctor import checks
from otel_bridge.cli.status.service import from_service
from otel_bridge.errors import JournalError


@contextmanager
def listening(redirect_to: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run a server that answers 404 or redirects; yield its address and the headers of its requests."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(
                {name.lower(): value for name, value in self.headers.items()}
            )
            self.send_response(302 if redirect_to else 404)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a netrc for this machine, as ``wandb login`` writes one for its host."""
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login user password of-netrc\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))


def test_a_token_is_not_replaced_by_netrc() -> None:
    with listening() as (url, received):
        HttpSession().get(url, headers={"Authorization": "Bearer mine"})

    assert received[0]["authorization"] == "Bearer mine"


def test_without_a_token_netrc_is_not_sent() -> None:
    with listening() as (url, received):
        HttpSession().get(url)

    assert "authorization" not in received[0]


def test_a_login_in_the_address_is_sent() -> None:
    with listening() as (url, received):
        HttpSession().get(url.replace("://", "://user:secret@"))

    assert received[0]["authorization"] == "Basic dXNlcjpzZWNyZXQ="


def test_a_redirect_to_another_server_takes_no_credential_along() -> None:
    session = HttpSession()
    session.headers["X-Write-Token"] = "mine"

    with (
        listening() as (elsewhere, received),
        listening(f"{elsewhere}/") as (url, first),
    ):
        session.get(url, headers={"Authorization": "Bearer mine"})

    assert first[0]["x-write-token"] == "mine"
    assert {"authorization", "x-write-token"} & received[0].keys() == set()


def test_the_status_of_a_service_is_requested_with_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = "t" * 40
    with listening() as (url, received), pytest.raises(JournalError):
        from_service(url, {"OTEL_BRIDGE_TOKEN": token})

    assert received[0]["authorization"] == f"Bearer {token}"


def test_doctor_sends_no_login_of_netrc_to_a_server_whose_clock_it_reads() -> None:
    with listening() as (url, received):
        checks._skew_s(url)

    assert "authorization" not in received[0]


def test_every_request_of_the_product_is_made_by_the_one_session() -> None:
    root = Path(__file__).resolve().parents[2]
    made_otherwise = [
        str(path.relative_to(root))
        for source in ("otel_bridge", "exporters", "collector")
        for path in (root / source).rglob("*.py")
        if path.name != "http_session.py"
        and re.search(
            r"\brequests\.(Session|session|request|get|post|put|head|options)\(",
            path.read_text("utf-8"),
        )
    ]

    assert made_otherwise == []
