"""Defines every error that leaves a module of otel-bridge.

.. code-block:: text

    OtelBridgeError
    ├── ConfigError                 settings or arguments: raised at start-up, never later
    │   └── MissingExtraError       a tracker's package is not installed
    ├── JournalError                the run folder or one of its segments
    │   ├── JournalFullError        disk full, or the limit of the directory reached
    │   ├── SegmentClosedError      the segment's descriptor was closed, or its folder moved
    │   ├── FormatVersionError      written by a newer otel-bridge
    │   ├── LedgerDamagedError      the ledger must be set aside and rebuilt
    │   └── FolderLockedError       another bridge holds the run folder
    ├── InvalidRecordError          malformed bytes or values
    └── ExporterError               a write failed
        ├── RetryableError          try again later
        ├── BlockedError            a person must act
        │   └── SignalMissingError  an OTLP endpoint does not have this signal
        └── PermanentError          this record can never be written

A message states what was seen, what was expected and what to do.

`any_error_but_signals` returns the exceptions that calls of otel-bridge catch, so that the program
never sees them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import CodeType

__all__ = [
    "BlockedError",
    "ConfigError",
    "ExporterError",
    "FolderLockedError",
    "FormatVersionError",
    "InvalidRecordError",
    "JournalError",
    "JournalFullError",
    "LedgerDamagedError",
    "MissingExtraError",
    "OtelBridgeError",
    "PermanentError",
    "RetryableError",
    "SegmentClosedError",
    "any_error_but_signals",
]


class OtelBridgeError(Exception):
    """Marks all errors of otel-bridge."""


class ConfigError(OtelBridgeError):
    """Raised when a setting or an argument cannot be used."""


class MissingExtraError(ConfigError):
    """Raised when a package that an exporter or a command needs is not installed."""


class JournalError(OtelBridgeError):
    """Raised when a run folder or a segment cannot be used."""


class JournalFullError(JournalError):
    """Raised when nothing can be appended: the disk is full or the directory's limit is reached."""


class SegmentClosedError(JournalError):
    """Raised when the open segment cannot be used any more; the record fits into a new segment."""


class FormatVersionError(JournalError):
    """Raised when this version cannot read a file or folder: a newer one wrote it, or it holds another run."""


class LedgerDamagedError(JournalError):
    """Raised when a ledger is damaged.

    It is then set aside and rebuilt from the remaining segments.
    """


class FolderLockedError(JournalError):
    """Raised when another bridge holds the run folder."""


class InvalidRecordError(OtelBridgeError):
    """Raised for malformed bytes or values."""


class ExporterError(OtelBridgeError):
    """Raised when a tracker did not accept a write.

    Args:
        message: What was seen, what was expected, what to do.
        position: The first record that was not written; the records before it in the call were. ``None`` when none
            was written.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class RetryableError(ExporterError):
    """Raised when the tracker is down, slow or busy; the same call may succeed later.

    Args:
        message: As in `ExporterError`.
        position: As in `ExporterError`.
        retry_after_s: Seconds to wait, when the tracker names them.
        timed_out: Whether the request timed out. A smaller request may succeed where this one never will.
    """

    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        retry_after_s: float | None = None,
        timed_out: bool = False,
    ) -> None:
        super().__init__(message, position=position)
        self.retry_after_s = retry_after_s
        self.timed_out = timed_out


class BlockedError(ExporterError):
    """Raised when a person must act (401, 403, no key, run deleted); until then records wait, and none is lost.

    Args:
        message: One line that states what is wrong.
        position: As in `ExporterError`.
        help: The command or the step that fixes it, e.g. ``wandb login``.
    """

    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        help: str = "",  # noqa: A002
    ) -> None:
        super().__init__(message, position=position)
        self.help = help


class SignalMissingError(BlockedError):
    """Raised when an OTLP endpoint does not have the signal (404, 405, 501, UNIMPLEMENTED), as one of traces only."""


class PermanentError(ExporterError):
    """Raised when the record at *position* can never be written; the records after it may be."""


def any_error_but_signals() -> tuple[type[Exception], ...]:
    """Return the exceptions to catch in a call that never raises: all but those of the program's signal handlers.

    A handler may raise at a time limit. If the call caught that, the limit would have no effect.

    For the ``except`` clause itself, where the error is the one that is being handled. Empty for an
    error of a handler, which then reaches the program. `KeyboardInterrupt` and `SystemExit` always
    do: they are not of `Exception`.
    """
    if _is_of_handler(sys.exc_info()[1]):
        return ()
    return (Exception,)


def _is_of_handler(error: BaseException | None) -> bool:
    """Return whether a Python signal handler of the program raised *error*.

    ``False`` for an error of the very code of the ``try``: no other code has run.
    """
    trace = (
        None
        if error is None or error.__traceback__ is None
        else error.__traceback__.tb_next
    )
    if trace is None:  # raised by the very code of the ``try``
        return False
    codes = set(_handler_codes())
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def _handler_codes() -> Iterator[CodeType]:
    """Yield the code of each Python function that handles a signal, be it a method, a partial or an object to call.

    Nothing for a signal with a default action, or a handler that C code installed.
    """
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # of a partial
        for function in (handler, getattr(handler, "__call__", None)):  # noqa: B004  # its code is wanted
            code: object = getattr(
                getattr(function, "__func__", function), "__code__", None
            )
            if isinstance(code, CodeType):
                yield code
