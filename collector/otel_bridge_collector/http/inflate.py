"""Decompresses with a limit: a small body that would become huge is refused during decompression, not afterwards."""

from __future__ import annotations

import zlib

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError, UnsupportedError

# zlib reads a gzip head with 16 added, and no head with a negative number.
_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_PLAIN = frozenset({"", "identity"})
QUICK_BYTES = 256 << 10
"""Inflated size above which a body is inflated outside the event loop."""
_GZIP_MAGIC = b"\x1f\x8b"
_SLICE = 64 << 10
_MEMBERS = 4096
"""Members of one gzip body: 64 KiB each, as block-wise compressors make them, are four times the
largest request."""


def inflated(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before ``Content-Encoding``.

    Raises:
        UnsupportedError: *encoding* is not identity, gzip or deflate.
        TooLargeError: The body is over *limit_bytes* when decompressed.
        InvalidRecordError: The body does not have this encoding.
    """
    if encoding in _PLAIN:
        return body
    if encoding == "gzip":
        return _inflated(body, _GZIP, encoding, limit_bytes)
    if encoding != "deflate":
        raise UnsupportedError(
            f"Content-Encoding {encoding!r}; this receiver reads gzip, deflate and identity"
        )
    # RFC 9110 says zlib, and some clients send deflate without its head: the first byte shows (RFC
    # 1950, CMF and FLG).
    headed = (
        len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    )
    return _inflated(body, zlib.MAX_WBITS if headed else _RAW, encoding, limit_bytes)


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


def _inflated(body: bytes, wbits: int, encoding: str, limit_bytes: int) -> bytes:
    inflating = _Inflating(limit_bytes)
    try:
        whole = inflating.member(body, 0, wbits)
        while wbits == _GZIP and whole < len(body):
            # gzip may consist of several members (RFC 1952, 2.2).
            whole = inflating.member(body, whole, wbits)
    except zlib.error as exc:
        raise InvalidRecordError(
            f"body of {len(body)} bytes is not {encoding}: {exc}"
        ) from exc
    except EOFError as exc:
        raise InvalidRecordError(
            f"body of {len(body)} bytes ends in the middle of its {encoding} data"
        ) from exc
    return b"".join(inflating.parts)


class _Inflating:
    """Decompresses members one after the other, with limits for their total size and their number."""

    def __init__(self, limit_bytes: int) -> None:
        self.parts: list[bytes] = []
        self._limit_bytes = limit_bytes
        self._room = limit_bytes
        self._members = 0

    def member(self, body: bytes, position: int, wbits: int) -> int:
        """Decompress the member at *position*.

        Return its end. Raise `EOFError` when the member has no end.
        """
        self._members += 1
        if self._members > _MEMBERS:
            raise TooLargeError(
                f"request has more than {_MEMBERS} gzip members; compress it as one"
            )
        machine = zlib.decompressobj(wbits)
        size = _SLICE
        while not machine.eof:
            if position >= len(body):
                raise EOFError
            # In slices, because the bytes after a member are copied: of a whole body, that would be
            # a copy for each member.
            piece = body[position : position + size]
            # One byte more than there is room: that a body is too large is seen without inflating
            # all of it.
            self._take(machine.decompress(piece, self._room + 1))
            position += len(piece) - len(machine.unused_data)
            # A long member needs few calls, a short one copies little.
            size *= 2
        return position

    def _take(self, part: bytes) -> None:
        if len(part) > self._room:
            raise TooLargeError(
                f"request is over {self._limit_bytes} bytes when inflated; send smaller batches"
            )
        self._room -= len(part)
        self.parts.append(part)
