"""Arguments of a captured ``wandb.init()`` -> the run that otel-bridge is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import wandb

from otel_bridge.capture.wandb import arguments
from otel_bridge.emit.config.run_request import RunRequest


@pytest.mark.parametrize(
    ("resume", "at_server"),
    [("never", "never"), ("allow", "allow"), (True, "auto"), ("must", None)],
)
def test_how_a_program_resumes_decides_about_a_run_at_w_and_b_but_must_may_join_a_run_of_here(
    monkeypatch: pytest.MonkeyPatch, resume: object, at_server: str | None
) -> None:
    requests: list[RunRequest] = []
    process_runs = SimpleNamespace(begin=requests.append, environment_of_user=dict)
    monkeypatch.setattr(arguments, "runs", process_runs)

    arguments.begin(arguments.WandbArguments(wandb, {"id": "r1", "resume": resume}))

    assert [(request.id, request.resume) for request in requests] == [("r1", at_server)]
