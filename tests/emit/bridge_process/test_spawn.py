from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.emit.bridge_process.spawn import (
    bridge_environment,
    bridge_path,
    interpreter,
)
from otel_bridge.journal.folder import RunFolder, run_folders
from support.trainers.emit_samples import CLEAN, environment_of, run_script, seen_in

_TRAINER = """
import sys, otel_bridge
run = otel_bridge.init("p", "n", exporters="file")
run.log({"loss": 1.0}, step=1)
assert run.flush(300)
print("ready", flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], object], *, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def delivered(base: Path) -> list[float]:
    return [
        record["values"]["loss"]
        for file in sorted(base.glob("*/file/*.jsonl"))
        for record in map(json.loads, file.read_text().splitlines())
        if "loss" in record.get("values", {})
    ]


@contextmanager
def trainer(
    base: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], RunFolder]]:
    """Run a trainer beside the test, with a bridge, until the block ends."""
    script = base / "train.py"
    script.write_text(_TRAINER)
    environment = {**CLEAN, "OTEL_BRIDGE_DIR": str(base / "runs"), **variables}
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=base,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        (folder,) = run_folders(base / "runs")
        yield process, folder
        process.communicate(b"")


def test_the_bridge_is_nobodys_child_and_has_nothing_of_the_trainer_but_its_environment_cleaned(
    tmp_path: Path,
) -> None:
    (tmp_path / "sqlite3.py").write_text(
        "raise ImportError('a file beside the script is not the module')"
    )
    mine = {
        "RANK": "0",
        "MASTER_ADDR": "x",
        "CUDA_VISIBLE_DEVICES": "0",
        "WANDB_SERVICE": "1-2",
        "OTEL_SERVICE_NAME": "s",
        "PYTHONHASHSEED": "0",
        "WANDB_API_KEY": "k",
    }
    with trainer(tmp_path, **mine) as (process, folder):
        holder = folder.holder()
        assert holder is not None
        proc = Path(f"/proc/{holder.pid}")
        status = dict(
            line.split(":\t", 1)
            for line in (proc / "status").read_text().splitlines()
            if ":\t" in line
        )
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        environment = dict(
            pair.split("=", 1)
            for pair in (proc / "environ").read_bytes().decode().split("\0")
            if "=" in pair
        )
        descriptors = {
            int(path.name): os.readlink(path) for path in (proc / "fd").iterdir()
        }
        grouped = proc / "autogroup"
        group = (
            grouped.read_text().rpartition(" ")[2].strip() if grouped.exists() else ""
        )

    assert int(status["PPid"]) not in {process.pid, os.getpid()}
    assert int(fields[3]) != os.getsid(0)
    assert int(fields[16]) == min(os.nice(0) + 5, 19)
    assert group in {"", "5"}  # empty: this kernel does not group by session
    assert environment["OTEL_BRIDGE_NO_BRIDGE"] == "1"
    assert environment["WANDB_API_KEY"] == "k"
    assert not set(mine) - {"WANDB_API_KEY"} & set(environment)
    assert descriptors[0] == "/dev/null"
    assert {descriptors[1], descriptors[2]} == {str(folder.log_path)}


def test_rows_of_a_killed_trainer_arrive_without_anyone_starting_anything(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge
    run = otel_bridge.init("p", "n", exporters="file")
    for step in range(50):
        run.log({"loss": float(step)}, step=step)
    os.kill(os.getpid(), 9)
    """

    run_script(
        script,
        {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path), "OTEL_BRIDGE_END_GRACE_S": "0"},
    )

    until(lambda: len(delivered(tmp_path)) == 50)
    assert delivered(tmp_path) == [float(step) for step in range(50)]


def test_a_folder_on_the_search_path_whose_name_is_not_utf8_keeps_no_bridge_from_starting(
    tmp_path: Path,
) -> None:
    script = """
    import os, sys
    sys.path.append(os.path.abspath(os.fsdecode(b"caf\\xe9")))
    import otel_bridge
    otel_bridge.init("p", "n", exporters="file").log({"loss": 1.0})
    """

    done = run_script(script, {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path)})

    assert done.returncode == 0, done.stderr
    assert delivered(tmp_path) == [1.0]


