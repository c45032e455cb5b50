"""Lines of a service's log: one a thing, whatever words of a client they hold."""

from __future__ import annotations

import json
import logging
import re

import pytest

from otel_bridge.cli.serve.log import ServiceLog

HOSTILE = "/x\r\n2026-01-01T00:00:00.000Z otel-bridge: ended\x1b[2J\x00 naïve 漢"


def test_what_a_client_sends_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    ServiceLog(as_json=False).log_line(HOSTILE)
    ServiceLog(as_json=True).log_line(HOSTILE)

    plain, more, written = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\S+Z otel-bridge: /x\\r", plain)
    assert more == r"    2026-01-01T00:00:00.000Z otel-bridge: ended\x1b[2J\x00 naïve 漢"
    assert json.loads(written)["message"] == HOSTILE


def test_what_the_receiver_stands_on_is_said_in_the_same_form_and_no_longer_than_it_lives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServiceLog(as_json=True):
        for name in ("asyncio", "uvicorn.error", "otel_bridge_collector.http"):
            logging.getLogger(name).error("of %s", name)

    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["level"], one["message"]) for one in said] == [
        ("error", "of asyncio"),
        ("error", "of uvicorn.error"),
        ("error", "of otel_bridge_collector.http"),
    ]
    assert logging.getLogger("asyncio").propagate
