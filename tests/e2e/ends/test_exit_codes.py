"""The exit code of a process decides how its run ends, however the process was started; native and captured alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.command_runs import BIN, call, environment, otel_bridge, program

WORKERS = """
    import multiprocessing, os, sys
    from concurrent.futures import ProcessPoolExecutor

    def worker(name):
        if "captured" in name:
            import wandb
            wandb.init(project="p", name=name).log({"loss": 1.0})
        else:
            import otel_bridge
            otel_bridge.init("p", name, role="trainer" if "role" in name else None).log({"loss": 1.0}, step=1)
        if name.startswith("raises"):
            raise ValueError("boom")
        if name.startswith("exits with 3"):
            sys.exit(3)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        for kind in sys.argv[2:]:
            for way in ("returns", "raises", "exits with 3"):
                process = context.Process(target=worker, args=(f"{way} {kind}",))
                process.start()
                process.join()
        pool = context.Pool(1)
        pool.map(worker, ["returns pool"])
        pool.close()
        pool.join()
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            list(executor.map(worker, ["returns executor"]))
"""
PROGRAMS = {
    "returns": ("pass", "finished"),
    "exits with 3": ("sys.exit(3)", "failed"),
    "exits with 0": ("sys.exit(0)", "finished"),
    "raises": ("raise ValueError('boom')", "failed"),
    "prints an exception and exits with 1": (
        "try:\n    raise ValueError('boom')\nexcept ValueError:\n    traceback.print_exc()\n    sys.exit(1)",
        "failed",
    ),
    "ends a thread with 3": ("in_thread(lambda: sys.exit(3))", "finished"),
    "raises in a thread": ("in_thread(lambda: 1 / 0)", "finished"),
}
BEGIN = """
import sys, threading, traceback, otel_bridge

def in_thread(body):
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()

otel_bridge.init("p", sys.argv[1]).log({"loss": 1.0}, step=1)
"""


def ends(tmp_path: Path) -> dict[str, str]:
    """Deliver all runs and return how each ended, by its name."""
    drained = otel_bridge("drain", "--exporters", "file", cwd=tmp_path, env=environment(tmp_path))
    assert drained.returncode == 0, drained.stdout
    reports = [read_report(folder) for folder in run_folders(tmp_path / ".otel-bridge")]
    return {report.name: report.status for report in reports if report is not None}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_of_multiprocessing_ends_its_run_as_it_ends(tmp_path: Path, method: str) -> None:
    code = program(tmp_path, "workers.py", WORKERS)
    env = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file")

    done = call(["python", code, method, "native", "role"], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    assert ends(tmp_path) == {
        f"{way} {kind}": status
        for kind in ("native", "role")
        for way, status in (("returns", "finished"), ("raises", "failed"), ("exits with 3", "failed"))
    } | {"returns pool": "finished", "returns executor": "finished"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_captured_worker_ends_its_run_as_it_ends(tmp_path: Path, method: str) -> None:
    code = program(tmp_path, "workers.py", WORKERS)
    env = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1")

    command = [f"{BIN}/otel-bridge", "run", "--capture", "wandb", "--exporters", "file", "--", "python", code, method]
    done = call([*command, "captured"], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    statuses = ends(tmp_path)
    assert {name: statuses[name] for name in statuses if "captured" in name} == {
        "returns captured": "finished",
        "raises captured": "failed",
        "exits with 3 captured": "failed",
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", PROGRAMS)
def test_a_program_ends_its_run_as_it_ends(tmp_path: Path, way: str) -> None:
    body, status = PROGRAMS[way]
    (tmp_path / "train.py").write_text(BEGIN + body + "\n")
    env = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file")

    call(["python", "train.py", way], cwd=tmp_path, env=env)

    assert ends(tmp_path) == {way: status}
