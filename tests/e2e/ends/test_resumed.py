"""A job that crashed at step 154 goes on from its checkpoint at step 100: both attempts are shown in each tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from support.trackers import shown_runs
from support.trainers.e2e_jobs import (
    ended,
    environment,
    lines,
    no_bridge_left,
    run,
    script,
    until,
)

JOB = """
import os, signal, sys
import otel_bridge
first, last = int(sys.argv[1]), int(sys.argv[2])
run = otel_bridge.init("rewound", "job", role="trainer", config={"lr": 0.1})
for step in range(first, last + 1):
    run.log({"loss": step / 2}, step=step)
messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
run.log_rollouts([otel_bridge.Rollout(messages, reward=float(last))], step=last)
if last == 154:
    os.kill(os.getpid(), signal.SIGKILL)
run.finish(timeout_s=300)
"""


@pytest.mark.long
def test_a_job_that_goes_back_to_its_checkpoint_shows_both_attempts_in_every_tracker(
    tmp_path: Path,
) -> None:
    base, tracked = tmp_path / "runs", tmp_path / "trackers"
    uri = f"sqlite:///{tracked / 'mlflow.db'}"
    env = environment(
        base, "wandb,mlflow,trackio,file", WANDB_MODE="offline", WANDB_DIR=str(tracked), MLFLOW_TRACKING_URI=uri,
        TRACKIO_DIR=str(tracked / "trackio"),
    )  # fmt: skip
    tracked.mkdir()
    file = script(tmp_path / "train.py", JOB)
    with no_bridge_left(tmp_path):
        run(file, env, "150", "154")
        again = run(file, env, "100", "103")
        until(lambda: ended(base))

    info = RunInfo(run_id_of("rewound", "job"), "rewound", "job", tmp_path)
    steps = [*range(150, 155), *range(100, 104)]
    # Of rows and, at the last step, of the statistics of its rollouts.
    attempts = [("trainer/attempt", step, 2.0) for step in (*range(100, 104), 103)]
    wanted = sorted([("trainer/loss", step, step / 2) for step in steps] + attempts)
    shown = {
        "wandb": shown_runs.wandb_offline(tracked, info.id),
        "mlflow": shown_runs.mlflow(uri, info),
        "trackio": shown_runs.trackio(tracked / "trackio", info),
    }
    held = [
        line
        for line in lines(base)
        if line["kind"] == "row" and "loss" in str(line["values"])
    ]
    names = ("trainer/loss", "trainer/attempt")
    assert (again.returncode, again.stderr.count("Traceback")) == (0, 0)
    assert [line["attempt"] for line in held] == [1] * 5 + [2] * 4
    assert {
        name: sorted(
            (key, step, float(value))
            for key, step, value in one.scalars
            if key in names
        )
        for name, one in shown.items()
    } == dict.fromkeys(shown, wanted)
    rewards = {
        name: sorted(rollout.reward or 0.0 for rollout in one.rollouts.values())
        for name, one in shown.items()
    }
    assert rewards == {name: [103.0, 154.0] for name in shown}
    assert {
        name: one.config.get("trainer/attempt") for name, one in shown.items()
    } == dict.fromkeys(shown, "2")


ONE_PROCESS = """
import otel_bridge
for name, first in (("one", 0), ("two", 0), ("one", 3), ("two", 1)):
    run = otel_bridge.init("again", name, role="trainer", config={"lr": 0.1})
    for step in range(first, first + 3):
        run.log({"loss": step / 2}, step=step)
    run.finish(timeout_s=300)
"""


@pytest.mark.long
def test_runs_begun_and_resumed_in_one_process_are_further_attempts_only_where_they_go_back(
    tmp_path: Path,
) -> None:
    base, tracked = tmp_path / "runs", tmp_path / "trackers"
    uri = f"sqlite:///{tracked / 'mlflow.db'}"
    env = environment(
        base,
        "mlflow,trackio",
        MLFLOW_TRACKING_URI=uri,
        TRACKIO_DIR=str(tracked / "trackio"),
    )
    tracked.mkdir()
    with no_bridge_left(tmp_path):
        done = run(script(tmp_path / "train.py", ONE_PROCESS), env)
        until(lambda: ended(base))

    assert done.returncode == 0, done.stderr
    wanted = {
        "one": ([("trainer/loss", step, step / 2) for step in range(6)], None),
        "two": (
            [("trainer/attempt", step, 2.0) for step in (1, 2, 3)]
            + [("trainer/loss", step, step / 2) for step in (0, 1, 1, 2, 2, 3)],
            "2",
        ),
    }
    for name, expected in wanted.items():
        info = RunInfo(run_id_of("again", name), "again", name, tmp_path)
        for shown in (
            shown_runs.mlflow(uri, info),
            shown_runs.trackio(tracked / "trackio", info),
        ):
            scalars = sorted(
                (key, step, float(value)) for key, step, value in shown.scalars
            )
            assert (scalars, shown.config.get("trainer/attempt")) == expected
