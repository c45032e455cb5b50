"""One table: what went wrong -> gRPC status, HTTP status, whether the client may try again.

Source: opentelemetry-specification, protocol/otlp.md, "Failures", "OTLP/gRPC Throttling" and "OTLP/HTTP Response". The
Go exporter reads RetryInfo from ``grpc-status-details-bin``, the Python SDK from ``google.rpc.retryinfo-bin``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from otel_bridge.errors import InvalidRecordError, JournalError, OtelBridgeError

RETRY_S: Final = 1


class RefusedError(OtelBridgeError):
    """A request that cannot be taken; its kind is a row of the table below."""


class TooLargeError(RefusedError):
    """The request is over the limit, as sent or inflated."""


class UnsupportedError(RefusedError):
    """A content type or encoding that we do not read."""


class UnauthenticatedError(RefusedError):
    """No token, or a wrong one."""


class UnavailableError(RefusedError):
    """We are shutting down or full: the same request may go through later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one kind of error is told to a client.

    Attributes:
        grpc_code: Number of the gRPC status code.
        http_status: HTTP status.
        retry: The client should send the request again, after `RETRY_S`.
        message: What to tell.
    """

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


_TABLE: Final[tuple[tuple[type[Exception], int, int, bool], ...]] = (
    (UnauthenticatedError, 16, 401, False),
    (TooLargeError, 8, 413, False),
    (UnsupportedError, 12, 415, False),
    (UnavailableError, 14, 503, True),
    (InvalidRecordError, 3, 400, False),
    (JournalError, 14, 503, True),
)


def answer_to(error: Exception) -> Answer:
    """Return the row of *error*; what we did not foresee may be tried again, since nothing of it was stored."""
    for kind, code, status, retry in _TABLE:
        if isinstance(error, kind):
            return Answer(code, status, retry, str(error))
    return Answer(14, 503, True, "the receiver failed; the request was not stored")


def retry_info() -> RetryInfo:
    """Return the RetryInfo that both kinds of client are told."""
    return RetryInfo(retry_delay=Duration(seconds=RETRY_S))
