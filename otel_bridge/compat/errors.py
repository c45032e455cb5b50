"""Defines the errors that programs catch as ``wandb.errors``, and prints messages as wandb does, without it."""

from __future__ import annotations

import sys

from otel_bridge.errors import ConfigError

_printed: set[str] = set()


class Error(Exception):
    """Base of W&B's errors."""


class UsageError(Error):
    """Raised by W&B for a call that cannot be used."""


class ArgumentError(UsageError, ConfigError, ValueError):
    """Raised for an argument of ``init()`` that W&B refuses: by a ``UsageError``, or by pydantic's ``ValueError``."""


class WandbUnsupportedError(UsageError):
    """Raised by W&B for a feature that its server lacks; never here."""


UnsupportedError = WandbUnsupportedError


class CommError(Error):
    """Raised by W&B when its server cannot be reached; never here."""


class AuthenticationError(CommError):
    """Raised by W&B when its server refuses the key; never here."""


class WandbConfigError(Error, ConfigError):
    """Raised for a changed value of the config without ``allow_val_change=True``, and for an unreadable file."""


def termlog(string: str = "", newline: bool = True, repeat: bool = True, prefix: bool = True) -> None:
    """Print a text to stderr as W&B does; without *repeat* only once."""
    if string in _printed and not repeat:
        return
    _printed.add(string)
    sys.stderr.write(f"{'wandb: ' if prefix else ''}{string}" + ("\n" if newline else ""))


def termwarn(string: str, newline: bool = True, repeat: bool = True) -> None:
    """Print a warning to stderr."""
    termlog(f"WARNING {string}", newline, repeat)


def termerror(string: str, newline: bool = True, repeat: bool = True) -> None:
    """Print an error to stderr."""
    termlog(f"ERROR {string}", newline, repeat)
