"""Eight ranks of torchrun: merged rows equal numpy over all ranks in three trackers, and the slow rank is named."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import mlflow_reading, trackio_store
from support.trackers.wandb_reading import offline_contents
from support.trainers import e2e_jobs as job
from support.trainers.framework_runs import NEEDS_REAL, REAL
from support.waiting import HANG_S

pytestmark = [*NEEDS_REAL, pytest.mark.long]

WORLD = 8
STEPS = 10
SLOW = 3
RUN_ID = run_id_of("maths", "ppo")
RANK = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import otel_bridge

folder, steps, slow = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(rank)
run = otel_bridge.init("maths", "ppo", role="trainer")
logged = []
for step in range(steps):
    with run.phase("generate", step=step):
        tokens = int(torch.randint(1, 900, (), generator=draw))
        data = torch.randn(tokens, 4, generator=draw)
        time.sleep(1.0 if rank == slow else 0.0)
        while step == steps - 1 and rank == slow and not (folder / "go").exists():
            time.sleep(0.05)
    with run.phase("train", step=step):
        optimizer.zero_grad()
        loss = (model(data).sum(1) - 1).square().mean()
        loss.backward()  # each rank waits here for the slow one
        optimizer.step()
    seen = {"loss": loss.item(), "tokens": tokens, "lr": 0.1}
    run.log(seen, step, reduce={"tokens": "sum", "loss": ("mean", tokens)})
    logged.append([seen["loss"], tokens])
(folder / f"{rank}.json").write_text(json.dumps(logged))
dist.destroy_process_group()
run.finish()
"""


def test_figures_of_eight_ranks_equal_numpy_in_three_trackers_and_the_slow_rank_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    uri = mlflow_reading.database(tmp_path)
    base = tmp_path / "runs"
    env = job.environment(
        base,
        "trackio,mlflow,wandb",
        MLFLOW_TRACKING_URI=uri,
        WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path / "wandb"),
        OTEL_BRIDGE_RANKS="merge",
        OMP_NUM_THREADS="1",
        **trackio_store.ENVIRONMENT,
    )
    truth = tmp_path / "truth"
    truth.mkdir()

    with job.no_bridge_left(base):
        ranks = _start(tmp_path, env, [str(truth), str(STEPS), str(SLOW)])
        awaited = f"trainer: rank {SLOW} delays {WORLD - 1} rank"
        job.until(lambda: awaited in _shown(env, tmp_path, "status"), HANG_S)
        (truth / "go").touch()
        _, errors = ranks.communicate(timeout=HANG_S)
        assert ranks.returncode == 0, errors
        job.until(lambda: job.ended(base), HANG_S)

    assert f"the others wait for rank {SLOW}" in _shown(env, tmp_path, "status")
    bars = _shown(env, tmp_path, "timeline", RUN_ID)
    # On a busy machine another rank may be slower in a step.
    assert bars.count(f"rank {SLOW}: ") >= STEPS // 2, bars
    expected = _expected(truth)
    info = RunInfo(RUN_ID, "maths", "ppo", tmp_path)
    contents = {
        "trackio": trackio_store.held(info),
        "mlflow": mlflow_reading.contents(uri, info),
        "wandb": offline_contents(tmp_path / "wandb", RUN_ID),
    }
    for tracker, held in contents.items():
        values: dict[str, dict[int, float]] = defaultdict(dict)
        for scalar in held.scalars:
            if scalar.step is not None:
                values[scalar.key][scalar.step] = scalar.value
        for key, of_steps in expected.items():
            assert values[f"trainer/{key}"] == pytest.approx(of_steps, rel=1e-6), (
                tracker,
                key,
            )
    assert job.report_when(base, lambda report: report.ended).drops == {}


def _start(
    folder: Path, env: dict[str, str], arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start the ranks."""
    file = job.script(folder / "work" / "train.py", RANK)
    options = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={WORLD}",
    ]
    return job.start_command([REAL, *options, str(file), *arguments], env, file.parent)


def _shown(env: dict[str, str], folder: Path, *arguments: str) -> str:
    """What a command of otel-bridge prints."""
    return job.command(*arguments, env=env, cwd=folder).stdout


def _expected(truth: Path) -> dict[str, dict[int, float]]:
    """Return key to step to value, of what the ranks wrote down."""
    files = [truth / f"{rank}.json" for rank in range(WORLD)]
    logged: Any = np.array([json.loads(file.read_text()) for file in files])
    expected: dict[str, dict[int, float]] = defaultdict(dict)
    for step in range(STEPS):
        loss = logged[:, step, 0]
        tokens = logged[:, step, 1]
        values = {
            "ranks": WORLD,
            "loss": np.average(loss, weights=tokens),
            "loss/min": loss.min(),
            "loss/max": loss.max(),
            "tokens": tokens.sum(),
            "tokens/mean": tokens.mean(),
            "lr": 0.1,
            "time/ranks": WORLD,
        }
        for key, value in values.items():
            expected[key][step] = float(value)
    return expected
