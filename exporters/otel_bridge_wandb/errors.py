"""wandb's exceptions -> the bridge's three errors.

wandb names the HTTP status only in its message (``returned error 403``, ``<Response [401]>``,
``HTTP 404``). A message without a status means that the network failed or the server did not answer
in time. Source: ``ProtobufErrorHandler`` in wandb/sdk/lib and ``runupdateerror.go`` of wandb-core.

The bridge makes a call again after a `RetryableError`, and every minute after a `BlockedError`,
whose help it shows. A record that raises `PermanentError` becomes a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import orjson

from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge_wandb.versions import INSTALL

LOGIN_HELP = "wandb login, or WANDB_MODE=offline"
_STATUS = re.compile(
    r"(?:returned error|status(?: code)?:?|HTTP(?: error)?|Response \[|code:?|error:?)\s*(\d{3})\b"
    r"|\b([45]\d\d) [A-Z][a-z]",
    re.IGNORECASE,
)
_LOST_ACCESS = re.compile(
    r"permission denied|unauthori[sz]ed|forbidden|api key|not logged in|invalid credentials",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"connection|timeout|timed out|refused|reach|network|deadline|no such host|eof|in time|"
    r"service process is",
    re.IGNORECASE,
)
_NO_SERVICE = frozenset({"MailboxClosedError", "HandleAbandonedError"})
"""wandb's errors after its service has ended; without a message, and wrapped in one that blames the
credentials (0.31)."""
_GONE = re.compile(
    r"not found|does not exist|was previously created and deleted|deleted",
    re.IGNORECASE,
)
_HELP = {
    401: LOGIN_HELP,
    403: "check that the key may write to the entity and project (WANDB_ENTITY, WANDB_PROJECT)",
    404: "check WANDB_BASE_URL, WANDB_ENTITY and that the project exists",
    409: "choose another run id (WANDB_RUN_ID) or restore the deleted run",
}
_BLOCKING = frozenset({400, 401, 403, 404, 405, 409, 410, 413, 422, 501})
"""Answers after which wandb itself gives up (facts of ``clients.RetryMostFailures``)."""


@contextmanager
def as_bridge_errors(
    doing: str, position: int | None = None
) -> Generator[None, None, None]:
    """Turn any exception of wandb into one of the three errors.

    Errors of the bridge pass unchanged.

    Args:
        doing: Start of the message, e.g. ``opening the run``.
        position: The first record that was not written.
    """
    try:
        yield
    except ExporterError:
        raise
    except Exception as exc:  # wandb, pydantic and its service raise dozens of types
        raise outcome(exc, doing, position) from exc


def outcome(
    exc: BaseException, doing: str, position: int | None = None
) -> RetryableError | BlockedError:
    """Return the error for *exc*: blocked if a person must act, else retryable, also if nothing is known of it.

    A retry costs little, and a blocked run that would have passed waits for a person. No exception
    of wandb makes a record a dead letter here; `refused` does.
    """
    incompatible = incompatibility(exc, f"W&B, {doing}: the installed wandb", INSTALL)
    if incompatible is not None:
        incompatible.position = position
        return incompatible
    text = _text(exc)
    message = f"W&B, {doing}: {text}"
    help_text = _help_of(exc, text)
    if help_text is None:
        return RetryableError(message, position=position)
    return BlockedError(message, position=position, help=help_text)


def _help_of(exc: BaseException, text: str) -> str | None:
    """Return what a person must do about *exc*, whose message is *text*; ``None`` when it passes by itself.

    The texts of wandb decide where no status is named: its own errors have no codes.
    """
    # The status first: words such as "connection" also stand in the text of an answer.
    status = status_of(text)
    if status is not None:
        return _HELP.get(status, "") if status in _BLOCKING else None
    kinds = class_names(exc)
    # Without a service, the next writer starts another. "in use": the stream of a failed init() in
    # wandb's service, which `sdk` closes.
    if _NO_SERVICE & kinds or "in use" in text or _NO_ANSWER.search(text):
        return None
    if _LOST_ACCESS.search(text) or "AuthenticationError" in kinds:
        return LOGIN_HELP
    if _GONE.search(text):
        return _HELP[409]
    if {"UsageError", "ValidationError"} & kinds or isinstance(exc, PermissionError):
        return "correct the setting that the message names"
    # An outage has a message; an empty one is a refusal.
    return REFUSED_HELP if text == NO_MESSAGE else None


def class_names(exc: BaseException) -> set[str]:
    """Return the names of the classes of *exc* and of its causes, which wandb's own errors often are not."""
    names: set[str] = set()
    link: BaseException | None = exc
    while link is not None:
        names.update(base.__name__ for base in type(link).__mro__)
        link = link.__cause__
    return names


def refused(message: str, position: int) -> PermanentError:
    """Return the error for one record that W&B can never accept."""
    return PermanentError(f"W&B cannot take the record: {message}", position=position)


def status_of(text: str) -> int | None:
    """Return the first HTTP status of 400 or above that *text* names.

    ``None`` when it names none.
    """
    for match in _STATUS.finditer(text):
        status = int(match[1] or match[2])
        if status >= 400:
            return status
    return None


def _text(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return redact_and_cut(text or type(exc).__name__, 500)


# The reason why W&B refused an ``init()``, when wandb's exception has no message.
#
# For most answers of 4xx wandb raises ``CommError('<no message>')``. The status is in the log of
# the run that wandb's service keeps: ``failed to init run``, ``returned error 403: …``. Source:
# ``runupserter`` and ``stream`` of wandb-core.

NO_MESSAGE = "<no message>"
REFUSED_HELP = (
    "check that the key may write to the entity and project (WANDB_ENTITY, WANDB_PROJECT); the reason may stand in "
    "debug-internal.log below the wandb folder"
)
_LINE = re.compile(r'^\{.*failed to init run".*\}$', re.MULTILINE)
_TAIL_BYTES = 256 << 10
"""Most bytes that are read of a log: what ended an upload is at its end."""


def refusal_of(error: BaseException, root: Path, run_id: str) -> str:
    """Return why an ``init()`` was refused, from the service's log.

    Empty if *error* has a message of its own, or the log has no such line.

    Args:
        error: The exception of ``init()``.
        root: The folder in which wandb creates its folder ``wandb``.
        run_id: The run.
    """
    if NO_MESSAGE not in str(error):
        return ""
    logs = sorted((root / "wandb").glob(f"run-*-{run_id}/logs/debug-internal.log"))
    try:
        # The newest, whose folder's name has the latest time: each try of `init()` makes its own.
        refusals = _LINE.findall(tail_of(logs[-1]))
        return str(orjson.loads(refusals[-1]).get("error", ""))
    except (IndexError, orjson.JSONDecodeError):
        # Without a log or a line of it the refusal has no reason; the help names where it may
        # stand.
        return ""


def tail_of(log: Path) -> str:
    """Return the end of one of wandb's logs, which grow as long as the run.

    Empty while it cannot be read.
    """
    try:
        with log.open("rb") as opened:
            opened.seek(max(opened.seek(0, 2) - _TAIL_BYTES, 0))
            return opened.read().decode("utf-8", "replace")
    except OSError:
        return ""