def test_a_script_whose_output_is_captured_ends_though_its_bridge_lives(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge
    otel_bridge.init("p", "n", exporters="file").log({"loss": 1.0})
    os._exit(0)
    """

    done = run_script(script, {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path)}, timeout_s=20)

    assert done.returncode == 0


def test_a_trainer_has_no_child_to_wait_for(tmp_path: Path) -> None:
    script = """
    import os, otel_bridge
    otel_bridge.init("p", "n", exporters="file").log({"loss": 1.0})
    try:
        os.wait()
    except ChildProcessError:
        print("no child")
    """

    done = run_script(script, {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path)})

    assert done.stdout == "no child\n"


def test_a_killed_bridge_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with environment_of(
        {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path), "OTEL_BRIDGE_QUIET": "1"}
    ):
        run = otel_bridge.init("p", "n", exporters="file")
        run.log({"loss": 1.0}, step=1)
        assert run.flush(300)
        (folder,) = run_folders(tmp_path)
        first = folder.holder()
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: run._recorder.starter.delivered_by() is None)

        run._recorder._check_again = 0  # a second later
        run.log({"loss": 2.0}, step=2)
        assert run.flush(300)
        second = folder.holder()

        run.finish()
    assert second is not None
    assert second.pid != first.pid
    assert delivered(tmp_path) == [1.0, 2.0]


def test_without_an_interpreter_rows_are_kept_and_the_drain_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")
    with environment_of(
        {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path), "OTEL_BRIDGE_QUIET": "1"}
    ):
        run = otel_bridge.init("p", "n", exporters="file")
        run.log({"loss": 1.0}, step=1)
        run.finish()

    assert [seen.steps for seen in seen_in(tmp_path)] == [[1]]
    assert capsys.readouterr().err == (
        "otel-bridge: sys.executable is '/usr/bin/blender': no Python interpreter to start the bridge with; "
        f"rows are kept, deliver them with: otel-bridge drain {tmp_path}\n"
    )


@pytest.mark.parametrize(
    ("executable", "usable"),
    [
        (sys.executable, True),
        ("", False),
        ("/bin/ls", False),
        ("/nowhere/python3", False),
    ],
)
def test_an_interpreter_is_a_program_called_python(
    monkeypatch: pytest.MonkeyPatch, executable: str, usable: bool
) -> None:
    monkeypatch.setattr(sys, "executable", executable)

    assert interpreter() == (executable if usable else None)


def test_the_bridges_search_path_leaves_out_the_users_own_scripts(
    tmp_path: Path,
) -> None:
    package = str(Path(otel_bridge.__file__).parents[1])
    auto = "/venv/site-packages/opentelemetry/instrumentation/auto_instrumentation"

    path = bridge_path(["", os.getcwd(), auto, "/usr/lib/python3.11", "/extra"])

    assert path == ["/usr/lib/python3.11", "/extra", package]


def test_the_bridges_search_path_is_known_after_the_working_folder_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(otel_bridge.__file__).parents[1])
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()

    assert bridge_path(["src", "/extra"]) == ["/extra", package]
    # As of a script below ``python -m cProfile``.
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "train.py", raising=False)
    assert bridge_path(["src", "/extra"]) == ["/extra", package]


def test_the_bridges_environment_keeps_what_forwarding_and_trackers_need() -> None:
    env = {
        "HOME": "/root",
        "MLFLOW_TRACKING_URI": "http://m",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=x",
        "OTEL_BRIDGE_TOKEN": "t",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b",
        "OTEL_METRICS_EXPORTER": "mlflow",
        "OTEL_BRIDGE_LAUNCHER": "1:2",
        "LD_PRELOAD": "x.so",
        "PYTHONPATH": "/x",
        "LOCAL_RANK": "1",
        "CUDA_HOME": "/cuda",
    }

    assert bridge_environment(env) == {
        "HOME": "/root",
        "MLFLOW_TRACKING_URI": "http://m",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=x",
        "OTEL_BRIDGE_TOKEN": "t",
        "OTEL_BRIDGE_NO_BRIDGE": "1",
    }
