"""Several rollouts below one span of a program with a stock OpenTelemetry SDK: each a rollout in each real tracker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.testing.contents import Contents
from support.trackers import mlflow_reading, trackio_store, wandb_reading
from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    run_info,
    runs,
)

AGENT = """
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    tracers, loggers = TracerProvider(), LoggerProvider()
    loggers.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter()))
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    judge, tracer = loggers.get_logger("judge"), tracers.get_tracer("agent")
    span = tracer.start_as_current_span
    with span("train", attributes={"rl.step": 7}) as train:
        print(format(train.get_span_context().trace_id, "032x"))
        for n in (1, 2, 3, 4):
            with span("rollout", attributes={} if n == 4 else {"rl.reward": n / 8}):
                for turn in range(n):
                    said = {"gen_ai.prompt": f"question {n}-{turn}", "gen_ai.completion": f"answer {n}-{turn}"}
                    with span("chat policy", attributes={"gen_ai.operation.name": "chat", **said}):
                        pass
                with span(f"execute_tool tool-{n}", attributes={"gen_ai.operation.name": "execute_tool"}):
                    pass
                if n == 4:
                    score = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.875}
                    judge.emit(LogRecord(event_name="gen_ai.evaluation.result", attributes=score))
    loggers.shutdown()
    tracers.shutdown()
"""
"""Four rollouts of one to four turns and a tool; the reward of the last comes as a value for its span."""
REWARDS = {1: 0.125, 2: 0.25, 3: 0.375, 4: 0.875}
SPANS = {
    1: [
        "chat policy",
        "execute_tool tool-1",
        "rollout",
        "train",
    ],  # the first has what belongs to none
    2: ["chat policy"] * 2 + ["execute_tool tool-2", "rollout"],
    3: ["chat policy"] * 3 + ["execute_tool tool-3", "rollout"],
    4: ["chat policy"] * 4 + ["execute_tool tool-4", "rollout"],
}


@pytest.mark.long
def test_each_rollout_of_one_foreign_trace_is_shown_with_its_own_spans_and_reward(
    tmp_path: Path,
) -> None:
    uri = mlflow_reading.database(tmp_path)
    env = environment(
        tmp_path, OTEL_SERVICE_NAME="agent", MLFLOW_TRACKING_URI=uri, TRACKIO_DIR=str(tmp_path / "trackio"),
        WANDB_MODE="offline", WANDB_DIR=str(tmp_path / "store"),
    )  # fmt: skip
    job = program(tmp_path, "agent.py", AGENT)

    done = otel_bridge(
        "run",
        "--exporters",
        "mlflow,trackio,wandb,file",
        "--",
        "python",
        job,
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    report = ended(runs(tmp_path))
    given = {
        name: (one.rollouts, one.dead_letters) for name, one in report.exporters.items()
    }
    assert given == dict.fromkeys(("mlflow", "trackio", "wandb", "file"), (4, 0))
    written = [
        record
        for record in records(only_folder(runs(tmp_path)))
        if record["kind"] == "rollout"
    ]
    numbers = {
        record["id"]: number_of([span["name"] for span in record["spans"]])
        for record in written
    }
    assert numbers[done.stdout.strip()] == 1
    assert {
        numbers[record["id"]]: (record["step"], record["reward"]) for record in written
    } == {number: (7, reward) for number, reward in REWARDS.items()}
    run = run_info(runs(tmp_path))
    held = {
        "mlflow": mlflow_reading.contents(uri, run),
        "trackio": trackio_store.held_in(tmp_path / "trackio", run),
        "wandb": wandb_reading.offline_contents(tmp_path / "store", run.id),
    }
    assert {
        name: rewards(contents, numbers) for name, contents in held.items()
    } == dict.fromkeys(held, REWARDS)
    assert spans_in_mlflow(uri, run, numbers) == SPANS
    assert spans_in_trackio(tmp_path / "trackio", run, numbers) == SPANS


def number_of(names: list[str]) -> int:
    return next(int(name[-1]) for name in names if name.startswith("execute_tool"))


def rewards(contents: Contents, numbers: Mapping[str, int]) -> dict[int, float | None]:
    assert len(contents.rollouts) == len(numbers)
    return {numbers[one.id]: one.reward for one in contents.rollouts}


def spans_in_mlflow(
    uri: str, run: RunInfo, numbers: Mapping[str, int]
) -> dict[int, list[str]]:
    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    traces = api.search_traces(
        locations=[held.info.experiment_id], run_id=held.info.run_id
    )
    return {
        numbers[trace.info.trace_id.removeprefix("tr-")]: sorted(
            span.name for span in trace.data.spans
        )
        for trace in traces
    }


def spans_in_trackio(
    folder: Path, run: RunInfo, numbers: Mapping[str, int]
) -> dict[int, list[str]]:
    traces: list[dict[str, Any]] = trackio_store.traces_in(folder, run)
    return {
        numbers[trace["metadata"]["trace_id"]]: sorted(
            span["name"] for span in trace["spans"]
        )
        for trace in traces
    }
