from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.errors import JournalError
from otel_bridge.journal.frames import (
    HEAD_BYTES,
    MAGIC,
    MAX_RECORD_BYTES,
    Frame,
    ScanResult,
    Signal,
    encode_frame,
    scan,
    start_of,
)

STREAM = start_of("a1-000000")
OTHER = start_of("b2-000000")


def test_frames_come_back_as_they_were_appended_with_their_offsets() -> None:
    first = encode_frame(Signal.METRICS, b"row", 5, start=STREAM)
    second = encode_frame(Signal.CONTROL, b"", 6, start=STREAM)
    third = encode_frame(Signal.LOGS, b"request", 7, whole=True, start=STREAM)

    found = scan(first + second + third, 100, final=False, start=STREAM)

    ends = [
        100 + len(first),
        100 + len(first + second),
        100 + len(first + second + third),
    ]
    assert found == ScanResult(
        [
            Frame(Signal.METRICS, False, b"row", 5, 100, ends[0]),
            Frame(Signal.CONTROL, False, b"", 6, ends[0], ends[1]),
            Frame(Signal.LOGS, True, b"request", 7, ends[1], ends[2]),
        ],
        ends[2],
    )


@pytest.mark.parametrize("cut", [1, 4, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 2])
def test_an_unfinished_last_frame_is_left_for_later_and_cut_once_nothing_more_comes(
    cut: int,
) -> None:
    whole = encode_frame(Signal.METRICS, b"one", 1, start=STREAM)
    torn = encode_frame(Signal.METRICS, b"two", 2, start=STREAM)[:cut]
    frame = Frame(Signal.METRICS, False, b"one", 1, 0, len(whole))

    live = scan(whole + torn, 0, final=False, start=STREAM)
    dead = scan(whole + torn, 0, final=True, start=STREAM)

    assert live == ScanResult([frame], len(whole))
    assert dead == ScanResult(
        [frame], len(whole) + cut, gap_bytes=cut, gaps=1, torn=True
    )


def test_a_payload_full_of_magic_and_of_frames_of_another_segment_fools_nobody_behind_a_bad_frame() -> (
    None
):
    inner = encode_frame(Signal.METRICS, b"inner", 1, start=OTHER) + STREAM * 50
    outer = bytearray(encode_frame(Signal.TRACES, inner, 2, start=STREAM))
    outer[-1] ^= 1
    good = encode_frame(Signal.LOGS, b"good", 3, start=STREAM)

    found = scan(bytes(outer) + good, 0, final=False, start=STREAM)

    end = len(outer) + len(good)
    assert found == ScanResult(
        [Frame(Signal.LOGS, False, b"good", 3, len(outer), end)], end, len(outer), 1
    )


def test_a_damaged_length_does_not_hide_the_frames_behind_it() -> None:
    damaged = bytearray(encode_frame(Signal.METRICS, b"bad", 1, start=STREAM))
    damaged[10] = 0xFF
    good = encode_frame(Signal.METRICS, b"good", 2, start=STREAM)

    found = scan(bytes(damaged) + good, 0, final=False, start=STREAM)

    assert [frame.payload for frame in found.frames] == [b"good"]
    assert (found.gap_bytes, found.gaps, found.end) == (
        len(damaged),
        1,
        len(damaged) + len(good),
    )


def test_bad_bytes_before_an_unfinished_frame_are_settled_while_it_is_waited_for() -> (
    None
):
    torn = encode_frame(Signal.METRICS, b"coming", 2, start=STREAM)[:-1]

    found = scan(b"garbage" + torn, 50, final=False, start=STREAM)

    assert found == ScanResult([], 57, gap_bytes=7, gaps=1)


def test_a_record_above_the_limit_is_refused() -> None:
    largest = bytes(MAX_RECORD_BYTES)

    frame = encode_frame(Signal.TRACES, largest, 1, start=STREAM)
    with pytest.raises(JournalError, match="67108865 bytes, at most 67108864"):
        encode_frame(Signal.TRACES, largest + b"x", 1, start=STREAM)

    assert scan(frame, 0, final=False, start=STREAM).frames[0].payload == largest


