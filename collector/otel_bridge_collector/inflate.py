"""Bounded inflating: a small body that would become a huge one is refused while it is inflated, not afterwards."""

from __future__ import annotations

import zlib

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.answers import TooLargeError, UnsupportedError

_WBITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def inflated(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before ``Content-Encoding``.

    Raises:
        UnsupportedError: *encoding* is none of identity, gzip, deflate.
        TooLargeError: It is over *limit_bytes* when inflated.
        InvalidRecordError: It is not what the encoding says.
    """
    if encoding in {"", "identity"}:
        return body
    if encoding not in _WBITS:
        raise UnsupportedError(f"Content-Encoding {encoding!r}; this receiver reads gzip, deflate and identity")
    machine = zlib.decompressobj(_WBITS[encoding])
    try:
        data = machine.decompress(body, limit_bytes + 1)
    except zlib.error as exc:
        raise InvalidRecordError(f"body of {len(body)} bytes is no {encoding}: {exc}") from exc
    if len(data) > limit_bytes:
        raise TooLargeError(f"request is over {limit_bytes} bytes when inflated; send smaller batches")
    if not machine.eof:
        raise InvalidRecordError(f"body of {len(body)} bytes ends in the middle of its {encoding} data")
    return data
