from __future__ import annotations

import subprocess
import sys
import threading

from otel_bridge.bridge.supervisor import Wakeup
from support.waiting import HANG_S

INTERRUPTED = """
import signal
from otel_bridge.bridge.supervisor import Wakeup

wake, calls = Wakeup(), 0

def tell(number, frame):
    global calls
    calls += 1
    wake.set()
    if calls < 20_000:
        signal.setitimer(signal.ITIMER_REAL, 0.00002)

signal.signal(signal.SIGALRM, tell)
signal.setitimer(signal.ITIMER_REAL, 0.00002)
while calls < 20_000:
    wake.wait(0.0005)
    wake.clear()
print(calls)
"""

IN_ANOTHER_THREAD = """
import signal, sys, threading
from otel_bridge.bridge.supervisor import Wakeup

wake, calls = Wakeup(), []

def tell(number, frame):
    calls.append(number)
    wake.set()

def interrupt():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code is not Wakeup.wait.__code__:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

signal.signal(signal.SIGTERM, tell)
threading.Thread(target=interrupt).start()
print(wake.wait(), len(calls))
"""


def test_a_sleeper_is_woken_by_another_thread_and_forgets_it() -> None:
    wake = Wakeup()
    threading.Thread(target=wake.set).start()

    assert (wake.wait(30), wake.wait(0)) == (True, False)


def test_what_was_set_before_the_sleep_counts_once() -> None:
    wake = Wakeup()
    wake.set()
    wake.set()

    assert (wake.wait(), wake.wait(0)) == (True, False)


def test_what_is_cleared_wakes_nobody() -> None:
    wake = Wakeup()
    wake.set()
    wake.clear()

    assert not wake.wait(0)


def test_a_signal_handler_may_set_it_wherever_it_interrupts_its_thread() -> None:
    done = run_program(INTERRUPTED)

    assert (done.returncode, done.stdout) == (0, "20000\n"), done.stderr


def test_a_signal_that_another_thread_receives_wakes_the_sleeper_too() -> None:
    done = run_program(IN_ANOTHER_THREAD)

    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr


def run_program(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
