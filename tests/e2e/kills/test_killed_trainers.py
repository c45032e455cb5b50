"""No death of a trainer loses a row for which ``log()`` had returned, and nobody has to start anything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import trackio_store
from support.trainers.e2e_jobs import (
    acked,
    bridges,
    ended,
    environment,
    lines,
    no_bridge_left,
    rows,
    run,
    script,
    start,
    status,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow

TRAINER = """
import time
acks = Acks(sys.argv[1])
run = otel_bridge.init("deaths", sys.argv[2], role="trainer")
step = 0
while True:
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    step += 1
    if step % 50 == 0:
        time.sleep(0.005)
"""


def _killed(
    folder: Path, env: dict[str, str], name: str, *, alive_s: float, group: bool
) -> list[int]:
    """Run a trainer, kill it, and return the rows that were safe."""
    acks = folder / f"{name}.acks"
    trainer = start(
        script(folder / "train.py", TRAINER, acknowledging=True), env, str(acks), name
    )
    until(lambda: acked(acks) or trainer.poll() is not None)
    time.sleep(alive_s)
    if group:
        os.killpg(trainer.pid, signal.SIGKILL)
    else:
        trainer.kill()
    _, errors = trainer.communicate()
    assert trainer.returncode == -signal.SIGKILL, errors
    return acked(acks)


@pytest.mark.parametrize("group", [pytest.param(False, marks=pytest.mark.long), True])
def test_rows_of_trainers_killed_at_random_instants_arrive_once_and_in_order(
    tmp_path: Path, group: bool
) -> None:
    chance = random.Random(11 + group)
    with no_bridge_left(tmp_path):
        for number in range(8):
            base = tmp_path / f"runs{number}"

            durable = _killed(
                tmp_path,
                environment(base),
                f"r{number}",
                alive_s=chance.uniform(0, 0.5),
                group=group,
            )

            until(lambda base=base: ended(base))
            # One more may have been appended by a log() that never returned.
            assert rows(base, "trainer/loss") in [durable, [*durable, len(durable)]]
            assert durable == list(range(len(durable)))
            assert status(base) == ["killed"]
        until(lambda: not bridges(tmp_path))


def test_a_trainer_killed_while_it_begins_leaves_nothing_that_hangs(
    tmp_path: Path,
) -> None:
    chance = random.Random(13)
    code = script(tmp_path / "train.py", TRAINER, acknowledging=True)
    with no_bridge_left(tmp_path):
        for number in range(12):
            base, acks = tmp_path / f"runs{number}", tmp_path / f"{number}.acks"
            trainer = start(code, environment(base), str(acks), f"r{number}")
            time.sleep(chance.uniform(0.05, 0.4))
            os.killpg(trainer.pid, signal.SIGKILL)
            trainer.communicate()
        until(lambda: not bridges(tmp_path))

        for number in range(12):
            durable = acked(tmp_path / f"{number}.acks")
            assert rows(tmp_path / f"runs{number}", "trainer/loss") in [
                durable,
                [*durable, len(durable)],
            ]


def test_rows_of_killed_trainers_arrive_in_trackio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    chance = random.Random(12)
    durable: dict[str, list[int]] = {}
    with no_bridge_left(tmp_path):
        for number in range(4):
            env = environment(tmp_path / "runs", "trackio", **trackio_store.ENVIRONMENT)
            name = f"r{number}"
            durable[name] = _killed(
                tmp_path,
                env,
                name,
                alive_s=chance.uniform(0, 0.3),
                group=number % 2 == 0,
            )
        until(lambda: ended(tmp_path / "runs"))
        until(lambda: not bridges(tmp_path))

    for name, steps in durable.items():
        info = RunInfo(run_id_of("deaths", name), "deaths", name, tmp_path)
        held = [
            scalar.step
            for scalar in trackio_store.held(info).scalars
            if scalar.key == "trainer/loss"
        ]
        assert held in [steps, [*steps, len(steps)]]


@pytest.mark.parametrize(
    ("death", "code", "said"),
    [
        ("os._exit(7)", 7, "killed"),
        ("os.abort()", -signal.SIGABRT, "killed"),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, "killed"),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM, "killed"),
        ("os.execv('/bin/true', ['true'])", 0, "killed"),
        ("1 / 0", 1, "failed"),
        ("raise SystemExit(0)", 0, "finished"),
    ],
)
def test_a_death_in_any_way_loses_no_row_and_is_reported(
    tmp_path: Path, death: str, code: int, said: str
) -> None:
    file = script(
        tmp_path / "train.py",
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        acks = Acks(sys.argv[1])
        run = otel_bridge.init("deaths", "ways")
        for step in range(300):
            acks.log(run, {{"loss": step / 2}}, step)
        {death}
        """,
        acknowledging=True,
    )
    base, acks = tmp_path / "runs", tmp_path / "acks"
    with no_bridge_left(tmp_path):
        done = run(file, environment(base), str(acks))
        until(lambda: ended(base))

    assert done.returncode == code, done.stderr
    assert rows(base) == acked(acks) == list(range(300))
    assert status(base) == [said]


