"""Bounded inflating: a small body that would become a huge one is refused while it is inflated, not afterwards."""

from __future__ import annotations

import zlib
from typing import Final

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.answers import TooLargeError, UnsupportedError

_GZIP: Final = 16 + zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS
_PLAIN: Final = frozenset({"", "identity"})
_GZIP_MAGIC: Final = b"\x1f\x8b"


def inflated(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before ``Content-Encoding``.

    Raises:
        UnsupportedError: *encoding* is none of identity, gzip, deflate.
        TooLargeError: It is over *limit_bytes* when inflated.
        InvalidRecordError: It is not what the encoding says.
    """
    if encoding in _PLAIN:
        return body
    if encoding == "gzip":
        return _inflated(body, _GZIP, encoding, limit_bytes)
    if encoding != "deflate":
        raise UnsupportedError(f"Content-Encoding {encoding!r}; this receiver reads gzip, deflate and identity")
    # RFC 9110 says zlib, and some clients send deflate without its head: the first byte tells (RFC 1950, CMF and FLG).
    headed = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflated(body, zlib.MAX_WBITS if headed else _RAW, encoding, limit_bytes)


def inflated_message(body: bytes, limit_bytes: int) -> bytes:
    """Return a gRPC message as it was before ``grpc-encoding``, told by its first bytes.

    A client may send one message of a compressed stream as it is. No export request begins like gzip (a tag of wire
    type 7) or like zlib (field 15): its only field is 1.

    Raises:
        TooLargeError: It is over *limit_bytes* when inflated.
        InvalidRecordError: It begins like one of them and is none.
    """
    if body[:2] == _GZIP_MAGIC:
        return inflated(body, "gzip", limit_bytes)
    return inflated(body, "deflate", limit_bytes) if body[:1] == b"x" else body


def _inflated(body: bytes, wbits: int, encoding: str, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes
    while True:
        machine = zlib.decompressobj(wbits)
        try:
            part = machine.decompress(body, room + 1)
        except zlib.error as exc:
            raise InvalidRecordError(f"body of {len(body)} bytes is no {encoding}: {exc}") from exc
        if len(part) > room:
            raise TooLargeError(f"request is over {limit_bytes} bytes when inflated; send smaller batches")
        if not machine.eof:
            raise InvalidRecordError(f"body of {len(body)} bytes ends in the middle of its {encoding} data")
        parts.append(part)
        room -= len(part)
        body = machine.unused_data
        if wbits != _GZIP or not body:
            return b"".join(parts)  # gzip may consist of several members (RFC 1952, 2.2)
