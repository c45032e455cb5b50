"""Defines the errors of commands, and how an exception ends a command."""

from __future__ import annotations

import traceback

import click

from otel_bridge.errors import OtelBridgeError


class WrongCallError(click.ClickException):
    """Raised when the call names a folder or a run that is not there, or contradicts itself."""

    exit_code = 2


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that *error* ends."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return 1


def text_of(error: Exception) -> str:
    """Return the message of *error*, and for a mistake in the code its traceback."""
    if isinstance(error, (OtelBridgeError, click.ClickException)):
        return str(error)
    return "".join(traceback.format_exception(error))
