"""Maps failures of MLflow to the bridge's three errors, by a table of MLflow's error codes.

`Refused` stays inside this package: the payload, not the store, is at fault, and the caller halves
the payload until the bad record is found. Sources: ``ERROR_CODE_TO_HTTP_STATUS`` in
mlflow/exceptions.py; ``make_managed_session`` in mlflow/store/db/utils.py (operational errors of a
database arrive as TEMPORARILY_UNAVAILABLE).

The bridge makes a call again after a `RetryableError`, and every minute after a `BlockedError`,
whose help it shows.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Generator
from contextlib import contextmanager

import requests

from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    OtelBridgeError,
    RetryableError,
)
from otel_bridge.otlp.request_size import retry_after_s
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge_mlflow.versions import HINTS, INSTALL

_REFUSED = frozenset(
    {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "NOT_IMPLEMENTED"}
)
MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_BLOCKED = {
    "UNAUTHENTICATED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "CUSTOMER_UNAUTHORIZED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "PERMISSION_DENIED": "ask for write access to the experiment",
    "ENDPOINT_NOT_FOUND": "check MLFLOW_TRACKING_URI: no MLflow server of a supported version answers there",
    "RESOURCE_DOES_NOT_EXIST": "the run or experiment is gone; start another run with `otel-bridge run --new`",
    "NOT_FOUND": "the run or experiment is gone; start another run with `otel-bridge run --new`",
}
# INTERNAL_ERROR too: MLflow's client gives it for a server that is down (3.17).
_TRIED_AGAIN = frozenset(
    {
        "INTERNAL_ERROR",
        "TEMPORARILY_UNAVAILABLE",
        "REQUEST_LIMIT_EXCEEDED",
        "DEADLINE_EXCEEDED",
    }
)
_KNOWN = _REFUSED | _BLOCKED.keys() | _TRIED_AGAIN
LOGIN = "check MLFLOW_TRACKING_URI; something before the server may want you to log in"
_WORDS_OF_A_BLOCK = {
    "must be in the 'active' state": "mlflow runs restore --run-id RUN (mlflow experiments restore -x EXPERIMENT)",
    "out-of-date database schema": "mlflow db upgrade URI",
    "can't locate revision": "upgrade mlflow: a newer one has written this database",
    "readonly database": "make the database file and its folder writable",
    "unable to open database file": "make the database's folder exist and writable",
    "file is not a database": "name another file in MLFLOW_TRACKING_URI",
    "not in a valid json format": LOGIN,  # MLflow's own client, given a web page
    # Of artifacts, which have a store of their own (3.17).
    "mlflow-artifacts uri was supplied": "set MLFLOW_TRACKING_URI to the server that has the artifacts",
    "could not find a registered artifact repository": "install what opens the artifact store beside mlflow",
    "disk image is malformed": "the database is damaged: restore a backup, or name another in MLFLOW_TRACKING_URI",
}
_PASSING = re.compile(
    # SQLite; PostgreSQL, which names its constraint; MySQL, which names the table's key.
    r"unique constraint failed: (tags|params|latest_metrics|trace_tags|trace_request_metadata|assessments)\."
    r'|duplicate key value violates unique constraint "(tag|param|latest_metric|trace_tag|trace_request_metadata)_pk"'
    r'|duplicate key value violates unique constraint "assessments_pkey"'
    r"|duplicate entry .*'(tags|params|latest_metrics|trace_tags|trace_request_metadata|assessments)\.primary'"
    r"|queuepool limit of size|connection (is|was) (already )?closed|connection already closed"
    r"|server closed the connection|until invalid transaction is rolled back",
    re.DOTALL,
)
"""Errors that MLflow reports as a bad request although the request is valid.

