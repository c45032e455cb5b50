"""What is not an otel-bridge file in a run folder: FIFOs, folders, loops of links, names and sizes that cannot be."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.journal.control import is_requested, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    report_when,
    run_folder,
    serving,
    until,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN

EVERY = dict.fromkeys(("metrics", "traces", "logs"), ("memory",))
PLACES = [
    "control/0.json", "segments/i0001-000007.seg", "segments/x-000000.seg", "report.json", "folder.json", "bridge.log",
    "processes/i0001.life", "ledger.sqlite",
]  # fmt: skip


def plant(path: Path, what: str) -> None:
    if path.exists():
        path.unlink()
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name)


@pytest.mark.parametrize("what", ["fifo", "folder", "loop"])
@pytest.mark.parametrize("place", PLACES)
def test_what_lies_in_one_run_folder_keeps_no_other_run_waiting_nor_the_end(
    tmp_path: Path, place: str, what: str
) -> None:
    bad, good, recorder = (
        run_folder(tmp_path, "bad"),
        run_folder(tmp_path, "good"),
        RecordingTracker(),
    )
    Process.start(bad, "memory").log(1)
    plant(bad.path / place.replace("i0001", _instance(bad)), what)
    process = Process.start(good, "memory")
    process.log(2)

    with serving(tmp_path, options(("memory", recorder), exporters=EVERY)) as host:
        recorder.wait_for(lambda recorder: len(recorder.run("good").rows) == 2)
        if place != "ledger.sqlite":
            recorder.wait_for(lambda recorder: len(recorder.run("bad").rows) == 1)

    assert not host.alive


@pytest.mark.parametrize("what", ["fifo", "folder", "loop", "empty"])
def test_a_segment_without_content_is_counted_once_also_by_later_bridges(
    tmp_path: Path, what: str
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    Process.start(folder, "memory").log(1)
    planted = folder.segments_dir / "x-000000.seg"
    if what == "empty":
        planted.write_bytes(b"")
    else:
        plant(planted, what)

    for rows in (2, 3):
        process = Process.start(folder, "memory")
        bridge = open_bridge(folder, options(("memory", recorder)))
        bridge.poll()
        process.log(1)
        until(partial(_polled_to, bridge, recorder, rows))
        assert bridge.reader.state.get("drop/segment_gaps") == 1
        assert bridge.reader.state.get("dropkey/segment_gaps") == planted.name
        bridge.close(time.monotonic() + 5)


def test_a_renamed_segment_keeps_no_other_segment_of_its_run_waiting(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    Process.start(folder, "memory").log(1)
    (renamed,) = folder.segments()
    renamed.path.rename(folder.segment_path("x", 0))
    Process.start(folder, "memory").log(2)
    bridge = open_bridge(folder, options(("memory", recorder)))

    until(partial(_polled_to, bridge, recorder, 2))

    bridge.close(time.monotonic() + 5)


def test_each_malformed_control_request_is_left_out_alone_counted_and_logged(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(2)
    lines = list[str]()
    host = BridgeSupervisor(
        tmp_path, options(("memory", recorder)), log_line=lines.append
    )
    host.start()
    try:
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
        os.mkfifo(folder.control_dir / "00000000000000000000-1-fifo.json")
        (folder.control_dir / "00000000000000000001-1-list.json").write_text(
            '{"kind": ["finish"], "values": {}, "time_unix_ns": 1}'
        )
        (folder.control_dir / "00000000000000000002-1-ids.json").write_text(
            '{"kind": "discard", "values": {"dead_letters": {"memory": [9223372036854775808, true]}}, '
            '"time_unix_ns": 1}'
        )
        send_control(folder, "finish", status="failed")

        report = report_when(folder, lambda report: report.status == "failed")
        until(lambda: not is_requested(folder))
    finally:
        host.stop(5.0)

    assert report.drops == {"control_request": 2}
    start = f"{RUN}: a control request is left out: 0000000000000000000"
    assert [line.removeprefix(start) for line in lines if line.startswith(start)] == [
        "0-1-fifo.json: it is not a regular file; remove it",
        "1-1-list.json: expected an object with kind, values and time_unix_ns",
    ]
    assert recorder.run(RUN).status is Status.FAILED


@pytest.mark.parametrize(
    "number", ["9" * 23, "٣", "00000٣", "7", "0000007", "-00001", "000_01"]
)
def test_a_number_that_no_segment_has_is_not_a_segment(
    tmp_path: Path, number: str
) -> None:
    folder = run_folder(tmp_path)
    (folder.segments_dir / f"i1-{number}.seg").write_bytes(b"")

    assert folder.segments() == []


def test_segments_beyond_a_gap_of_numbers_are_read_without_going_through_it(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(1)
    far = Process.start(folder, "memory", number=999_999_999)
    far.log(1)
    (folder.segments_dir / f"{process.instance}-999999998.seg").write_bytes(b"")

    with serving(tmp_path, options(("memory", recorder))):
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
        far.end()
        until(lambda: not far.writer.path.exists())


def test_of_a_sparse_segment_no_more_is_read_than_it_holds(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(1)
    with process.writer.path.open("r+b") as file:
        file.truncate(20 << 30)
    process.writer.append(1, b"", 1)  # behind the hole
    process.log(1)

    with serving(tmp_path, options(("memory", recorder))):
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
        process.end()
        report_when(folder, lambda report: report.status == "finished")


def test_a_tail_passes_over_a_bounded_part_of_what_holds_no_frame_at_one_time(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    process = Process.start(folder, "memory")
    with process.writer.path.open("ab") as file:
        file.write(b"\1" * (100 << 20))
    tail = SegmentTailer(ProcessSegments(folder, process.instance, 0))
    tail.segments.listed(0)

    tail.fill()

    assert 0 < tail.offset < 100 << 20


def _polled_to(bridge: RunBridge, recorder: RecordingTracker, rows: int) -> bool:
    """Return whether *recorder* has that many rows, after one more poll."""
    bridge.poll()
    return len(recorder.run(RUN).rows) == rows


def _instance(folder: RunFolder) -> str:
    return folder.segments()[0].instance_id
