"""A storm: three roles emit into real trackers while workers, bridges and the service are killed and stopped.

Rounds alternate: programs of one machine with the bridge that they start, or three machines with a service; W&B
offline, or online against the stand-in server. Every round has fresh stores. After it each tracker is read back
through its own API: every row, rollout and late reward that was acknowledged is there exactly once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.collector.service import FREE, OFF, Service
from benchmarks.soak import storm_worker
from benchmarks.soak.storm_truth import Noted, Stores, faults
from support.trackers.wandb_backend.server import WandbServer

ROLES: Mapping[str, float] = {"trainer": 0.05, "explorer": 0.08, "evaluator": 0.15}
"""Role to its mean pause between steps, in seconds."""
ROUND_S = 75.0
_CALM_S = (0.3, 3.0)
_STOPPED_S = (0.2, 3.0)
_END_S = 240.0
_NOT_OURS = (
    "OTEL_",
    "WANDB_",
    "MLFLOW_",
    "TRACKIO_",
    "PYTHONPATH",
    "RANK",
    "WORLD_SIZE",
)


@dataclass
class Round:
    """One round: where it lies, how its workers are started, and what happened."""

    folder: Path
    name: str
    served: bool
    env: dict[str, str]
    chance: random.Random
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    service: Service | None = None
    happened: Counter[str] = field(default_factory=Counter)

    def start_worker(self, role: str) -> None:
        """Start the worker of *role*, or start it again where it died."""
        machine = self.folder / (role if self.served else "machine")
        machine.mkdir(exist_ok=True)
        env = {
            **self.env,
            "OTEL_BRIDGE_DIR": str(machine / "runs"),
            "STORM_NAME": self.name,
        }
        if self.service is not None:
            env["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{self.service.http}"
            env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
            del env["OTEL_BRIDGE_EXPORTERS"]
        call = [
            sys.executable,
            storm_worker.__file__,
            str(self.journal(role)),
            role,
            str(ROLES[role]),
            str(self.stop),
        ]
        with (self.folder / f"{role}.log").open("ab") as log:
            self.workers[role] = subprocess.Popen(
                call, env=env, cwd=machine, stdout=log, stderr=log
            )

    def start_service(self) -> None:
        """Start the service; after a kill at the same address."""
        env = {**self.env, "PATH": os.environ["PATH"]}
        exporters = env.pop("OTEL_BRIDGE_EXPORTERS")
        address = FREE if self.service is None else self.service.http
        self.service = Service(
            self.folder, env, exporters=exporters, grpc=OFF, http=address
        )

    def journal(self, role: str) -> Path:
        """Return the file in which the worker of *role* notes what it did."""
        return self.folder / f"{role}.journal"

    @property
    def stop(self) -> Path:
        """Return the file that shows the workers to finish."""
        return self.folder / "stop"

    def bridges(self) -> list[psutil.Process]:
        """Return the bridges of this round's run folders."""
        mark, found = f"{self.folder}/", []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if (
                "-I" in words
                and any(mark in word for word in words)
                and process.info["status"] != "zombie"
            ):
                found.append(process)
        return found


