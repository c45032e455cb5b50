"""SIGKILL of ``otel-bridge serve``, over and over, with the real trackers, while forwarder and raw clients send to it.

What the trackers hold is asked of each through its own interface; what counts is what the clients were answered.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.report import read_report
from otel_bridge.records import Status, run_id_of, trace_id_of
from otel_bridge.testing import Contents
from support.collector.service_senders import Sender
from support.free_ports import free_port
from support.otlp.otlp_samples import RUN
from support.trackers import mlflow_reading, trackio_store
from support.trackers.wandb_reading import offline_contents
from support.trainers.command_runs import BIN
from support.trainers.e2e_jobs import (
    CLEAN,
    acked,
    environment,
    no_bridge_left,
    only_folder,
    script,
    start,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.long

KILLS = 8
ROLLOUTS_EVERY = 20
JOB = """
import time
acks = Acks(sys.argv[1])
run = otel_bridge.init("kills", "forwarded", role="trainer", config={"lr": 0.1})
step = 0
while not os.path.exists(sys.argv[1] + ".stop"):
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    if step % 20 == 0:
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
        run.log_rollouts([otel_bridge.Rollout(messages, reward=step, id=f"r-{step}")], step=step)
    step += 1
    time.sleep(0.05)
run.finish(timeout_s=300)
"""
FORWARDED = run_id_of("kills", "forwarded")


class Service:
    """One service after the other at the same addresses."""

    def __init__(self, cwd: Path, env: dict[str, str]) -> None:
        self.ports = free_port(), free_port()
        self._cwd, self._env = cwd, env
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        addresses = [
            "--grpc",
            f"127.0.0.1:{self.ports[0]}",
            "--http",
            f"127.0.0.1:{self.ports[1]}",
        ]
        call = [
            str(BIN / "otel-bridge"),
            "serve",
            "--exporters",
            "trackio,mlflow,wandb",
            *addresses,
        ]
        with (self._cwd / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                call, cwd=self._cwd, env=self._env, stderr=log
            )

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(150)


@contextmanager
def service(cwd: Path, env: dict[str, str]) -> Iterator[Service]:
    found = Service(cwd, env)
    found.begin()
    try:
        yield found
    finally:
        found.end(signal.SIGKILL)


def test_real_trackers_hold_each_row_that_was_answered_for_once_after_kills_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    chance, uri = random.Random(3), mlflow_reading.database(tmp_path)
    env = {
        **CLEAN,
        "OTEL_BRIDGE_DIR": str(tmp_path / "served"),
        "OTEL_BRIDGE_DRAIN_TIMEOUT_S": "120",
        "MLFLOW_TRACKING_URI": uri,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path / "wandb"),
        **trackio_store.ENVIRONMENT,
    }
    acks = tmp_path / "acks"
    code = script(tmp_path / "train.py", JOB, acknowledging=True)
    with service(tmp_path, env) as served, no_bridge_left(tmp_path):
        grpc, http = served.ports
        senders = [
            Sender("grpc", grpc, "a-grpc", pace_s=0.1),
            Sender("http", http, "a-http", pace_s=0.1),
        ]
        # A slow machine may need longer than a minute behind the last kill: the bridge goes on meanwhile.
        endpoint = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc}",
            "OTEL_BRIDGE_RETRY_AFTER_EXIT_S": "300",
        }
        job = start(
            code, environment(tmp_path / "local", "otlp", **endpoint), str(acks)
        )
        for one in senders:
            one.start()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 5.0))
            assert served.end(signal.SIGKILL) == -signal.SIGKILL
            served.begin()
        # On a busy machine the service may have been killed before it could answer.
        until(lambda: min(one.acknowledged for one in senders) > KILLS)
        Path(f"{acks}.stop").touch()
        for one in senders:
            one.finish()
        _, errors = job.communicate(timeout=HANG_S)
        assert job.returncode == 0, errors
        until(
            lambda: (
                (found := read_report(only_folder(tmp_path / "local"))) is not None
                and found.ended
            )
        )
        code_of_end = served.end(signal.SIGTERM)

    assert code_of_end == 0, (tmp_path / "serve.log").read_text()
    steps = len(acked(acks))
    raw = {
        f"{one.instance}/loss": [
            (seq, seq / 2) for seq in range(1, one.acknowledged + 1)
        ]
        for one in senders
    }
    for name, held in _held(
        tmp_path, uri, RunInfo(RUN, "gsm8k", "ppo", tmp_path)
    ).items():
        assert {key: _values(held, key) for key in raw} == raw, name
        assert held.status is (None if name == "trackio" else Status.FINISHED), name
    for name, held in _held(
        tmp_path, uri, RunInfo(FORWARDED, "kills", "forwarded", tmp_path)
    ).items():
        assert _values(held, "trainer/loss") == [
            (step, step / 2) for step in range(steps)
        ], name
        rollouts = [
            trace_id_of(FORWARDED, f"r-{step}")
            for step in range(0, steps, ROLLOUTS_EVERY)
        ]
        assert sorted(one.id for one in held.rollouts) == sorted(rollouts), name
        assert held.status is (None if name == "trackio" else Status.FINISHED), name
    assert steps > KILLS
    assert all(one.again for one in senders)
    assert os.listdir(tmp_path / "served" / RUN / "segments") == []


def _held(folder: Path, uri: str, info: RunInfo) -> dict[str, Contents]:
    return {
        "trackio": trackio_store.held(info),
        "mlflow": mlflow_reading.contents(uri, info),
        "wandb": offline_contents(folder / "wandb", info.id),
    }


def _values(held: Contents, key: str) -> list[tuple[int | None, float]]:
    return [(one.step, one.value) for one in held.scalars if one.key == key]