Either another writer inserted a row between MLflow's query and its insert, or the database had no
free connection. MLflow turns every error of SQLAlchemy except ``OperationalError`` into BAD_REQUEST
(``make_managed_session``).
"""
_HELD = re.compile(
    # The same three databases; MLflow 3.14 and newer answers an assessment with "constraint
    # violation".
    r"unique constraint failed: (metrics|assessments)\."
    r'|duplicate key value violates unique constraint "(metric_pk|assessments_pkey)"'
    r"|duplicate entry .*'(metrics|assessments)\.primary'"
    r"|constraint violation",
    re.DOTALL,
)


_TIMED_OUT = re.compile(
    r"time(?:d|s)?[ -]?out|canceling statement due to|\bhttp (?:408|502|504|524)\b"
)
"""Messages by which a client, a database, or a proxy before the server reports a timeout."""


def is_held(error: Exception) -> bool:
    """Return whether *error* means that the store already holds the metric or assessment that was sent alone.

    A metric's key includes all of its fields. MLflow itself ignores metrics that it holds, but up
    to 3.15 not NaN.
    """
    return _HELD.search(str(error).lower()) is not None


_CODE_OF_STATUS = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "ENDPOINT_NOT_FOUND",
    405: "ENDPOINT_NOT_FOUND",
    413: "BAD_REQUEST",
    422: "BAD_REQUEST",
    501: "NOT_IMPLEMENTED",
}
"""Outcomes of statuses whose answer has no error code; any other status is retried."""


class Refused(OtelBridgeError):  # noqa: N818  # an outcome inside this package, like StopIteration
    """Raised when the store works, but does not accept this payload."""


@contextmanager
def as_bridge_errors(
    doing: str, *, missing_is_refused: bool = False
) -> Generator[None]:
    """Turn any error of MLflow into `Refused`, `RetryableError` or `BlockedError`.

    Args:
        doing: The attempted operation, for the message.
        missing_is_refused: Whether a missing resource refuses this payload only, because it is a
            trace, not the run.
    """
    try:
        yield
    except OtelBridgeError:
        # Already mapped by an inner call, which knew more.
        raise
    except Exception as exc:
        raise outcome_of(exc, doing, missing_is_refused=missing_is_refused) from exc


def outcome_of(
    exc: Exception, doing: str, *, missing_is_refused: bool = False
) -> ExporterError | Refused:
    """Return the error for *exc*, which MLflow or a library below it raised while *doing*.

    In this order: a missing name of MLflow blocks; an answer about artifacts counts by its status; a
    value that its client cannot take, or a resource that may be missing, refuses the payload; else
    MLflow's error code decides.
    """
    code = getattr(exc, "error_code", None)
    incompatible = incompatibility(exc, "MLflow", INSTALL, hints=HINTS)
    if incompatible is not None:
        return incompatible
    if isinstance(exc, requests.HTTPError) and exc.response is not None:
        # Of artifacts, for which MLflow's client raises the error of requests (3.17).
        answer = exc.response
        retry_after = answer.headers.get("Retry-After")
        return outcome_of_status(
            answer.status_code, None, _line(exc), doing, retry_after
        )
    # Without a code of MLflow the value did not fit its client: no repetition changes that.
    if (
        isinstance(exc, (TypeError, ValueError, OverflowError, UnicodeError))
        and code is None
    ):
        return Refused(f"{doing}: {_line(exc)}")
    if missing_is_refused and code in MISSING:
        return Refused(f"{doing}: {_line(exc)}")
    return outcome(str(code or "INTERNAL_ERROR"), _line(exc), doing)


def outcome_of_status(
    status: int, code: str | None, text: str, doing: str, retry_after: str | None
) -> ExporterError | Refused:
    """Return the error for an HTTP answer; *code* is the error code in its body, if it has one.

    The status takes precedence over a code that is not MLflow's own, as gateways send them. An error
    to retry has the wait that *retry_after*, the header, names.
    """
    if code not in _KNOWN:
        code = _CODE_OF_STATUS.get(status, "TEMPORARILY_UNAVAILABLE")
    error = outcome(code, f"HTTP {status}: {text}", doing)
    if isinstance(error, RetryableError):
        error.retry_after_s = retry_after_s(retry_after)
    return error


def outcome(code: str, text: str, doing: str) -> ExporterError | Refused:
    """Return the error for one of MLflow's error codes.

    A code that the table does not have is retried, and so is a bad request that is MLflow's own
    race (`_PASSING`): a record that was refused wrongly would be lost.
    """
    message = f"{doing}: {text}"
    words = text.lower()
    # Words before codes: a deleted run has INVALID_PARAMETER_VALUE, as a bad value has.
    for phrase, help_text in _WORDS_OF_A_BLOCK.items():
        if phrase in words:
            return BlockedError(message, help=help_text)
    if code in _REFUSED and not _PASSING.search(words):
        return Refused(message)
    if code in _BLOCKED:
        return BlockedError(message, help=_BLOCKED[code])
    # Also what nothing above knows: a record refused wrongly would be lost, a retry costs little.
    return RetryableError(message, timed_out=_TIMED_OUT.search(words) is not None)


def _line(exc: Exception) -> str:
    """Return the text of *exc* on one line, of at most 500 characters, without credentials."""
    reason = _connection_error(exc)
    if reason is not None:
        return f"the server cannot be reached: {reason}"
    # MLflow's text includes the address it called, with user and password.
    text = re.sub(r"://[^/@\s]+@", "://", " ".join(str(exc).split()))
    if len(text) <= 500:
        return text
    return f"{redact_and_cut(text, 500)}…"


def _connection_error(exc: BaseException | None) -> str | None:
    """Return the operating system's reason why no connection was made.

    ``None`` if *exc* has another cause.

    MLflow's text wraps it in those of requests and urllib3, 300 characters long.
    """
    # The cause is two or three levels down, below MLflow's, requests' and urllib3's errors.
    while exc is not None:
        if isinstance(exc, (ConnectionError, socket.gaierror)) and exc.strerror:
            return exc.strerror
        exc = exc.__cause__ or exc.__context__
    return None
