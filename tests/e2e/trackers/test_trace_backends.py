"""Rollouts of a real program arrive at a backend that takes traces only: the ``/v1/traces`` of MLflow's own server."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from support.trackers.mlflow_server import mlflow_server
from support.trainers.command_runs import (
    PYTHON,
    call,
    ended,
    environment,
    only_folder,
    program,
)

TRAIN = """
import otel_bridge

run = otel_bridge.init(project="gsm8k", name="ppo")
for step in range(3):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
    with run.rollout(step=step, group="p17") as rollout:
        with otel_bridge.chat("tiny", input="2 + 2?") as chat:
            chat.output = "4"
        rollout.reward = float(step)
run.finish()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
)
def test_rollouts_arrive_at_the_servers_of_mlflow_which_takes_traces_only(
    tmp_path: Path, variable: str
) -> None:
    of_traces = "TRACES" in variable
    with mlflow_server(tmp_path) as uri:
        client = mlflow.MlflowClient(uri)
        experiment = client.create_experiment("rollouts")
        env = environment(
            tmp_path,
            OTEL_BRIDGE_EXPORTERS="otlp",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_HEADERS=f"x-mlflow-experiment-id={experiment}",
            **{variable: f"{uri}/v1/traces" if of_traces else uri},
        )

        done = call(
            [PYTHON, program(tmp_path, "train.py", TRAIN)], cwd=tmp_path, env=env
        )
        report = ended(tmp_path / ".otel-bridge")
        traces = client.search_traces(locations=[experiment])

    assert done.returncode == 0, done.stderr
    assert sorted(len(trace.data.spans) for trace in traces) == [2, 2, 2]
    assert (report.exporters["otlp"].state, report.drops) == ("idle", {})
    names = [
        sentence.partition(" are not sent")[0]
        for sentence in report.exporters["otlp"].degraded
    ]
    assert names == ([] if of_traces else ["metrics", "logs"])
    assert list(only_folder(tmp_path / ".otel-bridge").segments()) == []
