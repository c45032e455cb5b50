"""Run folders in trouble: damaged, newer, full, deleted, served by another, written to while a bridge ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving import active_runs, lease
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import (
    BlockedError,
    FolderLockedError,
    JournalError,
    JournalFullError,
)
from otel_bridge.journal.control import Kind, receive_control, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    open_bridge,
    options,
    report_when,
    run_folder,
    served,
    serving,
    until,
    written,
)
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.journal_samples import HANGING_BRIDGE, line_of, lives_in, python
from support.otlp.otlp_samples import RUN


def test_a_full_ledger_keeps_everything_in_the_segments_until_there_is_room(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    bridge = open_bridge(folder, options(("memory", recorder)))
    process = Process.start(folder, "memory")
    process.log(2000)
    with bridge.ledger.database.transaction() as sql:
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count = {pages + 2}")

    with pytest.raises(JournalFullError):
        _read_all(bridge)
    with bridge.ledger.database.transaction() as sql:
        sql.execute("PRAGMA max_page_count = 1000000")
    _read_all(bridge)

    until(lambda: bridge.poll() or len(recorder.run(RUN).rows) == 2000)
    bridge.close(time.monotonic() + 5)
    assert [written(recorder), recorder.run(RUN).repeated] == [process.row_ids, 0]


def test_a_damaged_ledger_is_set_aside_and_made_anew_from_the_segments_that_remain(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log(3)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)
    folder.ledger_path.write_bytes(b"not a database at all" * 100)
    process.log(2)
    process.end()

    host = served(tmp_path, options(("memory", recorder)))

    assert [written(recorder), recorder.run(RUN).status] == [
        process.row_ids,
        Status.FINISHED,
    ]
    assert [
        path.suffix[:9] for path in folder.path.glob("ledger.sqlite.damaged-*")
    ] == [".damaged-"]
    assert any("was damaged" in line for line in host.lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["page", "value", "fact"])
def test_damage_of_what_a_bridge_remembers_is_mended_when_the_next_one_begins(
    tmp_path: Path, place: str
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log(3)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)
    with contextlib.closing(sqlite3.connect(folder.ledger_path)) as sql, sql:
        if place == "value":
            sql.execute("UPDATE state SET value = x'ff00' WHERE key = 'run'")
        elif place == "fact":
            sql.execute("UPDATE meta SET value = '{' WHERE key = 'rows_by_axis'")
        else:
            keys = [(f"drop/{number:03}", b"1" * 60) for number in range(400)]
            sql.executemany("INSERT INTO state VALUES (?, ?)", keys)
    if place == "page":
        # Deep in the table: its first row, and the other tables, can still be read.
        position = folder.ledger_path.read_bytes().rindex(b"drop/200")
        with folder.ledger_path.open("r+b") as file:
            file.seek(position // 4096 * 4096)
            file.write(b"\xff" * 4096)
    process.log(2)
    process.end()

    host = served(tmp_path, options(("memory", recorder)))

    assert written(recorder) == process.row_ids
    assert any("was damaged" in line for line in host.lines)  # type: ignore[attr-defined]


def test_damage_that_an_exporter_finds_is_mended_in_the_same_way(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    recorder.fail(BlockedError("no key"), kind="open", times=None)
    process = Process.start(folder, "memory")
    process.log(5000)
    with serving(tmp_path, options(("memory", recorder))):
        report_when(
            folder,
            lambda report: (
                report.position == 5000
                and report.exporters["memory"].state == "blocked"
            ),
        )
    size = folder.ledger_path.stat().st_size
    with folder.ledger_path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))
    recorder.heal()

    # Before its end: the segment of a process that lives stays until it is full, that of one that ended goes once read.
    with serving(tmp_path, options(("memory", recorder))):
        recorder.wait_for(lambda recorder: written(recorder) == process.row_ids)
    process.end()
    served(tmp_path, options(("memory", recorder)))

    assert written(recorder) == process.row_ids
    assert len(list(folder.path.glob("ledger.sqlite.damaged-*[0-9]"))) == 1


def test_a_ledger_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(1)
    with sqlite3.connect(folder.ledger_path) as sql:
        sql.execute("PRAGMA user_version = 99")
    before = folder.ledger_path.read_bytes()

    host = served(tmp_path, options(("memory", recorder)))

    assert (folder.ledger_path.read_bytes(), recorder.calls) == (before, [])
    assert "format 99" in host.progress()[RUN].reason
    assert not probe(folder.lock_path)


def test_a_segment_of_a_newer_version_is_left_and_the_others_are_delivered(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    newer, process = (
        Process.start(folder, "memory", format=99),
        Process.start(folder, "memory"),
    )
    newer.log(1)
    newer.die()
    process.log(2)
    process.end()

    served(tmp_path, options(("memory", recorder)))

    assert written(recorder) == process.row_ids
    assert [file.instance_id for file in folder.segments()] == [newer.instance]


def test_a_bridge_whose_folder_is_deleted_ends(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder)), until_done=True) as host:
        process.log(3)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)

        shutil.rmtree(folder.path.rename(tmp_path / "going"))

        assert host.wait(10.0)
    assert any("was moved or deleted" in line for line in host.lines)  # type: ignore[attr-defined]


def test_a_second_bridge_of_a_folder_ends_at_once(tmp_path: Path) -> None:
    folder, recorder, second = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
    )
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log(1)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 1)

        other = served(tmp_path, options(("memory", second)))

    assert (other.progress()[RUN].outcome, second.calls) == (Outcome.GONE, [])


def _read_all(bridge: RunBridge) -> None:
    while bridge.poll():
        pass


def _forked(base: Path, recorder: RecordingTracker) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        BridgeSupervisor(base, options(("memory", recorder)), until_done=True).serve()
    finally:
        os._exit(0)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_bridge_hands_over_when_asked_and_is_killed_when_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(lease, "HANDOVER_S", 0.5)
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    pid = _forked(tmp_path, RecordingTracker())
    report_when(
        folder,
        lambda report: (
            "memory" in report.exporters and report.exporters["memory"].written == 3
        ),
    )
    if hangs:
        os.kill(pid, signal.SIGSTOP)

    with serving(tmp_path, options(("memory", recorder), takeover=True)):
        _, status = os.waitpid(pid, 0)
        process.log(2)

        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)

    assert (os.WIFSIGNALED(status), written(recorder)) == (hangs, process.row_ids[3:])


def test_a_process_that_only_has_the_id_of_an_earlier_bridge_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HANDOVER_S", 0.2)
    folder = run_folder(tmp_path)
    how = options(takeover=True)

    with (
        python("input()") as bystander,
        python(HANGING_BRIDGE, folder.path, bystander.pid) as bridge,
    ):
        assert line_of(bridge) == "locked"
        lock = lease.take_lock(folder, how, lambda _: None)
        codes = (bridge.wait(), bystander.poll())
        lock.release()

    assert codes == (-signal.SIGKILL, None)


def test_a_drain_that_killed_a_hanging_bridge_delivers_the_run_and_does_not_obey_its_own_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HANDOVER_S", 0.2)
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    process.end()

    with (
        python("input()") as bystander,
        python(HANGING_BRIDGE, folder.path, bystander.pid) as bridge,
    ):
        assert line_of(bridge) == "locked"
        host = served(tmp_path, options(("memory", recorder), takeover=True))

    assert host.progress()[RUN].outcome is Outcome.DONE
    assert written(recorder) == process.row_ids


def test_a_bridge_that_was_not_asked_to_hand_over_is_not_killed_and_gets_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HANDOVER_S", 0.2)
    folder = run_folder(tmp_path)
    how = options(takeover=True)

    with (
        python(HANGING_BRIDGE, folder.path, os.getpid()) as asked,
        python("input()\n" + HANGING_BRIDGE, folder.path, os.getpid()) as successor,
    ):
        assert line_of(asked) == "locked"

        def send(folder: RunFolder, kind: Kind) -> None:
            send_control(folder, kind)
            asked.kill()
            asked.wait()
            assert successor.stdin is not None
            successor.stdin.write("\n")
            successor.stdin.flush()
            assert line_of(successor) == "locked"

        monkeypatch.setattr(lease, "send_control", send)
        with pytest.raises(FolderLockedError):
            lease.take_lock(folder, how, lambda _: None)
        alive = successor.poll() is None

    assert (alive, receive_control(folder)) == (True, [])


def test_asked_to_finish_the_run_ends_although_its_process_lives(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log(2)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)

        send_control(folder, "finish", status="failed")

        recorder.wait_for(lambda recorder: recorder.run(RUN).status is Status.FAILED)


def test_what_comes_between_the_last_look_and_the_unlocking_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    late: list[Process] = []

    class LateProcess(RunBridge):
        def close(self, deadline_s: float) -> list[str]:
            if not late:
                late.append(Process.start(folder, "memory"))
                late[0].log(2)
                late[0].end()
            return super().close(deadline_s)

    monkeypatch.setattr(active_runs, "RunBridge", LateProcess)
    first = Process.start(folder, "memory")
    first.log(1)
    first.end()

    served(tmp_path, options(("memory", recorder)))

    assert written(recorder) == [*first.row_ids, *late[0].row_ids]


def test_what_comes_after_the_unlocking_finds_the_lock_free_and_only_one_bridge_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder, next_recorder = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
    )
    found_free: list[bool] = []
    second = threading.Thread(
        target=lambda: served(tmp_path, options(("memory", next_recorder)))
    )

    class NextBridge(RunBridge):
        def close(self, deadline_s: float) -> list[str]:
            hanging = super().close(deadline_s)
            if not found_free:
                late = Process.start(folder, "memory")
                found_free.append(not probe(folder.lock_path))
                monkeypatch.setattr(active_runs, "RunBridge", RunBridge)
                second.start()
                until(lambda: probe(folder.lock_path))
                late.log(2)
                late.end()
            return hanging

    monkeypatch.setattr(active_runs, "RunBridge", NextBridge)
    first = Process.start(folder, "memory")
    first.log(1)
    first.end()

    served(tmp_path, options(("memory", recorder)))
    second.join(20)

    assert found_free == [True]
    assert (len(written(recorder)), len(written(next_recorder))) == (1, 2)


def test_a_torn_tail_of_a_dead_process_is_cut_and_the_rows_before_it_arrive(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(2)
    start = process.writer.offset
    process.log(1)
    path, size = process.writer.path, process.writer.offset
    process.die()
    with path.open("ab") as file:
        file.write(path.read_bytes()[start : start + 40])

    bridge = open_bridge(folder, options(("memory", recorder)))
    until(
        lambda: (
            bridge.poll()
            or (len(recorder.run(RUN).rows) == 3 and path.stat().st_size == size)
        )
    )

    assert bridge.reader.state.get("drop/segment_gaps") is None
    bridge.close(time.monotonic() + 5)


def test_frames_behind_a_bad_stretch_arrive_and_the_gap_is_counted(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(1)
    start = process.writer.offset
    process.log(2)
    with process.writer.path.open("r+b") as file:
        file.seek(start + 40)
        file.write(b"\0" * 8)
    process.end()

    served(tmp_path, options(("memory", recorder)))

    report = report_when(folder, lambda report: report.ended)
    assert written(recorder) == [process.row_ids[0], process.row_ids[2]]
    assert (report.drops["segment_gaps"], report.missing_rows) == (1, 1)


def test_a_host_finds_folders_as_they_come_and_one_bad_run_harms_no_other(
    tmp_path: Path,
) -> None:
    recorder = RecordingTracker()
    bad = run_folder(tmp_path, "bad")
    with sqlite3.connect(bad.ledger_path) as sql:
        sql.execute("PRAGMA user_version = 99")
    Process.start(bad, "memory").log(1)
    with serving(tmp_path, options(("memory", recorder))) as host:
        late = run_folder(tmp_path, "late")
        process = Process.start(late, "memory")
        process.log(2)
        process.end()

        recorder.wait_for(
            lambda recorder: recorder.run("late").status is Status.FINISHED
        )
        until(
            lambda: (
                host.progress().get("late", RunStatus("late", Outcome.BUSY)).outcome
                is Outcome.DONE
            )
        )

    assert [list(recorder.run("late").rows), host.progress()["bad"].outcome] == [
        process.row_ids,
        Outcome.GONE,
    ]
    assert not probe(RunFolder(tmp_path, "late").lock_path)


def test_a_folder_that_could_not_be_opened_is_tried_once_more_before_a_drain_is_over(
    tmp_path: Path,
) -> None:
    recorder, folder = RecordingTracker(), run_folder(tmp_path)
    folder.ledger_path.mkdir()  # as on a disk that was full
    process = Process.start(folder, "memory")
    process.log(2)
    process.end()
    with serving(tmp_path, options(("memory", recorder))) as host:
        until(
            lambda: (
                host.progress().get(RUN, RunStatus(RUN, Outcome.BUSY)).outcome
                is Outcome.GONE
            )
        )
        folder.ledger_path.rmdir()

        host.drain()
        assert host.wait(10.0)

    assert written(recorder) == process.row_ids


def test_a_folder_read_late_is_read_in_the_order_of_its_append_times(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    first, second = (
        Process.start(folder, "memory"),
        Process.start(folder, "memory", role="explorer"),
    )
    hour_ago = time.time_ns() - 3600 * 10**9
    for number in range(200):
        (first if number % 3 else second).log(1, at_ns=hour_ago + number * 10**6)
    order = [(first if number % 3 else second).instance for number in range(200)]
    first.end()
    second.end()

    served(tmp_path, options(("memory", recorder)))

    assert [name.split(":")[1] for name in written(recorder)] == order


def test_a_folder_is_drained_without_waiting(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(2)
    process.die()
    how = options(("memory", recorder), closing=True)

    served(
        tmp_path,
        replace(how, translation=replace(how.translation, end_grace_ns=10**15)),
    )

    assert [written(recorder), recorder.run(RUN).status] == [
        process.row_ids,
        Status.KILLED,
    ]


def test_a_folder_that_another_host_serves_is_left_to_it_while_its_heart_beats(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(1)
    process.end()
    facts = '{"pid": 7, "host": "node2", "boot_id": "other", "heartbeat_unix_ns": %d}'
    folder.lock_path.write_text(facts % time.time_ns())

    refused = served(tmp_path, options(("memory", recorder)))
    folder.lock_path.write_text(facts % (time.time_ns() - 120 * 10**9))
    served(tmp_path, options(("memory", recorder)))

    assert "on node2" in refused.progress()[RUN].reason
    assert written(recorder) == process.row_ids


def test_segments_that_a_killed_bridge_had_read_and_not_yet_deleted_go_with_the_rest(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory", segment_bytes=2_000)
    with serving(tmp_path, options(("memory", recorder))):
        process.log(5)
        left = process.writer.path
        data = left.read_bytes()
        process.log(30)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 35)
        until(lambda: not left.exists())
    left.write_bytes(data)
    process.end()

    served(tmp_path, options(("memory", recorder)))

    assert [folder.segments(), lives_in(folder), recorder.run(RUN).repeated] == [
        [],
        [],
        0,
    ]


def test_a_run_whose_report_or_ledger_fails_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recorder = run_folder(tmp_path, "bad"), RecordingTracker()
    write_report = RunBridge.write_report
    remaining = RunBridge.remaining

    def unreadable(self: RunBridge) -> RunStatus:
        if self.folder.run_id == "bad":
            raise JournalError("no ledger of this run")
        return remaining(self)

    def failing(self: RunBridge, *, now: bool = False) -> None:
        if self.folder.run_id == "bad":
            raise RuntimeError("no report of this run")
        write_report(self, now=now)

    monkeypatch.setattr(RunBridge, "write_report", failing)
    monkeypatch.setattr(RunBridge, "remaining", unreadable)
    bad = Process.start(folder, "memory")
    good = Process.start(run_folder(tmp_path), "memory")
    with serving(tmp_path, options(("memory", recorder))) as host:
        bad.log(1)
        until(lambda: host.state().failures >= 3)
        good.log(2)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
        until(lambda: {"bad", RUN} <= host.progress().keys())
        assert host.progress()["bad"].reason == "no ledger of this run"

    assert not any("reading run folders failed" in line for line in host.lines)  # type: ignore[attr-defined]
