"""What wandb raises, as one of the three outcomes."""

from __future__ import annotations

import pytest

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge_wandb.errors import LOGIN_HELP, as_bridge_errors, outcome


class AuthenticationError(Exception):
    """Named as wandb's own."""


class MailboxClosedError(Exception):
    """Named as wandb's own."""


class UsageError(Exception):
    """Named as wandb's own."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "kind", "help_"),
    [
        (RuntimeError("returned error 401: nope"), BlockedError, LOGIN_HELP),
        (
            RuntimeError("Error uploading run: returned error 403: {}"),
            BlockedError,
            "check that the key may write",
        ),
        (RuntimeError("<Response [404]>"), BlockedError, "check WANDB_BASE_URL"),
        (
            RuntimeError("failed to upload: 403 Forbidden"),
            BlockedError,
            "check that the key may write",
        ),
        (
            RuntimeError("returned error 409: run was previously created and deleted"),
            BlockedError,
            "choose another",
        ),
        (RuntimeError("returned error 503: later"), RetryableError, None),
        (RuntimeError("HTTP 429"), RetryableError, None),
        (TimeoutError("Timed out finishing run."), RetryableError, None),
        (
            AuthenticationError("Failed to verify credentials: connection refused"),
            RetryableError,
            None,
        ),
        (
            AuthenticationError(
                "Failed to verify credentials with http://w: Failed to execute API request: "
                "the service process is not running."
            ),
            RetryableError,
            None,
        ),
        (
            caused(
                AuthenticationError("An error occurred while verifying credentials"),
                MailboxClosedError(),
            ),
            RetryableError,
            None,
        ),
        (
            AuthenticationError("API key must have 40 characters"),
            BlockedError,
            LOGIN_HELP,
        ),
        (UsageError("Invalid project name"), BlockedError, "correct the setting"),
        (RuntimeError("run ID x is in use"), RetryableError, None),
        (PermissionError("/wandb"), BlockedError, "correct the setting"),
        (RuntimeError("whatever"), RetryableError, None),
        (RuntimeError("<no message>"), BlockedError, "check that the key may write"),
    ],
)
def test_an_error_is_blocked_with_its_help_or_retryable(
    raised: Exception, kind: type[Exception], help_: str | None
) -> None:
    error = outcome(raised, "opening the run", 3)

    assert (type(error), error.position) == (kind, 3)
    if isinstance(error, BlockedError):
        assert help_ is not None
        assert error.help.startswith(help_)


def test_our_own_errors_pass_as_they_are() -> None:
    ours = RetryableError("down", position=4)

    with pytest.raises(RetryableError) as seen, as_bridge_errors("logging"):
        raise ours

    assert seen.value is ours
