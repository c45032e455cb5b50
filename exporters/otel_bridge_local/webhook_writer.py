"""Posts each alert of a run once to ``OTEL_BRIDGE_ALERT_WEBHOOK``, in Slack's format: the exporter ``webhook``.

Before a request the alert's id is stored as begun. A clear refusal (no connection, 429, 5xx
except 504 and 524) deletes it, and the bridge retries. If the outcome is unknown (no answer, 408,
504, 524, or a kill), the alert is not sent again: a person would be called twice. Such alerts are
counted as left out.

The address is a secret. Errors of requests and urllib3 name it, so that no text of theirs leaves
this module. The bridge tries again after a `RetryableError`, waits for a person after a
`BlockedError`, and makes a dead letter of an alert after a `PermanentError`.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import orjson
import requests

from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import (
    AlertsOnce,
    RunInfo,
    RunWriter,
    WriterMemory,
    call_within,
)
from otel_bridge.otlp.json_text import utf8
from otel_bridge.otlp.request_size import retry_after_s
from otel_bridge.records import Alert
from otel_bridge.settings import ALERT_WEBHOOK

TIMEOUT_S = (5.0, 10.0)
"""Seconds to connect, and to wait for the answer."""
_MAX_TEXT_CHARS = 3_000
TOTAL_S = 12.0
"""Longest time of one post: *TIMEOUT_S* limits the wait for a connection and that for each single
byte."""
_NO_WIDTH = "\u200b"
_SIGNS = {
    "info": ":information_source:",
    "warn": ":warning:",
    "error": ":rotating_light:",
}
_NO_ANSWER = "no answer"
# A timeout of the server, or of a proxy before it: the message may have been posted.
_UNKNOWN = frozenset({408, 504, 524})
# The message, not the address, is at fault: another alert may pass.
_REFUSED = frozenset({400, 413, 422})
_HELP = f"check {ALERT_WEBHOOK.name} where the bridge runs; make another address if this one was withdrawn"


class WebhookRunWriter(RunWriter):
    """Posts the alerts of one run.

    The protocol's own methods, which do nothing, leave all else to trackers.

    Args:
        run: The run.
        url: Where alerts are posted.
        memory: Memory of `AlertsOnce`.
    """

    def __init__(self, run: RunInfo, url: str, memory: WriterMemory) -> None:
        self.left_out: Counter[str] = Counter()
        self._run = run
        self._address = url
        self._once = AlertsOnce(memory, self.left_out)

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Post *alerts*, each in a request of its own.

        One that was posted or begun before is not posted again. Raises as `_post`, for the first
        alert that was refused; those before it stay posted.
        """
        self._once.write(alerts, self._post)

    def _post(self, alert: Alert) -> str:
        """Post *alert*; return why it is unknown whether it arrived, empty if it did.

        An alert too few is better than calling a person twice; the count shows that it is missing.

        Raises:
            RetryableError: There was no connection, or the server takes nothing now.
            BlockedError: The certificate is not accepted, or the server refuses all messages.
            PermanentError: The server refuses this message.
        """
        body = message(self._run, alert)
        try:
            # A server that sends its answer byte by byte would hold up the end of the run.
            outcome = call_within(TOTAL_S, partial(_sent, self._address, body))
        except TimeoutError:
            # A post that goes on after this ends with the process; its alert is given up as unknown.
            return _NO_ANSWER
        if isinstance(outcome, ExporterError):
            raise outcome  # here: the errors of requests, which name the address, are not attached to it
        return outcome


def message(run: RunInfo, alert: Alert) -> bytes:
    """Return the JSON that is posted: ``text`` alone, which Slack, Mattermost and Discord's ``/slack`` take.

    A text is cut to `_MAX_TEXT_CHARS`: a longer one would be refused as a whole.
    """
    text = (
        alert.text
        if len(alert.text) <= _MAX_TEXT_CHARS
        else f"{alert.text[:_MAX_TEXT_CHARS]}…"
    )
    time_text = time.strftime(
        "%Y-%m-%d %H:%M:%S UTC", time.gmtime(alert.time_unix_ns / 1e9)
    )
    step = None
    if alert.step is not None:
        step = f"step {alert.step}"
    facts = [f"{run.project}/{run.name}", alert.role, step, time_text]
    lines = [
        f"{_SIGNS.get(alert.level, '')} *{_escaped(alert.title)}* ({alert.level})",
        _escaped(text),
        _escaped(" · ".join(filter(None, facts))),
    ]
    return orjson.dumps({"text": utf8("\n".join(filter(None, lines)))})


def _escaped(text: str) -> str:
    # Slack reads <…> as links and calls such as <!channel>: api.slack.com, "Formatting text for app
    # surfaces".
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Mattermost and Discord take Slack's JSON too, and read @everyone and Markdown's links: a space
    # of no width parts what would be a call or a link.
    return text.replace("@", f"@{_NO_WIDTH}").replace("](", f"]{_NO_WIDTH}(")


def _sent(url: str, body: bytes) -> str | ExporterError:
    """Send the request and read the head of its answer.

    Return why it is unknown what became of it, empty if it was accepted; an error if it was
    certainly not. The body of an answer is not read: a status is all that is needed, and a body may
    repeat the address. An error is returned, because one that is raised here would carry the error
    of requests, which names the secret address.
    """
    content = _Body(body)
    try:
        with (
            HttpSession() as session,
            session.post(
                url,
                data=content,
                headers={"Content-Type": "application/json", "Connection": "close"},
                timeout=TIMEOUT_S,
                # The address is a secret, and a redirect would send the alert elsewhere.
                allow_redirects=False,
                stream=True,
            ) as answer,
        ):
            retry_s = retry_after_s(answer.headers.get("Retry-After"))
            return _outcome(answer.status_code, retry_s)
    except requests.RequestException as exc:
        # By the body and not by the error: TLS may fail in the answer too.
        if content.was_read:
            return _NO_ANSWER
        if isinstance(exc, requests.exceptions.SSLError):
            return BlockedError(
                "the webhook's certificate or TLS is not accepted, so that nothing was sent",
                help=_HELP,
            )
        return RetryableError(
            "the webhook cannot be reached: no connection; is its address right?"
        )


class _Body(io.BytesIO):
    """Holds the body of a request, which is read once a connection is made and has the request's head.

    Attributes:
        was_read: Whether it may have been sent.
    """

    was_read = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, and note that they may be sent."""
        self.was_read = True
        return super().read(size)


def _outcome(status: int, retry_s: float | None) -> str | ExporterError:
    """Return what the status of an answer says, as `_sent` does.

    Unknown: a timeout of the server, or of a proxy before it. Retryable: 429 and 5xx. Permanent, a
    dead letter: the message itself is refused. Blocked, a person must act: any other.
    """
    if 200 <= status < 300:
        return ""
    if status in _UNKNOWN:
        return f"HTTP {status}"
    message_ = f"the webhook answered HTTP {status}"
    if status == 429 or status >= 500:
        return RetryableError(message_, retry_after_s=retry_s)
    if status in _REFUSED:
        return PermanentError(f"{message_}: it does not take this message")
    if 300 <= status < 400:
        message_ = f"{message_}, a redirect, which is not followed"
    else:
        message_ = f"{message_}, expected 200"
    return BlockedError(message_, help=_HELP)
