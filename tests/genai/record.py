"""Run each program of `genai_programs` with real packages, and write the OTLP requests it sends to tests/golden/genai.

``python tests/genai/record.py PYTHON [CASE…]``: PYTHON is the interpreter of an environment made of requirements.txt.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from openai_server import openai_server, otlp_recorder
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from support.waiting import HANG_S

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "genai"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_LATEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "openai_v2_none": ("openai_v2", {}),
    "openai_v2_events": ("openai_v2", {_CONTENT: "true"}),
    "openai_v2_span_only": ("openai_v2", {**_LATEST, _CONTENT: "SPAN_ONLY"}),
    "openai_v2_event_only": ("openai_v2", {**_LATEST, _CONTENT: "EVENT_ONLY"}),
    "openai_v2_span_and_event": ("openai_v2", {**_LATEST, _CONTENT: "SPAN_AND_EVENT"}),
    "traceloop_openai": ("traceloop_openai", {}),
    "traceloop_openai_events": ("traceloop_openai_events", {}),
    "traceloop_openai_none": ("traceloop_openai", {"TRACELOOP_TRACE_CONTENT": "false"}),
    "traceloop_langchain": ("traceloop_langchain", {}),
    "openinference_openai": ("openinference_openai", {}),
    "openinference_openai_none": (
        "openinference_openai", {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"},
    ),
    "openinference_langchain": ("openinference_langchain", {}),
    "pydantic_ai_1": ("pydantic_ai", {"GENAI_VERSION": "1", "GENAI_ARGUMENTS": '{"event_mode": "logs"}'}),
    "pydantic_ai_2": ("pydantic_ai", {"GENAI_VERSION": "2"}),
    "pydantic_ai_5": ("pydantic_ai", {"GENAI_VERSION": "5"}),
    "pydantic_ai_none": ("pydantic_ai", {"GENAI_ARGUMENTS": '{"include_content": false}'}),
    "mlflow_openai": ("mlflow_openai", {}),
    "mlflow_langchain": ("mlflow_langchain", {}),
}  # fmt: skip


def run(
    python: str, program: str, env: Mapping[str, str], folder: str
) -> subprocess.CompletedProcess[str]:
    """Run one program in a clean environment, its working folder *folder*."""
    clean = {
        name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}
    }
    command: Sequence[str] = (python, str(HERE / "genai_programs.py"), program)
    return subprocess.run(
        command,
        env={**clean, "HOME": folder, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def record(python: str, case: str) -> list[tuple[str, bytes]]:
    """Return the OTLP requests of one case."""
    program, env = CASES[case]
    with (
        openai_server() as model,
        otlp_recorder() as (endpoint, requests),
        tempfile.TemporaryDirectory() as folder,
    ):
        addresses = {"OPENAI_BASE_URL": model, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        addresses |= {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OPENAI_API_KEY": "test",
        }
        done = run(python, program, {**addresses, **env}, folder)
        if done.returncode:
            raise SystemExit(f"{case}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return requests


def without_paths(path: str, body: bytes) -> bytes:
    """Return a request whose stack traces name no file of this machine."""
    if path != "/v1/traces":
        return body
    request = ExportTraceServiceRequest.FromString(body)
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                for event in span.events:
                    for pair in event.attributes:
                        if pair.key == "exception.stacktrace":
                            pair.value.string_value = re.sub(
                                r'File "[^"]*/', 'File "', pair.value.string_value
                            )
    return request.SerializeToString()


def main() -> None:
    """Record the named cases, all by default."""
    GOLDEN.mkdir(exist_ok=True)
    for case in sys.argv[2:] or CASES:
        requests = [
            (path, body)
            for path, body in record(sys.argv[1], case)
            if path in {"/v1/traces", "/v1/logs"}
        ]
        for old in GOLDEN.glob(f"{case}.*.bin"):
            old.unlink()
        for number, (path, body) in enumerate(requests):
            (GOLDEN / f"{case}.{number}.{path.rpartition('/')[2]}.bin").write_bytes(
                without_paths(path, body)
            )
        print(case, [(path, len(body)) for path, body in requests])


if __name__ == "__main__":
    main()
