"""SIGKILL of the bridge at any instant loses nothing and doubles nothing, in a test tracker and in the real ones.

What the trackers hold is asked of each through its own interface.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_bridge.emit.bridge_process.spawn import start_bridge
from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status, run_id_of, trace_id_of
from otel_bridge.testing import Contents
from support.bridge.bridge_forks import forked_bridges
from support.trackers import mlflow_reading, trackio_store
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_reading import contents_of, offline_contents
from support.trainers.e2e_jobs import (
    CLEAN,
    acked,
    bridges,
    ended,
    environment,
    no_bridge_left,
    only_folder,
    script,
    start,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.long

KILLS = 300
REAL_KILLS = 8

JOB = """
import time
acks, role, pace_s, every = Acks(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
run = otel_bridge.init("kills", "job", role=role, config={"lr": 0.1})
step = 0
while not os.path.exists(sys.argv[1] + ".stop"):
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    if step % every == 0:
        for sample in (0, 1):
            messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
            rollout = otel_bridge.Rollout(messages, reward=step + sample / 2, id=f"{role}-{step}-{sample}")
            run.log_rollouts([rollout], step=step)
    step += 1
    time.sleep(pace_s)
run.finish(timeout_s=0 if "OTEL_BRIDGE_OFFLINE" in os.environ else 90)
"""
RUN_ID = run_id_of("kills", "job")
ROLLOUTS_EVERY = 20


def _rollout_ids(role: str, steps: int) -> list[str]:
    names = [
        f"{role}-{step}-{sample}"
        for step in range(0, steps, ROLLOUTS_EVERY)
        for sample in (0, 1)
    ]
    return [trace_id_of(RUN_ID, name) for name in names]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    with no_bridge_left(tmp_path):
        yield


# --- a tracker of the test, 300 times ---------------------------------------------------------------------------------
def test_a_bridge_killed_300_times_delivers_each_record_once_and_in_order(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    base, tracker = tmp_path / "runs", tmp_path / "tracker"
    code = script(tmp_path / "train.py", JOB, acknowledging=True)
    env = {
        **environment(base),
        "OTEL_BRIDGE_OFFLINE": "1",
        "OTEL_BRIDGE_SEGMENT_BYTES": "50k",
    }
    roles = ("trainer", "explorer")
    jobs = [
        start(code, env, str(tmp_path / role), role, "0.004", str(ROLLOUTS_EVERY))
        for role in roles
    ]
    until(lambda: all(acked(tmp_path / role) for role in roles))
    with forked_bridges(base, tracker, "durable") as forked:
        for _ in range(KILLS):
            forked.begin()
            time.sleep(chance.uniform(0.0, 0.14))
            forked.kill()
        for role, job in zip(roles, jobs, strict=True):
            (tmp_path / f"{role}.stop").touch()
            assert job.wait(30) == 0
        forked.begin()
        assert forked.ended() == 0

    found = [line.split() for line in tracker.read_text().splitlines()]
    positions, ids = (
        [int(position) for position, _ in found],
        [name for _, name in found],
    )
    durable = {role: len(acked(tmp_path / role)) for role in roles}
    assert positions == sorted(set(positions))
    assert max(Counter(ids).values()) == 1
    rows: dict[str, list[int]] = {}
    for name in ids:
        if name.startswith("m:"):
            _, instance, seq = name.split(":")
            rows.setdefault(instance, []).append(int(seq))
    assert sorted(rows.values()) == sorted(
        list(range(1, durable[role] + 1)) for role in roles
    )
    rollouts = [name for name in ids if ":" not in name]
    assert sorted(rollouts) == sorted(
        one for role in roles for one in _rollout_ids(role, durable[role])
    )
    assert min(durable.values()) > KILLS


# --- the real ones ---------------------------------------------------------------------------------------------------
@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


def _kill(base: Path) -> int:
    """Kill the bridges below *base*; return how many there were."""
    killed = 0
    for pid in bridges(base):
        os.kill(pid, signal.SIGKILL)
        killed += 1
    return killed


def test_real_trackers_hold_each_row_and_rollout_once_after_kills_of_their_bridges(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    uri = mlflow_reading.database(tmp_path)
    local = environment(
        tmp_path / "local",
        "trackio,mlflow,wandb",
        MLFLOW_TRACKING_URI=uri,
        WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path / "wandb"),
        **trackio_store.ENVIRONMENT,
    )
    online = environment(
        tmp_path / "online",
        "wandb",
        WANDB_DIR=str(tmp_path / "wandb-online"),
        OTEL_BRIDGE_WANDB_TRANSMIT_S="1",
        OTEL_BRIDGE_WANDB_POLL_S="0.1",
        **server.environment(),
    )
    code = script(tmp_path / "train.py", JOB, acknowledging=True)
    envs = {"local": local, "online": online}
    with ExitStack() as after:
        for name in envs:
            after.enter_context(no_bridge_left(tmp_path / name))
        arguments = ("trainer", "0.05", str(ROLLOUTS_EVERY))
        jobs = {
            name: start(code, env, str(tmp_path / f"{name}.acks"), *arguments)
            for name, env in envs.items()
        }
        until(lambda: all(acked(tmp_path / f"{name}.acks") for name in envs))
        killed = Counter[str]()
        for _ in range(REAL_KILLS):
            time.sleep(chance.uniform(0.3, 5.5))
            for name, env in envs.items():
                killed[name] += _kill(tmp_path / name)
                until(
                    lambda name=name: not bridges(tmp_path / name)
                )  # one that still dies holds the lock
                start_bridge(only_folder(tmp_path / name), {**CLEAN, **env})
        for name, job in jobs.items():
            (tmp_path / f"{name}.acks.stop").touch()
            _, errors = job.communicate(timeout=HANG_S)
            assert job.returncode == 0, errors
        until(lambda: all(ended(tmp_path / name) for name in envs))
        until(lambda: not any(bridges(tmp_path / name) for name in envs))

    info = RunInfo(RUN_ID, "kills", "job", tmp_path)
    held = {
        "trackio": trackio_store.held(info),
        "mlflow": mlflow_reading.contents(uri, info),
        "wandb offline": offline_contents(tmp_path / "wandb", RUN_ID),
        "wandb online": _online(server),
    }
    assert min(killed.values()) >= REAL_KILLS
    for name, contents in held.items():
        durable = len(
            acked(
                tmp_path / ("online.acks" if name == "wandb online" else "local.acks")
            )
        )
        for key, value in (("loss", lambda step: step / 2), ("lr", lambda step: 1e-3)):
            got = [
                (one.step, one.value)
                for one in contents.scalars
                if one.key == f"trainer/{key}"
            ]
            assert got == [(step, value(step)) for step in range(durable)], (
                f"{name}: {key}"
            )
        ids = [one.id for one in contents.rollouts]
        assert sorted(ids) == sorted(_rollout_ids("trainer", durable)), (
            f"{name}: rollouts"
        )
        assert contents.config["trainer/lr"] == "0.1", name
        assert contents.status is (None if name == "trackio" else Status.FINISHED), name


def _online(server: WandbServer) -> Contents:
    held = server.run(RUN_ID)
    keys = {key for row in held.history for key in row if "rollouts" in key}
    tables: Mapping[str, list[dict[str, object]]] = {
        key: server.table(RUN_ID, key) for key in keys
    }
    axes = {name: metric.axis for name, metric in held.metrics.items()}
    assert held.overwritten == []
    status = {0: Status.FINISHED, 1: Status.FAILED, 255: Status.KILLED}.get(
        held.exit_code
    )  # type: ignore[arg-type]
    return contents_of(held.history, axes, tables, held.config, status)  # type: ignore[arg-type]
