from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.journal.locks import RecordLock, content, holder_pid, probe
from support.otlp.journal_samples import line_of, python

HOLD = """
import os, sys, time
from pathlib import Path
from otel_bridge.journal.locks import RecordLock
lock = RecordLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
"""
WAIT = "sys.stdin.readline()\n"
FORK = """
child = os.fork()
if not child:
    time.sleep(60)
print(child, flush=True)
"""
EXEC = """
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", "print('replaced', flush=True); input()"])
"""
PROBE = """
import sys
from pathlib import Path
from otel_bridge.journal.locks import probe
print(probe(Path(sys.argv[1])))
"""


def probed_elsewhere(path: Path) -> bool:
    with python(PROBE, path) as process:
        return line_of(process) == "True"


def test_a_lock_shuts_out_other_processes_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"

    with python(HOLD + WAIT, path) as process:
        assert line_of(process) == "True"
        while_held = (probe(path), RecordLock(path).acquire())
        process.communicate("\n")
        after = (probe(path), RecordLock(path).acquire())

    assert (while_held, after) == ((True, False), (False, True))


def test_the_kernel_names_the_process_that_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    own = RecordLock(tmp_path / "own.lock")
    assert own.acquire()

    with python(HOLD + WAIT, path) as process:
        assert line_of(process) == "True"
        while_held = holder_pid(path)
        process.communicate("\n")

    assert while_held == process.pid
    assert (holder_pid(path), holder_pid(own.path), probe(own.path)) == (0, 0, True)


def test_a_lock_is_free_at_once_after_sigkill_though_a_forked_child_lives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"

    with python(HOLD + FORK + WAIT, path) as process:
        assert line_of(process) == "True"
        child = int(line_of(process))
        held = probe(path)
        os.kill(process.pid, 9)
        os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOWAIT
        )  # a zombie until it is waited for
        free = not probe(path)
        os.kill(child, 0)
        os.kill(child, 9)

    assert (held, free) == (True, True)


def test_a_lock_is_free_after_exec_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"

    with python(HOLD + EXEC, path) as process:
        assert line_of(process) == "True"
        held = probe(path)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line_of(process) == "replaced"
        free = not probe(path)

    assert (held, free) == (True, True)


def test_two_holders_in_one_process_shut_each_other_out_and_looking_drops_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    (tmp_path / "same.lock").hardlink_to(path)
    first, second = RecordLock(path), RecordLock(tmp_path / "same.lock")

    taken = (
        first.acquire(),
        first.acquire(),
        second.acquire(),
        probe(path),
        probe(tmp_path / "same.lock"),
    )
    first.write(b"me")
    said = content(path)
    still = probed_elsewhere(path)
    first.release()

    assert taken == (True, True, False, True, True)
    assert (said, still, probed_elsewhere(path), second.acquire()) == (
        b"me",
        True,
        False,
        True,
    )
    second.release()


def test_looking_at_a_lock_that_this_process_holds_opens_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"
    lock = RecordLock(path)
    lock.acquire()
    watched = os.stat(path).st_ino

    for look in (
        lambda: probe(path),
        lambda: RecordLock(path).acquire(),
        lambda: content(path),
    ):
        look()
        assert _descriptors_of(watched) == 1
        assert probed_elsewhere(path)

    lock.release()
    assert _descriptors_of(watched) == 0


def _descriptors_of(inode: int) -> int:
    count = 0
    for name in os.listdir("/dev/fd"):
        try:
            count += os.fstat(int(name)).st_ino == inode
        except OSError:
            continue
    return count


def test_a_child_that_was_forked_behind_pythons_back_does_not_think_that_it_holds_the_lock(
    tmp_path: Path,
) -> None:
    code = """
child = __import__("ctypes").CDLL(None).fork()
os.write(1, b"parent %d\\n" % lock.held() if child else b"child %d\\n" % lock.held())
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""
    with python(HOLD + code, tmp_path / "x.lock") as process:
        said = process.communicate()[0].split()

    assert sorted(said) == ["0", "1", "True", "child", "parent"]
    assert said[said.index("child") + 1] == "0"


def test_a_forked_child_owns_nothing_and_takes_nothing_from_its_parent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"
    lock = RecordLock(path)
    lock.acquire()
    reading, writing = os.pipe()

    pid = os.fork()
    if pid == 0:
        try:
            lock.release()
            os.write(
                writing,
                repr(
                    (
                        lock.held(),
                        probe(path),
                        lock.acquire(),
                        RecordLock(path).acquire(),
                    )
                ).encode(),
            )
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    in_child = os.read(reading, 100)

    assert in_child == b"(False, True, False, False)"
    assert (lock.held(), probed_elsewhere(path)) == (True, True)
    lock.release()
    os.close(reading)
    os.close(writing)


def test_a_fork_while_another_thread_uses_locks_does_not_hang_the_child(
    tmp_path: Path,
) -> None:
    stop = threading.Event()

    def use() -> None:
        lock = RecordLock(tmp_path / "busy.lock")
        while not stop.is_set():
            lock.acquire()
            lock.release()

    thread = threading.Thread(target=use)
    thread.start()
    codes = []
    for k in range(20):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if RecordLock(tmp_path / f"{k}.lock").acquire() else 1)
        codes.append(os.waitpid(pid, 0)[1])
    stop.set()
    thread.join()

    assert codes == [0] * 20


def test_a_lock_whose_file_was_deleted_is_not_held_any_more(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock, other = RecordLock(path), RecordLock(path)
    lock.acquire()

    path.unlink()
    gone = (lock.held(), probe(path))
    taken = other.acquire()

    assert (gone, taken, lock.held(), lock.acquire()) == (
        (False, False),
        True,
        False,
        False,
    )
    lock.release()
    assert probed_elsewhere(path)
    other.release()


def test_a_program_that_closes_every_descriptor_loses_no_file_to_a_release(
    tmp_path: Path,
) -> None:
    code = """
import os, sys
from pathlib import Path
from otel_bridge.journal.locks import RecordLock
lock = RecordLock(Path(sys.argv[1]))
lock.acquire()
os.closerange(3, 100)
theirs = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
lock.release()
print([fd for fd in theirs if not os.path.exists(f"/proc/self/fd/{fd}")], flush=True)
"""
    with python(code, tmp_path / "x.lock") as process:
        lost = line_of(process)

    assert lost == "[]"


def test_what_a_holder_says_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = RecordLock(path)
    lock.acquire()

    lock.write(b"a long content")
    lock.write(b"short")
    while_held = content(path)
    lock.release()

    assert (while_held, content(path), content(tmp_path / "none")) == (
        b"short",
        b"short",
        b"",
    )


def test_a_lock_in_a_folder_that_is_not_there_says_what_is_wrong(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        JournalError, match="No such file or directory; expected a folder of your own"
    ):
        RecordLock(tmp_path / "none" / "x.lock").acquire()


def test_a_file_without_a_lock_or_no_file_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "free").touch()

    assert (probe(tmp_path / "free"), probe(tmp_path / "none")) == (False, False)
