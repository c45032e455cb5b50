"""A run folder from segments to a tracker, with real segments, a real ledger and a recorder."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from otel_bridge.bridge import supervisor
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import SIGNALS, RunInfo
from otel_bridge.journal.control import send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Status
from support.bridge.bridge_doubles import (
    Process,
    options,
    report_when,
    run_folder,
    served,
    serving,
    until,
    written,
)
from support.bridge.recording_tracker import RecorderSettings, RecordingTracker
from support.otlp.journal_samples import lives_in
from support.otlp.otlp_samples import RUN


def test_rows_of_a_process_reach_the_tracker_and_its_end_ends_the_run(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.config({"lr": 0.1})
    process.log(5)
    process.end("failed")

    served(tmp_path, options(("memory", recorder)))

    held = recorder.run(RUN)
    assert list(held.rows) == process.row_ids
    assert [held.configs, held.status, held.repeated] == [
        {"trainer": {"lr": 0.1}},
        Status.FAILED,
        0,
    ]
    assert (folder.segments(), lives_in(folder)) == ([], [])


def test_a_process_that_died_without_a_word_ends_as_killed_after_the_grace(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    process.die()

    served(tmp_path, options(("memory", recorder)))

    assert [list(recorder.run(RUN).rows), recorder.run(RUN).status] == [
        process.row_ids,
        Status.KILLED,
    ]
    assert folder.segments() == []


def test_a_run_is_opened_by_its_first_row_and_not_by_a_config(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.config({"lr": 0.1})
    process.end()

    served(tmp_path, options(("memory", recorder)))

    report = report_when(folder, lambda report: report.ended)
    assert recorder.calls == []
    assert (report.exporters["memory"].state, report.exporters["memory"].written) == (
        "ended",
        report.position,
    )


def test_data_after_the_end_opens_the_run_again(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    first = Process.start(folder, "memory")
    first.log(2)
    first.end()
    served(tmp_path, options(("memory", recorder)))
    second = Process.start(folder, "memory")
    second.log(1)
    second.end("failed")

    served(tmp_path, options(("memory", recorder)))

    held = recorder.run(RUN)
    assert list(held.rows) == [*first.row_ids, *second.row_ids]
    assert [info.reopened for info in held.infos] == [False, True]
    assert [call.status for call in recorder.calls if call.kind == "end"] == [
        Status.FINISHED,
        Status.FAILED,
    ]


def test_an_end_with_data_behind_it_is_not_acted_on(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    first = Process.start(folder, "memory")
    first.log(1)
    first.end("failed")
    second = Process.start(folder, "memory")
    second.log(1)
    second.end()

    served(tmp_path, options(("memory", recorder)))

    assert [call.status for call in recorder.calls if call.kind == "end"] == [
        Status.FINISHED
    ]


def test_each_exporter_gets_the_signals_it_is_named_for(tmp_path: Path) -> None:
    folder, rows, rollouts = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
    )
    process = Process.start(
        folder, by_signal={"metrics": ("rows",), "traces": ("rollouts",)}
    )
    process.log(4)
    process.end()

    served(tmp_path, options(("rows", rows), ("rollouts", rollouts)))

    assert [list(rows.run(RUN).rows), rows.run(RUN).status] == [
        process.row_ids,
        Status.FINISHED,
    ]
    assert rollouts.calls == []


def test_a_flush_is_answered_by_the_report(tmp_path: Path) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder))):
        process.log(10)
        process.flush()

        report = report_when(
            folder,
            lambda report: (
                process.instance in report.processes
                and report.processes[process.instance].offset == process.writer.offset
                and report.exporters["memory"].written == report.position
            ),
        )

    assert (report.position, report.rows, report.steps) == (
        10,
        10,
        {"trainer/step": 10},
    )
    assert written(recorder) == process.row_ids


def test_a_flush_leaves_a_tracker_the_time_that_it_asked_for_and_a_person_s_retry_does_not(
    tmp_path: Path,
) -> None:
    folder, recorder, other = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
    )
    recorder.fail(RetryableError("busy", retry_after_s=500), times=1, kind="rows")
    process = Process.start(folder, "memory", "other")
    with serving(tmp_path, options(("memory", recorder), ("other", other))):
        process.log(1)
        report_when(
            folder,
            lambda report: (
                "memory" in report.exporters
                and report.exporters["memory"].state == "retrying"
            ),
        )

        process.flush()
        process.log(1)
        other.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
        waited = len(recorder.run(RUN).rows)
        send_control(folder, "retry")

        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 2)
    assert waited == 0


def test_a_blocked_exporter_is_reported_with_its_help_and_delivers_when_asked_to_retry(
    tmp_path: Path,
) -> None:
    folder, recorder, other = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
    )
    recorder.fail(BlockedError("no key", help="memory login"), kind="open", times=None)
    process = Process.start(folder, "memory", "other")
    with serving(tmp_path, options(("memory", recorder), ("other", other))):
        process.log(3)
        report = report_when(
            folder,
            lambda report: (
                "memory" in report.exporters
                and report.exporters["memory"].state == "blocked"
            ),
        )
        recorder.heal()

        send_control(folder, "retry")

        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)
        other.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)
    assert (report.exporters["memory"].reason, report.exporters["memory"].help) == (
        "no key",
        "memory login",
    )


def test_a_blocked_exporter_parks_the_folder_and_the_next_bridge_goes_on(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    recorder.fail(BlockedError("no key"), kind="open", times=None)
    process = Process.start(folder, "memory")
    process.log(3)
    process.end()

    served(tmp_path, options(("memory", recorder)))
    recorder.heal()
    served(tmp_path, options(("memory", recorder)))

    assert [written(recorder), recorder.run(RUN).status] == [
        process.row_ids,
        Status.FINISHED,
    ]


def test_a_refused_record_becomes_a_dead_letter_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    recorder.fail(PermanentError("too odd"), kind="rows", position=3, times=None)
    process = Process.start(folder, "memory")
    process.log(5)
    process.end()

    served(tmp_path, options(("memory", recorder)))

    report = report_when(folder, lambda report: report.ended)
    assert written(recorder) == [*process.row_ids[:2], *process.row_ids[3:]]
    assert (
        report.exporters["memory"].dead_letters,
        report.exporters["memory"].rows,
    ) == (1, 4)


def test_an_exporter_that_is_not_known_is_blocked_and_keeps_the_records(
    tmp_path: Path,
) -> None:
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory", "nowhere")
    process.log(3)
    process.end()
    served(tmp_path, options(("memory", recorder)))
    late = RecordingTracker()

    served(tmp_path, options(("memory", recorder), ("nowhere", late)))

    assert [written(recorder), written(late)] == [process.row_ids, process.row_ids]


def test_an_exporter_named_later_starts_at_the_oldest_record_still_there(
    tmp_path: Path,
) -> None:
    folder, recorder, late = (
        run_folder(tmp_path),
        RecordingTracker(reports_durable=True, lag=2),
        RecordingTracker(),
    )
    first = Process.start(folder, "memory")
    with serving(tmp_path, options(("memory", recorder), ("late", late))):
        first.log(5)
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 5)
        report_when(folder, lambda report: report.exporters["memory"].durable == 3)
        # What is safe goes with the next chores; the two in doubt stay.
        until(lambda: _oldest(folder) == 4)

        second = Process.start(folder, "late", role="explorer")
        second.log(1)

        late.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)
    assert written(late) == [*first.row_ids[3:], *second.row_ids]


def test_a_hanging_writer_keeps_no_other_waiting(tmp_path: Path) -> None:
    folder, recorder, other, release = (
        run_folder(tmp_path),
        RecordingTracker(),
        RecordingTracker(),
        threading.Event(),
    )
    recorder.hang(release, kind="rows")
    process = Process.start(folder, "memory", "other")
    with serving(tmp_path, options(("memory", recorder), ("other", other))):
        process.log(3)

        other.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)

        assert written(recorder) == []
        release.set()
        recorder.wait_for(lambda recorder: len(recorder.run(RUN).rows) == 3)


def test_an_exporter_that_cannot_name_its_run_delivers_it_as_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_settings: RecorderSettings, run: RunInfo) -> str:
        raise LookupError(f"no address of {run.id}")

    monkeypatch.setattr(RecorderSettings, "view", fail)
    folder, recorder = run_folder(tmp_path), RecordingTracker()
    process = Process.start(folder, "memory")
    process.log(3)
    process.end()

    served(tmp_path, options(("memory", recorder)))

    assert [list(recorder.run(RUN).rows), recorder.run(RUN).status] == [
        process.row_ids,
        Status.FINISHED,
    ]
    assert (
        report_when(folder, lambda report: report.settled).exporters["memory"].view
        == ""
    )


def _oldest(folder: RunFolder) -> int:
    from otel_bridge.bridge.ledger.database import open_for_reading
    from otel_bridge.bridge.ledger.queries import LedgerView

    view = LedgerView(open_for_reading(folder.ledger_path))
    try:
        return view.oldest()
    finally:
        view.close()


def test_a_run_that_came_just_before_the_drain_is_opened_however_late_folders_are_looked_at(
    tmp_path: Path,
) -> None:
    recorder = RecordingTracker()
    with serving(
        tmp_path,
        options(
            ("recorder", recorder), exporters=dict.fromkeys(SIGNALS, ("recorder",))
        ),
    ) as host:
        host._request(lambda: setattr(host._runs._discovery, "next_s", float("inf")))
        until(lambda: host._runs._discovery.next_s == float("inf"))
        process = Process.start(run_folder(tmp_path), "recorder")
        process.log(3)
        process.end()
        os.utime(process.folder.segments_dir, (1, 1))

        host.drain()

        assert host.wait(20)
    assert written(recorder) == process.row_ids


def test_reading_all_ends_in_time_while_the_thread_that_reads_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "CLOSE_S", 0.2)
    hangs, release = threading.Event(), threading.Event()

    def folders() -> list[RunFolder]:
        hangs.set()
        release.wait(20)
        return []

    host = BridgeSupervisor(tmp_path, options(), folders=folders)
    host.start()
    try:
        assert hangs.wait(20)
        began_s = time.monotonic()

        host.read_all(0.1)

        assert time.monotonic() - began_s < 10
    finally:
        release.set()
        host.stop(5.0)
