"""What OTLP over HTTP is made of, whatever speaks it: paths, content types, bodies, answers. No server, no I/O.

Source: opentelemetry-specification, protocol/otlp.md, "OTLP/HTTP".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from otel_bridge.journal.frames import Signal
from otel_bridge_collector.answers import RETRY_S, Answer, NotFoundError, UnsupportedError
from otel_bridge_collector.inflate import inflated
from otel_bridge_collector.ingest import REQUESTS, Rejected
from otel_bridge_collector.items import partial_success, partial_success_json
from otel_bridge_collector.json_request import message_of

PATHS: Final[Mapping[str, Signal]] = {
    "/v1/metrics": Signal.METRICS,
    "/v1/traces": Signal.TRACES,
    "/v1/logs": Signal.LOGS,
}
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


def media_type(content_type: str) -> str:
    """Return a ``Content-Type`` without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def check_type(kind: str) -> None:
    """Raise `UnsupportedError` for a media type that is neither protobuf nor JSON."""
    if kind not in {PROTOBUF, JSON}:
        raise UnsupportedError(
            f"Content-Type {kind or 'missing'}; this receiver reads {PROTOBUF} and {JSON}: "
            "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )


def no_such_path(path: str) -> NotFoundError:
    """Return what is said of a path that is none of ours."""
    return NotFoundError(f"{path} is not here; OTLP goes by POST to {', '.join(PATHS)}")


def decoded(signal: Signal, body: bytes, encoding: str, *, is_json: bool, limit_bytes: int) -> bytes:
    """Return a body as protobuf, not compressed.

    Raises:
        UnsupportedError: The encoding is not known.
        TooLargeError: It is over *limit_bytes* when inflated.
        InvalidRecordError: It is not what its head says.
    """
    body = inflated(body, encoding, limit_bytes)
    return message_of(REQUESTS[signal], body).SerializeToString() if is_json else body


def said_of_taken(signal: Signal, rejected: Rejected | None, *, is_json: bool) -> bytes:
    """Return the body of the answer to a request that was taken."""
    if is_json:
        return orjson.dumps({} if rejected is None else partial_success_json(signal, rejected.items, rejected.reason))
    return b"" if rejected is None else partial_success(signal, rejected.items, rejected.reason)


def said_of_refused(answer: Answer, *, is_json: bool) -> bytes:
    """Return the body of a refusal: a ``google.rpc.Status``."""
    return answer.json() if is_json else answer.status().SerializeToString()


def headers_of_refused(answer: Answer) -> dict[str, str]:
    """Return the headers that a refusal has besides."""
    found = {"Retry-After": str(RETRY_S)} if answer.retry else {}
    return found | ({"WWW-Authenticate": "Bearer"} if answer.http_status == 401 else {})
