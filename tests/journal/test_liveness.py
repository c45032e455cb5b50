from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import (
    alive,
    hold_life,
    judge_processes,
    present_report,
)
from otel_bridge.journal.locks import LockUnsupportedError, probe
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.journal.report import ProcessReport, Report, RoleReport, write_report
from otel_bridge.journal.segment import SegmentWriter
from support.bridge.bridge_doubles import Process
from support.otlp.journal_samples import (
    HEADER,
    header,
    line_of,
    lives_in,
    no_files_left,
    python,
    run_folder,
)

NOW = 1_700_000_000_000_000_000
SILENT_NS = 600 * 10**9
LIVE = """
import os, sys
from pathlib import Path
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.liveness import hold_life
from otel_bridge.journal.machine import start_ticks
life = hold_life(RunFolder(Path(sys.argv[1]), "r1"), "a1")
print(os.getpid(), start_ticks(os.getpid()), flush=True)
sys.stdin.readline()
"""


def test_a_sign_of_life_that_a_full_disk_refuses_is_not_held(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ
    files = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(JournalError, match="is the disk full"):
            hold_life(folder, "a1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not probe(folder.life_path("a1"))
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_process_elsewhere_does_not_die_of_files_that_cannot_be_opened_here(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    elsewhere = header(boot_id=f"not {this_host().boot_id}")
    SegmentWriter(folder.segments_dir, elsewhere).close()

    with no_files_left():
        is_alive = alive(folder, elsewhere, time.time_ns())

    assert is_alive


def test_a_process_here_does_not_die_of_files_that_cannot_be_opened(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)

    with python(LIVE, folder.base) as process:
        pid, ticks = map(int, line_of(process).split())
        with no_files_left():
            is_alive = alive(folder, of_this_boot(pid, ticks), NOW)

    assert is_alive


def of_this_boot(pid: int, ticks: int) -> SegmentHeader:
    return header(
        boot_id=this_host().boot_id, host=this_host().name, pid=pid, start_ticks=ticks
    )


def test_a_process_is_alive_while_it_holds_its_sign_and_dead_right_after_sigkill(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)

    with python(LIVE, folder.base) as process:
        pid, ticks = map(int, line_of(process).split())
        while_alive = alive(folder, of_this_boot(pid, ticks), NOW)
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        as_zombie = alive(folder, of_this_boot(pid, ticks), NOW)

    assert (while_alive, as_zombie, lives_in(folder)) == (True, False, ["a1"])


def test_a_process_of_another_pid_namespace_is_seen_by_its_lock(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    enter = ["unshare", "--fork", "--pid", "--kill-child"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces are not allowed here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    process = subprocess.Popen(
        [*enter, sys.executable, "-c", LIVE, folder.base],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    # Its own pid is 1 or little more there: here that is somebody else.
    pid = int(line_of(process).split()[0])
    while_alive = alive(folder, of_this_boot(pid, 1), NOW)
    process.communicate("\n")
    afterwards = alive(folder, of_this_boot(pid, 1), NOW)

    assert (while_alive, afterwards) == (True, False)


def test_this_process_is_alive_until_it_releases_its_sign(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    mine = of_this_boot(os.getpid(), start_ticks(os.getpid()))

    life = hold_life(folder, "a1")
    held = (life.held(), alive(folder, mine, NOW))
    life.release()

    assert (held, life.held(), alive(folder, mine, NOW)) == ((True, True), False, False)


def test_two_signs_of_one_instance_are_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    life = hold_life(folder, "a1")

    with pytest.raises(
        JournalError,
        match="held by another process; every process needs an instance id",
    ):
        hold_life(folder, "a1")

    life.release()


def test_a_forked_child_leaves_the_sign_of_its_parent_alone(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    life = hold_life(folder, "a1")

    pid = os.fork()
    if pid == 0:
        life.release()
        os._exit(10 * life.held() + alive(folder, of_this_boot(1, 1), NOW))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert (code, life.held()) == (1, True)
    life.release()


def test_without_a_life_file_pid_and_start_time_decide(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    pid, ticks = os.getpid(), start_ticks(os.getpid())

    seen = [
        alive(folder, of_this_boot(*who), NOW)
        for who in [(pid, ticks), (pid, ticks + 1), (0, 0), (2**22, 0)]
    ]

    assert seen == [True, False, False, False]


def test_a_process_of_another_boot_lives_until_its_segments_have_not_grown_for_ten_minutes(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    path = SegmentWriter(folder.segments_dir, HEADER).path
    SegmentWriter(folder.segments_dir, header(instance_id="b2"))
    os.utime(path, ns=(NOW, NOW))

    seen = [alive(folder, HEADER, NOW + seconds * 10**9) for seconds in (0, 599, 600)]

    assert seen == [True, True, False]


def test_start_ticks_report_processes_apart_and_know_no_dead_ones() -> None:
    with python("input()") as process:
        ticks = start_ticks(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        as_zombie = start_ticks(process.pid)

    assert ticks > start_ticks(os.getpid()) > 0
    assert (as_zombie, start_ticks(process.pid)) == (0, 0)


def test_a_host_is_its_name_and_its_boot() -> None:
    assert this_host().name == os.uname().nodename
    assert len(this_host().boot_id) == 36


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_where_the_file_system_has_no_record_locks_pid_and_start_time_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    pid, ticks = os.getpid(), start_ticks(os.getpid())
    monkeypatch.setattr(fcntl, "lockf", _no_locks)
    monkeypatch.setattr(fcntl, "fcntl", _no_locks)

    hold_life(folder, "a1")
    seen = [
        alive(folder, of_this_boot(*who), NOW)
        for who in [(pid, ticks), (pid, ticks + 1)]
    ]

    assert (seen, lives_in(folder)) == ([True, False], ["a1"])
    with pytest.raises(
        LockUnsupportedError,
        match="has no record locks, set OTEL_BRIDGE_DIR to a local folder",
    ):
        folder.lock().acquire()


def test_without_record_locks_a_process_of_another_pid_namespace_lives_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    path = SegmentWriter(folder.segments_dir, HEADER).path
    os.utime(path, ns=(NOW, NOW))
    folder.life_path("a1").write_text('{"pid_namespace": 1}')
    monkeypatch.setattr(fcntl, "fcntl", _no_locks)

    seen = [
        alive(folder, of_this_boot(1, 1), NOW + seconds * 10**9)
        for seconds in (599, 600)
    ]

    assert seen == [True, False]


def _reported(*processes: Process, roles: dict[str, RoleReport]) -> Report:
    """Return the last report of a bridge that was killed while *processes* were alive."""
    facts = {one.instance: ProcessReport(role="trainer") for one in processes}
    return Report(processes=facts, roles=roles)


def test_processes_that_died_with_their_bridge_are_not_alive_in_the_report_that_is_shown(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    died, lives = Process.start(folder), Process.start(folder)
    report = _reported(died, lives, roles={"trainer": RoleReport(2, 3)})
    report.processes["b"] = ProcessReport(bridge=True)
    write_report(folder, report)
    died.die()

    shown = present_report(folder, SILENT_NS)
    lock = folder.lock()
    assert lock.acquire()
    served = present_report(folder, SILENT_NS)
    lock.release()
    lives.die()
    ended = present_report(folder, SILENT_NS)

    assert shown is not None
    assert ended is not None
    assert {name: one.alive for name, one in shown.processes.items()} == {
        died.instance: False,
        lives.instance: True,
        "b": False,
    }
    assert (shown.roles, ended.roles) == (
        {"trainer": RoleReport(1, 3)},
        {"trainer": RoleReport(0, 3)},
    )
    assert served == report  # its bridge judges its processes itself


def test_processes_that_started_after_the_bridge_had_died_are_counted_in_their_roles(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    before = Process.start(folder)
    report = _reported(before, roles={"trainer": RoleReport(1, 1)})
    before.die()
    again, other = Process.start(folder), Process.start(folder, role="explorer")

    roles = judge_processes(
        folder, report, folder.segments(), NOW, liveness_timeout_ns=SILENT_NS
    ).report.roles

    assert roles == {"trainer": RoleReport(1, 1), "explorer": RoleReport(1, 1)}
    for process in (again, other):
        process.die()


def test_a_process_that_has_ended_and_goes_on_is_not_counted_as_one_that_died(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    ended, lives = Process.start(folder), Process.start(folder)
    report = _reported(ended, lives, roles={"trainer": RoleReport(1, 2)})
    ended.end()

    roles = judge_processes(
        folder, report, folder.segments(), NOW, liveness_timeout_ns=SILENT_NS
    ).report.roles

    assert roles == {"trainer": RoleReport(1, 2)}
    lives.die()


def test_what_sent_to_a_receiver_that_has_died_is_counted_as_it_was_last_seen(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    receiver = Process.start(folder, kind="receiver")
    report = Report(
        processes={receiver.instance: ProcessReport()},
        roles={"trainer": RoleReport(2, 2)},
    )

    receives = judge_processes(
        folder, report, folder.segments(), NOW, liveness_timeout_ns=SILENT_NS
    )
    receiver.die()
    died = judge_processes(
        folder, report, folder.segments(), NOW, liveness_timeout_ns=SILENT_NS
    )

    assert (receives.report.roles, receives.unseen_senders) == (
        {"trainer": RoleReport(2, 2)},
        False,
    )
    assert (died.report.roles, died.unseen_senders) == (
        {"trainer": RoleReport(2, 2)},
        True,
    )


@pytest.mark.parametrize(("silent_s", "lives"), [(60, False), (3600, True)])
def test_processes_of_other_machines_are_judged_by_the_set_time_and_one_look_at_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: int, lives: bool
) -> None:
    folder = run_folder(tmp_path)
    names = [f"a{number}" for number in range(5)]
    for name in names:
        path = SegmentWriter(folder.segments_dir, header(instance_id=name)).path
        os.utime(path, ns=(NOW, NOW))
    report = Report(processes={name: ProcessReport(role="trainer") for name in names})
    segments = folder.segments()
    monkeypatch.setattr(
        RunFolder, "segments", lambda _: pytest.fail("all segments are listed already")
    )

    judged = judge_processes(
        folder,
        report,
        segments,
        NOW + 600 * 10**9,
        liveness_timeout_ns=silent_s * 10**9,
    )

    assert [one.alive for one in judged.report.processes.values()] == [lives] * 5
