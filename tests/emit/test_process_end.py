"""The end of a process: which status a run has that ends while an exception propagates."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from otel_bridge.emit.process_end import status_after, status_now


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(256), "finished"),  # whose lowest eight bits are 0
        (GeneratorExit(), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit("out of memory"), "failed"),
        (KeyboardInterrupt(), "failed"),
        (RuntimeError(), "failed"),
    ],
)
def test_an_exception_is_a_failure_unless_it_is_an_exit_with_code_0(
    error: BaseException | None, status: str
) -> None:
    assert status_after(error) == status


def test_a_framework_that_ends_its_run_in_a_finally_gives_it_the_status_of_what_propagates() -> (
    None
):
    statuses: list[str] = []

    def train(code: int) -> None:
        try:
            raise SystemExit(code)
        finally:
            statuses.append(status_now())

    for code in (0, 3):
        with pytest.raises(SystemExit):
            train(code)

    assert statuses == ["finished", "failed"]


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_garbage_collection_while_a_run_begins_does_not_hang_the_program(
    in_thread: bool,
) -> None:
    script = """
    import faulthandler, gc, sys, threading
    from otel_bridge.emit.process_end import _outermost_frame

    class Garbage:
        def __init__(self):
            self.cycle = self
            self.local = threading.local()
            self.local.value = 1

    def begin_often():
        gc.set_threshold(1)
        for _ in range(500):
            Garbage()
            _outermost_frame()

    faulthandler.dump_traceback_later(30, exit=True)
    if IN_THREAD:
        thread = threading.Thread(target=begin_often)
        thread.start()
        thread.join()
    else:
        begin_often()
    """
    script = textwrap.dedent(script).replace("IN_THREAD", str(in_thread))

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
