"""One table: what went wrong -> gRPC status, HTTP status, whether the client may try again.

Source: opentelemetry-specification, protocol/otlp.md, "Failures" and "OTLP/gRPC Throttling" (which gRPC codes a client
retries), "OTLP/HTTP Response" and "OTLP/HTTP Throttling" (400 is final, 429, 502, 503 and 504 are not; the body is a
``google.rpc.Status``). The Go exporter reads RetryInfo from ``grpc-status-details-bin``, the Python SDK from
``google.rpc.retryinfo-bin``. RESOURCE_EXHAUSTED is final for clients unless it carries RetryInfo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from otel_bridge.errors import InvalidRecordError, JournalError, JournalFullError, OtelBridgeError

RETRY_S: Final = 1


class RefusedError(OtelBridgeError):
    """A request that cannot be taken; its kind is a row of the table below."""


class TooLargeError(RefusedError):
    """The request is over the limit, as sent or inflated."""


class UnsupportedError(RefusedError):
    """A content type or encoding that we do not read."""


class UnauthenticatedError(RefusedError):
    """No token, or a wrong one."""


class ForbiddenError(RefusedError):
    """Known or not, this client may not send here."""


class NotFoundError(RefusedError):
    """There is no such path."""


class MethodError(RefusedError):
    """The path exists, for another method."""


class ThrottledError(RefusedError):
    """The limit of what is taken at one time, or in one second, is reached."""


class UnavailableError(RefusedError):
    """We are shutting down or full: the same request may go through later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one kind of error is told to a client.

    Attributes:
        reason: One word for counting.
        grpc_code: Number of the gRPC status code.
        http_status: HTTP status.
        retry: The client should send the request again, after `RETRY_S`.
        message: What to tell.
    """

    reason: str
    grpc_code: int
    http_status: int
    retry: bool
    message: str

    def status(self) -> Status:
        """Return the ``google.rpc.Status`` of the answer, with RetryInfo where the client may try again."""
        status = Status(code=self.grpc_code, message=self.message)
        if self.retry:
            status.details.add().Pack(retry_info())
        return status

    def json(self) -> bytes:
        """Return the same as JSON, for clients that send JSON."""
        return orjson.dumps({"code": self.grpc_code, "message": self.message})

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the gRPC trailers that carry the details, for both kinds of client."""
        details = (("grpc-status-details-bin", self.status().SerializeToString()),)
        return (*details, ("google.rpc.retryinfo-bin", retry_info().SerializeToString())) if self.retry else details


# Kind of error, reason, gRPC code, HTTP status, may be sent again. The first row that fits counts.
TABLE: Final[tuple[tuple[type[Exception], str, int, int, bool], ...]] = (
    (InvalidRecordError, "invalid", 3, 400, False),
    (UnauthenticatedError, "unauthenticated", 16, 401, False),
    (ForbiddenError, "forbidden", 7, 403, False),
    (NotFoundError, "not_found", 12, 404, False),
    (MethodError, "method", 12, 405, False),
    (TooLargeError, "too_large", 8, 413, False),
    (UnsupportedError, "unsupported", 12, 415, False),
    (ThrottledError, "throttled", 14, 429, True),
    (UnavailableError, "unavailable", 14, 503, True),
    (JournalFullError, "full", 14, 503, True),
    (JournalError, "journal", 14, 503, True),
)


def answer_to(error: BaseException) -> Answer:
    """Return the row of *error*; what we did not foresee may be tried again, since nothing of it was acknowledged."""
    for kind, reason, code, status, retry in TABLE:
        if isinstance(error, kind):
            return Answer(reason, code, status, retry, str(error))
    return Answer("internal", 14, 503, True, "the receiver failed; the request was not stored")


def retry_info() -> RetryInfo:
    """Return the RetryInfo that both kinds of client are told."""
    return RetryInfo(retry_delay=Duration(seconds=RETRY_S))
