"""``Retry-After``, as servers and the proxies before them send it."""

from __future__ import annotations

import time

import pytest

from otel_bridge.otlp.request_size import retry_after_s

NOON_S = 1_792_152_000.0
"""2026-10-16 12:00:00 UTC."""


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Fri, 16 Oct 2026 12:01:30 GMT", 90.0),
        ("Friday, 16-Oct-26 12:00:05 GMT", 5.0),
        ("Fri, 16 Oct 2026 11:59:00 GMT", 0.0),
        ("Fri, 16 Oct 2026 14:00:10 +0200", 10.0),
        ("Fri Oct 16 12:01:30 2026", 90.0),
        ("Fri, 16 Oct 2026 12:01:30 -0000", 90.0),
    ],
)
def test_seconds_and_dates_say_how_long_to_wait(
    header: str,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv(
        "TZ", "Asia/Tokyo"
    )  # a date without a zone is UTC, wherever this runs
    time.tzset()
    request.addfinalizer(time.tzset)
    monkeypatch.setattr(time, "time", lambda: NOON_S)
    assert retry_after_s(header) == seconds


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "soon",
        "-1",
        "1.5",
        "²",
        "٣",
        "9" * 400,
        "Fri, 99 Oct 2026 12:00:00 GMT",
        "Fri, 16 Oct 99999",
    ],
)
def test_what_cannot_be_understood_asks_for_nothing(header: str | None) -> None:
    assert retry_after_s(header) is None
