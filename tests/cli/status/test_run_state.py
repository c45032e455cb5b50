"""What `status` reads of a run folder: as little as can be, since a service has thousands of them."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from otel_bridge.bridge.ledger.queries import LedgerView, open_view
from otel_bridge.cli.status import run_state
from otel_bridge.cli.status.run_state import KeptRecords, StateReader, directory_use
from otel_bridge.cli.status.source import overview_of
from otel_bridge.journal import report
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.quota import Quota
from otel_bridge.journal.report import ExporterReport, Report, write_report
from support.bridge.bridge_doubles import Process, options, run_folder, served
from support.bridge.recording_tracker import RecordingTracker


def _never(_path: Path) -> closing[LedgerView]:
    pytest.fail("opened")


def _set_back(path: Path, seconds: int) -> None:
    """Let *path* look as if it was changed *seconds* ago: what has just changed is never kept."""
    for one in path.parent.glob(f"{path.name}*"):
        status = one.stat()
        os.utime(one, ns=(status.st_atime_ns, time.time_ns() - seconds * 10**9))


def _delivered(base: Path, run_id: str = "run1") -> RunFolder:
    folder = run_folder(base, run_id)
    write_report(
        folder,
        Report(
            ended=True,
            position=3,
            destinations=1,
            exporters={"memory": ExporterReport(3, 3)},
        ),
    )
    _set_back(folder.report_path, 60)
    return folder


def _overview(base: Path, reader: StateReader) -> dict[str, int | None]:
    """Return what is shown: each run with its position."""
    found = overview_of(base, run_folders(base), {}, reader)
    return {
        run.run_id: run.report.position if run.report is not None else None
        for run in found.runs
    }


def test_the_ledger_of_a_run_that_is_delivered_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    process.end()
    served(tmp_path, options(("memory", recorder)))
    monkeypatch.setattr(run_state, "open_view", _never)

    assert StateReader().read(folder).held == {"memory": KeptRecords()}


def test_a_ledger_is_read_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, absent = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=10**9),
    )
    process = Process.start(folder, "memory")
    process.log(3)
    process.end()
    served(tmp_path, options(("memory", absent)))
    opened: list[Path] = []

    def counted(path: Path) -> closing[LedgerView]:
        opened.append(path)
        return open_view(path)

    monkeypatch.setattr(run_state, "open_view", counted)

    reader = StateReader()
    _set_back(folder.ledger_path, 60)

    first, again = reader.read(folder).held, reader.read(folder).held
    _set_back(folder.ledger_path, 30)
    changed = reader.read(folder).held

    assert (first, first == again == changed, len(opened)) == (
        {"memory": first["memory"]},
        True,
        2,
    )
    assert first["memory"].records == 4


def test_the_room_says_when_half_of_the_free_disk_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 1, 1_000

    def disk(_path: Path) -> type[Disk]:
        return Disk

    monkeypatch.setattr("otel_bridge.journal.quota.os.statvfs", disk)

    room = directory_use(tmp_path, {})

    assert (room.limit_bytes, room.of_disk) == (500, True)


def test_a_second_reading_opens_no_report_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        _delivered(tmp_path, f"run{number}")
    opened, read_regular = list[str](), report.read_regular

    def counted(path: Path, limit_bytes: int) -> bytes:
        opened.append(path.parent.name)
        return read_regular(path, limit_bytes)

    monkeypatch.setattr(report, "read_regular", counted)
    reader = StateReader()
    first, first_opened = _overview(tmp_path, reader), list(opened)
    opened.clear()
    write_report(RunFolder(tmp_path, "run3"), Report(position=9))
    second = _overview(tmp_path, reader)

    assert first == {f"run{number}": 3 for number in range(5)}
    assert second == {**first, "run3": 9}
    assert (first_opened, opened) == (sorted(first), ["run3"])


def test_each_reading_lists_the_segments_twice_and_any_other_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, listed, scandir = (
        [_delivered(tmp_path, name) for name in ("run1", "run2")],
        Counter[str](),
        os.scandir,
    )

    def counted(path: str | Path) -> object:
        listed[os.fspath(path)] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    _overview(tmp_path, StateReader())

    inside = [
        f"{folder.path}{end}"
        for folder in folders
        for end in ("", "/segments", "/segments", "/processes", "/control")
    ]
    assert listed == Counter([str(tmp_path), *inside])


def test_a_reading_shows_what_changed_what_is_new_and_not_what_was_deleted(
    tmp_path: Path,
) -> None:
    changed, gone = _delivered(tmp_path, "changed"), _delivered(tmp_path, "gone")
    reader = StateReader()
    first = _overview(tmp_path, reader)

    write_report(changed, Report(position=4))
    shutil.rmtree(gone.path)
    _delivered(tmp_path, "new")
    second = _overview(tmp_path, reader)
    changed.report_path.unlink()
    third = _overview(tmp_path, reader)
    write_report(RunFolder(tmp_path, "new"), Report(position=5))

    assert first == {"changed": 3, "gone": 3}
    assert second == {"changed": 4, "new": 3}
    assert third == {"changed": None, "new": 3}
    assert _overview(tmp_path, reader) == {"changed": None, "new": 5}


def test_a_run_that_is_deleted_and_begun_anew_is_shown_as_it_is_now(
    tmp_path: Path,
) -> None:
    reader, folder = StateReader(), _delivered(tmp_path)
    before = _overview(tmp_path, reader)
    shutil.rmtree(folder.path)
    write_report(run_folder(tmp_path, "run1"), Report(position=1))

    assert (before, _overview(tmp_path, reader)) == ({"run1": 3}, {"run1": 1})


def test_a_growing_segment_of_a_run_with_an_old_report_is_measured_at_each_reading(
    tmp_path: Path,
) -> None:
    reader, folder = StateReader(), _delivered(tmp_path)
    sizes: list[int] = []
    for size in (10, 30):
        folder.segment_path("p1", 1).write_bytes(b"x" * size)
        sizes.append(reader.read(folder).bytes["segments"])

    assert sizes == [10, 30]


def test_the_room_of_all_runs_and_of_one_counts_every_file_of_the_directory_once(
    tmp_path: Path,
) -> None:
    folders = [_delivered(tmp_path, name) for name in ("run1", "run2")]
    (tmp_path / "beside").write_bytes(b"x" * 1000)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 500)

    rooms = [
        overview_of(tmp_path, some, {}, StateReader()).room
        for some in (folders, folders[:1])
    ]

    assert [room.used_bytes for room in rooms if room is not None] == [
        Quota(tmp_path, 1).used_bytes()
    ] * 2


@pytest.mark.parametrize("planted", ["link", "pipe", "folder"])
def test_a_folder_whose_lock_was_replaced_costs_its_own_line_and_no_other_run(
    tmp_path: Path, planted: str
) -> None:
    _delivered(tmp_path, "run1")
    folder = _delivered(tmp_path, "run2")
    folder.lock_path.unlink(missing_ok=True)
    if planted == "link":
        folder.lock_path.symlink_to("/etc/passwd")
    elif planted == "pipe":
        os.mkfifo(folder.lock_path)
    else:
        folder.lock_path.mkdir()

    first, second = overview_of(tmp_path, run_folders(tmp_path), {}, StateReader()).runs

    assert (first.refused, first.report is not None) == ("", True)
    assert (
        "bridge.lock cannot be opened: it is not a regular file; remove it"
        in second.refused
    )
    assert second.report is not None


@pytest.mark.parametrize(
    "name",
    [
        "report.json",
        "ledger.sqlite",
        "bridge.log",
        "folder.json",
        "control",
        "processes",
    ],
)
@pytest.mark.parametrize("planted", ["link", "pipe", "folder"])
def test_no_odd_file_of_a_folder_costs_another_run_its_state(
    tmp_path: Path, name: str, planted: str
) -> None:
    _delivered(tmp_path, "run1")
    path = _delivered(tmp_path, "run2").path / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if planted == "link":
        path.symlink_to("/etc/passwd")
    elif planted == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()

    overview = overview_of(tmp_path, run_folders(tmp_path), {}, StateReader())

    assert [run.run_id for run in overview.runs] == ["run1", "run2"]
    assert overview.runs[0].report is not None
    assert overview.to_json()
