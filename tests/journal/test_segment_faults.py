"""Killed writers, full disks, forks."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.errors import JournalFullError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import HEAD_BYTES, Frame, Signal
from otel_bridge.journal.segment import SegmentWriter, read_segment
from support.otlp.journal_samples import HEADER, all_frames, header, python, run_folder

WRITE_FOR_EVER = """
import os, sys
from pathlib import Path
from support.otlp.journal_samples import header
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import SegmentWriter
folder = RunFolder(Path(sys.argv[1]), "r1")
writer = SegmentWriter(folder.segments_dir, header(instance_id=sys.argv[2]), segment_bytes=50_000)
i = 0
while True:
    i += 1
    writer.append(1, b"%08d" % i + b"x" * (i * 37 % 4000), i)
    os.write(1, b"%08d" % i)
"""


@pytest.mark.slow
def test_every_row_a_writer_reported_before_it_was_killed_is_read(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    draw = random.Random(7)
    reported: dict[str, int] = {}

    for k in range(12):
        with python(WRITE_FOR_EVER, folder.base, f"p{k}") as process:
            assert process.stdout is not None
            said = process.stdout.read(8 * draw.randrange(1, 3000))
            process.kill()
            reported[f"p{k}"] = int((said + process.stdout.read())[-8:])

    rows = {frame.payload for frame in all_frames(folder)}
    for name, last in reported.items():
        mine = [file.path for file in folder.segments() if file.instance_id == name]
        read = [int(frame.payload[:8]) for path in mine for frame in _frames_of(path)]
        assert read == list(range(1, len(read) + 1))
        assert len(read) >= last > 0
    assert all(len(row) == 8 + int(row[:8]) * 37 % 4000 for row in rows)


def _frames_of(path: Path) -> list[Frame]:
    return read_segment(path, 0, limit_bytes=1 << 20, final=True)[1].frames


AT_FILE_LIMIT = """
import resource, sys
from pathlib import Path
from support.otlp.journal_samples import HEADER
from otel_bridge.errors import JournalFullError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import SegmentWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
writer = SegmentWriter(RunFolder(Path(sys.argv[1]), "r1").segments_dir, HEADER)
for i in range(10):
    writer.append(1, bytes([i]) * 3000, i)
try:
    writer.append(1, bytes(20_000), 99)
except JournalFullError as error:
    print(error)
writer.append(1, b"after", 100)
print(writer.number)
"""


def test_at_the_limit_of_a_file_the_part_is_taken_back_and_the_row_goes_to_the_next_segment(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)

    with python(AT_FILE_LIMIT, folder.base) as process:
        output, _ = process.communicate()

    rows = [(frame.payload[:1], len(frame.payload)) for frame in all_frames(folder)]
    assert rows == [*((bytes([i]), 3000) for i in range(10)), (b"a", 5)]
    assert "File too large; free space on that disk" in output
    for file in folder.segments():
        frames = _frames_of(file.path)
        assert frames[-1].end == file.size_bytes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def _append_until_full(writer: SegmentWriter) -> int:
    appended = 0
    with pytest.raises(JournalFullError, match="No space left on device"):  # noqa: PT012  # which one is unknown
        while appended < 1000:
            writer.append(Signal.METRICS, b"%03d" % appended * 1000, appended)
            appended += 1
    return appended


def test_on_a_full_disk_no_part_of_a_row_stays_and_rows_go_on_once_there_is_room(
    small_disk: Path,
) -> None:
    folder = RunFolder(small_disk / ".otel-bridge", "r1")
    folder.create()
    writer = SegmentWriter(folder.segments_dir, HEADER)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(60_000))

    appended = _append_until_full(writer)
    end = writer.offset
    size = writer.path.stat().st_size
    ballast.unlink()
    writer.append(Signal.METRICS, b"again", 5000)

    rows = [frame.payload[:5] for frame in all_frames(folder)]
    assert end == size == len(HEADER.to_bytes()) + appended * (HEAD_BYTES + 3000)
    assert rows == [*((b"%03d" % i * 2)[:5] for i in range(appended)), b"again"]


def test_a_full_disk_that_takes_no_new_segment_keeps_the_old_one_usable(
    small_disk: Path,
) -> None:
    folder = RunFolder(small_disk / ".otel-bridge", "r1")
    folder.create()
    writer = SegmentWriter(folder.segments_dir, HEADER, segment_bytes=1)
    writer.append(Signal.METRICS, b"one", 1)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break

    with pytest.raises(JournalFullError, match="a1-000001"):
        writer.append(Signal.METRICS, b"two", 2)
    names = sorted(path.name for path in folder.segments_dir.iterdir())
    ballast.unlink()
    writer.append(Signal.METRICS, b"three", 3)

    assert names == ["a1-000000.seg"]
    assert [frame.payload for frame in all_frames(folder)] == [b"one", b"three"]


def test_a_forked_child_writes_segments_of_its_own_beside_its_parent(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    parent = SegmentWriter(folder.segments_dir, HEADER)
    parent.append(Signal.METRICS, b"parent 1", 1)

    pid = os.fork()
    if pid == 0:
        try:
            parent.close()  # the parent's own descriptor stays open
            SegmentWriter(folder.segments_dir, header(instance_id="child")).append(
                Signal.METRICS, b"child", 2
            )
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    parent.append(Signal.METRICS, b"parent 2", 3)

    assert [frame.payload for frame in all_frames(folder)] == [
        b"parent 1",
        b"parent 2",
        b"child",
    ]
