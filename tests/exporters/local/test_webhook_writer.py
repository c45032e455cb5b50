"""The webhook, a real server on this machine: each alert is posted once, and its address is shown nowhere."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import socketserver
import ssl
import sys
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import UNKNOWN_ALERTS, RunInfo
from otel_bridge.records import Alert
from otel_bridge.settings import ALERT_WEBHOOK
from otel_bridge.testing import MemoryTable, samples
from otel_bridge_local import webhook as webhook_exporter
from otel_bridge_local.webhook_settings import WebhookSettings
from otel_bridge_local.webhook_writer import WebhookRunWriter
from support.free_ports import free_port
from support.trackers.webhook_server import SECRET, Answer, webhook


def info(tmp_path: Path) -> RunInfo:
    return RunInfo(id="0" * 16, project="maths", name="<ppo>", folder=tmp_path)


def writer_of(
    tmp_path: Path, url: str, memory: MemoryTable | None = None
) -> WebhookRunWriter:
    settings = webhook_exporter.read_settings({ALERT_WEBHOOK.name: url}, tmp_path)
    writer = webhook_exporter.open(info(tmp_path), settings, memory or MemoryTable())
    assert isinstance(writer, WebhookRunWriter)
    return writer


def alert(position: int, title: str = "kl") -> Alert:
    return dataclasses.replace(samples.alert(position, title), position=position)


def test_an_alert_is_one_text_without_mentions(tmp_path: Path) -> None:
    one = Alert(
        "a:1",
        "trainer",
        "kl > 0.2",
        "see <!channel> & <http://x|y>",
        "error",
        7,
        1_700_000_000 * 10**9,
        3,
    )

    with webhook() as running:
        writer_of(tmp_path, running.url).write_alerts([one])

    assert running.bodies == [{
        "text": ":rotating_light: *kl &gt; 0.2* (error)\nsee &lt;!channel&gt; &amp; &lt;http://x|y&gt;\n"
        "maths/&lt;ppo&gt; · trainer · step 7 · 2023-11-14 22:13:20 UTC"
    }]  # fmt: skip


def test_a_title_calls_nobody_and_links_nowhere(tmp_path: Path) -> None:
    with webhook() as running:
        writer_of(tmp_path, running.url).write_alerts(
            [alert(1, "@everyone [docs](http://elsewhere)")]
        )

    assert running.titles == ["@\u200beveryone [docs]\u200b(http://elsewhere)"]


def test_an_alert_that_comes_again_is_not_posted_again(tmp_path: Path) -> None:
    memory = MemoryTable()
    with webhook() as running:
        writer_of(tmp_path, running.url, memory).write_alerts(
            [alert(1, "a"), alert(2, "b")]
        )
        writer_of(tmp_path, running.url, memory).write_alerts(
            [alert(1, "a"), alert(2, "b"), alert(3, "c")]
        )

    assert running.titles == ["a", "b", "c"]


def test_dead_letters_that_are_tried_again_are_posted_each_once(tmp_path: Path) -> None:
    memory = MemoryTable()
    first = dataclasses.replace(alert(0, "first"), id="a:1")
    second = dataclasses.replace(alert(0, "second"), id="a:2")
    with webhook() as running:
        writer = writer_of(tmp_path, running.url, memory)
        writer.write_alerts([alert(5, "newest")])
        for again in (first, second):
            writer.write_alerts([again])
        writer.write_alerts([alert(5, "newest"), alert(6, "next")])

    assert running.titles == ["newest", "first", "second", "next"]
    assert dict(writer.left_out) == {}


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_refusal_that_may_pass_is_retried_from_the_alert_that_met_it(
    tmp_path: Path, status: int
) -> None:
    with webhook(200, status) as running:
        writer = writer_of(tmp_path, running.url)
        with pytest.raises(RetryableError, match=f"HTTP {status}") as raised:
            writer.write_alerts([alert(1, "a"), alert(2, "b")])
        writer.write_alerts([alert(2, "b")])

    assert (raised.value.position, raised.value.retry_after_s) == (2, 0.0)
    assert (running.titles, dict(writer.left_out)) == (["a", "b", "b"], {})


def test_a_webhook_that_cannot_be_reached_is_retried(tmp_path: Path) -> None:
    memory = MemoryTable()
    away = writer_of(tmp_path, f"http://127.0.0.1:{free_port()}{SECRET}", memory)

    with pytest.raises(RetryableError) as raised:
        away.write_alerts([alert(1)])
    with webhook() as running:
        writer_of(tmp_path, running.url, memory).write_alerts([alert(1)])

    assert (raised.value.position, running.titles) == (1, ["kl"])


@pytest.mark.parametrize("fault", ["reset", "hang", "drip", 408, 504, 524])
def test_an_alert_whose_outcome_is_unknown_is_counted_and_not_posted_again(
    tmp_path: Path,
    fault: Answer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        sys.modules[WebhookRunWriter.__module__], "TIMEOUT_S", (5.0, 0.2)
    )
    monkeypatch.setattr(sys.modules[WebhookRunWriter.__module__], "TOTAL_S", 1.0)
    memory = MemoryTable()

    with webhook(fault) as running:
        writer = writer_of(tmp_path, running.url, memory)
        writer.write_alerts([alert(1, "a"), alert(2, "b")])
        writer_of(tmp_path, running.url, memory).write_alerts([alert(1, "a")])

    assert (running.titles, dict(writer.left_out)) == (["a", "b"], {UNKNOWN_ALERTS: 1})
    assert "the alert 'a' may not have arrived" in caplog.text
    assert "SECRET" not in caplog.text


def test_an_alert_that_was_begun_by_a_bridge_that_was_killed_is_not_posted_again(
    tmp_path: Path,
) -> None:
    memory = MemoryTable()
    memory.put("alerts/begun", alert(1, "a").id.encode())

    with webhook() as running:
        writer = writer_of(tmp_path, running.url, memory)
        writer.write_alerts([alert(1, "a"), alert(2, "b")])

    assert (running.titles, dict(writer.left_out)) == (["b"], {UNKNOWN_ALERTS: 1})


@contextmanager
def broken_tls(authority: trustme.CA) -> Generator[tuple[str, list[bytes]]]:
    """A webhook that answers each request with bytes that are not TLS; yield its address and the requests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    requests: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ssl.SSLError):
                encrypted = context.wrap_socket(self.request, server_side=True)
                request = b""
                while not request.endswith(b"}"):
                    request += encrypted.recv(65_536)
                requests.append(request)
                with socket.socket(fileno=encrypted.detach()) as plain:
                    plain.sendall(b"this is not TLS\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}{SECRET}", requests
        server.shutdown()
        thread.join()


def test_an_alert_whose_answer_breaks_tls_is_counted_and_not_posted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))

    with broken_tls(authority) as (url, requests):
        writer = writer_of(tmp_path, url)
        writer.write_alerts([alert(1)])
        writer.write_alerts([alert(1)])

    assert (len(requests), dict(writer.left_out)) == (1, {UNKNOWN_ALERTS: 1})


