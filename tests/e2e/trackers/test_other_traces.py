"""Traces that are not rollouts: `file` and `console` show them, the trackers do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.e2e_jobs import command, environment, lines, run, script

SERVE = """
import otel_bridge
from opentelemetry import trace

with otel_bridge.init("web", "one", role="server", otel=True) as run:
    tracer = trace.get_tracer("app")
    with tracer.start_as_current_span("GET /health"):
        with tracer.start_as_current_span("SELECT"):
            pass
    with run.rollout(step=1) as rollout:
        rollout.reward = 1.0
"""


@pytest.mark.parametrize("held", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_span_of_the_application_is_a_line_of_the_file(
    tmp_path: Path, held: bool
) -> None:
    base = tmp_path / "runs"
    env = environment(base, "file", **({"OTEL_BRIDGE_OFFLINE": "1"} if held else {}))

    done = run(script(tmp_path / "serve.py", SERVE), env)
    drained = (
        command("drain", base, env=environment(base, "file"), cwd=tmp_path)
        if held
        else done
    )

    assert (done.returncode, drained.returncode) == (0, 0), done.stderr + drained.stderr
    found = [line for line in lines(base) if line["kind"] in {"trace", "rollout"}]
    assert sorted(
        (line["kind"], [span["name"] for span in line["spans"]]) for line in found
    ) == [
        ("rollout", ["rollout"]),
        ("trace", ["GET /health", "SELECT"]),
    ]
