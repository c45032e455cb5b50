"""Control characters on the wire, in every name and text: no command prints one, and no log holds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from support.trainers.command_runs import BIN, environment, otel_bridge, program, runs

EVIL = "\x1b[31m\x1b]52;c;ZXZpbA==\x07\x9b2J\u202eevil"
SENDER = """
    import os, sys, urllib.request
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    evil = os.environ["EVIL"]

    def named(of_resource):
        names = {"service.name": evil, "rl.project": "p" + evil, "rl.run.name": "n" + evil, "rl.role": "r" + evil}
        for key, value in names.items():
            of_resource.resource.attributes.add(key=key).value.string_value = value
        return of_resource

    def send(signal, request):
        address = f"{os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/{signal}"
        headers = {"Content-Type": "application/x-protobuf"}
        urllib.request.urlopen(urllib.request.Request(address, request.SerializeToString(), headers)).read()

    traces = ExportTraceServiceRequest()
    scope = named(traces.resource_spans.add()).scope_spans.add()
    span = scope.spans.add(name="rollout", trace_id=b"t" * 16, span_id=b"s" * 8)
    span.start_time_unix_nano, span.end_time_unix_nano = 10**18, 10**18 + 5
    span.status.code, span.status.message = 2, evil
    for key, value in {
        "gen_ai.operation.name": "chat", "rl.rollout.id": "id" + evil, "rl.group": evil, "gen_ai.request.model": evil,
        "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "%s"}]}]' % "2 + 2?",
        "gen_ai.output.messages": __import__("json").dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "out" + evil}]}]),
    }.items():
        span.attributes.add(key=key).value.string_value = value
    send("traces", traces)
    metrics = ExportMetricsServiceRequest()
    metric = named(metrics.resource_metrics.add()).scope_metrics.add().metrics.add(name="key" + evil)
    metric.gauge.data_points.add(as_double=3.0, time_unix_nano=10**18)
    send("metrics", metrics)
    logs = ExportLogsServiceRequest()
    scope = named(logs.resource_logs.add()).scope_logs.add()
    record = scope.log_records.add(event_name="rl.config", time_unix_nano=10**18)
    record.body.kvlist_value.values.add(key="config" + evil).value.string_value = evil
    send("logs", logs)
"""


def raw(text: str) -> list[str]:
    """The characters of *text* that a terminal would act on; line breaks are the output's own."""
    return sorted({one for one in text if not one.isprintable() and one != "\n"})


@pytest.mark.long
def test_no_command_and_no_log_has_a_control_character_of_the_wire(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path, EVIL=EVIL, OTEL_BRIDGE_STEP_WATERMARK_S="0.1", OTEL_BRIDGE_TRACE_GRACE_S="0.1",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9", OTEL_BRIDGE_DRAIN_TIMEOUT_S="5",
    )  # fmt: skip
    sender = program(tmp_path, "sender.py", SENDER)
    run = otel_bridge(
        "run",
        "--exporters",
        "console,file,mlflow",
        "--",
        str(BIN / "python"),
        sender,
        cwd=tmp_path,
        env=env,
    )
    said = {"run": run.stdout + run.stderr}
    folders = run_folders(runs(tmp_path))

    for command in (
        ["status"], ["status", "--json"], ["rollouts"], ["rollouts", "--json"], ["rollouts", "--run", "no" + EVIL],
        ["dead-letters", "list"], ["dead-letters", "show", "--json"], ["doctor"],
        ["finish", "n", str(runs(tmp_path))], ["drain", "--discard", "mlflow"],
    ):  # fmt: skip
        done = otel_bridge(
            *command,
            cwd=tmp_path,
            env={**env, "OTEL_BRIDGE_EXPORTERS": "file", "WANDB_ENTITY": EVIL},
        )
        said[" ".join(command)] = done.stdout + done.stderr
    logs = {
        path.name: path.read_text("utf-8")
        for folder in folders
        for path in folder.path.rglob("*.log")
    }

    assert run.returncode == 0, run.stderr
    assert "\\x1b" in said["run"]
    assert "out\\x1b[31m" in said["rollouts"]
    assert {
        name: raw(text) for name, text in {**said, **logs}.items() if raw(text)
    } == {}
