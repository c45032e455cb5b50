from __future__ import annotations

import struct
from zlib import crc32

import pytest

from otel_bridge.errors import FormatVersionError, InvalidRecordError
from otel_bridge.journal.header import HEADER_MAGIC, SegmentHeader, header_end
from support.otlp.journal_samples import HEADER, header


def test_a_header_comes_back_whole_whatever_stands_behind_it() -> None:
    data = HEADER.to_bytes()

    assert SegmentHeader.from_bytes(data + b"frames") == HEADER
    assert header_end(data + b"frames") == len(data)


def test_an_unpaired_surrogate_from_the_environment_does_not_break_a_header() -> None:
    data = header(
        run_name="ppo-\udcff", destinations={"trackio": {"TRACKIO_DIR": "/d/\udcff"}}
    ).to_bytes()

    read = SegmentHeader.from_bytes(data)

    assert (read.run_name, read.destinations) == (
        "ppo-?",
        {"trackio": {"TRACKIO_DIR": "/d/?"}},
    )


@pytest.mark.parametrize("at", [0, 9, 14, 18, 40, -1])
def test_a_damaged_header_is_said_to_be_damaged(at: int) -> None:
    data = bytearray(HEADER.to_bytes())
    data[at] ^= 1

    with pytest.raises(InvalidRecordError, match="damaged or unfinished"):
        SegmentHeader.from_bytes(bytes(data))


def test_an_unfinished_header_is_not_a_header() -> None:
    data = HEADER.to_bytes()

    assert [header_end(data[:cut]) for cut in (0, 7, 19, len(data) - 1)] == [None] * 4


def test_a_newer_format_is_reported_from_a_damaged_header() -> None:
    body = b"\x82 something else than JSON"
    checked = struct.pack("<II", 2, len(body))
    newer = (
        HEADER_MAGIC + checked + struct.pack("<I", crc32(body, crc32(checked))) + body
    )

    with pytest.raises(
        FormatVersionError, match="format 2, this version reads up to 1; upgrade"
    ):
        SegmentHeader.from_bytes(newer)


def test_a_header_that_is_not_a_header_inside_is_refused() -> None:
    body = b'{"instance_id": "a1"}'
    checked = struct.pack("<II", 1, len(body))
    data = (
        HEADER_MAGIC + checked + struct.pack("<I", crc32(body, crc32(checked))) + body
    )

    with pytest.raises(InvalidRecordError, match="field missing"):
        SegmentHeader.from_bytes(data)
