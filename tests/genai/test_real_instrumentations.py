"""Real GenAI packages against a local model, under ``otel-bridge run``: `make test-genai` makes their environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from openai_server import CANARY, openai_server

from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    runs,
)

PYTHON = os.environ.get("GENAI_PYTHON", "")
PROGRAMS = {
    "openai_v2": 3, "traceloop_openai": 3, "traceloop_langchain": 1, "openinference_openai": 3,
    "openinference_langchain": 1, "pydantic_ai": 1, "mlflow_openai": 1, "mlflow_langchain": 1,
}  # fmt: skip
"""Program of `genai_programs` to the rollouts that it makes."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON,
        reason="GENAI_PYTHON names no environment with the packages: make test-genai",
    ),
]


def run(folder: Path, program: str, **more: str) -> tuple[int, str, str]:
    """Run *program* under the launcher, delivering to files; return the number of rollouts, the files, its output."""
    folder.mkdir(exist_ok=True)
    with openai_server() as model:
        env = environment(
            folder, OPENAI_BASE_URL=model, OPENAI_API_KEY="test", OTEL_BRIDGE_STEP_WATERMARK_S="0.1",
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true", MLFLOW_TRACKING_URI=f"sqlite:///{folder}/m.db",
            OTEL_BRIDGE_TRACE_GRACE_S="0.5", **more,
        )  # fmt: skip
        path = str(Path(__file__).with_name("genai_programs.py"))
        done = otel_bridge(
            "run",
            "--exporters",
            "file",
            "--",
            PYTHON,
            path,
            program,
            cwd=folder,
            env=env,
        )
    assert done.returncode == 0, done.stderr
    report = ended(runs(folder))
    files = (only_folder(runs(folder)).path / "file").glob("*")
    return (
        report.exporters["file"].rollouts,
        "".join(path.read_text("utf-8") for path in files),
        done.stdout,
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_instrumentation_makes_rollouts_with_text_and_none_of_it_when_it_is_off(
    tmp_path: Path, program: str
) -> None:
    rollouts, text, _ = run(tmp_path / "full", program)
    bare, less, _ = run(tmp_path / "off", program, OTEL_BRIDGE_MESSAGE_CONTENT="off")

    assert (rollouts, bare) == (PROGRAMS[program], PROGRAMS[program])
    assert f"{CANARY} answer" in text
    assert CANARY not in less


def test_a_program_that_traces_with_mlflow_keeps_its_traces(tmp_path: Path) -> None:
    _, _, said = run(tmp_path / "run", "mlflow_openai")

    assert "mlflow holds 1 traces with 4 spans" in said
