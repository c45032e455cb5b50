"""What comes compressed is inflated within its limit."""

from __future__ import annotations

import gzip
import zlib

import pytest

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError
from otel_bridge_collector.http.inflate import inflated

TEXT = bytes(range(256)) * 2000


def test_what_is_inflated_has_a_limit() -> None:
    body = gzip.compress(TEXT)

    assert inflated(body, "gzip", len(TEXT)) == TEXT
    with pytest.raises(TooLargeError, match="when inflated"):
        inflated(body, "gzip", len(TEXT) - 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_ends_early_or_is_something_else_is_refused(encoding: str) -> None:
    body = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](TEXT)

    for wrong in (
        body[:-5],
        b"",
        b"no such thing",
        body + b"tail",
        body + body,
    ):
        with pytest.raises(InvalidRecordError, match=encoding):
            inflated(wrong, encoding, 1 << 20)
