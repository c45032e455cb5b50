"""Where a run's records go is remembered, also when its processes are over and their segments deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.locks import probe
from support.bridge.gated_tracker import install
from support.trainers.command_runs import (
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    until,
)

TRAIN = """
import otel_bridge
with otel_bridge.init(project="maths", name="ppo", role="trainer") as run:
    for step in (1, 2, 3):
        run.log({"loss": 1 / step}, step=step)
"""


@pytest.mark.slow
def test_drain_goes_to_the_place_of_a_program_that_is_over_and_read(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    installed = install(tmp_path)
    named = {
        "OTEL_BRIDGE_EXPORTERS": "gated",
        "GATED_FILE": str(there / "out.txt"),
        "GATED_BLOCKED": "1",
    }
    train = program(tmp_path, "train.py", TRAIN)
    call(
        ["python", train, "trainer"],
        cwd=tmp_path,
        env=environment(tmp_path, **{**installed, **named}),
    )
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path) or None, "the bridge's end")
    (there / "gate").touch()

    elsewhere = {key: value for key, value in installed.items() if key != "GATED_FILE"}
    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path, **elsewhere))

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "gated.txt").exists()
    lines = (there / "out.txt").read_text().splitlines()
    assert lines == [
        "trainer/loss 1",
        "trainer/loss 2",
        "trainer/loss 3",
        "end finished",
    ]