WORKERS = """
import multiprocessing, time

def work(path, first, how):
    run = otel_bridge.init(role="explorer") if how == "spawn" else otel_bridge.current_run()
    acks = Acks(path)
    for step in range(first, first + 100):
        acks.log(run, {"reward": step / 2}, step)
    if how == "killed":
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    path = sys.argv[1]
    run = otel_bridge.init("deaths", "workers")
    run.log({"loss": 1.0}, step=0)
    workers = []
    for number, how in enumerate(["fork", "fork", "spawn", "spawn", "killed"]):
        context = multiprocessing.get_context("spawn" if how == "spawn" else "fork")
        workers.append(context.Process(target=work, args=(path, 1000 * number, how)))
    for worker in workers:
        worker.start()
    children = []
    for number in (5, 6, 7):
        pid = os.fork()
        if pid == 0:
            work(path, 1000 * number, "os.fork")
            os._exit(0)
        children.append(pid)
    for worker in workers:
        worker.join()
    for pid in children:
        os.waitpid(pid, 0)
    run.log({"loss": 2.0}, step=1)
    os.abort()
"""


def test_rows_of_forked_spawned_and_killed_workers_all_arrive_once(
    tmp_path: Path,
) -> None:
    file = script(tmp_path / "train.py", WORKERS, acknowledging=True)
    base, acks = tmp_path / "runs", tmp_path / "acks"
    with no_bridge_left(tmp_path):
        done = run(file, environment(base), str(acks))
        until(lambda: ended(base))

    wanted = [
        step for first in range(0, 8000, 1000) for step in range(first, first + 100)
    ]
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert sorted(acked(acks)) == wanted
    # A worker that begins when the one with the higher steps is through looks like one that was started again.
    got = [
        (key, line["step"])
        for line in lines(base)
        if line["kind"] == "row"
        for key in line["values"]  # type: ignore[attr-defined]
        if key != "explorer/attempt"
    ]
    assert sorted(got) == sorted(
        [("loss", 0), ("loss", 1)]
        + [
            ("reward" if step // 1000 not in {2, 3} else "explorer/reward", step)
            for step in wanted
        ]
    )
    # A spawned worker says how it ended; that of the parent, which died, counts more.
    assert status(base)[-1] == "killed"


def test_a_trainer_alone_in_its_pid_namespace_keeps_its_rows_when_its_bridge_dies_with_it(
    tmp_path: Path,
) -> None:
    """A container's end takes the bridge too: the segments stay, and the next one delivers them."""
    file = script(
        tmp_path / "train.py",
        """
        acks = Acks(sys.argv[1])
        run = otel_bridge.init("deaths", "container")
        for step in range(200):
            acks.log(run, {"loss": step / 2}, step)
        os.kill(os.getpid(), 9) if os.getpid() != 1 else os._exit(9)
        """,
        acknowledging=True,
    )
    base, acks = tmp_path / "runs", tmp_path / "acks"
    unshare = [
        "unshare",
        "--fork",
        "--pid",
        "--mount-proc",
        sys.executable,
        str(file),
        str(acks),
    ]
    probe = subprocess.run([*unshare[:4], "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no pid namespace here")
    with no_bridge_left(tmp_path):
        subprocess.run(
            unshare,
            env=environment(base),
            cwd=tmp_path,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        again = script(
            tmp_path / "again.py",
            "import otel_bridge\notel_bridge.init('deaths', 'container')\n",
        )
        run(again, environment(base))
        until(lambda: ended(base))

    assert rows(base) == acked(acks) == list(range(200))
