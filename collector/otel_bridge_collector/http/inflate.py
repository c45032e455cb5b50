"""Decompresses with a limit: a small body that would become huge is refused during decompression, not afterwards."""

from __future__ import annotations

import zlib

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError, UnsupportedError

# zlib reads a gzip head with 16 added.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PLAIN = frozenset({"", "identity"})
QUICK_BYTES = 256 << 10
"""Inflated size above which a body is inflated outside the event loop."""
_GZIP_MAGIC = b"\x1f\x8b"


def inflated(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before ``Content-Encoding``.

    Raises:
        UnsupportedError: *encoding* is not identity, gzip or deflate.
        TooLargeError: The body is over *limit_bytes* when decompressed.
        InvalidRecordError: The body does not have this encoding.
    """
    if encoding in _PLAIN:
        return body
    if encoding not in _WINDOW_BITS:
        raise UnsupportedError(
            f"Content-Encoding {encoding!r}; this receiver reads gzip, deflate and identity"
        )
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        # One byte more than the limit: that a body is too large is seen without inflating all.
        plain = decompressor.decompress(body, limit_bytes + 1)
    except zlib.error as exc:
        raise InvalidRecordError(
            f"body of {len(body)} bytes is not {encoding}: {exc}"
        ) from exc
    if len(plain) > limit_bytes:
        raise TooLargeError(
            f"request is over {limit_bytes} bytes when inflated; send smaller batches"
        )
    if not decompressor.eof:
        raise InvalidRecordError(
            f"body of {len(body)} bytes ends in the middle of its {encoding} data"
        )
    if decompressor.unused_data:
        raise InvalidRecordError(
            f"body of {len(body)} bytes goes on after its {encoding} data; compress it as one"
        )
    return plain


def inflated_message(body: bytes, limit_bytes: int) -> bytes:
    """Return a gRPC message as it was before ``grpc-encoding``, given by its first bytes.

    A client may send one message of a compressed stream as it is. No export request begins like
    gzip (a tag of wire type 7) or like zlib (field 15): its only field is 1.

    Raises:
        TooLargeError: The message is over *limit_bytes* when decompressed.
        InvalidRecordError: The message begins like gzip or zlib data and is not valid.
    """
    if body[:2] == _GZIP_MAGIC:
        return inflated(body, "gzip", limit_bytes)
    if body[:1] == b"x":
        return inflated(body, "deflate", limit_bytes)
    return body
