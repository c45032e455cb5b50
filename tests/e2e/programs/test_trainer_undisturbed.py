"""The training process is as it would be without us; the bridge is not of its making."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import mlflow_reading
from support.trainers.e2e_jobs import (
    bridges,
    ended,
    environment,
    no_bridge_left,
    report_when,
    rows,
    run,
    script,
    start,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow


def test_a_loop_over_wait_sees_the_programs_own_children_only(tmp_path: Path) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import os, otel_bridge
        run = otel_bridge.init("quiet", "wait")
        run.log({"loss": 1.0}, step=0)
        mine = set()
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                os._exit(number)
            mine.add(pid)
        seen = set()
        while True:
            try:
                pid, _ = os.wait()
            except ChildProcessError:
                break
            seen.add(pid)
        assert seen == mine, (seen, mine)
        """,
    )
    with no_bridge_left(tmp_path):
        done = run(code, environment(tmp_path / "runs"))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("chld", ["SIG_DFL", "SIG_IGN"])
def test_nothing_is_warned_of_and_no_thread_handler_or_child_is_there(
    tmp_path: Path, chld: str
) -> None:
    code = script(
        tmp_path / "train.py",
        f"""
        import gc, os, signal, sys, threading
        signal.signal(signal.SIGCHLD, signal.{chld})
        def handlers():
            return {{number: signal.getsignal(number) for number in signal.valid_signals()}}
        before = handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), os.umask(0o027), os.nice(0)
        hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile()
        import otel_bridge
        run = otel_bridge.init("quiet", "warnings", role="trainer", config={{"lr": 0.1}})
        for step in range(100):
            run.log({{"loss": step / 2}}, step=step)
        messages = [{{"role": "user", "content": "2 + 2?"}}, {{"role": "assistant", "content": "4"}}]
        run.log_rollouts([otel_bridge.Rollout(messages, reward=1.0)], step=1)
        with run.rollout(step=2) as rollout:
            rollout.reward = 1.0
        assert run.flush(300)
        assert (handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), 0o022, os.nice(0)) == (
            *before[:3], 0o022, before[4]
        )
        assert os.umask(0o022) == 0o027
        assert hooks == (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile())
        assert threading.active_count() == 1
        assert len(os.listdir(f"/proc/{{os.getpid()}}/task")) == 1
        with open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children") as children:
            assert children.read() == ""
        for fd in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{{fd}}"
            assert not os.path.islink(path) or not os.readlink(path).startswith("socket:")
        run.finish()
        del run
        gc.collect()
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, environment(base), options=["-W", "error", "-X", "dev"])
        until(lambda: ended(base))

    assert (done.returncode, done.stderr) == (0, "")
    assert rows(base, "trainer/loss") == list(range(100))


def test_under_opentelemetry_instrument_the_bridge_has_no_sdk_and_no_path_of_it(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import sys, otel_bridge
        run = otel_bridge.init("quiet", "instrumented", exporters="file")
        run.log({"loss": 1.0}, step=0)
        assert run.flush(300)
        print("ready", flush=True)
        sys.stdin.read()
        """,
    )
    base = tmp_path / "runs"
    instrument = str(Path(sys.executable).parent / "opentelemetry-instrument")
    env = {
        name: value for name, value in environment(base).items() if name != "PYTHONPATH"
    }
    with no_bridge_left(tmp_path):
        job = subprocess.Popen(
            [instrument, sys.executable, str(code)],
            env={
                **env,
                "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "all",
                "OTEL_SDK_DISABLED": "true",
            },
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n", job.communicate()
        (bridge,) = bridges(base)
        trainer_environ = Path(f"/proc/{job.pid}/environ").read_bytes()
        environ = Path(f"/proc/{bridge}/environ").read_bytes()
        words = Path(f"/proc/{bridge}/cmdline").read_bytes()
        job.communicate(b"", timeout=HANG_S)
        until(lambda: ended(base))

    assert b"auto_instrumentation" in trainer_environ
    assert b"PYTHONPATH=" not in environ
    assert b"auto_instrumentation" not in words
    assert rows(base) == [0]


@pytest.mark.long
def test_files_beside_the_script_that_are_called_like_trackers_replace_none(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import otel_bridge
        run = otel_bridge.init("quiet", "shadow", role="trainer")
        for step in range(20):
            run.log({"loss": step / 2}, step=step)
        """,
    )
    for name in ("mlflow", "sqlalchemy", "wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text(
            "raise ImportError('this is the user\\'s own file')\n"
        )
    uri, base = mlflow_reading.database(tmp_path), tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, environment(base, "mlflow", MLFLOW_TRACKING_URI=uri))
        until(lambda: ended(base))

    info = RunInfo(run_id_of("quiet", "shadow"), "quiet", "shadow", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one.step for one in mlflow_reading.contents(uri, info).scalars] == list(
        range(20)
    )


def test_a_job_started_with_closed_standard_streams_and_without_a_home_is_served(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import otel_bridge
        run = otel_bridge.init("quiet", "closed")
        for step in range(20):
            run.log({"loss": step / 2}, step=step)
        """,
    )
    base = tmp_path / "runs"
    env = {name: value for name, value in environment(base).items() if name != "HOME"}
    with no_bridge_left(tmp_path):
        pid = os.fork()
        if pid == 0:
            os.closerange(0, 3)
            os.chdir(tmp_path)
            os.execve(sys.executable, [sys.executable, str(code)], env)
        _, code_ = os.waitpid(pid, 0)
        until(lambda: ended(base))

    assert (code_, rows(base)) == (0, list(range(20)))


def test_the_bridge_is_of_low_priority_in_a_session_of_its_own_and_holds_nothing_of_the_trainer(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import os, sys, otel_bridge
        mine = os.open("mine", os.O_WRONLY | os.O_CREAT)
        os.set_inheritable(mine, True)
        run = otel_bridge.init("quiet", "descriptors")
        run.log({"loss": 1.0}, step=0)
        assert run.flush(300)
        print("ready", flush=True)
        sys.stdin.read()
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        job = start(
            code,
            environment(
                base, WANDB_SERVICE="2-1-tcp", RANK="0", CUDA_VISIBLE_DEVICES="0"
            ),
        )
        report_when(base, lambda report: report.rows == 1)
        (bridge,) = bridges(base)
        open_files = [
            os.readlink(path)
            for path in Path(f"/proc/{bridge}/fd").iterdir()
            if path.exists()
        ]
        environ = Path(f"/proc/{bridge}/environ").read_bytes().split(b"\0")
        session, priority = os.getsid(bridge), os.getpriority(os.PRIO_PROCESS, bridge)
        job.communicate(b"", timeout=HANG_S)

    assert (session != os.getsid(0), priority) == (
        True,
        os.getpriority(os.PRIO_PROCESS, 0) + 5,
    )
    assert not [
        one for one in open_files if one.endswith("/mine") or one.startswith("pipe:")
    ]
    names = {one.partition(b"=")[0] for one in environ}
    assert not names & {b"WANDB_SERVICE", b"RANK", b"CUDA_VISIBLE_DEVICES"}
