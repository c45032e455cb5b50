from __future__ import annotations

import pytest

from otel_bridge_collector.access import Access
from otel_bridge_collector.error_table import UnauthenticatedError


@pytest.mark.parametrize("sent", ["Bearer a%41b", "bearer%20a%2541b", "Bearer  a%41b "])
def test_a_token_may_hold_a_percent_sign(sent: str) -> None:
    assert Access(["other", "a%41b"]).check({"authorization": sent}) == 2


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer aAb", "Basic a%41b", "a%41b"])
def test_nothing_else_is_treated_as_it(sent: str) -> None:
    with pytest.raises(UnauthenticatedError):
        Access(["a%41b"]).check({"authorization": sent})


def test_a_request_without_a_token_is_refused() -> None:
    with pytest.raises(UnauthenticatedError):
        Access(["a%41b"]).check({})
