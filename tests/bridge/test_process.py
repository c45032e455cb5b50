"""The bridge as a process of its own, started by real programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.locks import probe
from support.bridge.bridge_doubles import Process, report_when, run_folder, until
from support.otlp.journal_samples import lives_in
from support.waiting import HANG_S

TESTS = Path(__file__).parents[1]


def _bridge(folder: RunFolder, file: Path, **env: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        str(TESTS / "support" / "bridge" / "bridge_file_tracker.py"),
        str(folder.path),
        str(file),
        "durable",
    ]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    )


MAIN = (
    "import sys; from otel_bridge.bridge.main import main; sys.exit(main(sys.argv[1:]))"
)
STOPPED_AT_ONCE = """
import os, signal, sys
from otel_bridge.bridge import main
class Stopped(main._ServedFolders):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
main._ServedFolders = Stopped
sys.exit(main.main(sys.argv[1:]))
"""


def _main(folder: RunFolder, code: str = MAIN) -> subprocess.Popen[bytes]:
    with folder.log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(folder.path)], stdout=log, stderr=log
        )


@pytest.mark.slow
def test_a_signal_that_comes_before_there_is_anything_to_stop_is_not_lost(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    process = Process.start(folder, "file")
    process.log(5)

    # Its process lives, so that only a signal ends this bridge.
    bridge = _main(folder, STOPPED_AT_ONCE)

    assert bridge.wait(HANG_S) == 0
    process.end()


@pytest.mark.slow
def test_a_bridge_that_is_reported_to_stop_commits_and_leaves_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    folder, file = run_folder(tmp_path), tmp_path / "tracker"
    process = Process.start(folder, "file")
    process.log(5)
    first = _main(folder)
    report_when(
        folder,
        lambda report: (
            "file" in report.exporters and report.exporters["file"].written == 5
        ),
    )

    first.send_signal(signal.SIGTERM)
    code = first.wait(10)
    process.log(1)
    process.end()
    second = _main(folder)

    assert (code, second.wait(20)) == (0, 0)
    report = report_when(folder, lambda report: report.ended)
    assert (report.exporters["file"].rows, probe(folder.lock_path), file.exists()) == (
        6,
        False,
        False,
    )


@pytest.mark.slow
def test_the_log_of_a_bridge_that_finds_another_one_at_work_holds_no_word_of_alarm(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    Process.start(folder, "file").log(1)
    lock = folder.lock()
    assert lock.acquire()

    second = _main(folder)

    assert second.wait(20) == 0
    begun, ended = (
        line.partition(": ")[2] for line in folder.log_path.read_text().splitlines()
    )
    assert begun == f"the bridge {second.pid} begins"
    assert ended == f"the bridge {second.pid} ends: another bridge serves the run"


@pytest.mark.slow
@pytest.mark.long
def test_eight_programs_that_begin_at_once_share_one_bridge(tmp_path: Path) -> None:
    program = (
        "import sys, otel_bridge\n"
        "run = otel_bridge.init(project='p', name='n', role='r' + sys.argv[1], exporters='file', dir=sys.argv[2])\n"
        "for step in range(200): run.log({'loss': step / 2})\n"
        "print('logged', flush=True); sys.stdin.readline(); run.finish()\n"
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(number), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number in range(8)
    ]
    for one in programs:
        assert one.stdout is not None
        assert one.stdout.readline() == b"logged\n"
    (folder,) = run_folders(tmp_path)
    report_when(folder, lambda report: report.rows == 1600)

    until(lambda: len(_bridges_of(folder)) == 1)
    for one in programs:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    codes = [one.wait(40) for one in programs]

    report = report_when(folder, lambda report: report.ended)
    until(lambda: not _bridges_of(folder))
    assert (codes, report.exporters["file"].rows, report.status) == (
        [0] * 8,
        1600,
        "finished",
    )
    assert (folder.segments(), lives_in(folder)) == ([], [])


@pytest.mark.slow
def test_the_rows_of_a_killed_program_arrive_without_anybody_starting_anything(
    tmp_path: Path,
) -> None:
    program = (
        "import os, signal, sys, otel_bridge\n"
        "run = otel_bridge.init(project='p', name='n', role='trainer', exporters='file', dir=sys.argv[1])\n"
        "for step in range(500): run.log({'loss': step / 2})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "OTEL_BRIDGE_END_GRACE_S": "0.3"}
    started = time.monotonic()

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=env,
        capture_output=True,
        check=False,
    )

    took_s = time.monotonic() - started
    (folder,) = run_folders(tmp_path)
    report = report_when(folder, lambda report: report.ended)
    until(lambda: not _bridges_of(folder))
    assert (done.returncode, report.exporters["file"].rows, report.status) == (
        -signal.SIGKILL,
        500,
        "killed",
    )
    assert [one.alive for one in report.processes.values()] == [False] * len(
        report.processes
    )
    assert took_s < 20  # its output pipes were not kept open by the bridge


def _bridges_of(folder: RunFolder) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if (
            any(str(folder.path) in part for part in line)
            and process.pid != os.getpid()
        ):
            found.append(process.pid)
    return found
