"""Defines OTLP over HTTP, independent of the server: paths, content types, bodies, answers. No I/O.

Source: opentelemetry-specification, protocol/otlp.md, "OTLP/HTTP".
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.json_format import MessageToJson

from otel_bridge.journal.frames import Signal
from otel_bridge_collector.error_table import (
    RETRY_S,
    ErrorResponse,
    NotFoundError,
    TooLargeError,
    UnsupportedError,
)
from otel_bridge_collector.export_request import REQUESTS, partial_success
from otel_bridge_collector.http.inflate import inflated
from otel_bridge_collector.http.json_request import message_of
from otel_bridge_collector.ingest import Rejected

PATHS: Mapping[str, Signal] = {
    "/v1/metrics": Signal.METRICS,
    "/v1/traces": Signal.TRACES,
    "/v1/logs": Signal.LOGS,
}
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_JSON_BYTES = 16 << 20
"""Largest JSON request, inflated: an object of 3 bytes takes 300 while it is read."""
_JSON_OBJECTS = 500_000
"""Objects of a JSON request, some ten a data point: 150 MB while they are read."""
QUICK_JSON_BYTES = 8 << 10
"""Size above which JSON is read outside the event loop: it takes some milliseconds."""


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
    """Return the error for an unknown path."""
    return NotFoundError(
        f"{path} does not exist; send OTLP by POST to {', '.join(PATHS)}"
    )


def decoded(
    signal: Signal, body: bytes, encoding: str, *, is_json: bool, limit_bytes: int
) -> bytes:
    """Return a body as protobuf, not compressed.

    Raises:
        UnsupportedError: The encoding is not known.
        TooLargeError: The body is over *limit_bytes* when decompressed, or over the limits of JSON.
        InvalidRecordError: The body is not what its head announces.
    """
    if not is_json:
        return inflated(body, encoding, limit_bytes)
    limit_bytes = min(limit_bytes, _JSON_BYTES)
    text = inflated(body, encoding, limit_bytes)
    if len(text) > limit_bytes:
        raise TooLargeError(
            f"JSON request is over {limit_bytes} bytes; send smaller batches, or protobuf"
        )
    # Counted in the text, before it is read: reading is what takes the memory.
    if text.count(b"{") > _JSON_OBJECTS:
        raise TooLargeError(
            f"JSON request has more than {_JSON_OBJECTS} objects; send smaller batches, or protobuf"
        )
    return message_of(REQUESTS[signal], text).SerializeToString()


def acceptance_body(
    signal: Signal, rejected: Rejected | None, *, is_json: bool
) -> bytes:
    """Return the body of the answer to an accepted request.

    An empty message when nothing was rejected.
    """
    if rejected is None:
        if is_json:
            return b"{}"
        return b""
    response = partial_success(signal, rejected.items, rejected.reason)
    if is_json:
        return MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def refusal_body(answer: ErrorResponse, *, is_json: bool) -> bytes:
    """Return the body of a refusal: a ``google.rpc.Status``."""
    if is_json:
        return answer.json()
    status: bytes = answer.status().SerializeToString()
    return status


def headers_of_refused(answer: ErrorResponse) -> dict[str, str]:
    """Return the additional headers of a refusal."""
    headers: dict[str, str] = {}
    if answer.retry:
        headers["Retry-After"] = str(RETRY_S)
    if answer.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
