from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from otel_bridge.errors import FormatVersionError, JournalError, SegmentClosedError
from otel_bridge.journal.frames import (
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    Frame,
    ScanResult,
    Signal,
)
from otel_bridge.journal.header import HEADER_MAGIC, SegmentHeader
from otel_bridge.journal.segment import SegmentWriter, read_segment
from support.otlp.journal_samples import (
    HEADER,
    MIB,
    all_frames,
    header,
    line_of,
    python,
    run_folder,
)


def test_what_was_appended_is_read_with_the_header_first_and_then_without(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER)

    writer.append(Signal.METRICS, b"one", 11)
    middle = writer.offset
    writer.append(Signal.LOGS, b"two", 12, whole=True)
    (file,) = folder.segments()

    first = len(HEADER.to_bytes())
    one = Frame(Signal.METRICS, False, b"one", 11, first, middle)
    two = Frame(Signal.LOGS, True, b"two", 12, middle, writer.offset)
    assert read_segment(file.path, 0, limit_bytes=MIB, final=False) == (
        HEADER,
        ScanResult([one, two], writer.offset),
    )
    assert read_segment(file.path, middle, limit_bytes=MIB, final=False) == (
        None,
        ScanResult([two], writer.offset),
    )
    assert read_segment(file.path, writer.offset, limit_bytes=MIB, final=False) == (
        None,
        ScanResult([], writer.offset),
    )


def test_a_segment_rolls_by_size_and_the_next_has_a_header_of_its_own(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(
        folder.segments_dir,
        HEADER,
        segment_bytes=len(HEADER.to_bytes()) + 2 * (HEAD_BYTES + 100),
    )

    for i in range(5):
        writer.append(Signal.METRICS, bytes([i]) * 100, 1000 + i)

    files = folder.segments()
    headers = [
        read_segment(file.path, 0, limit_bytes=MIB, final=False)[0] for file in files
    ]
    assert [(file.path.name, file.instance_id, file.number) for file in files] == [
        ("a1-000000.seg", "a1", 0),
        ("a1-000001.seg", "a1", 1),
        ("a1-000002.seg", "a1", 2),
    ]
    assert headers == [
        HEADER,
        header(number=1, created_unix_ns=1002),
        header(number=2, created_unix_ns=1004),
    ]
    assert [frame.payload[0] for frame in all_frames(folder)] == [0, 1, 2, 3, 4]
    assert (writer.number, writer.instance_id) == (2, "a1")


def test_a_record_larger_than_a_segment_gets_one_for_itself(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER, segment_bytes=1000)
    large = os.urandom(50_000)

    for payload in (large, b"small", large):
        writer.append(Signal.TRACES, payload, 1)

    assert [frame.payload for frame in all_frames(folder, limit_bytes=64)] == [
        large,
        b"small",
        large,
    ]
    assert len(folder.segments()) == 3


def test_a_record_above_the_limit_is_refused_and_the_next_one_is_appended(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER)

    with pytest.raises(JournalError, match="at most"):
        writer.append(Signal.TRACES, bytes(MAX_RECORD_BYTES + 1), 1)
    writer.append(Signal.TRACES, b"next", 2)

    assert [frame.payload for frame in all_frames(folder)] == [b"next"]


def test_folders_and_segments_are_their_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = run_folder(tmp_path)
        SegmentWriter(folder.segments_dir, HEADER).append(Signal.METRICS, b"row", 1)
    finally:
        os.umask(old)

    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
        for path in tmp_path.rglob("*")
    }
    assert {
        name: mode for name, mode in modes.items() if mode not in {0o700, 0o600}
    } == {}
    assert modes[".otel-bridge/r1/segments/a1-000000.seg"] == 0o600
    assert modes[".otel-bridge/r1/segments"] == 0o700


def test_a_deleted_folder_is_noticed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER)

    before = writer.linked()
    shutil.rmtree(folder.path)
    writer.append(Signal.METRICS, b"into nothing", 1)

    assert (before, writer.linked()) == (True, False)


def test_a_segment_whose_next_cannot_be_made_says_so_and_goes_on_once_it_can(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER, segment_bytes=1)
    writer.append(Signal.METRICS, b"one", 1)

    in_the_way = folder.segment_path("a1", 1)
    in_the_way.mkdir()
    with pytest.raises(JournalError, match="cannot be created"):
        writer.append(Signal.METRICS, b"two", 2)
    in_the_way.rmdir()
    writer.append(Signal.METRICS, b"three", 3)

    assert [frame.payload for frame in all_frames(folder)] == [b"one", b"three"]


def test_a_segment_that_was_moved_takes_frames_until_it_is_full(tmp_path: Path) -> None:
    folder, away = run_folder(tmp_path), tmp_path / "away"
    writer = SegmentWriter(folder.segments_dir, HEADER, segment_bytes=1)
    before = writer.linked()

    folder.segments_dir.rename(away)
    writer.append(Signal.METRICS, b"one", 1)
    after = writer.linked()
    with pytest.raises(SegmentClosedError, match="was moved or deleted"):
        writer.append(Signal.METRICS, b"two", 2)
    away.rename(folder.segments_dir)

    assert (before, after, writer.linked()) == (True, False, True)
    assert [frame.payload for frame in all_frames(folder)] == [b"one"]


def test_a_closed_writer_says_where_it_was_and_takes_nothing(tmp_path: Path) -> None:
    writer = SegmentWriter(run_folder(tmp_path).segments_dir, HEADER)
    writer.append(Signal.METRICS, b"one", 1)
    end = writer.offset

    writer.sync()
    writer.close()
    writer.close()

    assert (writer.offset, writer.linked()) == (end, False)
    with pytest.raises(JournalError):
        writer.append(Signal.METRICS, b"two", 2)