def test_a_certificate_that_is_not_accepted_blocks_and_sends_nothing(
    tmp_path: Path,
) -> None:
    with (
        broken_tls(trustme.CA()) as (url, requests),
        pytest.raises(BlockedError, match="nothing was sent"),
    ):
        writer_of(tmp_path, url).write_alerts([alert(1)])

    assert requests == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, BlockedError),
        (403, BlockedError),
        (410, BlockedError),
        (307, BlockedError),
        (400, PermanentError),
    ],
)
def test_a_refusal_that_a_person_must_mend_names_the_setting_and_never_the_address(
    tmp_path: Path, status: int, error: type[ExporterError]
) -> None:
    with webhook(status) as running:
        writer = writer_of(tmp_path, running.url)
        with pytest.raises(error) as raised:
            writer.write_alerts([alert(1)])
        writer.write_alerts([alert(1)])

    assert running.titles == ["kl", "kl"]
    assert f"HTTP {status}" in str(raised.value)
    assert status == 400 or "OTEL_BRIDGE_ALERT_WEBHOOK" in getattr(
        raised.value, "help", ""
    )


def test_the_address_is_in_no_error_and_no_text_of_an_object(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, f"http://127.0.0.1:{free_port()}{SECRET}")

    try:
        writer.write_alerts([alert(1)])
    except RetryableError as exc:
        shown = "".join(traceback.format_exception(exc))
        chain = f"{exc.__cause__!r} {exc.__context__!r}"
    settings = WebhookSettings(f"https://example.org{SECRET}")

    assert "SECRET" not in shown + chain + repr(writer) + repr(settings) + str(
        settings.destination
    )


@pytest.mark.parametrize(
    "address",
    [f"http://example.org{SECRET}", "hooks.slack.com/SECRET", f"ftp://x{SECRET}", "https:///SECRET", "https://[SECRET",
     f"https://x:99999{SECRET}", f"https://x{SECRET} y"],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_an_error_that_does_not_show_it(
    address: str,
) -> None:
    with pytest.raises(ConfigError) as raised:
        ALERT_WEBHOOK.read({ALERT_WEBHOOK.name: address})

    shown = "".join(traceback.format_exception(raised.value))
    assert "expected" in str(raised.value)
    assert "SECRET" not in shown


@pytest.mark.parametrize("host", ["127.0.0.1:8065", "[::1]", "localhost"])
def test_http_is_for_this_machine(host: str) -> None:
    assert (
        ALERT_WEBHOOK.read({ALERT_WEBHOOK.name: f"http://{host}/x"})
        == f"http://{host}/x"
    )


def test_the_exporter_named_without_an_address_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs OTEL_BRIDGE_ALERT_WEBHOOK"):
        webhook_exporter.read_settings({}, tmp_path)
