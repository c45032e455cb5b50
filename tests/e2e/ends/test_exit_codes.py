"""The exit code of a process decides how its run ends, however the process was started; native and captured alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.segment import read_segment
from otel_bridge.translation.decode.attributes import mapping_of
from support.trainers.command_runs import WAIT_S, environment, program

WORKERS = """
    import os, signal, sys, threading, traceback

    def begin(name, how):
        if how == "captured":
            import otel_bridge
            otel_bridge.capture("wandb")
            import wandb
            wandb.init(project="p", name=name).log({"loss": 1.0})
        else:
            import otel_bridge
            otel_bridge.init("p", name, role="trainer" if how == "role" else None).log({"loss": 1.0}, step=1)

    def end(way):
        if way == "raises":
            raise ValueError("boom")
        if way == "exits with 0":
            sys.exit(0)
        if way == "exits with 3":
            sys.exit(3)
        if way == "quits with 3":
            quit(3)
        if way == "catches its own exit":
            try:
                sys.exit(3)
            except SystemExit:
                pass
        if way == "prints an exception and exits with 1":  # as hydra.main() and click do
            try:
                raise ValueError("boom")
            except ValueError:
                traceback.print_exc()
                sys.exit(1)
        if way == "exits in a thread":
            in_thread(lambda: sys.exit(3))
        if way == "raises in a thread":
            in_thread(lambda: 1 / 0)
        if way == "os._exit":
            os._exit(0)
        if way in ("SIGTERM", "SIGKILL"):
            os.kill(os.getpid(), getattr(signal, way))

    def in_thread(body):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()

    def worker(way, start, how):
        begin(f"{way}, {start}", how)
        end(way)

    def in_workers(method, how, ways):
        import multiprocessing

        if method == "fork" and how == "captured":
            import otel_bridge
            otel_bridge.capture("wandb")
            import wandb  # once, instead of in every child
        context = multiprocessing.get_context(method)
        processes = [context.Process(target=worker, args=(way, "Process", how)) for way in ways]
        for process in processes:
            process.start()
        for process in processes:
            process.join()

    def in_pools(method, how):
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context(method)
        for way in ("returns", "raises"):
            pool = context.Pool(1)
            result = pool.apply_async(worker, (way, "Pool", how))
            result.wait()
            pool.close()
            pool.join()
            with ProcessPoolExecutor(1, mp_context=context) as executor:
                executor.submit(worker, way, "ProcessPoolExecutor", how).exception()

    def in_loky(how):
        from joblib import Parallel, delayed

        Parallel(n_jobs=2)([delayed(worker)("returns", "loky", how)])

    if __name__ == "__main__":
        start, how, *ways = sys.argv[1:]
        if start == "plain":
            worker(ways[0], "plain", how)
        elif start == "loky":
            in_loky(how)
        else:
            in_workers(start, how, ways)
            in_pools(start, how)
"""
STATUSES = {
    "returns": "finished",
    "raises": "failed",
    "exits with 0": "finished",
    "exits with 3": "failed",
    "quits with 3": "failed",
    "catches its own exit": "finished",
    "prints an exception and exits with 1": "failed",
    "exits in a thread": "finished",
    "raises in a thread": "finished",
    "os._exit": "killed",
    "SIGTERM": "killed",
    "SIGKILL": "killed",
}
POOLED = {
    f"{way}, {pool}": "finished"
    for way in ("returns", "raises")
    for pool in ("Pool", "ProcessPoolExecutor")
}
"""A pool hands an exception of a task to its parent; the worker lives on, and ends well. `joblib` kills its own."""


def ends(folder: Path) -> dict[str, str]:
    """Return how each run ended, by its name: what its process recorded, or ``killed`` when it recorded no end."""
    statuses: dict[str, str] = {}
    for run in run_folders(folder / ".otel-bridge"):
        for segment in run.segments():
            header, contents = read_segment(
                segment.path, 0, limit_bytes=1 << 30, final=True
            )
            assert header is not None
            name = str(
                mapping_of(Resource.FromString(header.resource).attributes)[
                    semconv.RUN_NAME
                ]
            )
            statuses.setdefault(name, "killed")
            for frame in contents.frames:
                if frame.signal is Signal.LOGS:
                    for record in ScopeLogs.FromString(frame.payload).log_records:
                        if record.event_name == semconv.EVENT_END:
                            statuses[name] = str(
                                mapping_of(record.attributes)[semconv.RUN_STATUS]
                            )
    return statuses


def start(folder: Path, how: str, *arguments: str) -> subprocess.Popen[str]:
    if not (folder / "workers.py").exists():
        program(folder, "workers.py", WORKERS)
    command = ["python", "workers.py", arguments[0], how, *arguments[1:]]
    env = environment(
        folder,
        OTEL_BRIDGE_OFFLINE="1",
        OTEL_BRIDGE_EXPORTERS="file",
        OTEL_BRIDGE_QUIET="1",
    )
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate(timeout=WAIT_S)


def cells(**quick: str) -> list[object]:
    """All pairs of a start method and a kind of program; those that are not *quick* are long."""
    return [
        pytest.param(
            method, how, marks=() if quick[method] == how else pytest.mark.long
        )
        for method in quick
        for how in ("native", "role", "captured")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "how"), cells(plain="native"))
def test_a_program_ends_its_run_as_it_ends(
    tmp_path: Path, method: str, how: str
) -> None:
    wait(*[start(tmp_path, how, method, way) for way in STATUSES])

    assert ends(tmp_path) == {
        f"{way}, plain": status for way, status in STATUSES.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how"), cells(fork="captured", forkserver="role", spawn="")
)
def test_a_worker_ends_its_run_as_it_ends(
    tmp_path: Path, method: str, how: str
) -> None:
    wait(start(tmp_path, how, method, *STATUSES))

    assert (
        ends(tmp_path)
        == {f"{way}, Process": status for way, status in STATUSES.items()} | POOLED
    )


@pytest.mark.slow
@pytest.mark.parametrize(("method", "how"), cells(loky="native"))
def test_a_worker_of_joblib_ends_its_run_as_it_ends(
    tmp_path: Path, method: str, how: str
) -> None:
    wait(start(tmp_path, how, method))

    assert ends(tmp_path) == {"returns, loky": "finished"}
