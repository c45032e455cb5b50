"""The real chain: trainers → agent → gateway → bridge → W&B, MLflow and Trackio, with its parts killed and away.

What the trackers hold is asked of each through its own interface.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status, run_id_of, trace_id_of
from otel_bridge.testing import Contents
from support.collector.otelcol_chain import Chain, chain
from support.trackers import mlflow_reading, trackio_store
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_reading import contents_of
from support.trainers.command_runs import report_of
from support.trainers.e2e_jobs import (
    CLEAN,
    acked,
    ended,
    no_bridge_left,
    script,
    start,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.long

JOB = """
import time
acks, role = Acks(sys.argv[1]), sys.argv[2]
run = otel_bridge.init("chain", sys.argv[3], role=role, config={"lr": 0.1})
step = 0
while not os.path.exists(sys.argv[1] + ".stop"):
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    if step % 20 == 0:
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
        run.log_rollouts([otel_bridge.Rollout(messages, reward=step / 4, id=f"{role}-{step}")], step=step)
    step += 1
    time.sleep(0.03)
run.finish(timeout_s=300)
"""
ROLES = ("trainer", "explorer")
MORE_ROWS = 30
WINDOW_S = 10
"""`OTEL_BRIDGE_ROW_WAIT_S`: rows that come within it are put in order."""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


@pytest.mark.parametrize(
    "away_s",
    [
        3,
        pytest.param(
            60,
            marks=pytest.mark.skipif(
                os.environ.get("CI") != "true",
                reason="the bridge is away for a whole minute: only with CI=true",
            ),
        ),
    ],
)
def test_every_row_arrives_once_in_every_tracker_whatever_is_killed_or_away(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run = f"job-{away_s}"
    uri = mlflow_reading.database(tmp_path)
    trackers = {
        "MLFLOW_TRACKING_URI": uri,
        "WANDB_DIR": str(tmp_path / "wandb"),
        "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
        "OTEL_BRIDGE_WANDB_POLL_S": "0.1",
        **trackio_store.ENVIRONMENT,
        **server.environment(),
    }
    with (
        no_bridge_left(tmp_path),
        chain(tmp_path, "wandb,mlflow,trackio", environment=trackers) as site,
    ):
        jobs = Jobs(tmp_path, site, run)
        jobs.go_on()
        for _ in range(2):
            site.bridges[0].kill()
            jobs.go_on()
            site.bridges[0].start()
            jobs.go_on()
            site.gateway.kill()
            under_way = jobs.logged()
            jobs.go_on()
            site.gateway.start()
            jobs.go_on()
        site.agent.kill()
        jobs.go_on()
        site.agent.start()
        site.bridges[0].kill()
        time.sleep(away_s)
        jobs.go_on()
        site.bridges[0].start()
        logged = jobs.finish()  # behind the backlog, which the ends overtake
        # Each step with a rollout has a row of its statistics.
        rows = sum(logged.values()) + sum(
            len(range(0, steps, 20)) for steps in logged.values()
        )
        until(lambda: report_of(tmp_path / "bridge-0").rows == rows)
        until(lambda: ended(tmp_path / "bridge-0"))
        assert site.bridges[0].stop() == 0

    info = RunInfo(run_id_of("chain", run), "chain", run, tmp_path)
    shown = {
        "mlflow": mlflow_reading.contents(uri, info),
        "wandb": _online(server, info.id),
        "trackio": trackio_store.held(info),
    }
    for name, contents in shown.items():
        for role, steps in logged.items():
            losses = _shown(contents, f"{role}/loss")
            rates = _shown(contents, f"{role}/lr")
            # A killed gateway puts what was under way behind its backlog: beyond the window it stands late, but whole.
            late = under_way[role] if away_s > WINDOW_S else 0
            assert _put_in(losses, late) == [
                (step, step / 2) for step in range(steps)
            ], f"{name}: {role}/loss"
            assert _put_in(rates, late) == [(step, 1e-3) for step in range(steps)], (
                f"{name}: {role}/lr"
            )
            assert contents.config[f"{role}/lr"] == "0.1", name
        rollouts = sorted((one.id, one.reward) for one in contents.rollouts)
        assert rollouts == _rollouts(info.id, logged), f"{name}: rollouts"
        assert contents.status is (None if name == "trackio" else Status.FINISHED), name


class Jobs:
    """A trainer and an explorer, each with a folder of its own, as on machines of their own."""

    def __init__(self, folder: Path, site: Chain, run: str) -> None:
        self._acks = {role: folder / f"{role}.acks" for role in ROLES}
        code = script(folder / "train.py", JOB, acknowledging=True)
        env = {**CLEAN, "OTEL_BRIDGE_QUIET": "1", **site.trainer()}
        self._jobs = {
            role: start(
                code,
                {**env, "OTEL_BRIDGE_DIR": str(folder / f"machine-{role}")},
                str(acks),
                role,
                run,
            )
            for role, acks in self._acks.items()
        }

    def go_on(self) -> None:
        """Wait until each has logged some more rows."""
        goal = {role: len(acked(acks)) + MORE_ROWS for role, acks in self._acks.items()}
        until(
            lambda: all(
                len(acked(self._acks[role])) >= rows for role, rows in goal.items()
            )
        )

    def finish(self) -> dict[str, int]:
        """End them; returns how many rows each logged."""
        for role, job in self._jobs.items():
            Path(f"{self._acks[role]}.stop").touch()
            _, errors = job.communicate(timeout=HANG_S)
            assert job.returncode == 0, (role, errors)
        return self.logged()

    def logged(self) -> dict[str, int]:
        """How many rows each has logged."""
        return {role: len(acked(acks)) for role, acks in self._acks.items()}


def _shown(contents: Contents, key: str) -> list[tuple[int, float]]:
    return [
        (-1 if one.step is None else one.step, one.value)
        for one in contents.scalars
        if one.key == key
    ]


def _put_in(found: list[tuple[int, float]], late: int) -> list[tuple[int, float]]:
    """Put the rows before step *late* that stand behind a later row where they belong; no other is moved."""
    in_time: list[tuple[int, float]] = []
    moved: list[tuple[int, float]] = []
    for step, value in found:
        behind_later = bool(in_time) and step < in_time[-1][0]
        (moved if behind_later and step < late else in_time).append((step, value))
    for one in sorted(moved):
        bisect.insort(in_time, one)
    return in_time


def _rollouts(run_id: str, logged: Mapping[str, int]) -> list[tuple[str, float]]:
    return sorted(
        (trace_id_of(run_id, f"{role}-{step}"), step / 4)
        for role, steps in logged.items()
        for step in range(0, steps, 20)
    )


def _online(server: WandbServer, run_id: str) -> Contents:
    held = server.run(run_id)
    keys = {key for row in held.history for key in row if "rollouts" in key}
    axes = {name: metric.axis for name, metric in held.metrics.items()}
    status = {0: Status.FINISHED, 1: Status.FAILED, 255: Status.KILLED}.get(
        held.exit_code
    )  # type: ignore[arg-type]
    tables = {key: server.table(run_id, key) for key in keys}
    return contents_of(held.history, axes, tables, held.config, status)  # type: ignore[arg-type]
