"""Reads the Prometheus endpoint of an inference engine once.

Imported when a process first names an endpoint: the HTTP client and the parser behind it take
0.1 s, which the bridges of most runs need not spend.
"""

from __future__ import annotations

import time

import requests
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.engines.exposition import engine_request
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.setting_parsers import engine_of_address
from otel_bridge.settings import SCRAPE

_TIMEOUT_S = (2.0, 5.0)
"""Seconds to connect, and to wait for the next bytes."""
_TOTAL_S = 10.0
"""Longest time of one answer."""
_MAX_BYTES = 16 << 20


def read_engine(address: str, resource: Resource) -> bytes:
    """Return the metrics of an engine as an export request.

    Args:
        address: Address of its endpoint.
        resource: Resource of the process that asked for the metrics.

    Raises:
        ValueError: There are none; the message names the engine and what to do.
    """
    engine = engine_of_address(address)
    try:
        text = _body(address).decode("utf-8", "replace")
    except requests.RequestException as exc:
        raise ValueError(
            f"{engine} cannot be read ({type(exc).__name__}); is the address in {SCRAPE.name} right?"
        ) from exc
    except ValueError as exc:
        raise ValueError(f"{engine}: {exc}") from exc
    try:
        request = engine_request(text, resource, engine, time.time_ns())
    except Exception as exc:
        # The parser raises more than it documents, and the endpoint must be read again.
        raise ValueError(
            f"{engine} answers in another format than Prometheus' ({type(exc).__name__})"
        ) from exc
    if request is None:
        raise ValueError(
            f"{engine} has no vllm:* or sglang:* metrics; SGLang needs --enable-metrics"
        )
    return request


def _body(address: str) -> bytes:
    """Return the answer of an endpoint.

    The time-out of a request holds for each read alone, so that a slow answer would have no end.

    Raises:
        requests.RequestException: The engine does not answer.
        ValueError: Its answer is an error, a redirect, too large or too slow.
    """
    deadline_s = time.monotonic() + _TOTAL_S
    body = bytearray()
    with HttpSession() as session:
        # Engines are near: neither a proxy nor netrc is meant for them.
        session.trust_env = False
        with session.get(
            address,
            headers={"Accept": "text/plain; version=0.0.4"},
            timeout=_TIMEOUT_S,
            allow_redirects=False,
            stream=True,
        ) as answer:
            if answer.status_code != 200:
                raise ValueError(
                    f"HTTP {answer.status_code}, expected 200 from {address}"
                )
            for chunk in answer.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"an answer of more than {_MAX_BYTES >> 20} MiB")
                if time.monotonic() > deadline_s:
                    raise ValueError(
                        f"an answer that takes longer than {_TOTAL_S:.0f} s"
                    )
    return bytes(body)
