"""Eight ranks log; the trackers' row of each step equals numpy's results over all of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.trainers import e2e_jobs as job
from support.waiting import HANG_S

WORLD = 8
STEPS = 5
RANK = """
    import json, os, random, sys
    from pathlib import Path
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer")
    draw = random.Random(int(os.environ["RANK"]))
    logged = []
    for step in range(5):
        loss, tokens = draw.gauss(0, 1), draw.randrange(1, 900)
        reduce = {"nested/tokens": "sum", "loss": ("mean", tokens)}
        run.log({"loss": loss, "nested": {"tokens": tokens}}, step, reduce=reduce)
        run.log({"lr": 0.1}, step, reduce={"lr": "median"})
        logged.append((loss, tokens))
    Path(sys.argv[1]).write_text(json.dumps(logged))
    run.finish()
"""


def test_rows_of_eight_processes_equal_numpy(tmp_path: Path) -> None:
    base = tmp_path / "base"
    file = job.script(tmp_path / "work" / "job.py", RANK)
    env = job.environment(base, OTEL_BRIDGE_RANKS="merge", WORLD_SIZE=str(WORLD))

    with job.no_bridge_left(base):
        truths = [tmp_path / f"{rank}.json" for rank in range(WORLD)]
        ranks = [
            job.start(file, {**env, "RANK": str(rank)}, str(truths[rank]))
            for rank in range(WORLD)
        ]
        errors = [rank.communicate(timeout=HANG_S)[1].decode() for rank in ranks]
        job.until(lambda: job.ended(base))

    assert all("bad_reduce" in error for error in errors), errors
    logged = np.array([json.loads(truth.read_text()) for truth in truths])
    rows = {
        line["step"]: line["values"]
        for line in job.lines(base)
        if line.get("kind") == "row"
    }
    assert list(rows) == list(range(STEPS))
    for step, values in rows.items():
        loss, tokens = logged[:, step, 0], logged[:, step, 1]  # type: ignore[index]
        assert values == pytest.approx(
            {
                "trainer/ranks": WORLD,
                "trainer/loss": np.average(loss, weights=tokens), "trainer/loss/min": loss.min(),
                "trainer/loss/max": loss.max(), "trainer/loss/sum": loss.sum(),
                "trainer/nested/tokens": tokens.sum(), "trainer/nested/tokens/mean": tokens.mean(),
                "trainer/nested/tokens/min": tokens.min(), "trainer/nested/tokens/max": tokens.max(),
                "trainer/lr": 0.1, "trainer/lr/min": 0.1, "trainer/lr/max": 0.1, "trainer/lr/sum": 0.8,
            },
            rel=1e-12,
        )  # fmt: skip
