"""More runs than may be at work at one time, and rounds and runs that fail: nothing ends the thread that reads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_bridge.bridge import supervisor
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving import rotation
from otel_bridge.bridge.serving.active_runs import ActiveRuns
from otel_bridge.bridge.serving.process_limits import DescriptorShares
from otel_bridge.bridge.supervisor import BridgeSupervisor, Wakeup
from otel_bridge.errors import RetryableError
from otel_bridge.journal.folder import RunFolder, run_folders
from support.bridge.bridge_doubles import Process, options, run_folder, serving, until
from support.bridge.recording_tracker import RecordingTracker

EVERY = dict.fromkeys(("metrics", "traces", "logs"), ("memory",))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_CHECK_S", 0.02)
    monkeypatch.setattr(rotation, "_DECIDE_S", 0.01)
    monkeypatch.setattr(rotation, "STUCK_S", 0.3)
    monkeypatch.setattr(rotation, "STINT_S", 0.5)


def rows_of(recorder: RecordingTracker, folders: Iterable[RunFolder]) -> list[int]:
    return [len(recorder.run(one.run_id).rows) for one in folders]


def started(base: Path, count: int) -> tuple[list[RunFolder], list[Process]]:
    folders = [run_folder(base, f"run-{number:03d}") for number in range(count)]
    return folders, [Process.start(folder, "memory") for folder in folders]


@contextmanager
def logged(
    base: Path, how: BridgeOptions, lines: list[str]
) -> Generator[BridgeSupervisor]:
    """A host on a thread whose log is *lines*."""
    host = BridgeSupervisor(base, how, log_line=lines.append)
    host.start()
    try:
        yield host
    finally:
        host.stop(5.0)


def test_more_live_runs_than_may_be_at_work_are_all_delivered_and_rows_that_come_later_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, most = RecordingTracker(), 0
    folders, processes = started(tmp_path, 12)
    opened = RunBridge.open

    def counted(*args: Any, **options: Any) -> RunBridge:
        nonlocal most
        run = opened(*args, **options)
        most = max(most, host.state().runs_open)
        return run

    monkeypatch.setattr(RunBridge, "open", counted)
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, max_open_runs=2)
    ) as host:
        for process in processes:
            process.log(2)
        until(lambda: rows_of(recorder, folders) == [2] * 12)
        for process in reversed(processes):
            process.log(1)
        until(lambda: rows_of(recorder, folders) == [3] * 12)
        states = host.state()

    assert most < 2  # beside the one that was being opened
    assert states.runs_open <= 2
    assert [list(recorder.run(one.run_id).rows) for one in folders] == [
        process.row_ids for process in processes
    ]


def test_runs_whose_tracker_fails_give_way_and_are_tried_again_in_turn(
    tmp_path: Path,
) -> None:
    recorder = RecordingTracker()
    folders, processes = started(tmp_path, 6)
    for process in processes:
        process.log(2)
    recorder.fail(RetryableError("away", retry_after_s=500), times=2, kind="open")

    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, max_open_runs=1)
    ):
        until(lambda: rows_of(recorder, folders) == [2] * 6)


def test_a_run_that_never_rests_gives_way_when_its_stint_is_over(
    tmp_path: Path,
) -> None:
    recorder, stop = RecordingTracker(), threading.Event()
    folders, (busy, other) = started(tmp_path, 2)

    def log() -> None:
        while not stop.wait(0.01):
            busy.log(1)

    busy.log(1)
    logging = threading.Thread(target=log)
    with serving(
        tmp_path, options(("memory", recorder), exporters=EVERY, max_open_runs=1)
    ):
        recorder.wait_for(lambda recorder: bool(recorder.run(folders[0].run_id).rows))
        logging.start()
        other.log(3)
        until(lambda: rows_of(recorder, folders[1:]) == [3])
        stop.set()
        logging.join()
        until(lambda: rows_of(recorder, folders) == [busy.seq, 3])

    assert list(recorder.run(folders[0].run_id).rows) == busy.row_ids


def test_a_drain_delivers_all_runs_though_few_may_be_at_work(tmp_path: Path) -> None:
    recorder = RecordingTracker()
    folders, processes = started(tmp_path, 9)
    for process in processes:
        process.log(2)

    with serving(
        tmp_path,
        options(("memory", recorder), exporters=EVERY, max_open_runs=2, idle_s=60.0),
    ) as host:
        host.drain()
        assert host.wait(20.0)

    assert rows_of(recorder, folders) == [2] * 9


def test_a_run_that_cannot_be_opened_for_want_of_files_waits_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, failures = RecordingTracker(), iter(range(3))
    folders, processes = started(tmp_path, 4)
    for process in processes:
        process.log(1)
    opened = RunBridge.open

    def failing(folder: RunFolder, *args: Any, **options: Any) -> RunBridge:
        if folder.path == folders[1].path and next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(folder, *args, **options)

    monkeypatch.setattr(RunBridge, "open", failing)
    lines = list[str]()
    with logged(tmp_path, options(("memory", recorder), exporters=EVERY), lines):
        until(lambda: rows_of(recorder, folders) == [1] * 4)

    assert len(lines) == 1
    assert lines[0].startswith(
        "run-001: no more files can be opened with 1 active runs"
    )


def test_the_only_run_says_once_that_no_file_can_be_opened_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, failures = RecordingTracker(), iter(range(3))
    folders, (process,) = started(tmp_path, 1)
    process.log(1)
    opened = RunBridge.open

    def failing(folder: RunFolder, *args: Any, **options: Any) -> RunBridge:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(folder, *args, **options)

    monkeypatch.setattr(RunBridge, "open", failing)
    lines = list[str]()
    # As a low limit of open files has it (`DescriptorShares`).
    only = options(("memory", recorder), exporters=EVERY, max_open_runs=1)
    with logged(tmp_path, only, lines):
        until(lambda: rows_of(recorder, folders) == [1])

    assert len(lines) == 1, lines


def test_a_run_that_cannot_be_opened_is_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, failures = RecordingTracker(), iter(range(3))
    folders, processes = started(tmp_path, 3)
    for process in processes:
        process.log(1)
    opened = RunBridge.open

    def failing(folder: RunFolder, *args: Any, **options: Any) -> RunBridge:
        if folder.path == folders[0].path and next(failures, None) is not None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(folder, *args, **options)

    monkeypatch.setattr(RunBridge, "open", failing)
    lines = list[str]()
    with logged(tmp_path, options(("memory", recorder), exporters=EVERY), lines):
        until(lambda: rows_of(recorder, folders) == [1] * 3)

    assert [line.splitlines()[-1] for line in lines] == [
        "PermissionError: [Errno 13] Permission denied"
    ]


def test_nothing_that_a_round_raises_ends_the_thread_and_it_is_said_once(
    tmp_path: Path,
) -> None:
    recorder, folder, lines = RecordingTracker(), run_folder(tmp_path), list[str]()
    Process.start(folder, "memory").log(2)
    failures = iter(
        [
            OSError(errno.EMFILE, "Too many open files"),
            MemoryError(),
            MemoryError(),
            ValueError("x"),
        ]
    )

    def folders() -> list[RunFolder]:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return run_folders(tmp_path)

    host = BridgeSupervisor(
        tmp_path,
        options(("memory", recorder), exporters=EVERY),
        folders=folders,
        log_line=lines.append,
    )
    host.start()
    recorder.wait_for(lambda recorder: len(recorder.run(folder.run_id).rows) == 2)
    host.stop(5.0)

    assert [line.splitlines()[-1] for line in lines] == [
        "OSError: [Errno 24] Too many open files",
        "MemoryError",
        "ValueError: x",
    ]
    assert (host.state().failures, host.alive) == (4, False)


def test_polls_of_many_runs_in_which_nothing_is_new_take_at_most_half_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("run1", "run2"):
        Process.start(run_folder(tmp_path, run_id), "memory")
    now_s, pauses = [1000.0], list[float]()
    host = BridgeSupervisor(
        tmp_path, options(("memory", RecordingTracker()), exporters=EVERY)
    )

    def poll(_runs: ActiveRuns) -> bool:
        now_s[0] += 3.0
        if now_s[0] > 1100.0:
            host.request_stop(5.0)
        return False

    def wait(_wakeup: Wakeup, timeout_s: float | None = None) -> bool:
        pauses.append(timeout_s or 0.0)
        now_s[0] += timeout_s or 0.0
        if len(pauses) == 5:
            host.request_stop(5.0)
        return False

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(ActiveRuns, "poll", poll)
    monkeypatch.setattr(Wakeup, "wait", wait)
    host.serve()

    assert pauses == [3.0] * 5


def test_a_thread_that_stalls_is_reported_until_it_continues(tmp_path: Path) -> None:
    may = threading.Event()

    def folders() -> list[RunFolder]:
        may.wait(20)
        return []

    host = BridgeSupervisor(tmp_path, options(stall_s=0.1), folders=folders)
    assert host.warnings() == []
    host.start()
    try:
        until(lambda: bool(host.warnings()))
        said = host.warnings()
        may.set()
        until(lambda: not host.warnings())
    finally:
        may.set()
        host.stop(5.0)

    assert said[0].startswith("the thread that reads run folders has stood still")
    assert host.warnings() == []


def test_a_round_that_fails_again_and_again_is_reported(tmp_path: Path) -> None:
    def folders() -> list[RunFolder]:
        raise OSError(errno.EIO, "Input/output error")

    host = BridgeSupervisor(tmp_path, options(), folders=folders)
    host.start()
    try:
        until(lambda: bool(host.warnings()))
        said = host.warnings()
    finally:
        host.stop(5.0)

    assert said == ["reading run folders fails: OSError: [Errno 5] Input/output error"]


@pytest.mark.parametrize(
    ("limit", "shares"),
    [
        (64, DescriptorShares(runs=1, locks=8, segments=2)),
        (200, DescriptorShares(runs=3, locks=34, segments=8)),
        (20_000, DescriptorShares(runs=498, locks=4984, segments=256)),
        (1 << 20, DescriptorShares(runs=512, locks=262128, segments=256)),
    ],
)
def test_runs_at_work_sleeping_ones_and_the_receiver_share_the_limit_of_open_files(
    limit: int, shares: DescriptorShares
) -> None:
    assert DescriptorShares.of(limit) == shares
