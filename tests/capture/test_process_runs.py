"""Programs that log to two things at a time, of which one is captured: no run replaces the other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.captured_wandb import captured, captured_points, rollouts
from support.trainers.command_runs import (
    environment,
    otel_bridge,
    program,
    runs,
    values,
)
from support.trainers.framework_programs import SLIME

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize("first", ["wandb", "trackio"])
def test_a_program_that_logs_to_wandb_and_to_trackio_has_a_run_of_each(
    tmp_path: Path, first: str
) -> None:
    code = f"""
    import trackio, wandb
    begin = {{
        "wandb": lambda: wandb.init(project="p", name="w"), "trackio": lambda: trackio.init(project="p", name="t")
    }}
    begin.pop("{first}")()
    begin.popitem()[1]()
    for step in range(2):
        wandb.log({{"loss": step}})
        trackio.log({{"reward": step}})
    {first}.finish()
    {"trackio.log({'reward': 2})" if first == "wandb" else "wandb.log({'loss': 2})"}
    """
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="file", WANDB_BASE_URL="http://127.0.0.1:9"
    )
    command = (
        "run",
        "--capture",
        "wandb,trackio",
        "--",
        "python",
        program(tmp_path, "train.py", code),
    )

    done = otel_bridge(*command, cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    found = {
        report.name: values(folder)
        for folder in run_folders(runs(tmp_path))
        if (report := read_report(folder))
    }
    long, short = [(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 1)]
    assert found == {
        "w": {"loss": short if first == "wandb" else long},
        "t": {"reward": long if first == "wandb" else short},
    }


@pytest.mark.long
@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_row_after_the_end_of_the_run_is_not_counted_as_captured(
    tmp_path: Path, tracker: str
) -> None:
    code = f"""
    import atexit, {tracker}

    @atexit.register
    def early():  # registered first, so that it runs last
        run.log({{"loss": 3.0}})

    run = {tracker}.init(project="p", name="one")
    run.log({{"loss": 1.0}})
    run.log({{"loss": 2.0}})
    """
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="file", WANDB_BASE_URL="http://127.0.0.1:9"
    )
    command = (
        "run",
        "--capture",
        tracker,
        "--",
        "python",
        program(tmp_path, "train.py", code),
    )

    done = otel_bridge(*command, cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    table = " ".join(done.stderr.partition("not captured")[2].split())
    assert table == (
        f"{tracker}.log 2 {tracker}.init 1 {tracker}.log after the end of the run 1"
    )


def test_slimes_rollouts_are_in_the_run_of_its_captured_metrics_once(
    tmp_path: Path,
) -> None:
    code = (
        SLIME
        + """
import wandb
args = SimpleNamespace(wandb_project="math", wandb_group="one", reward_key=None)
wandb.init(project="math", group="one", name="one-1234")
wandb.define_metric("rollout/step")
wandb.define_metric("rollout/*", step_metric="rollout/step")
for number in range(2):
    samples = [[Sample(group_index=0, index=index, reward=float(index)) for index in range(2)]]
    assert log_rollouts(number, args, samples) is False
    wandb.log({"rollout/step": number, "rollout/length": number / 2})
"""
    )

    captured(tmp_path, code)

    points = captured_points(tmp_path)
    assert points["rollout/length"] == [(0, 0.0), (1, 0.5)]
    assert points["rollout/lineage/consumed"] == [(0, 2), (1, 2)]
    assert [
        (one["role"], one["step"], one["reward"]) for one in rollouts(tmp_path)
    ] == [("rollout", step, reward) for step in range(2) for reward in (0.0, 1.0)]
