"""Bearer tokens: several may be valid at one time, so that they can be rotated; compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import unquote

from otel_bridge_collector.answers import UnauthenticatedError


def check(tokens: Sequence[str], authorization: str | None) -> None:
    """Let a request pass whose ``authorization`` header carries one of *tokens*; without tokens everything passes.

    ``OTEL_EXPORTER_OTLP_HEADERS`` is percent-encoded by its specification, and some SDKs send it as it stands: both a
    space and ``%20`` behind ``Bearer`` are taken.

    Raises:
        UnauthenticatedError: It carries none of them.
    """
    if not tokens:
        return
    scheme, _, given = unquote(authorization or "").strip().partition(" ")
    sent = given.strip().encode()
    # Every token is compared, so that the time says nothing about which one was near.
    matches = [hmac.compare_digest(token.encode(), sent) for token in tokens]
    if scheme.lower() != "bearer" or not any(matches):
        raise UnauthenticatedError(
            "this receiver wants `authorization: Bearer <token>`; set OTEL_BRIDGE_TOKEN where the data comes from"
        )
