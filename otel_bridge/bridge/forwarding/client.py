"""Sends serialised OTLP requests, over gRPC or HTTP, and reports by its error what became of a request.

Source of the tables: opentelemetry-specification, protocol/otlp.md, "Failures" and "OTLP/gRPC
Throttling". Some answers are final by the specification although a person can fix their cause (401,
403 …). These are *blocked* here, and no data is lost meanwhile.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import punctuation
from typing import Any, TypeAlias
from urllib.parse import quote

import requests
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from otel_bridge.bridge.http_session import HttpSession, cause_of
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
    SignalMissingError,
)
from otel_bridge.otlp.destination import Endpoint
from otel_bridge.otlp.request_size import retry_after_s
from otel_bridge.semconv import HEADER_RUN_ID, HEADER_SERVER
from otel_bridge.text.printable import shown

_RETRY_HTTP = frozenset({408, 429, 500, 502, 503, 504})
_FINAL_HTTP = frozenset({400, 413, 422})
_MISSING_HTTP = frozenset({404, 405, 501})
_TIMED_OUT_HTTP = frozenset({408, 502, 504})
_DEADLINE_EXCEEDED = 4
_RETRY_GRPC = frozenset({1, 2, 4, 8, 10, 11, 13, 14, 15})
_FINAL_GRPC = frozenset({3})
_UNIMPLEMENTED = 12
_LIMIT_GRPC = frozenset({8, 11})
_OVER_SIZE = re.compile(
    r"larger than|exceed\w* (the )?max|too (large|big|long)|smaller batches",
    re.IGNORECASE,
)
"""Texts by which gRPC in C, Go and Java, tonic and otel-bridge report a request over a limit.

RESOURCE_EXHAUSTED without RetryInfo can also be a rate limit: the specification lets clients give
up there, but then rows would be lost.
"""
_METHODS = {
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}


class Reply:
    """Holds the answer to an accepted request.

    Attributes:
        from_bridge: Whether the other end is an otel-bridge.
        rejected: Number of points, spans or records of the request that it refused.
        message: The reason that the other end gave, in a form to show.
    """

    __slots__ = ("from_bridge", "message", "rejected")

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Read the answer.

        One that cannot be decoded refuses nothing, because the request was accepted.
        """
        self.from_bridge = HEADER_SERVER in headers
        try:
            # The three responses have the same shape: partial_success { int64 rejected = 1; string
            # message = 2 }.
            partial = ExportMetricsServiceResponse.FromString(body).partial_success
            # A negative number of a strange server must not lower the count.
            self.rejected = max(partial.rejected_data_points, 0)
            self.message = _cut(partial.error_message)
        except DecodeError:
            # The request was accepted; an answer that cannot be read refuses none of its items.
            self.rejected = 0
            self.message = ""


Client: TypeAlias = "_HttpClient | _GrpcClient"
"""Sends the requests of one signal. For one thread. `send` raises `RetryableError`, `BlockedError`
or `PermanentError`."""


def client_for(endpoint: Endpoint) -> Client:
    """Return a client for *endpoint*; it connects with its first request.

    Raises `BlockedError` for a file of TLS that is gone or empty since *endpoint* was read.
    """
    if endpoint.protocol == "grpc":
        return _GrpcClient(endpoint)
    return _HttpClient(endpoint)


