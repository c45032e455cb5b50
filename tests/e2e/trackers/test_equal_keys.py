"""Two keys of one row that trackers show as one: the last one holds, at once, and the other is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_bridge.journal.report import read_report
from support.trainers.e2e_jobs import (
    environment,
    lines,
    only_folder,
    run,
    script,
    status,
    until,
)

JOB = """
import json, sys, otel_bridge

role, values, other = json.loads(sys.argv[1])
run = otel_bridge.init("keys", "job", role=role or None)
for step in range(5):
    run.log(values, step=step, role=other)
print(run.flush(timeout_s=300))
run.finish(timeout_s=300)
"""


@pytest.mark.parametrize(
    ("role", "values", "other", "shown"),
    [
        ("actor", {"loss": 1.0, "actor/loss": 2.0}, None, {"actor/loss": 2.0}),
        pytest.param(
            "actor",
            {"actor/loss": 2.0, "loss": 1, "lr": 3.0},
            None,
            {"actor/loss": 1, "actor/lr": 3.0},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "actor",
            {"actor": {"loss": 1.0}, "loss": 2.0},
            None,
            {"actor/loss": 2.0},
            marks=pytest.mark.long,
        ),
        ("", {"loss": 1.0, "critic/loss": 2.0}, "critic", {"critic/loss": 2.0}),
        ("actor", {"step": 1.0, "step_value": 2.0}, None, {"actor/step_value": 2.0}),
        ("", {"step": 1.0, "step_value": 2.0}, None, {"step_value": 2.0}),
    ],
)
def test_the_last_of_two_equal_keys_holds_and_no_row_waits(
    tmp_path: Path,
    role: str,
    values: dict[str, float],
    other: str | None,
    shown: dict[str, float],
) -> None:
    base = tmp_path / "runs"
    env = environment(base, OTEL_BRIDGE_ROW_WAIT_S="600")

    done = run(
        script(tmp_path / "train.py", JOB), env, json.dumps([role, values, other])
    )
    until(lambda: status(base))

    report = read_report(only_folder(base))
    rows = [line for line in lines(base) if line["kind"] == "row"]
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert [(row["step"], row["values"]) for row in rows] == [
        (step, shown) for step in range(5)
    ]
    assert report is not None
    assert report.drops == {"same_key": 5}
