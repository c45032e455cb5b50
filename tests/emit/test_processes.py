from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.trainers.emit_samples import held, run_in, run_script, seen_in
from support.waiting import HANG_S


def test_a_forked_child_writes_a_segment_of_its_own(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer") as run:
        run.log({"a": 1.0}, step=1)
        pid = os.fork()
        if pid == 0:
            run.log({"a": 2.0}, step=2)
            run.log({"a": 3.0}, step=3)
            os._exit(0)
        os.waitpid(pid, 0)
        run.log({"a": 4.0}, step=4)

        parent, child = seen_in(tmp_path)
        assert [(row.step, row.seq) for row in parent.rows] == [(1, 1), (4, 2)]
        assert [(row.step, row.seq) for row in child.rows] == [(2, 1), (3, 2)]
        assert (parent.resource.get("rl.forked"), child.resource["rl.forked"]) == (
            None,
            True,
        )
        assert child.header.pid == pid
        assert child.header.instance_id != parent.header.instance_id


def test_a_forked_child_that_logs_nothing_leaves_nothing(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0})
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

        assert len(seen_in(tmp_path)) == 1


def test_forks_while_threads_log_find_no_lock_held(tmp_path: Path) -> None:
    script = """
    import os, threading, otel_bridge
    run = otel_bridge.init("p", "n")
    stop = threading.Event()
    def work():
        while not stop.is_set():
            run.log({"a": 1.0})
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    for number in range(12):
        pid = os.fork()
        if pid == 0:
            run.log({"child": number}, step=number)
            os._exit(0)
        os.waitpid(pid, 0)
    stop.set()
    for thread in threads: thread.join()
    """

    done = run_script(script, held(tmp_path))

    assert done.returncode == 0, done.stderr
    _, *children = seen_in(tmp_path)
    assert sorted(
        row.values["child"] for seen in children for row in seen.rows
    ) == list(range(12))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_workers_are_processes_of_the_run(
    tmp_path: Path, method: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, otel_bridge

            def work(number):
                run = otel_bridge.init(role="explorer") if {method == "spawn"} else otel_bridge.current_run()
                run.log({{"reward": number}}, step=number)

            if __name__ == "__main__":
                run = otel_bridge.init("p", role="trainer" if {method == "spawn"} else None)
                context = multiprocessing.get_context("{method}")
                workers = [context.Process(target=work, args=(number,)) for number in range(3)]
                for worker in workers: worker.start()
                for worker in workers: worker.join()
            """
        )
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        env=held(tmp_path / "runs"),
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    seen = seen_in(tmp_path / "runs")
    assert len({one.header.run_id for one in seen}) == 1
    workers = [one for one in seen if one.rows]
    assert sorted(row.step for one in workers for row in one.rows) == [0, 1, 2]
    assert {one.event("rl.run.end").attributes["rl.run.status"] for one in workers} == {
        "finished"
    }


def test_a_forked_child_may_begin_as_another_role_of_the_same_run(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge
    run = otel_bridge.init("p", role="trainer")
    pid = os.fork()
    if pid == 0:
        otel_bridge.init(role="explorer").log({"reward": 1.0}, step=1)
        os._exit(0)
    os.waitpid(pid, 0)
    """

    done = run_script(script, held(tmp_path))

    assert done.returncode == 0, done.stderr
    trainer, explorer = seen_in(tmp_path)
    assert (trainer.header.role, explorer.header.role) == ("trainer", "explorer")
    assert trainer.header.run_id == explorer.header.run_id
    assert "rl.forked" not in explorer.resource


@pytest.mark.parametrize(
    "death", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()"]
)
def test_no_death_loses_a_row(tmp_path: Path, death: str) -> None:
    script = f"""
    import os, resource, otel_bridge
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run = otel_bridge.init("p", "n")
    for step in range(1000):
        run.log({{"loss": 0.5, "lr": 1e-3}}, step=step)
    {death}
    """

    run_script(script, held(tmp_path))

    (seen,) = seen_in(tmp_path)
    assert seen.steps == list(range(1000))
    assert seen.events == []


def test_rows_of_many_threads_are_numbered_without_gaps(tmp_path: Path) -> None:
    import threading

    with run_in(tmp_path) as run:
        threads = [
            threading.Thread(
                target=lambda: [
                    run.log({"a": 1.0, "b": 2.0}, step=1) for _ in range(500)
                ]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        (seen,) = seen_in(tmp_path)
        assert [row.seq for row in seen.rows] == list(range(1, 2001))


def test_a_signal_handler_may_log_inside_log(tmp_path: Path) -> None:
    script = """
    import itertools, signal, otel_bridge
    run = otel_bridge.init("p", "n")
    inner, numbers = 0, itertools.count()
    def handle(number, frame):
        global inner
        inner = next(numbers)  # a handler may be interrupted by itself
        run.log({"inner": 1.0}, step=inner)
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    step = 0
    while inner < 300:
        run.log({"outer": 0.5, "more": 1.0}, step=step)
        step += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    run.log({"inners": float(next(numbers)), "steps": float(step)}, step=step)
    """

    done = run_script(script, held(tmp_path))

    assert done.returncode == 0, done.stderr
    (seen,) = seen_in(tmp_path)
    last = seen.rows[-1].values
    assert [row.seq for row in seen.rows] == list(range(1, len(seen.rows) + 1))
    assert sorted(row.step for row in seen.rows if "inner" in row.values) == list(
        range(int(last["inners"]))
    )
    assert [row.step for row in seen.rows if "outer" in row.values] == list(
        range(int(last["steps"]))
    )


def test_a_row_logged_inside_a_row_is_written_after_it(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:

        class Logging(float):
            def __float__(self) -> float:
                run.log({"inner": 2.0, "lengths": [3, 5]}, step=2)
                return 1.0

        run.log({"outer": Logging(1)}, step=1)

        (seen,) = seen_in(tmp_path)
        assert [(row.step, row.values, row.seq) for row in seen.rows] == [
            (1, {"outer": 1.0}, 1),
            (2, {"inner": 2.0, "lengths": (2, 8.0, 3.0, 5.0)}, 2),
        ]


def test_a_sigterm_handler_may_finish_inside_log(tmp_path: Path) -> None:
    script = """
    import os, signal, sys, threading, otel_bridge
    run = otel_bridge.init("p", "n")
    def handle(number, frame):
        run.finish("killed")
        sys.exit(5)
    signal.signal(signal.SIGTERM, handle)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    step = 0
    while True:
        run.log({"a": 1.0}, step=step)
        step += 1
    """

    done = run_script(script, held(tmp_path))

    (seen,) = seen_in(tmp_path)
    assert done.returncode == 5, done.stderr
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "killed"
    assert seen.event("rl.run.end").attributes["rl.seq"] - len(seen.rows) in {0, 1}


@pytest.mark.parametrize("place", ["encode_frame", "identity_of"])
def test_a_run_that_a_signal_handler_ends_inside_a_write_or_a_check_begins_no_further_process(
    tmp_path: Path, place: str
) -> None:
    script = f"""
    import signal, time, otel_bridge
    from otel_bridge.journal import segment

    run = otel_bridge.init("p", "n")
    signal.signal(signal.SIGUSR1, lambda number, frame: run.finish("killed"))
    real = segment.{place}

    def interrupted(*arguments, **keywords):
        segment.{place} = real
        signal.raise_signal(signal.SIGUSR1)
        return real(*arguments, **keywords)

    run.log({{"a": 1.0}}, step=1)
    run.recorder._appender._check_again = 0  # the checks of a segment are due
    segment.{place} = interrupted
    run.log({{"a": 2.0}}, step=2)
    run.log({{"a": 3.0}}, step=3)
    """

    done = run_script(script, held(tmp_path))

    (seen,) = seen_in(tmp_path)
    assert (done.returncode, "a record arrived after finish()" in done.stderr) == (
        0,
        True,
    ), done.stderr
    assert "dropped" not in done.stderr
    assert seen.steps == [1]
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "killed"


def test_rows_of_a_signal_handler_that_finishes_and_ends_the_process_inside_log_are_kept(
    tmp_path: Path,
) -> None:
    script = """
    import os, signal, otel_bridge
    run = otel_bridge.init("p", "n")
    def handle(number, frame):
        for step in range(24):
            run.log({"inner": 1.0}, step=step)
        run.finish("killed")
        os._exit(5)
    signal.signal(signal.SIGUSR1, handle)
    class Interrupted(float):
        def __float__(self):
            os.kill(os.getpid(), signal.SIGUSR1)
            return 1.0
    run.log({"outer": Interrupted(1)}, step=1)
    """

    done = run_script(script, held(tmp_path))

    (seen,) = seen_in(tmp_path)
    assert done.returncode == 5, done.stderr
    assert [row.step for row in seen.rows] == list(range(24))


def test_default_signals_stay_as_they_were_and_no_thread_is_started(
    tmp_path: Path,
) -> None:
    script = """
    import signal, threading, otel_bridge
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    run = otel_bridge.init("p", "n")
    run.log({"a": 1.0})
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    assert threading.active_count() == 1
    """

    assert run_script(script, held(tmp_path)).returncode == 0


def test_the_first_row_loads_no_tracker_no_sdk_no_protobuf_and_no_client_of_http(
    tmp_path: Path,
) -> None:
    script = """
    import sys, otel_bridge
    otel_bridge.init("p", "n", exporters="file,console").log({"a": 1.0}, step=1)
    tops = {".".join(name.split(".")[:2]) for name in sys.modules}
    unwanted = {"grpc", "wandb", "mlflow", "trackio", "opentelemetry.sdk", "google.protobuf", "numpy", "psutil"}
    print(sorted(tops & {*unwanted, "requests"}))
    """

    assert run_script(script, held(tmp_path)).stdout == "[]\n"


@pytest.mark.parametrize(
    ("closed", "segments"), [(256, [[1, 2, 3]]), (4096, [[1], [2, 3]])]
)
def test_a_program_that_closes_its_descriptors_loses_no_row_and_finds_none_in_its_files(
    tmp_path: Path, closed: int, segments: list[list[int]]
) -> None:
    script = f"""
    import os, otel_bridge
    run = otel_bridge.init("p", "n")
    run.log({{"a": 1.0}}, step=1)
    os.closerange(3, {closed})
    others = [os.open(f"other{{n}}", os.O_WRONLY | os.O_CREAT) for n in range(8)]
    run.log({{"a": 2.0, "text": otel_bridge.Text("hello")}}, step=2)
    run.alert("odd")
    run.log({{"a": 3.0}}, step=3)
    assert [os.fstat(other).st_size for other in others] == [0] * 8
    run.finish()
    """

    done = run_script(script, held(tmp_path / "runs"), cwd=tmp_path)

    seen = seen_in(tmp_path / "runs")
    assert (done.returncode, "dropped" in done.stderr) == (0, False), done.stderr
    assert [each.steps for each in seen] == segments
    assert [event.name for event in seen[-1].events] == [
        "rl.media",
        "rl.alert",
        "rl.run.end",
    ]


def test_an_alert_is_recorded_though_the_program_closed_the_descriptors_before(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge
    run = otel_bridge.init("p", "n")
    os.closerange(3, 4096)
    run.alert("odd")
    run.finish()
    """

    done = run_script(script, held(tmp_path))

    assert done.returncode == 0, done.stderr
    assert [event.name for event in seen_in(tmp_path)[-1].events] == [
        "rl.alert",
        "rl.run.end",
    ]


@pytest.mark.parametrize(
    "call", ["run.log({'b': None})", "run.log({'a': 4.0, 'b': None})"]
)
def test_a_program_that_closes_its_descriptors_reports_each_drop_and_row_once(
    tmp_path: Path, call: str
) -> None:
    script = f"""
    import os, otel_bridge
    run = otel_bridge.init("p", "n")
    for step in range(3):
        run.log({{"a": 1.0, "b": None}}, step=step)
    run.recorder._appender.write_drops()  # as at the check of each second
    os.closerange(3, 4096)
    {call}
    print(run.recorder.flush().rows)
    run.finish()
    """

    done = run_script(script, held(tmp_path))

    seen = seen_in(tmp_path)
    rows = sum(len(each.rows) for each in seen)
    assert [each.event("rl.dropped").body for each in seen] == [
        {"none": 3},
        {"none": 1},
    ]
    assert done.stdout == f"{rows}\n"
    assert "dropped 4: values that are None" in done.stderr


HANDLERS = ["stop", "Stop().now", "functools.partial(stop_with, 1)", "Stop()"]
CALLS = [
    "run.log({'a': Slow()})",
    "run.summary({'best': Slow()})",
    "run.log_config(Slow())",
    "run.log_rollouts([{'prompt': Slow()}])",
]


@pytest.mark.parametrize(
    ("call", "handler"),
    [
        # Each handler and each call once; every pair is a long test.
        pytest.param(call, handler, marks=[] if row == column else pytest.mark.long)
        for row, call in enumerate(CALLS)
        for column, handler in enumerate(HANDLERS)
    ],
)
def test_the_exception_of_a_signal_handler_reaches_the_program_and_later_rows_are_whole(
    tmp_path: Path, handler: str, call: str
) -> None:
    script = f"""
    import functools, os, signal, otel_bridge

    class TooLong(Exception): pass

    def stop(number, frame): raise TooLong
    def stop_with(extra, number, frame): raise TooLong

    class Stop:
        def now(self, number, frame): raise TooLong
        def __call__(self, number, frame): raise TooLong

    class Slow:
        def __float__(self): os.kill(os.getpid(), signal.SIGALRM); return 1.0
        def __len__(self): os.kill(os.getpid(), signal.SIGALRM); return 1
        model_dump = __iter__ = __str__ = __repr__ = __float__

    run = otel_bridge.init("p", "n")
    signal.signal(signal.SIGALRM, {handler})
    try:
        {call}
    except TooLong:
        print("stopped")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    run.log({{"a": 1.0}}, step=1)
    run.log({{"a": 2.0}}, step=2)
    run.finish()
    """

    done = run_script(script, held(tmp_path))

    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert seen_in(tmp_path)[0].steps == [1, 2]


def test_a_script_killed_by_a_signal_leaves_its_life_free(tmp_path: Path) -> None:
    from otel_bridge.journal.folder import run_folders
    from otel_bridge.journal.liveness import alive

    script = "import otel_bridge\notel_bridge.init('p', 'n').log({'a': 1})\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=held(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (folder,) = run_folders(tmp_path)
        (seen,) = seen_in(tmp_path)
        during = alive(folder, seen.header, 0)
        process.send_signal(signal.SIGKILL)

    assert (during, alive(folder, seen.header, 0)) == (True, False)