class _HttpClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = HttpSession()
        self._session.headers.update(
            {"Content-Type": "application/x-protobuf", **endpoint.headers}
        )
        if endpoint.client_certificate and endpoint.client_key:
            self._session.cert = (endpoint.client_certificate, endpoint.client_key)

    def send(self, body: bytes, run_id: str) -> Reply:
        """Send one request; return the answer.

        Raises:
            RetryableError: The other end cannot be reached, or asked for another try.
            BlockedError: TLS failed, or a person must mend address or credentials.
            PermanentError: The other end refuses this request for good.
        """
        headers = {HEADER_RUN_ID: _header_value(run_id)}
        if self._endpoint.gzip:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        try:
            answer = self._session.post(
                self._endpoint.url,
                data=body,
                headers=headers,
                timeout=self._endpoint.timeout_s,
                # With the request: REQUESTS_CA_BUNDLE overrides a session's (requests 2.32).
                # Without a file, those that requests trusts by default.
                verify=self._endpoint.certificate,
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as exc:
            # Before the general error: a certificate does not get better by waiting.
            raise BlockedError(
                f"{self._endpoint.address}: TLS failed: {_cut(cause_of(exc))}",
                help=_TLS_HELP,
            ) from exc
        except requests.RequestException as exc:
            timed_out = isinstance(exc, requests.Timeout)
            message = (
                f"{self._endpoint.address} cannot be reached: {_cut(cause_of(exc))}"
            )
            raise RetryableError(message, timed_out=timed_out) from exc
        # Some backends answer 202 or 204 although the specification knows 200 alone. What they have
        # taken must not be sent again.
        if 200 <= answer.status_code < 300:
            return Reply(
                answer.content,
                {name.lower(): value for name, value in answer.headers.items()},
            )
        raise self._error(answer)

    def close(self) -> None:
        self._session.close()

    def _error(self, answer: requests.Response) -> ExporterError:
        """Return the error of a status that is not 2xx; a redirect counts as a wrong address."""
        status = answer.status_code
        message = (
            f"{self._endpoint.address} answered {status} {_cut(answer.reason or '')}"
        )
        if status in _RETRY_HTTP:
            delay_s = retry_after_s(answer.headers.get("Retry-After"))
            return RetryableError(
                message, retry_after_s=delay_s, timed_out=status in _TIMED_OUT_HTTP
            )
        # The request itself is wrong: it is split, so that only what is refused is left out.
        if status in _FINAL_HTTP:
            return PermanentError(message)
        if status in _MISSING_HTTP:
            return SignalMissingError(message, help=_MISSING_HELP)
        return BlockedError(
            message, help=_AUTH_HELP if status in {401, 403} else _ENDPOINT_HELP
        )


class _GrpcClient:
    def __init__(self, endpoint: Endpoint) -> None:
        import grpc  # noqa: PLC0415  # an extra, and 60 ms of import

        self._endpoint = endpoint
        self._rpc_error = grpc.RpcError
        target = endpoint.address.partition("://")[2]
        options = [("grpc.max_receive_message_length", 4 << 20)]
        compression = grpc.Compression.NoCompression
        if endpoint.gzip:
            compression = grpc.Compression.Gzip
        if endpoint.secure:
            credentials = grpc.ssl_channel_credentials(
                _file(endpoint.certificate),
                _file(endpoint.client_key),
                _file(endpoint.client_certificate),
            )
            self._channel = grpc.secure_channel(
                target, credentials, options, compression
            )
        else:
            self._channel = grpc.insecure_channel(target, options, compression)
        # The stubs leave open what a call returns.
        channel: Any = self._channel
        self._export = channel.unary_unary(_METHODS[endpoint.signal], bytes, bytes)
        self._metadata = tuple(endpoint.headers.items())

    def send(self, body: bytes, run_id: str) -> Reply:
        """Send one request; return the answer.

        Raises:
            RetryableError, BlockedError, PermanentError: By the status of the call, which is
                UNAVAILABLE where the other end cannot be reached.
        """
        metadata = (*self._metadata, (HEADER_RUN_ID, _header_value(run_id)))
        try:
            answer, call = self._export.with_call(
                body, timeout=self._endpoint.timeout_s, metadata=metadata
            )
        except self._rpc_error as exc:
            raise self._error(exc) from exc
        # An otel-bridge names itself in the trailers, with the status: separate headers would cost
        # it an operation a request.
        received = (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ()))
        return Reply(answer, {key: str(value) for key, value in received})

    def close(self) -> None:
        self._channel.close()

    def _error(self, failed: Any) -> ExporterError:
        """Return the error of a failed call, by the table of the specification.

        A request over a limit is `PermanentError`, so that it is split; only its text shows that,
        since RESOURCE_EXHAUSTED may also be a rate limit.
        """
        code = failed.code().value[0]
        details = failed.details() or ""
        message = (
            f"{self._endpoint.address} answered gRPC status {code}: {_cut(details)}"
        )
        if _NOT_HTTP2.search(details):
            message += f"; {_HTTP_HELP}"
        delay_s = _retry_delay_s(failed.trailing_metadata())
        # With RetryInfo it is a rate limit, which passes; a smaller request would not help.
        is_over_size = (
            code in _LIMIT_GRPC and delay_s is None and _OVER_SIZE.search(message)
        )
        if code in _FINAL_GRPC or is_over_size:
            return PermanentError(message)
        if code in _RETRY_GRPC:
            return RetryableError(
                message, retry_after_s=delay_s, timed_out=code == _DEADLINE_EXCEEDED
            )
        if code == _UNIMPLEMENTED:
            return SignalMissingError(message, help=_MISSING_HELP)
        return BlockedError(
            message, help=_AUTH_HELP if code in {7, 16} else _ENDPOINT_HELP
        )


_NOT_HTTP2 = re.compile("http1|HTTP/2")
"""What gRPC (1.85) says of a port of HTTP/1.1, as 4318 of a Collector is."""
_HTTP_HELP = (
    "for a port of OTLP over HTTP set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
)
_AUTH_HELP = "set OTEL_BRIDGE_TOKEN, or OTEL_EXPORTER_OTLP_HEADERS to the credentials that the endpoint wants"
_ENDPOINT_HELP = "check OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL"
_MISSING_HELP = (
    "check OTEL_EXPORTER_OTLP_ENDPOINT; for an end that takes traces only, "
    "set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT instead"
)
_TLS_HELP = (
    "check OTEL_EXPORTER_OTLP_CERTIFICATE, or the scheme of OTEL_EXPORTER_OTLP_ENDPOINT"
)


def _header_value(run_id: str) -> str:
    """Return a run id as a header may hold it: all but visible ASCII percent-encoded.

    Ids of our API stay as they are. A third-party producer may name any text, with which no request
    could be sent.
    """
    return quote(run_id, safe=punctuation, errors="surrogatepass")


def _file(path: str | None) -> bytes | None:
    """Return the content of a file, ``None`` without a path.

    Raises `BlockedError` when it cannot be read or is empty.
    """
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as exc:
        raise BlockedError(
            f"{path} cannot be read: {exc.strerror}", help=_TLS_HELP
        ) from exc
    # While it is replaced, for instance. gRPC (1.85) aborts the whole process for an empty key.
    if not content:
        raise BlockedError(f"{path} is empty", help=_TLS_HELP)
    return content


def _retry_delay_s(trailers: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """Return the seconds of a failed call's RetryInfo.

    ``None`` without one, or when it cannot be decoded.
    """
    encoded = dict(trailers or ()).get("grpc-status-details-bin")
    if not isinstance(encoded, bytes):
        return None
    info = RetryInfo()
    try:
        for detail in Status.FromString(encoded).details:
            if detail.Unpack(info):
                return float(info.retry_delay.ToMilliseconds()) / 1e3
    except DecodeError:
        pass
    return None


def _cut(text: str) -> str:
    """Return a text of another program on one line of at most 200 characters, for the log and the status.

    Without secrets, because it may repeat the address.
    """
    text = shown(" ".join(text.split()))
    if len(text) <= 200:
        return text
    return f"{text[:199]}…"
