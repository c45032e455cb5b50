"""What wandb raises -> the three outcomes of a write.

wandb names the HTTP status only in its message (``returned error 403``, ``<Response [401]>``, ``HTTP 404``); a message
without one is a network that failed or a server that did not answer in time.
Source: ``ProtobufErrorHandler`` in wandb/sdk/lib and ``runupdateerror.go`` of wandb-core.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from otel_bridge.errors import BlockedError, ExporterError, PermanentError, RetryableError

LOGIN_HELP: Final = "wandb login, or WANDB_MODE=offline"
_STATUS: Final = re.compile(
    r"(?:returned error|status(?: code)?:?|HTTP(?: error)?|Response \[|code:?|error:?)\s*(\d{3})\b"
    r"|\b([45]\d\d) [A-Z][a-z]",
    re.IGNORECASE,
)
_LOST_ACCESS: Final = re.compile(
    r"permission denied|unauthori[sz]ed|forbidden|api key|not logged in|invalid credentials", re.IGNORECASE
)
_GONE: Final = re.compile(r"not found|does not exist|was previously created and deleted|deleted", re.IGNORECASE)
_HELP: Final = {
    401: LOGIN_HELP,
    403: "check that the key may write to the entity and project (WANDB_ENTITY, WANDB_PROJECT)",
    404: "check WANDB_BASE_URL, WANDB_ENTITY and that the project exists",
    409: "choose another run id (WANDB_RUN_ID) or restore the deleted run",
}
_BLOCKING: Final = frozenset({400, 401, 403, 404, 405, 409, 410, 413, 422, 501})
"""Answers after which wandb itself gives up (facts of ``clients.RetryMostFailures``)."""


@contextmanager
def as_bridge_errors(doing: str, position: int | None = None) -> Generator[None, None, None]:
    """Turn whatever wandb raises into one of the three outcomes; ours pass through.

    Args:
        doing: Begins the message, e.g. ``opening the run``.
        position: The first record that was not done.
    """
    try:
        yield
    except ExporterError:
        raise
    except Exception as exc:  # wandb, pydantic and its service raise dozens of types
        raise outcome(exc, doing, position) from exc


def outcome(exc: BaseException, doing: str, position: int | None = None) -> RetryableError | BlockedError:
    """Return what *exc* means for the caller."""
    text = _text(exc)
    message = f"W&B, {doing}: {text}"
    status = status_of(text)
    kinds = {base.__name__ for link in _chain(exc) for base in type(link).__mro__}
    if status is not None:
        mends = _HELP.get(status, "") if status in _BLOCKING else None
    elif "in use" in text or _unreachable(text):
        mends = None
    elif _LOST_ACCESS.search(text) or "AuthenticationError" in kinds:
        mends = LOGIN_HELP
    elif _GONE.search(text):
        mends = _HELP[409]
    elif {"UsageError", "ValidationError"} & kinds or isinstance(exc, PermissionError):
        mends = "correct the setting that the message names"
    else:
        mends = None
    if mends is None:
        return RetryableError(message, position=position)
    return BlockedError(message, position=position, help=mends)


def refused(message: str, position: int) -> PermanentError:
    """Return the error for one record that W&B can never take."""
    return PermanentError(f"W&B cannot take the record at position {position}: {message}", position=position)


def status_of(text: str) -> int | None:
    """Return the HTTP status (400 and above) that *text* names."""
    for found in _STATUS.finditer(text):
        status = int(found[1] or found[2])
        if status >= 400:
            return status
    return None


def _unreachable(text: str) -> bool:
    words = (
        "connection",
        "timeout",
        "timed out",
        "refused",
        "reach",
        "network",
        "deadline",
        "no such host",
        "eof",
        "in time",
    )
    return any(word.lower() in text.lower() for word in words)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__


def _text(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return (text or type(exc).__name__)[:500]