def test_bad_bytes_larger_than_a_read_are_passed_over(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER)
    writer.append(Signal.METRICS, b"one", 1)
    begin = writer.offset
    with writer.path.open("ab") as file:
        file.write(bytes(300_000))
    writer.append(Signal.METRICS, b"two", 2)

    read_to, payloads, gap_bytes, gaps = 0, [], 0, 0
    for _ in range(4):
        _, found = read_segment(writer.path, read_to, limit_bytes=1000, final=False)
        payloads += [frame.payload for frame in found.frames]
        read_to, gap_bytes, gaps = (
            found.end,
            gap_bytes + found.gap_bytes,
            gaps + found.gaps,
        )

    assert begin < writer.offset == read_to
    assert (payloads, gap_bytes, gaps) == ([b"one", b"two"], 300_000, 1)


def test_bad_bytes_at_the_end_wait_while_the_process_lives_and_count_once_it_is_dead(
    tmp_path: Path,
) -> None:
    writer = SegmentWriter(run_folder(tmp_path).segments_dir, HEADER)
    end = writer.offset
    with writer.path.open("ab") as file:
        file.write(b"\0" * 50)

    live = read_segment(writer.path, end, limit_bytes=10, final=False)
    dead = read_segment(writer.path, end, limit_bytes=10, final=True)

    assert live == (None, ScanResult([], end))
    assert dead == (None, ScanResult([], end + 50, gap_bytes=50, gaps=1))


def test_a_damaged_header_leaves_the_frames_readable(tmp_path: Path) -> None:
    writer = SegmentWriter(run_folder(tmp_path).segments_dir, HEADER)
    end = writer.offset
    writer.append(Signal.METRICS, b"one", 1)
    with writer.path.open("r+b") as file:
        file.seek(30)
        file.write(b"\0\0")

    found = read_segment(writer.path, 0, limit_bytes=MIB, final=False)

    frame = Frame(Signal.METRICS, False, b"one", 1, end, writer.offset)
    assert found == (None, ScanResult([frame], writer.offset, gap_bytes=end, gaps=1))


def test_a_header_of_another_segment_counts_as_damaged(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    writer = SegmentWriter(folder.segments_dir, HEADER)
    renamed = writer.path.rename(folder.segment_path("b1", 0))

    header_read, _ = read_segment(renamed, 0, limit_bytes=MIB, final=False)

    assert header_read is None


def test_a_segment_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    folder.segment_path("a1", 0).write_bytes(
        header(format=2).to_bytes() + b"frames of the future"
    )

    with pytest.raises(FormatVersionError, match="upgrade otel-bridge"):
        read_segment(folder.segment_path("a1", 0), 0, limit_bytes=MIB, final=False)


def test_a_deleted_segment_is_an_error_of_the_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        read_segment(tmp_path / "a1-000000.seg", 0, limit_bytes=MIB, final=False)


def test_an_empty_segment_has_no_header_yet(tmp_path: Path) -> None:
    path = tmp_path / "a1-000000.seg"
    path.write_bytes(HEADER_MAGIC[:3])

    assert read_segment(path, 0, limit_bytes=MIB, final=False) == (
        None,
        ScanResult([], 0),
    )
    assert read_segment(path, 0, limit_bytes=MIB, final=True) == (
        None,
        ScanResult([], 3, gap_bytes=3, gaps=1, torn=True),
    )


def test_frames_in_a_string_of_another_segment_stay_what_they_are(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    inner, outer = (
        SegmentWriter(folder.segments_dir, HEADER),
        SegmentWriter(folder.segments_dir, header(instance_id="b2")),
    )
    inner.append(Signal.METRICS, b"inner", 1)
    outer.append(Signal.LOGS, inner.path.read_bytes(), 2)
    outer.append(Signal.LOGS, b"behind", 3)
    with outer.path.open("r+b") as file:
        file.seek(len(header(instance_id="b2").to_bytes()) + 8)
        file.write(b"\xff\xff")

    found = read_segment(outer.path, 0, limit_bytes=MIB, final=True)[1]

    assert [frame.payload for frame in found.frames] == [b"behind"]


WRITE_LARGE = """
import sys
from pathlib import Path
from support.otlp.journal_samples import HEADER
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import SegmentWriter
writer = SegmentWriter(RunFolder(Path(sys.argv[1]), "r1").segments_dir, HEADER, segment_bytes=200 << 20)
print("open", flush=True)
for i in range(12):
    size = (50 << 20) if i in (3, 8) else (1 << 20)
    writer.append(2, bytes([i + 1]) * size, i)
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_reader_beside_a_writer_of_large_frames_sees_each_once_and_whole(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    seen: list[tuple[int, int, int]] = []
    gaps = offset = 0

    with python(WRITE_LARGE, folder.base) as process:
        assert line_of(process) == "open"
        while len(seen) < 12:
            _, found = read_segment(
                folder.segment_path("a1", 0), offset, limit_bytes=MIB, final=False
            )
            seen += [
                (f.payload[0], len(f.payload), len(set(f.payload[:: MIB // 4])))
                for f in found.frames
            ]
            offset, gaps = found.end, gaps + found.gaps

    assert seen == [(i + 1, 50 * MIB if i in {3, 8} else MIB, 1) for i in range(12)]
    assert gaps == 0


def test_a_header_of_any_size_is_read_with_a_small_limit(tmp_path: Path) -> None:
    large: SegmentHeader = header(resource=os.urandom(100_000))
    writer = SegmentWriter(run_folder(tmp_path).segments_dir, large)
    writer.append(Signal.METRICS, b"one", 1)

    found = read_segment(writer.path, 0, limit_bytes=100, final=False)

    assert found[0] == large
