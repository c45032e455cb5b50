"""What ``flush()`` and ``finish()`` promise, what is said when a tracker cannot be reached, and how runs end."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import mlflow_reading
from support.trackers.wandb_backend.server import KEY, WandbServer
from support.trainers.e2e_jobs import (
    bridges,
    command,
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

RUN_ID = run_id_of("ends", "run")
QUICK = {"OTEL_BRIDGE_WANDB_TRANSMIT_S": "1", "OTEL_BRIDGE_WANDB_POLL_S": "0.1"}


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


def _without_key(
    base: Path, server: WandbServer, exporters: str = "wandb,file"
) -> dict[str, str]:
    variables = {
        **server.environment(),
        **QUICK,
        "HOME": str(base.parent),
        "OTEL_BRIDGE_QUIET": "0",
    }
    env = environment(
        base,
        exporters,
        WANDB_DIR=str(base.parent),
        NETRC=str(base.parent / "netrc"),
        **variables,
    )
    del env["WANDB_API_KEY"]
    return env


def test_flush_is_true_when_every_row_is_in_the_tracker(tmp_path: Path) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import glob, os, otel_bridge
        run = otel_bridge.init("ends", "run")
        for step in range(500):
            run.log({"loss": step / 2}, step=step)
            if step % 100 == 99:
                assert run.flush(300)
                (file,) = glob.glob(os.environ["OTEL_BRIDGE_DIR"] + "/*/file/*.jsonl")
                with open(file) as held:
                    assert sum('"loss"' in line for line in held) == step + 1, step
        """,
    )
    with no_bridge_left(tmp_path):
        done = run(code, environment(tmp_path / "runs"))

    assert (done.returncode, done.stderr) == (0, "")


BLOCKED = """
import otel_bridge
run = otel_bridge.init("ends", "run", role="trainer")
for step in range(50):
    run.log({"loss": step / 2}, step=step)
print(run.flush(300))
"""


@pytest.mark.long
def test_without_a_key_wandb_is_blocked_nothing_waits_for_it_and_the_line_says_what_to_do(
    tmp_path: Path, server: WandbServer
) -> None:
    code, base = script(tmp_path / "train.py", BLOCKED), tmp_path / "runs"
    env = _without_key(base, server)
    with no_bridge_left(tmp_path):
        done = run(code, env)
        until(lambda: not bridges(base))  # parked: nothing but a person can go on

        drained = command(
            "drain", base, env={**env, "WANDB_API_KEY": KEY}, cwd=tmp_path
        )

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert re.search(
        r"wandb is blocked with 5\d records to go: .*wandb login", done.stderr
    ), done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.endswith(
        f"records that wandb lacks are kept; once this is fixed, run: otel-bridge drain {base}"
    )
    assert rows(base, "trainer/loss") == list(range(50))
    assert drained.returncode == 0, drained.stdout
    assert [row["trainer/step"] for row in server.run(RUN_ID).history] == list(
        range(50)
    )
    assert server.run(RUN_ID).exit_code == 0


@pytest.mark.long
def test_a_server_that_is_away_at_the_end_is_named_with_what_is_left_and_who_goes_on(
    tmp_path: Path, server: WandbServer
) -> None:
    code, base = script(tmp_path / "train.py", BLOCKED), tmp_path / "runs"
    server.answer(503)
    env = {
        **environment(base, OTEL_BRIDGE_EXPORTERS="wandb,file", **server.environment()),
        "OTEL_BRIDGE_QUIET": "0",
    }
    with no_bridge_left(tmp_path):
        done = run(code, env)
        server.heal()
        until(lambda: ended(base) and not bridges(base))

    said = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert re.search(r"wandb is retrying with 5\d records to go: ", done.stderr), (
        done.stderr
    )
    assert said.endswith(
        f"a process in the background continues to deliver the rest; watch it with: otel-bridge status --watch {base}"
    )
    assert [row["trainer/step"] for row in server.run(RUN_ID).history] == list(
        range(50)
    )


@pytest.mark.long
def test_the_next_init_that_has_the_key_takes_a_blocked_run_over(
    tmp_path: Path, server: WandbServer
) -> None:
    base = tmp_path / "runs"
    waiting = script(
        tmp_path / "train.py", BLOCKED.rstrip() + "\nimport sys\nsys.stdin.read()\n"
    )
    other = script(tmp_path / "other.py", BLOCKED.replace("trainer", "explorer"))
    env = _without_key(base, server)
    with no_bridge_left(tmp_path):
        job = start(waiting, env)
        report_when(
            base,
            lambda report: (
                report.exporters.get("wandb")
                and report.exporters["wandb"].state == "blocked"
            ),
        )
        before = bridges(base)

        done = run(other, {**env, "WANDB_API_KEY": KEY})
        job.communicate(b"", timeout=HANG_S)
        until(lambda: ended(base) and not bridges(base))

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert len(before) == 1
    for role in ("trainer", "explorer"):
        axis = f"{role}/step"
        assert [row[axis] for row in server.run(RUN_ID).history if axis in row] == list(
            range(50)
        )


