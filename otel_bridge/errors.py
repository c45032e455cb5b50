"""Every error that leaves a module of otel-bridge.

.. code-block:: text

    OtelBridgeError
    ├── ConfigError                 settings or arguments: raised at start-up, never later
    │   └── MissingExtraError       a tracker's package is not installed
    ├── JournalError                the run folder or one of its segments
    │   ├── JournalFullError        disk full, or the limit of the directory reached
    │   ├── FormatVersionError      written by a newer otel-bridge
    │   ├── LedgerDamagedError      the ledger must be set aside and made anew
    │   └── FolderLockedError       another bridge holds the run folder
    ├── InvalidRecordError          bytes that are not what they claim to be
    └── ExporterError               the outcome of a write that was not done
        ├── RetryableError          try again, later
        ├── BlockedError            a person must act
        └── PermanentError          this record can never be written

A message says what was seen, what was expected and what to do.
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
    """Base of all errors of otel-bridge."""


class ConfigError(OtelBridgeError):
    """A setting or an argument cannot be used."""


class MissingExtraError(ConfigError):
    """A package that an exporter or a command needs is not installed."""


class JournalError(OtelBridgeError):
    """A run folder or a segment cannot be used."""


class JournalFullError(JournalError):
    """Nothing can be appended: the disk is full or the directory's limit is reached."""


class FormatVersionError(JournalError):
    """A file was written by a newer version than this one can read."""


class LedgerDamagedError(JournalError):
    """The ledger of a run folder is damaged: it is set aside and made anew from the segments that remain."""


class FolderLockedError(JournalError):
    """Another bridge holds the run folder."""


class InvalidRecordError(OtelBridgeError):
    """Bytes or values that are not what they claim to be."""


class ExporterError(OtelBridgeError):
    """A write that was not done.

    Args:
        message: What was seen, what was expected, what to do.
        position: The first record that was not done; those before it in the call are. ``None``: none was.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class RetryableError(ExporterError):
    """The tracker is down, slow or busy: the same call may go through later.

    Args:
        message: As in `ExporterError`.
        position: As in `ExporterError`.
        retry_after_s: When the tracker says how long to wait, in seconds.
    """

    def __init__(self, message: str, *, position: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, position=position)
        self.retry_after_s = retry_after_s


class BlockedError(ExporterError):
    """Nothing can be written until a person acts (401, 403, no key, run deleted); nothing is lost meanwhile.

    Args:
        message: One line that says what is wrong.
        position: As in `ExporterError`.
        help: The command or the step that mends it, e.g. ``wandb login``.
    """

    def __init__(self, message: str, *, position: int | None = None, help: str = "") -> None:  # noqa: A002
        super().__init__(message, position=position)
        self.help = help


class PermanentError(ExporterError):
    """The record at *position* can never be written; the next ones may be."""
