"""Text to the local tracker, numbers to the others: through W&B, MLflow, Trackio and files as they are on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers import e2e_jobs as job
from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    runs,
)

SECRET = "marmalade-submarine"
JOB = f"""
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer") as run:
        run.log({{"loss": 0.5}}, step=1)
        call = {{"id": "c", "type": "function", "function": {{"name": "find", "arguments": '{{"q": "{SECRET}"}}'}}}}
        messages = [
            {{"role": "user", "content": "say {SECRET}"}},
            {{"role": "assistant", "content": None, "tool_calls": [call]}},
            {{"role": "tool", "tool_call_id": "c", "content": "found {SECRET}"}},
            {{"role": "assistant", "content": "{SECRET}!"}},
        ]
        run.log_rollouts([
            {{"messages": messages, "reward": 0.8125, "metadata": {{"note": "{SECRET}"}}, "id": "r1"}},
            {{"messages": messages, "reward": 0.0625, "error": "failed on {SECRET}"}},
        ], step=1)
        with run.rollout(step=1) as rollout:
            with rollout.tool("find", arguments={{"q": "{SECRET}"}}) as tool:
                tool.result = "{SECRET}"
            with rollout.chat("policy", input="{SECRET}") as chat:
                chat.output = "{SECRET}"
            rollout.reward = 0.5625
        run.flush()
        run.log_reward("r1", 0.4375, name="judge", explanation="because of {SECRET}")
"""
TRACKERS = ("wandb", "mlflow", "trackio", "file")


def places(folder: Path) -> dict[str, Path]:
    run_folder = only_folder(runs(folder)).path
    return {
        "wandb": folder / "wandb", "mlflow": folder / "mlflow.db", "trackio": folder / "trackio",
        "file": run_folder / "file",
    }  # fmt: skip


def holders(folder: Path, text: str) -> set[str]:
    """The trackers in whose files *text* stands."""
    found: set[str] = set()
    for name, place in places(folder).items():
        paths = (
            [place.with_name(place.name + suffix) for suffix in ("", "-wal")]
            if place.suffix
            else place.rglob("*")
        )
        if any(text.encode() in path.read_bytes() for path in paths if path.is_file()):
            found.add(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "allowed", ["trackio", pytest.param("wandb", marks=pytest.mark.long)]
)
def test_text_goes_to_the_one_tracker_that_may_have_it_and_rewards_to_all(
    tmp_path: Path, allowed: str
) -> None:
    off = {
        f"OTEL_BRIDGE_{name.upper()}_MESSAGE_CONTENT": "off"
        for name in TRACKERS
        if name != allowed
    }
    env = environment(
        tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path / "wandb"), TRACKIO_DIR=str(tmp_path / "trackio"),
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db", OTEL_BRIDGE_STEP_WATERMARK_S="0.1", **off,
    )  # fmt: skip
    job = program(tmp_path, "job.py", JOB)

    done = otel_bridge(
        "run",
        "--exporters",
        ",".join(TRACKERS),
        "--",
        "python",
        job,
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    report = ended(runs(tmp_path))
    assert {
        name: (one.rollouts, one.dead_letters) for name, one in report.exporters.items()
    } == dict.fromkeys(TRACKERS, (3, 0))
    assert holders(tmp_path, SECRET) == {allowed}
    assert holders(tmp_path, "0.8125") >= {"wandb", "trackio", "file"}
    assert SECRET not in (only_folder(runs(tmp_path)).path / "report.json").read_text(
        "utf-8"
    )


TOKENS = """
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer")
    run.log({"loss": 0.5}, step=1)
    run.log_rollouts([{"id": "a", "messages": [{"role": "assistant", "content": "SECRETPLAN"}]}], step=1)
    run.annotate("a", step=1, logprobs=[-0.5, -1.0])
    run.finish()
"""


@pytest.mark.parametrize("signal", ["METRICS", "TRACES"])
def test_the_token_view_of_a_rollout_goes_where_its_rollout_goes(
    tmp_path: Path, signal: str
) -> None:
    routes = {f"OTEL_{name}_EXPORTER": "none" for name in ("METRICS", "TRACES", "LOGS")}
    env = job.environment(tmp_path, "", **{**routes, f"OTEL_{signal}_EXPORTER": "file"})
    del env["OTEL_BRIDGE_EXPORTERS"]

    with job.no_bridge_left(tmp_path):
        done = job.run(job.script(tmp_path / "work" / "train.py", TOKENS), env)
        assert done.returncode == 0, done.stderr
        job.until(lambda: job.ended(tmp_path))

    kinds = {str(line["kind"]) for line in job.lines(tmp_path)}
    files = [
        file.read_bytes() for file in tmp_path.glob("*/file/**/*") if file.is_file()
    ]
    goes_there = signal == "TRACES"
    assert ({"media", "rollout"} <= kinds, "row" in kinds) == (
        goes_there,
        not goes_there,
    )
    assert any(b"SECRETPLAN" in file for file in files) == goes_there
