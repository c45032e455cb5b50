"""What a failure of MLflow means: one table from its error codes to the bridge's three outcomes.

`Refused` stays inside this package: the payload, not the store, is at fault, and the caller halves it until the one
bad piece is known. Sources: ``ERROR_CODE_TO_HTTP_STATUS`` in mlflow/exceptions.py; ``make_managed_session`` in
mlflow/store/db/utils.py (operational errors of a database arrive as TEMPORARILY_UNAVAILABLE).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from otel_bridge.errors import BlockedError, ExporterError, OtelBridgeError, RetryableError
from otel_bridge.retry_after import retry_after_s

_REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "NOT_IMPLEMENTED"})
MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_BLOCKED = {
    "UNAUTHENTICATED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "CUSTOMER_UNAUTHORIZED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "PERMISSION_DENIED": "ask for write access to the experiment",
    "ENDPOINT_NOT_FOUND": "check MLFLOW_TRACKING_URI: no MLflow server of a supported version answers there",
    "RESOURCE_DOES_NOT_EXIST": "the run or experiment is gone; start another run with `otel-bridge run --new`",
    "NOT_FOUND": "the run or experiment is gone; start another run with `otel-bridge run --new`",
}
LOGIN = "check MLFLOW_TRACKING_URI and credentials: something before the server may want to log you in"
_WORDS_OF_A_BLOCK = {
    "must be in the 'active' state": "mlflow runs restore --run-id RUN (mlflow experiments restore -x EXPERIMENT)",
    "out-of-date database schema": "mlflow db upgrade URI",
    "can't locate revision": "upgrade mlflow: a newer one has written this database",
    "readonly database": "make the database file and its folder writable",
    "unable to open database file": "make the database's folder exist and writable",
    "file is not a database": "name another file in MLFLOW_TRACKING_URI",
    "not in a valid json format": LOGIN,  # MLflow's own client, given a web page
    "disk image is malformed": "the database is damaged: restore a backup, or name another in MLFLOW_TRACKING_URI",
}
_PASSING = re.compile(
    # SQLite; PostgreSQL, which names its constraint; MySQL, which names the table's key.
    r"unique constraint failed: (tags|params|latest_metrics|trace_tags|trace_request_metadata)\."
    r'|duplicate key value violates unique constraint "(tag|param|latest_metric|trace_tag|trace_request_metadata)_pk"'
    r"|duplicate entry .*'(tags|params|latest_metrics|trace_tags|trace_request_metadata)\.primary'"
    r"|queuepool limit of size|connection (is|was) (already )?closed|connection already closed"
    r"|server closed the connection|until invalid transaction is rolled back",
    re.DOTALL,
)
"""What MLflow calls a bad request, and is none.

It looks a row up, then inserts it, and another writer was first; or its database had no connection for it: whatever
SQLAlchemy raises but an ``OperationalError`` becomes BAD_REQUEST (``make_managed_session``).
"""
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
"""Statuses whose answer names no error code; any other is tried again."""


class Refused(OtelBridgeError):  # noqa: N818  # an outcome inside this package, like StopIteration
    """The store works, and does not take this payload."""


@contextmanager
def as_bridge_errors(doing: str, *, missing_is_refused: bool = False) -> Generator[None]:
    """Turn whatever MLflow raises into `Refused`, `RetryableError` or `BlockedError`.

    Args:
        doing: What is tried, for the message.
        missing_is_refused: What is not there costs this payload only: a trace, not the run.
    """
    try:
        yield
    except OtelBridgeError:
        raise
    except Exception as exc:
        raise outcome_of(exc, doing, missing_is_refused=missing_is_refused) from exc


def outcome_of(exc: Exception, doing: str, *, missing_is_refused: bool = False) -> ExporterError | Refused:
    """Return what *exc*, raised by MLflow or below it while *doing*, means."""
    code = getattr(exc, "error_code", None)
    if isinstance(exc, (TypeError, ValueError, OverflowError, UnicodeError)) and code is None:
        return Refused(f"{doing}: {_line(exc)}")
    if missing_is_refused and code in MISSING:
        return Refused(f"{doing}: {_line(exc)}")
    return outcome(str(code or "INTERNAL_ERROR"), _line(exc), doing)


def outcome_of_status(
    status: int, code: str | None, text: str, doing: str, retry_after: str | None
) -> ExporterError | Refused:
    """Return what an HTTP answer means; *code* is the error code in its body, if it has one."""
    found = outcome(code or _CODE_OF_STATUS.get(status, "TEMPORARILY_UNAVAILABLE"), f"HTTP {status}: {text}", doing)
    if isinstance(found, RetryableError):
        found.retry_after_s = retry_after_s(retry_after)
    return found


def outcome(code: str, text: str, doing: str) -> ExporterError | Refused:
    """Return what one of MLflow's error codes means; a code this table has not is tried again."""
    message = f"{doing}: {text}"
    words = text.lower()
    for said, help_text in _WORDS_OF_A_BLOCK.items():
        if said in words:
            return BlockedError(message, help=help_text)
    if code in _REFUSED and not _PASSING.search(words):
        return Refused(message)
    if code in _BLOCKED:
        return BlockedError(message, help=_BLOCKED[code])
    return RetryableError(message)


def _line(exc: Exception) -> str:
    # MLflow names the address it called, user and password included.
    text = re.sub(r"://[^/@\s]+@", "://", " ".join(str(exc).split()))
    return text if len(text) <= 500 else f"{text[:500]}…"
