"""SIGKILL of the bridge while traces are half there: their spans lie in its ledger, their roots have not ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_bridge.emit.bridge_process.spawn import start_bridge
from otel_bridge.records import run_id_of, trace_id_of
from support.trainers.e2e_jobs import (
    CLEAN,
    bridges,
    ended,
    environment,
    lines,
    no_bridge_left,
    only_folder,
    report_when,
    script,
    start,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow

OPEN = 3
JOB = f"""
import os, sys, time
from contextlib import ExitStack
import otel_bridge
run = otel_bridge.init("half", "open", role="trainer")
with ExitStack() as stack:
    rollouts, contexts = [], []
    for number in range({OPEN}):
        rollout = stack.enter_context(run.rollout(step=1, id=str(number)))
        with rollout.chat("m"):
            pass
        rollouts.append(rollout)
        contexts.append(otel_bridge.get_context())
    open(sys.argv[1] + ".half", "w").close()
    while not os.path.exists(sys.argv[1] + ".go"):
        time.sleep(0.01)
    for number, (rollout, context) in enumerate(zip(rollouts, contexts)):
        with otel_bridge.attach_context(context), rollout.tool("t"):
            pass
        rollout.reward = float(number)
run.log_reward("0", 5.0, name="judge")
run.finish(timeout_s=300)
"""


def _kill(base: Path) -> None:
    for pid in bridges(base):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not bridges(base))


def test_a_bridge_killed_over_half_open_traces_shows_each_rollout_whole_and_once(
    tmp_path: Path,
) -> None:
    base, mark = tmp_path / "runs", tmp_path / "job"
    env = environment(base)
    with no_bridge_left(base):
        job = start(script(tmp_path / "train.py", JOB), env, str(mark))
        until(Path(f"{mark}.half").exists)
        report_when(base, lambda report: report.waiting.get("traces") == OPEN)
        _kill(base)
        start_bridge(only_folder(base), {**CLEAN, **env})
        report_when(base, lambda report: report.waiting.get("traces") == OPEN)
        _kill(base)  # the second one, which read them from the ledger

        Path(f"{mark}.go").touch()
        start_bridge(only_folder(base), {**CLEAN, **env})
        _, errors = job.communicate(timeout=HANG_S)
        assert job.returncode == 0, errors
        until(lambda: ended(base))

    run_id = run_id_of("half", "open")
    rollouts = [line for line in lines(base) if line["kind"] == "rollout"]
    found = {str(one["id"]): one for one in rollouts}
    names = {trace_id_of(run_id, str(number)): float(number) for number in range(OPEN)}
    assert sorted(str(one["id"]) for one in rollouts) == sorted(names)
    assert {name: one["reward"] for name, one in found.items()} == names
    for one in rollouts:
        spans: list[dict[str, object]] = one["spans"]  # type: ignore[assignment]
        assert sorted(str(span["name"]) for span in spans) == [
            "chat m",
            "execute_tool t",
            "rollout",
        ]
        assert not one["incomplete"]
