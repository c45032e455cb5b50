"""An asynchronous RL job whose bridge and workers are killed: each figure in three trackers is what numpy says.

Two trainer ranks draw from a replay buffer that three explorers fill, with weights up to two steps old. What each
process did stands in its own file; the numbers of a rollout follow from its id.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_bridge.emit.bridge_process.spawn import start_bridge
from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from otel_bridge.testing import Contents
from support.trackers import mlflow_reading, trackio_store
from support.trackers.wandb_reading import offline_contents
from support.trainers import e2e_jobs as job
from support.waiting import HANG_S

pytestmark = pytest.mark.long

RANKS = 2
EXPLORERS = 3
STEPS = 40
KILLS_OF_BRIDGES = 8
RUN_ID = run_id_of("rl", "job")

NUMBERS = """
import zlib
import numpy as np

def numbers(rollout_id):
    \"\"\"Return reward, and log-probabilities of engine and trainer, entropies, masks of a rollout.\"\"\"
    draw = np.random.default_rng(zlib.crc32(rollout_id.encode()))
    tokens = int(draw.integers(1, 40))
    engine = -draw.exponential(1.0, tokens).astype(np.float32)
    trainer = (engine + draw.normal(0, 0.3, tokens)).astype(np.float32)
    entropies = draw.exponential(1.0, tokens).astype(np.float32)
    return float(draw.random()), engine, trainer, entropies, draw.random(tokens) < 0.1
"""
EXPLORER = (
    NUMBERS
    + """
import json, os, sys, time
from pathlib import Path
import otel_bridge

folder, name, lag = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = otel_bridge.init("rl", "job", role="explorer")
truth = open(folder / f"{name}.rollouts", "a")
number = 0
while not (folder / "stop").exists():
    weights = max(0, len(list(folder.glob("go-*"))) - 1 - lag)  # the step that trains
    rollout_id = f"{name}-{number}"
    reward, engine, *_ = numbers(rollout_id)
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    turns = [{"logprobs": engine.tolist()}]
    rollout = otel_bridge.Rollout(messages, reward=reward, id=rollout_id, policy_version=weights, turns=turns)
    run.log_rollouts([rollout], step=weights)
    truth.write(json.dumps([rollout_id, weights]) + "\\n")
    truth.flush()
    number += 1
    time.sleep(0.02 * (lag + 1))
run.finish(timeout_s=0)
"""
)
TRAINER = (
    NUMBERS
    + """
import json, os, random, sys, time
from pathlib import Path
import otel_bridge

folder, steps, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
run = otel_bridge.init("rl", "job", role="trainer")
truth = open(folder / f"{rank}.batches", "a")
draw = random.Random(rank)

def buffer():
    \"\"\"Return the newest rollouts of this rank's half that explorers have recorded.\"\"\"
    lines = [line for file in sorted(folder.glob("*.rollouts")) for line in file.read_text().splitlines(True)]
    ids = [json.loads(line)[0] for line in lines if line.endswith("\\n")]
    return [one for one in ids if int(one.rpartition("-")[2]) % 2 == rank][-200:]

for step in range(1, steps + 1):
    while not (folder / f"go-{step}").exists() or len(buffer()) < 16:
        time.sleep(0.01)
    with run.phase("train", step=step):
        batch = draw.sample(buffer(), 16)
        _, _, trainer, entropies, masks = zip(*map(numbers, batch))
        run.train_on(step, batch)
        run.annotate(batch, step=step, trainer_logprobs=trainer, entropies=entropies, is_masked=masks)
        loss, tokens = draw.gauss(0, 1), sum(map(len, trainer))
    run.log({"loss": loss, "tokens": tokens}, step=step, reduce={"tokens": "sum", "loss": ("mean", tokens)})
    truth.write(json.dumps([step, batch, loss, tokens]) + "\\n")
    truth.flush()
