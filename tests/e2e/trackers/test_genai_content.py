"""What real GenAI instrumentations sent, with less than full content: through every tracker as it is on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.journal.report import Report
from support.otlp.genai_golden import CANARY, CASES, FOLDER
from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    runs,
)

TRACKERS = ("wandb", "mlflow", "trackio", "file")
SENDER = """
    import os, sys, urllib.request
    from pathlib import Path
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.resources import OTELResourceDetector

    identity = OTELResourceDetector().detect().attributes

    def send(signal, request):
        for of_resource in (*getattr(request, f"resource_{'spans' if signal == 'traces' else signal}"),):
            for key, value in identity.items():
                of_resource.resource.attributes.add(key=key).value.string_value = str(value)
        address = f"{os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/{signal}"
        headers = {"Content-Type": "application/x-protobuf"}
        urllib.request.urlopen(urllib.request.Request(address, request.SerializeToString(), headers)).read()

    for path in map(Path, sys.argv[1:]):
        signal = path.name.split(".")[2]
        kind = ExportTraceServiceRequest if signal == "traces" else ExportLogsServiceRequest
        send(signal, kind.FromString(path.read_bytes()))

    prompt = os.environ["PROMPT"]
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.add(key="my.prompt").value.string_value = prompt
    for number, operation in enumerate(("chat", None)):  # a rollout, and a trace that is none
        span = of_resource.scope_spans.add().spans.add(name=prompt, trace_id=bytes([number + 1]) * 16, span_id=b"s" * 8)
        span.start_time_unix_nano, span.end_time_unix_nano = 10**18, 10**18 + 5
        if operation:
            span.attributes.add(key="gen_ai.operation.name").value.string_value = operation
        span.attributes.add(key="my.framework.prompt").value.string_value = prompt
        span.attributes.add(key="deep").value.kvlist_value.values.add(key=prompt).value.string_value = prompt
        span.attributes.add(key=prompt).value.int_value = 7
        span.events.add(name=prompt).attributes.add(key="x").value.string_value = prompt
        span.links.add().attributes.add(key="from").value.string_value = prompt
        span.status.code, span.status.message = 2, prompt
    send("traces", request)
    judged = ExportLogsServiceRequest()
    record = judged.resource_logs.add().scope_logs.add().log_records.add(
        event_name="gen_ai.evaluation.result", trace_id=bytes([1]) * 16, span_id=b"s" * 8)
    record.attributes.add(key="gen_ai.evaluation.name").value.string_value = "judge"
    record.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = 0.5
    record.attributes.add(key="gen_ai.evaluation.explanation").value.string_value = prompt
    send("logs", judged)
    measured = ExportMetricsServiceRequest()
    metric = measured.resource_metrics.add().scope_metrics.add().metrics.add(name="tokens")
    point = metric.gauge.data_points.add(as_double=3.0, time_unix_nano=10**18)
    point.attributes.add(key="my.prompt").value.string_value = prompt
    send("metrics", measured)
"""


def stores(folder: Path) -> dict[str, list[Path]]:
    """Each tracker's files."""
    return {
        "wandb": [*(folder / "wandb").rglob("*")],
        "mlflow": [
            *folder.glob("mlflow.db*"),
            *(folder / "mlartifacts").rglob("*"),
            *(folder / "mlruns").rglob("*"),
        ],
        "trackio": [*(folder / "trackio").rglob("*")],
        "file": [*(only_folder(runs(folder)).path / "file").rglob("*")],
    }


def holders(folder: Path, text: str) -> set[str]:
    """The trackers in whose files *text* stands."""
    return {
        name
        for name, paths in stores(folder).items()
        if any(text.encode() in path.read_bytes() for path in paths if path.is_file())
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "canary"),
    [
        ({"OTEL_BRIDGE_MESSAGE_CONTENT": "off"}, CANARY),
        ({"OTEL_BRIDGE_MESSAGE_CONTENT": "truncate:5"}, CANARY),
        (
            {f"OTEL_BRIDGE_{name.upper()}_MESSAGE_CONTENT": "off" for name in TRACKERS},
            CANARY,
        ),
    ],
    ids=["off", "truncated", "off for each tracker"],
)
def test_no_text_of_any_instrumentation_reaches_a_tracker(
    tmp_path: Path, mode: Mapping[str, str], canary: str
) -> None:
    report = delivered(tmp_path, mode)

    assert {
        name: one.dead_letters for name, one in report.exporters.items()
    } == dict.fromkeys(TRACKERS, 0)
    assert min(one.rollouts for one in report.exporters.values()) > len(CASES)
    assert holders(tmp_path, canary) == set()
    assert holders(tmp_path, "policy-2026") == {"mlflow", "trackio", "file"}
    assert canary not in (only_folder(runs(tmp_path)).path / "report.json").read_text(
        "utf-8"
    )


@pytest.mark.long
def test_with_full_content_every_tracker_has_the_texts(tmp_path: Path) -> None:
    delivered(tmp_path, {})

    assert holders(tmp_path, CANARY) == set(TRACKERS)


def delivered(folder: Path, mode: Mapping[str, str]) -> Report:
    env = environment(
        folder, WANDB_MODE="offline", WANDB_DIR=str(folder / "wandb"), TRACKIO_DIR=str(folder / "trackio"),
        MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db", OTEL_BRIDGE_STEP_WATERMARK_S="0.1",
        OTEL_BRIDGE_TRACE_GRACE_S="0.2", OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="1000",
        PROMPT=f"{CANARY} what is the weather?", **mode,
    )  # fmt: skip
    sender = program(folder, "sender.py", SENDER)
    files = [str(path) for path in sorted(FOLDER.glob("*.bin"))]
    command = ["--", "python", sender, *files]

    done = otel_bridge(
        "run", "--exporters", ",".join(TRACKERS), *command, cwd=folder, env=env
    )

    assert done.returncode == 0, done.stderr
    return ended(runs(folder))
