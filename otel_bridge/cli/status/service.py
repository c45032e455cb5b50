"""Reads what `status` shows from ``/status`` of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson
import requests

from otel_bridge import settings
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.cli.status.run_state import DirectoryUse, run_state_from
from otel_bridge.cli.status.source import Overview
from otel_bridge.errors import JournalError
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge.text.addresses import without_credentials

_TIMEOUT_S = 10.0


def from_service(url: str, env: Mapping[str, str]) -> Overview:
    """Return the overview of the service with the HTTP address *url*.

    Raises:
        JournalError: The service does not answer, refuses the token, or is another kind of server.
    """
    # For messages, which may end in a log.
    server = without_credentials(url).partition("?")[0].partition("#")[0]
    tokens = settings.TOKEN.read(env)
    # A service accepts any of its tokens, so the first is enough.
    headers = {"authorization": f"Bearer {tokens[0]}"} if tokens else {}
    try:
        session = HttpSession()
        address = f"{url.rstrip('/')}/status"
        # Without redirects, which could take the token to another server.
        answer = session.get(
            address, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False
        )
    except requests.exceptions.SSLError as exc:
        raise JournalError(
            f"{server} answers, but TLS fails; for a certificate of your own CA, "
            "set REQUESTS_CA_BUNDLE to the CA's file"
        ) from exc
    except (requests.RequestException, ValueError) as exc:
        raise JournalError(
            f"{server} does not answer ({type(exc).__name__}); is `otel-bridge serve` there?"
        ) from exc
    if answer.status_code in {401, 403}:
        raise JournalError(
            f"{server} refuses access; set OTEL_BRIDGE_TOKEN to a token of the service"
        )
    overview = _overview(url, answer.content) if answer.status_code == 200 else None
    if overview is None:
        kind = (
            "an otel-bridge without /status: upgrade it"
            if HEADER_SERVER in answer.headers
            else "not otel-bridge"
        )
        raise JournalError(
            f"{server} answered {answer.status_code}, it is {kind}; pass the HTTP address of `serve`"
        )
    return overview


def _overview(url: str, body: bytes) -> Overview | None:
    """Return the overview that the service at *url* answered with.

    ``None`` when it is of another form.
    """
    try:
        table = cast("dict[str, Any]", orjson.loads(body))
        runs = [run_state_from(raw) for raw in table["runs"]]
        room = table["room"]
        return Overview(
            f"{table['where']} at {url.rpartition('@')[2]}",
            [run for run in runs if run is not None],
            None if room is None else DirectoryUse(**room),
            int(table["time_unix_ns"]),
            here=False,
        )
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError):
        # Another server, or a version with other fields: the caller names which.
        return None
