from __future__ import annotations

import socket

import pytest
import requests

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge_mlflow import errors
from otel_bridge_mlflow.errors import (
    Refused,
    as_bridge_errors,
    outcome,
    outcome_of_status,
)
from support.waiting import HANG_S


class Raised(Exception):
    """Like MLflow's own exception: a text and the name of a code."""

    def __init__(self, text: str, error_code: str) -> None:
        super().__init__(text)
        self.error_code = error_code


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (
            "TEMPORARILY_UNAVAILABLE",
            "(sqlite3.OperationalError) database is locked",
            RetryableError,
        ),
        (
            "TEMPORARILY_UNAVAILABLE",
            "attempt to write a readonly database",
            BlockedError,
        ),
        ("TEMPORARILY_UNAVAILABLE", "database or disk is full", RetryableError),
        (
            "INTERNAL_ERROR",
            "API request failed with exception Connection refused",
            RetryableError,
        ),
        ("REQUEST_LIMIT_EXCEEDED", "slow down", RetryableError),
        ("A_CODE_OF_TOMORROW", "?", RetryableError),
        ("INVALID_PARAMETER_VALUE", "Invalid value for metrics[3]", Refused),
        (
            "INVALID_PARAMETER_VALUE",
            "The run x must be in the 'active' state",
            BlockedError,
        ),
        ("BAD_REQUEST", "IntegrityError", Refused),
        (
            "BAD_REQUEST",
            "UNIQUE constraint failed: tags.key, tags.run_uuid",
            RetryableError,
        ),
        (
            "BAD_REQUEST",
            "UNIQUE constraint failed: latest_metrics.key, latest_metrics.run_uuid",
            RetryableError,
        ),
        (
            "BAD_REQUEST",
            'UniqueViolation) duplicate key value violates unique constraint "param_pk" DETAIL: Key (key, run_uuid)',
            RetryableError,
        ),
        (
            "BAD_REQUEST",
            "(1062, \"Duplicate entry 'a-b' for key 'tags.PRIMARY'\")",
            RetryableError,
        ),
        ("BAD_REQUEST", "UNIQUE constraint failed: experiments.name", Refused),
        (
            "BAD_REQUEST",
            "QueuePool limit of size 5 overflow 10 reached, connection timed out",
            RetryableError,
        ),
        (
            "BAD_REQUEST",
            "(psycopg2.InterfaceError) connection already closed",
            RetryableError,
        ),
        (
            "BAD_REQUEST",
            "(sqlite3.DatabaseError) database disk image is malformed",
            BlockedError,
        ),
        ("UNAUTHENTICATED", "who are you", BlockedError),
        ("PERMISSION_DENIED", "no", BlockedError),
        ("RESOURCE_DOES_NOT_EXIST", "Run with id=x not found", BlockedError),
        (
            "INTERNAL_ERROR",
            "successful but the response body was not in a valid JSON format",
            BlockedError,
        ),
        ("INTERNAL_ERROR", "Detected out-of-date database schema", BlockedError),
    ],
)
def test_every_code_has_one_outcome(
    code: str, text: str, expected: type[Exception]
) -> None:
    with (
        pytest.raises(expected, match="writing") as raised,
        as_bridge_errors("writing"),
    ):
        raise Raised(text, code)

    assert type(raised.value) is expected
    assert text in str(raised.value)
    assert not isinstance(raised.value, BlockedError) or raised.value.help


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (500, None, RetryableError),
        (502, None, RetryableError),
        (429, None, RetryableError),
        (413, None, Refused),
        (422, None, Refused),
        (401, None, BlockedError),
        (404, None, BlockedError),
        (404, "RESOURCE_DOES_NOT_EXIST", BlockedError),
        (400, "INVALID_PARAMETER_VALUE", Refused),
    ],
)
def test_every_status_has_one_outcome(
    status: int, code: str | None, expected: type[Exception]
) -> None:
    found = outcome_of_status(status, code, "said", "posting", None)

    assert type(found) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "API request to http://h/v1/traces failed with timeout exception HTTPConnectionPool: Read timed out.",
            True,
        ),
        (
            "(psycopg2.errors.QueryCanceled) canceling statement due to statement timeout",
            True,
        ),
        ("(1205, 'Lock wait timeout exceeded; try restarting transaction')", True),
        ("[Errno 111] Connection refused", False),
        ("(sqlite3.OperationalError) database is locked", False),
    ],
)
def test_a_request_that_took_too_long_is_known_from_one_that_failed(
    text: str, expected: bool
) -> None:
    with pytest.raises(RetryableError) as raised, as_bridge_errors("writing"):
        raise Raised(text, "TEMPORARILY_UNAVAILABLE")

    assert raised.value.timed_out is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(504, True), (502, True), (408, True), (500, False), (503, False)],
)
def test_a_status_of_a_proxy_that_gave_up_counts_as_a_time_out(
    status: int, expected: bool
) -> None:
    found = outcome_of_status(status, None, "<html>no</html>", "posting", None)

    assert isinstance(found, RetryableError)
    assert found.timed_out is expected


def test_the_time_a_server_asks_for_is_kept() -> None:
    found = outcome_of_status(429, None, "said", "posting", "17")

    assert isinstance(found, RetryableError)
    assert found.retry_after_s == 17.0


def test_what_is_not_an_error_of_mlflow_is_the_payloads_fault_only_when_its_type_is_wrong() -> (
    None
):
    with pytest.raises(Refused), as_bridge_errors("writing"):
        raise TypeError("not a number")

    with pytest.raises(RetryableError), as_bridge_errors("writing"):
        raise OSError("No space left on device")


def test_a_long_text_is_cut_to_one_line() -> None:
    with pytest.raises(RetryableError) as raised, as_bridge_errors("writing"):
        raise OSError("many\nlines " * 1000)

    assert len(str(raised.value)) < 600
    assert "\n" not in str(raised.value)


def test_credentials_in_an_address_are_not_said() -> None:
    with pytest.raises(RetryableError) as raised, as_bridge_errors("writing"):
        raise OSError("API request to https://ada:secret@host/api failed, a@b.c too")

    assert (
        str(raised.value)
        == "writing: API request to https://host/api failed, a@b.c too"
    )


def test_our_own_errors_pass_through() -> None:
    mine = BlockedError("mine", help="do that")

    with pytest.raises(BlockedError) as raised, as_bridge_errors("writing"):
        raise mine

    assert raised.value is mine
    assert outcome("INTERNAL_ERROR", "x", "y").args == ("y: x",)


@pytest.mark.parametrize("status", [401, 403])
def test_a_code_that_a_gateway_made_up_does_not_hide_its_status(status: int) -> None:
    assert isinstance(
        outcome_of_status(status, "X_GATEWAY", "no", "posting", None), BlockedError
    )
    assert isinstance(
        outcome_of_status(503, "X_GATEWAY", "no", "posting", None), RetryableError
    )


@pytest.mark.parametrize(
    "text",
    sorted(
        {errors.LOGIN, *errors._BLOCKED.values(), *errors._WORDS_OF_A_BLOCK.values()}
    ),
)
def test_no_help_is_treated_as_a_secret(text: str) -> None:
    assert redact_text(text) == text


def test_a_server_that_cannot_be_reached_is_named_with_the_reason_of_the_operating_system_alone() -> (
    None
):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/version"  # bound, and without a listener

        with (
            pytest.raises(RetryableError) as raised,
            as_bridge_errors(f"GET {address}"),
        ):
            requests.get(address, timeout=HANG_S)

    assert (
        str(raised.value)
        == f"GET {address}: the server cannot be reached: Connection refused"
    )
