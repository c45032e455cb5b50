"""Defines every error that leaves a module of otel-bridge.

.. code-block:: text

    OtelBridgeError
    ├── ConfigError                 settings or arguments: raised at start-up, never later
    │   └── MissingExtraError       a tracker's package is not installed
    ├── JournalError                the run folder or one of its segments
    │   ├── JournalFullError        disk full, or the limit of the directory reached
    │   ├── FormatVersionError      written by a newer otel-bridge
    │   ├── LedgerDamagedError      the ledger must be set aside and rebuilt
    │   └── FolderLockedError       another bridge holds the run folder
    ├── InvalidRecordError          malformed bytes or values
    └── ExporterError               a write failed
        ├── RetryableError          try again later
        ├── BlockedError            a person must act
        └── PermanentError          this record can never be written

A message states what was seen, what was expected and what to do.
"""

from __future__ import annotations

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


class FormatVersionError(JournalError):
    """Raised when this version cannot read a file or folder: a newer one wrote it, or it holds another run."""


class LedgerDamagedError(JournalError):
    """Raised when a ledger is damaged; it is then set aside and rebuilt from the remaining segments."""


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

    def __init__(self, message: str, *, position: int | None = None, help: str = "") -> None:  # noqa: A002
        super().__init__(message, position=position)
        self.help = help


class PermanentError(ExporterError):
    """Raised when the record at *position* can never be written; the records after it may be."""
