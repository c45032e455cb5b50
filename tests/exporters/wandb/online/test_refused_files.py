"""Media whose files W&B refuses: wandb does not report them, `otel-bridge status` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.trackers.wandb_backend.server import WandbServer
from support.trainers.command_runs import (
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    runs,
)
from support.trainers.sweep_runs import FAST

TRAIN = """
    import otel_bridge
    with otel_bridge.init("p", "r") as run:
        for step in range(2):
            run.log({"loss": 1.0, "page": otel_bridge.Html(f"<p>{step}</p>")}, step=step)
"""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (
            "files",
            {"media files that W&B did not take (HTTP 403); their lines are there": 2},
        ),
        ("", {}),
    ],
)
def test_files_that_are_refused_are_counted_by_reason(
    server: WandbServer, tmp_path: Path, what: str, reason: dict[str, int]
) -> None:
    if what:
        server.answer(403, what=what)
    env = environment(tmp_path, **server.environment(), **FAST)

    done = otel_bridge(
        "run",
        "--exporters",
        "wandb",
        "--",
        "python",
        program(tmp_path, "t.py", TRAIN),
        cwd=tmp_path,
        env=env,
    )
    shown = otel_bridge("status", cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    assert report_of(runs(tmp_path)).exporters["wandb"].left_out == reason
    assert all(text in shown.stdout for text in reason)
    assert (
        len(
            [
                row
                for row in server.run(only_folder(runs(tmp_path)).run_id).history
                if "page" in row
            ]
        )
        == 2
    )


def test_addresses_of_files_that_are_refused_are_counted(
    server: WandbServer, tmp_path: Path
) -> None:
    server.answer(403, what="CreateRunFiles")
    env = environment(tmp_path, **server.environment(), **FAST)

    otel_bridge(
        "run",
        "--exporters",
        "wandb",
        "--",
        "python",
        program(tmp_path, "t.py", TRAIN),
        cwd=tmp_path,
        env=env,
    )

    (reason,) = report_of(runs(tmp_path)).exporters["wandb"].left_out
    assert (
        reason
        == "requests to upload files that W&B refused (HTTP 403); media may be missing"
    )