payloads = st.lists(
    st.binary(max_size=40) | st.just(MAGIC * 5), min_size=1, max_size=12
)
damage = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=30),
    ),
    max_size=4,
)


def _damage(
    data: bytes, where: list[tuple[str, float, bytes]]
) -> tuple[bytes, list[int | None]]:
    """Return the damaged bytes, and for each the offset it had, ``None`` for one that is new."""
    content = list(data)
    origin: list[int | None] = list(range(len(data)))
    for kind, place, extra in where:
        at = int(place * len(content))
        if kind == "flip":
            content[at : at + 1] = [content[at] ^ (extra[0] or 1)] if content else []
            origin[at : at + 1] = [None] if origin else []
        elif kind == "cut":
            del content[at : at + len(extra)], origin[at : at + len(extra)]
        else:
            content[at:at], origin[at:at] = extra, [None] * len(extra)
    return bytes(content), origin


@given(payloads, damage)
def test_damage_never_makes_a_wrong_frame_and_every_intact_frame_is_found(
    texts: list[bytes], where: list[tuple[str, float, bytes]]
) -> None:
    frames = [
        encode_frame(i % 4, text, i, start=STREAM) for i, text in enumerate(texts)
    ]
    starts = [sum(map(len, frames[:i])) for i in range(len(frames))]
    damaged, origin = _damage(b"".join(frames), where)

    found = scan(damaged, 0, final=True, start=STREAM)

    places = {place: at for at, place in enumerate(origin) if place is not None}
    intact = [
        places[start]
        for start, frame in zip(starts, frames, strict=True)
        if start in places
        and origin[places[start] : places[start] + len(frame)]
        == list(range(start, start + len(frame)))
    ]
    sent = {(i % 4, text, i) for i, text in enumerate(texts)}
    assert all(
        (frame.signal, frame.payload, frame.append_unix_ns) in sent
        for frame in found.frames
    )
    # An intact frame may begin within another one: the magic can be the end of a payload that a cut had shortened.
    assert all(
        any(frame.offset <= place < frame.end for frame in found.frames)
        for place in intact
    )
    assert found.end == len(damaged)
    assert found.gap_bytes + sum(
        frame.end - frame.offset for frame in found.frames
    ) == len(damaged)


@given(payloads, damage, st.integers(0, 2000))
def test_reading_in_two_parts_finds_what_reading_at_once_finds(
    texts: list[bytes], where: list[tuple[str, float, bytes]], cut: int
) -> None:
    damaged, _ = _damage(
        b"".join(
            encode_frame(1, text, i, start=STREAM) for i, text in enumerate(texts)
        ),
        where,
    )
    cut = min(cut, len(damaged))

    early = scan(damaged[:cut], 0, final=False, start=STREAM)
    late = scan(damaged[early.end :], early.end, final=True, start=STREAM)

    once = scan(damaged, 0, final=True, start=STREAM)
    assert early.frames + late.frames == once.frames
    assert early.gap_bytes + late.gap_bytes == once.gap_bytes


@pytest.mark.parametrize(
    "unit",
    [os.urandom(4096), bytes(4096), MAGIC * 1024, b"\xff" * 4096],
    ids=["random", "zeros", "magic", "ones"],
)
def test_megabytes_of_garbage_are_passed_over(unit: bytes) -> None:
    garbage = unit * 1024
    good = encode_frame(Signal.METRICS, b"good", 1, start=STREAM)

    found = scan(garbage + good, 0, final=False, start=STREAM)

    end = len(garbage) + len(good)
    assert found == ScanResult(
        [Frame(Signal.METRICS, False, b"good", 1, len(garbage), end)],
        end,
        len(garbage),
        1,
    )