def test_flush_and_finish_wait_no_longer_than_reported_for_a_tracker_that_hangs(
    tmp_path: Path, server: WandbServer
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import time, otel_bridge
        run = otel_bridge.init("ends", "run", role="trainer")
        run.log({"loss": 1.0}, step=0)
        began = time.monotonic()
        assert not run.flush(2)
        run.finish(timeout_s=2)
        assert time.monotonic() - began < 60
        """,
    )
    base = tmp_path / "runs"
    server.hang()
    with no_bridge_left(tmp_path):
        done = run(code, {**_without_key(base, server, "wandb"), "WANDB_API_KEY": KEY})
        server.heal()
        until(lambda: ended(base) and not bridges(base))

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f"a process in the background continues to deliver the rest; watch it with: otel-bridge status --watch {base}"
    )
    assert [row["trainer/step"] for row in server.run(RUN_ID).history] == [0]


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_finish_says_that_delivery_goes_on_while_its_bridge_is_still_starting(
    tmp_path: Path, timeout_s: float
) -> None:
    code = script(
        tmp_path / "train.py",
        f"""
        import otel_bridge
        run = otel_bridge.init("ends", "run")
        run.log({{"loss": 1.0}}, step=0)
        run.finish(timeout_s={timeout_s})
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, {**environment(base), "OTEL_BRIDGE_QUIET": "0"})
        until(lambda: ended(base) and not bridges(base))

    assert (
        "continues to deliver the rest; watch it with: otel-bridge status --watch"
        in done.stderr.splitlines()[-1]
    )
    assert "drain" not in done.stderr
    assert rows(base) == [0]


ENDING = """
import os, sys, otel_bridge
run = otel_bridge.init("ends", sys.argv[1], role=sys.argv[2])
run.log({"loss": 1.0}, step=0)
assert run.flush(300)
exec(sys.argv[3])
"""


@pytest.mark.long
def test_mlflow_shows_how_each_run_ended(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", ENDING), tmp_path / "runs"
    uri = mlflow_reading.database(tmp_path)
    env = environment(base, "mlflow", MLFLOW_TRACKING_URI=uri)
    ways = {
        "FINISHED": [("trainer", "pass"), ("explorer", "raise ValueError")],
        "FAILED": [("trainer", "1 / 0"), ("explorer", "pass")],
        "KILLED": [("trainer", "os.kill(os.getpid(), 9)")],
    }
    codes: dict[str, list[int]] = {}
    with no_bridge_left(tmp_path):
        for name, roles in ways.items():
            jobs = [start(code, env, name, role, ending) for role, ending in roles]
            for job in jobs:
                job.communicate(timeout=HANG_S)
            codes[name] = [job.returncode for job in jobs]
        until(lambda: ended(base) and not bridges(base))

    found = {
        name: RunInfo(run_id_of("ends", name), "ends", name, tmp_path) for name in ways
    }
    statuses = {
        name: [held.info.status for held in mlflow_reading.runs_of(uri, info)]
        for name, info in found.items()
    }
    assert statuses == {name: [name] for name in ways}
    assert codes == {"FINISHED": [0, 1], "FAILED": [1, 0], "KILLED": [-signal.SIGKILL]}


@pytest.mark.long
def test_data_after_the_end_opens_the_run_again_in_mlflow(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", ENDING), tmp_path / "runs"
    uri = mlflow_reading.database(tmp_path)
    env = environment(base, "mlflow", MLFLOW_TRACKING_URI=uri)
    with no_bridge_left(tmp_path):
        first = run(code, env, "again", "trainer", "1 / 0")
        until(lambda: ended(base) and not bridges(base))
        second = run(code, env, "again", "trainer", "run.log({'loss': 2.0}, step=1)")
        until(lambda: ended(base) and not bridges(base))

    info = RunInfo(run_id_of("ends", "again"), "ends", "again", tmp_path)
    contents = mlflow_reading.contents(uri, info)
    assert (first.returncode, second.returncode) == (1, 0), second.stderr
    losses = [
        (one.step, one.value) for one in contents.scalars if one.key == "trainer/loss"
    ]
    assert losses == [(0, 1.0), (0, 1.0), (1, 2.0)]
    assert contents.status is not None
    assert contents.status.value == "finished"
