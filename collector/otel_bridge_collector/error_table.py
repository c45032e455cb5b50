"""Maps each kind of error to its gRPC status, its HTTP status, and whether the client may retry, in one table.

Source: opentelemetry-specification, protocol/otlp.md, "Failures" and "OTLP/gRPC Throttling" (which
gRPC codes a client retries), "OTLP/HTTP Response" and "OTLP/HTTP Throttling" (400 is final, 429,
502, 503 and 504 are not; the body is a ``google.rpc.Status``). The Go exporter reads RetryInfo from
``grpc-status-details-bin``, the Python SDK from ``google.rpc.retryinfo-bin``. RESOURCE_EXHAUSTED is
final for clients unless it carries RetryInfo.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from otel_bridge.errors import (
    InvalidRecordError,
    JournalError,
    JournalFullError,
    OtelBridgeError,
)

RETRY_S = 1
NO_HTTP = "this is not an HTTP/1.1 request: gRPC has its own port (4317), and TLS must be set on both sides"


class RefusedError(OtelBridgeError):
    """Raised for a request that is refused; each subclass is a row of the table below."""


class TooLargeError(RefusedError):
    """Raised when a request is over the limit, as sent or decompressed."""


class TooManyRunsError(RefusedError):
    """Raised for a run beyond the limit of run folders, which would be refused at every retry."""


class UnsupportedError(RefusedError):
    """Raised for a content type or encoding that is not supported."""


class UnauthenticatedError(RefusedError):
    """Raised for a missing or wrong token."""


class ForbiddenError(RefusedError):
    """Raised for a client that may not send, whether known or not."""


class NotFoundError(RefusedError):
    """Raised for a path that does not exist."""


class MethodError(RefusedError):
    """Raised for a path that exists with another method."""


class ThrottledError(RefusedError):
    """Raised when the limit of concurrent requests, or of bytes per second, is reached."""


class UnavailableError(RefusedError):
    """Raised when the receiver is shutting down or full; the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Describes how one kind of error is reported to a client.

    Attributes:
        reason: One word for counting.
        grpc_code: Number of the gRPC status code.
        http_status: HTTP status.
        retry: Whether the client should send the request again, after `RETRY_S`.
        message: Text for the client.
    """

    reason: str
    grpc_code: int
    http_status: int
    retry: bool
    message: str

    def status(self) -> Status:
        """Return the ``google.rpc.Status`` of the answer, with RetryInfo if the client may retry."""
        status = Status(code=self.grpc_code, message=self.message)
        if self.retry:
            status.details.add().Pack(retry_info())
        return status

    def json(self) -> bytes:
        """Return the status as JSON, for clients that send JSON."""
        return orjson.dumps({"code": self.grpc_code, "message": self.message})

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the gRPC trailers that carry the details, for both kinds of client.

        Go clients read RetryInfo from the status, Python's SDK from a trailer of its own.
        """
        details = (("grpc-status-details-bin", self.status().SerializeToString()),)
        if self.retry:
            return (
                *details,
                ("google.rpc.retryinfo-bin", retry_info().SerializeToString()),
            )
        return details


# Kind of error, reason, gRPC code, HTTP status, may be retried. The first row that fits counts.
TABLE: tuple[tuple[type[Exception], str, int, int, bool], ...] = (
    (InvalidRecordError, "invalid", 3, 400, False),
    (UnauthenticatedError, "unauthenticated", 16, 401, False),
    (ForbiddenError, "forbidden", 7, 403, False),
    (NotFoundError, "not_found", 12, 404, False),
    (MethodError, "method", 12, 405, False),
    (TooLargeError, "too_large", 8, 413, False),
    # 400, not 503: a retry would be refused again, and block other runs behind it in a client's
    # queue.
    (TooManyRunsError, "too_many_runs", 8, 400, False),
    (UnsupportedError, "unsupported", 12, 415, False),
    (ThrottledError, "throttled", 14, 429, True),
    (UnavailableError, "unavailable", 14, 503, True),
    (JournalFullError, "full", 14, 503, True),
    (JournalError, "journal", 14, 503, True),
)


def answer_to(error: BaseException) -> ErrorResponse:
    """Return the row of *error*.

    An unforeseen error may be retried, because nothing was acknowledged. Its text is in the log
    only.
    """
    for kind, reason, code, status, retry in TABLE:
        if isinstance(error, kind):
            return ErrorResponse(reason, code, status, retry, str(error))
    return ErrorResponse(
        "internal", 14, 503, True, "the receiver failed; the request was not stored"
    )


def retry_info() -> RetryInfo:
    """Return the RetryInfo for both kinds of client."""
    return RetryInfo(retry_delay=Duration(seconds=RETRY_S))