def storm(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run rounds in *folder* for *seconds*; return what is wrong, one line each."""
    began, number, found = time.monotonic(), 0, []
    while number == 0 or time.monotonic() - began < seconds:
        served, online = bool(number & 1), bool(number & 2)
        own = folder / f"storm-{number}"
        own.mkdir()
        length_s = min(ROUND_S, max(seconds - (time.monotonic() - began), 10.0))
        found += _round(
            own, served=served, online=online, length_s=length_s, seed=seed + number
        )
        number += 1
    return found


def _round(
    folder: Path, *, served: bool, online: bool, length_s: float, seed: int
) -> list[str]:
    with ExitStack() as after:
        server = after.enter_context(WandbServer()) if online else None
        stores = Stores(
            mlflow=f"sqlite:///{folder}/mlflow.db",
            trackio=folder / "trackio",
            wandb_offline=None if online else folder / "wandb",
            wandb_online=server,
        )
        round_ = Round(
            folder,
            folder.name,
            served,
            _environment(folder, stores),
            random.Random(seed),
        )
        after.callback(_kill_all, round_)
        if served:
            round_.start_service()
        for role in ROLES:
            round_.start_worker(role)
        _weather(round_, length_s)
        ended = _calm(round_)
        noted = {role: Noted.read(round_.journal(role)) for role in ROLES}
        counts = {
            role: (len(one.rows), len(one.rollouts), len(one.late))
            for role, one in noted.items()
        }
        where = f"{'service' if served else 'one machine'}, W&B {'online' if online else 'offline'}"
        print(
            f"{folder.name} ({where}): rows, rollouts, late rewards {counts}; {dict(round_.happened)}",
            flush=True,
        )
        return [*ended, *faults(round_.name, stores, noted)]


def _environment(folder: Path, stores: Stores) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_OURS)
    }
    (folder / "wandb").mkdir()
    wandb = (
        {"WANDB_MODE": "offline"}
        if stores.wandb_online is None
        else stores.wandb_online.environment()
    )
    return {
        **clean,
        **wandb,
        "HOME": str(folder),
        "OTEL_BRIDGE_EXPORTERS": "mlflow,trackio,wandb",
        "OTEL_BRIDGE_QUIET": "1",
        "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
        "OTEL_BRIDGE_WANDB_POLL_S": "0.2",
        "MLFLOW_TRACKING_URI": stores.mlflow,
        "TRACKIO_DIR": str(stores.trackio),
        "WANDB_DIR": str(folder / "wandb"),
    }  # fmt: skip


def _weather(round_: Round, length_s: float) -> None:
    """Kill and stop what runs, until *length_s* have passed."""
    deadline = time.monotonic() + length_s
    acts: list[Callable[[Round], None]] = [
        _kill_worker,
        _kill_worker,
        _kill_bridge,
        _kill_bridge,
        _stop_one,
    ]
    if round_.served:
        acts += [_kill_service, _kill_service]
    while time.monotonic() < deadline:
        time.sleep(round_.chance.uniform(*_CALM_S))
        round_.chance.choice(acts)(round_)
        for role, worker in round_.workers.items():
            if worker.poll() is not None:
                round_.start_worker(role)


def _kill_worker(round_: Round) -> None:
    role = round_.chance.choice(sorted(ROLES))
    round_.workers[role].kill()
    round_.workers[role].wait()
    round_.happened["workers killed"] += 1
    time.sleep(round_.chance.choice((0.0, 0.0, 1.5)))


def _kill_bridge(round_: Round) -> None:
    for bridge in round_.bridges():
        with suppress(psutil.Error):
            bridge.kill()
            round_.happened["bridges killed"] += 1


def _kill_service(round_: Round) -> None:
    assert round_.service is not None
    round_.service.kill()
    time.sleep(round_.chance.choice((0.0, 1.0)))
    round_.start_service()
    round_.happened["services killed"] += 1


def _stop_one(round_: Round) -> None:
    """Stop a process for a while, as a swapping or paused machine does."""
    candidates = [
        psutil.Process(worker.pid)
        for worker in round_.workers.values()
        if worker.poll() is None
    ]
    candidates += round_.bridges()
    if round_.service is not None:
        candidates.append(round_.service.process)
    with suppress(psutil.Error, IndexError):
        process = round_.chance.choice(candidates)
        process.suspend()
        round_.happened["stopped"] += 1
        time.sleep(round_.chance.uniform(*_STOPPED_S))
        process.resume()


def _calm(round_: Round) -> list[str]:
    """Let every worker finish and everything be delivered; return what did not come to its end."""
    round_.stop.touch()
    found: list[str] = []
    for role in ROLES:
        if round_.workers[role].poll() is not None:
            round_.start_worker(role)
    for role, worker in round_.workers.items():
        try:
            code = worker.wait(_END_S)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            found.append(
                f"{round_.name}: worker {role} ended with {code}: look at {role}.log"
            )
    deadline = time.monotonic() + _END_S
    for base in sorted(path.parent for path in round_.folder.glob("*/runs")):
        found += _drained(round_, base / "runs", deadline)
    if round_.service is not None:
        code = round_.service.end(timeout_s=_END_S)
        for _ in range(5):
            if code == 0:
                break
            round_.start_service()
            code = round_.service.end(timeout_s=_END_S)
        if code != 0:
            found.append(
                f"{round_.name}: the service ended with {code}: look at service.log"
            )
    return found


def _drained(round_: Round, base: Path, deadline: float) -> list[str]:
    """Wait for the bridge of *base*, then drain what it left."""
    while round_.bridges() and time.monotonic() < deadline:
        time.sleep(0.2)
    env = {**round_.env, "PATH": os.environ["PATH"]}
    if round_.service is not None:
        env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{round_.service.http}",
            "OTEL_BRIDGE_EXPORTERS": "otlp",
        }
        env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    call = [str(Path(sys.executable).with_name("otel-bridge")), "drain", str(base)]
    said = ""
    while time.monotonic() < deadline:
        done = subprocess.run(
            call, env=env, capture_output=True, text=True, cwd=base.parent, check=False
        )
        if done.returncode == 0:
            return []
        said = done.stderr or done.stdout
        time.sleep(1)
    return [f"{round_.name}: {base.parent.name} is not drained: {said.strip()[-300:]}"]


def _kill_all(round_: Round) -> None:
    for worker in round_.workers.values():
        worker.kill()
        worker.wait()
    for bridge in round_.bridges():
        with suppress(psutil.Error):
            bridge.send_signal(signal.SIGCONT)
            bridge.kill()
    if round_.service is not None:
        round_.service.kill()