run.finish(timeout_s=0)
"""
)


def _lines(files: Iterable[Path]) -> list[Any]:
    return [
        json.loads(line) for file in files for line in file.read_text().splitlines()
    ]


def test_figures_of_an_asynchronous_job_equal_numpy_in_three_trackers_after_ten_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    truth = tmp_path / "truth"
    truth.mkdir()
    uri = mlflow_reading.database(tmp_path)
    env = job.environment(
        tmp_path / "runs",
        "trackio,mlflow,wandb",
        MLFLOW_TRACKING_URI=uri,
        WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path / "wandb"),
        OTEL_BRIDGE_RANKS="merge",
        OTEL_BRIDGE_END_GRACE_S="20",
        **trackio_store.ENVIRONMENT,
    )

    with job.no_bridge_left(tmp_path / "runs"):
        killed = _train(tmp_path, truth, env)
        job.until(lambda: job.ended(tmp_path / "runs"), HANG_S)
        job.until(lambda: not job.bridges(tmp_path / "runs"))

    assert killed == KILLS_OF_BRIDGES + 2
    expected = _expected(truth)
    info = RunInfo(RUN_ID, "rl", "job", tmp_path)
    contents = {
        "trackio": trackio_store.held(info),
        "mlflow": mlflow_reading.contents(uri, info),
        "wandb": offline_contents(tmp_path / "wandb", RUN_ID),
    }
    for tracker, shown in contents.items():
        _compare(tracker, shown, expected)
        assert _repeated(shown, "trainer/loss") == [], tracker
    report = job.report_when(tmp_path / "runs", lambda report: report.ended)
    assert report.drops == {}


def _train(tmp_path: Path, truth: Path, env: dict[str, str]) -> int:
    """Run the job to its end, with kills between its steps; return how many processes were killed."""
    chance = random.Random(3)
    explorer = job.script(tmp_path / "work" / "explorer.py", EXPLORER)
    trainer = job.script(tmp_path / "work" / "trainer.py", TRAINER)
    explorers = [
        job.start(explorer, env, str(truth), f"w{lag}", str(lag))
        for lag in range(EXPLORERS)
    ]
    ranked = {**env, "WORLD_SIZE": str(RANKS)}
    ranks = [
        job.start(trainer, {**ranked, "RANK": str(rank)}, str(truth), str(STEPS))
        for rank in range(RANKS)
    ]
    killed = 0
    of_bridges = set(chance.sample(range(2, STEPS), KILLS_OF_BRIDGES))
    of_workers = {STEPS // 3: 1, STEPS // 2: 2}
    for step in range(1, STEPS + 1):
        (truth / f"go-{step}").touch()
        if step in of_workers:
            lag = of_workers[step]
            explorers[lag].kill()
            explorers[lag].wait()
            explorers[lag] = job.start(
                explorer, env, str(truth), f"again-{lag}", str(lag)
            )
            killed += 1
        if step in of_bridges:
            time.sleep(chance.uniform(0.0, 1.0))
            killed += _kill_bridge(tmp_path / "runs", env)
        job.until(lambda step=step: _has_trained(truth, step))
    (truth / "stop").touch()
    for process in [*ranks, *explorers]:
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
    return killed


def _has_trained(truth: Path, step: int) -> bool:
    files = [truth / f"{rank}.batches" for rank in range(RANKS)]
    return all(file.exists() and file.read_text().count("\n") >= step for file in files)


def _kill_bridge(base: Path, env: dict[str, str]) -> int:
    """Kill the bridge, with its exporters' helpers, and start the next one; return 1.

    A worker that begins meanwhile may have started another; of two bridges one ends at once.
    """
    killed = set(job.until(lambda: job.bridges(base)))
    for process in killed:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    job.until(
        lambda: killed.isdisjoint(job.bridges(base))
    )  # one that still dies holds the lock
    start_bridge(job.only_folder(base), {**job.CLEAN, **env})
    return 1


def _expected(truth: Path) -> dict[str, dict[int, float]]:
    """Return key to step to value, of what the processes wrote down."""
    scope: dict[str, Any] = {}
    exec(NUMBERS, scope)  # the function of the job
    numbers = scope["numbers"]
    weights = dict(_lines(truth.glob("*.rollouts")))
    batches = _lines(truth / f"{rank}.batches" for rank in range(RANKS))
    expected: dict[str, dict[int, float]] = defaultdict(dict)
    uses = Counter[str]()
    for step in range(1, STEPS + 1):
        of_ranks = [line for line in batches if line[0] == step]
        ids = [rollout_id for _, batch, _, _ in of_ranks for rollout_id in batch]
        uses.update(ids)
        losses = np.array([loss for _, _, loss, _ in of_ranks])
        tokens = np.array([number for _, _, _, number in of_ranks])
        rewards, *streams = zip(*map(numbers, ids), strict=True)
        engine, trainer, entropies, masks = map(np.concatenate, streams)
        engine, trainer = engine.astype(float), trainer.astype(float)
        mismatch = np.abs(engine - trainer)
        staleness = [step - weights[rollout_id] for rollout_id in ids]
        used = [uses[rollout_id] for rollout_id in ids]
        ratio = trainer - engine
        values = {
            "loss": np.average(losses, weights=tokens),
            "tokens": tokens.sum(),
            "lineage/consumed": len(ids),
            "lineage/staleness/mean": np.mean(staleness),
            "lineage/staleness/max": max(staleness),
            "lineage/uses/mean": np.mean(used),
            "lineage/uses/max": max(used),
            "lineage/reward/consumed": np.mean(rewards),
            "tokens/rollouts": len(ids),
            "tokens/count": len(engine),
            "tokens/mismatch/k1": (engine - trainer).mean(),
            "tokens/mismatch/k3": (np.exp(ratio) - 1 - ratio).mean(),
            "tokens/mismatch/mean": mismatch.mean(),
            "tokens/mismatch/max": mismatch.max(),
            "tokens/mismatch/beyond": (mismatch > 0.5).mean(),
            "tokens/logprob/trainer": trainer.mean(),
            "tokens/entropy": entropies.astype(float).mean(),
            "tokens/masked": masks.mean(),
        }
        for key, value in values.items():
            expected[key][step] = float(value)
    return expected


def _compare(
    tracker: str, contents: Contents, expected: dict[str, dict[int, float]]
) -> None:
    """Require the last value of each key and step; a later row of a step replaces an earlier one."""
    shown: dict[str, dict[int, float]] = defaultdict(dict)
    for scalar in contents.scalars:
        if scalar.step is not None:
            shown[scalar.key][scalar.step] = scalar.value
    for key, of_steps in expected.items():
        assert shown[f"trainer/{key}"] == pytest.approx(of_steps, rel=1e-5, abs=1e-7), (
            f"{tracker}: {key}"
        )
    assert set(shown["trainer/time/train"]) == set(range(1, STEPS + 1)), tracker


def _repeated(contents: Contents, key: str) -> list[int | None]:
    counts = Counter(scalar.step for scalar in contents.scalars if scalar.key == key)
    return [step for step, count in counts.items() if count > 1]
