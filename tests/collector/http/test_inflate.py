"""What comes compressed is inflated within its limit, in a time that its size bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError
from otel_bridge_collector.http.inflate import inflated

TEXT = bytes(range(256)) * 2000


def test_a_body_of_several_gzip_members_is_their_sum() -> None:
    members = [b"", TEXT, b"", TEXT[:70_000], b"end"]

    whole = inflated(b"".join(map(gzip.compress, members)), "gzip", 1 << 20)

    assert whole == b"".join(members)


def test_together_they_have_one_limit() -> None:
    body = gzip.compress(TEXT) * 3

    assert inflated(body, "gzip", 3 * len(TEXT)) == TEXT * 3
    with pytest.raises(TooLargeError, match="when inflated"):
        inflated(body, "gzip", 3 * len(TEXT) - 1)


def test_a_body_of_nothing_but_members_is_refused_before_they_take_its_time() -> None:
    empty = gzip.compress(b"")

    assert inflated(empty * 4096, "gzip", 10) == b""
    with pytest.raises(TooLargeError, match="more than 4096 gzip members"):
        inflated(empty * 4097, "gzip", 10)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_ends_early_or_is_something_else_is_refused(encoding: str) -> None:
    body = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](TEXT)

    for wrong in (
        body[:-5],
        b"",
        b"no such thing",
        body[:1] if encoding == "deflate" else body + b"tail",
    ):
        with pytest.raises(InvalidRecordError, match=encoding):
            inflated(wrong, encoding, 1 << 20)
