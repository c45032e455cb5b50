"""Clocks that step, runs that are held and drained later, folders on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.e2e_jobs import (
    LOGS,
    bridges,
    command,
    ended,
    environment,
    lines,
    no_bridge_left,
    rows,
    run,
    script,
    start,
    status,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, -0.5])
def test_a_clock_that_steps_keeps_rows_in_order_and_flush_returns(
    tmp_path: Path, step_s: float
) -> None:
    code = script(
        tmp_path / "train.py",
        f"""
        import sys, time
        real, offset = time.time_ns, 0
        time.time_ns = lambda: real() + offset
        import otel_bridge
        run = otel_bridge.init("faults", "clock")
        messages = [{{"role": "user", "content": "2 + 2?"}}, {{"role": "assistant", "content": "4"}}]
        for step in range(100):
            run.log({{"loss": step / 2}}, step=step)
            run.log_rollouts([otel_bridge.Rollout(messages, reward=step / 2, id=f"r{{step}}")], step=step)
            if step == 49:
                assert run.flush(300)
                offset = int({step_s} * 1e9)
        assert run.flush(300)
        run.finish()
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, environment(base))
        until(lambda: ended(base) and not bridges(base))

    found = [
        line
        for line in lines(base)
        if line["kind"] == "row" and "loss" in line["values"]
    ]  # type: ignore[operator]
    times = [int(str(line["time_unix_ns"])) for line in found]
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in found] == list(range(100))
    assert times == sorted(set(times))
    rewards = [
        float(str(line["reward"])) for line in lines(base) if line["kind"] == "rollout"
    ]
    assert rewards == [step / 2 for step in range(100)]
    assert status(base) == ["finished"]


JOB = """
import sys, otel_bridge
role = sys.argv[1]
run = otel_bridge.init("faults", "held", role=role, config={"lr": 0.1, "role": role})
for step in range(40):
    run.log({"loss": step / 2, "nan": float("nan"), "weights": [1.0, 2.0, 4.0]}, step=step)
    batch = []
    for sample in range(6):
        messages = [{"role": "user", "content": f"{sample}?"}, {"role": "assistant", "content": f"{step}"}]
        name, group = f"{role}-{step}-{sample}", f"g{sample % 2}"
        batch.append(otel_bridge.Rollout(messages, reward=sample / 2, id=name, group=group))
    run.log_rollouts(batch, step=step)
    run.log_reward(f"{role}-{step}-0", 9.0, name="judge")
run.log_config({"batch": 8})
run.finish(status="failed" if role == "explorer" else "finished")
"""


def test_a_run_held_and_drained_reads_like_a_live_one(tmp_path: Path) -> None:
    code = script(tmp_path / "train.py", JOB)
    live, held = tmp_path / "live", tmp_path / "held"
    with no_bridge_left(tmp_path):
        for base, hold in ((live, "0"), (held, "1")):
            env = environment(
                base, OTEL_BRIDGE_OFFLINE=hold, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4"
            )
            jobs = [start(code, env, role) for role in ("trainer", "explorer")]
            for job in jobs:
                _, errors = job.communicate(timeout=HANG_S)
                assert job.returncode == 0, errors
        until(lambda: ended(live) and not bridges(live))
        assert (bridges(held), lines(held)) == ([], [])

        drained = command(
            "drain",
            held,
            env=environment(held, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4"),
            cwd=tmp_path,
        )

    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert _records(held) == _records(live)
    counts = {
        kind: len(found) for (_, kind), found in _records(held).items() if kind != "end"
    }
    assert counts
    assert (
        sum(
            len(found)
            for (_, kind), found in _records(held).items()
            if kind == "rollout"
        )
        == 2 * 40 * 4
    )


def _records(base: Path) -> dict[tuple[object, object], list[dict[str, object]]]:
    """What was delivered, by role and kind, in order, less what differs from one run of a script to the next."""
    found: dict[tuple[object, object], list[dict[str, object]]] = {}
    for line in lines(base):
        if line["kind"] == "config":
            continue  # written again at each open; the last of each role is compared below
        kept = {
            key: value
            for key, value in line.items()
            if not key.endswith("_unix_ns") and key != "position"
        }
        if line["kind"] != "rollout":
            kept.pop("id", None)
        else:
            kept["spans"] = [
                {
                    key: value
                    for key, value in span.items()
                    if key not in {"id", "parent_id"} and "_unix_ns" not in key
                }
                for span in line["spans"]  # type: ignore[attr-defined]
            ]
        found.setdefault((line.get("role"), line["kind"]), []).append(kept)
    for line in lines(base):
        if line["kind"] == "config":
            found[line["role"], "config"] = [line]
    ends = [key for key in found if key[1] == "end"]
    for key in ends:
        found[key] = found[key][-1:]
    return found


def test_on_a_network_file_system_the_run_folders_are_elsewhere_and_that_is_said(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw - nfs4 server:/home rw\n"
    )
    code = script(
        tmp_path / "train.py",
        f"""
        from pathlib import Path
        import otel_bridge.journal.machine
        otel_bridge.journal.machine._MOUNTINFO = Path({str(mounts)!r})
        """
        + LOGS.replace("\n", "\n        "),
    )
    env = environment(Path("/nowhere"), OTEL_BRIDGE_QUIET="0")
    env.pop("OTEL_BRIDGE_DIR")
    local = tmp_path_factory.mktemp("local")
    with no_bridge_left(local):
        done = run(code, {**env, "XDG_STATE_HOME": str(local)})
        until(lambda: ended(next((local / "otel-bridge").iterdir())))
        (base,) = (local / "otel-bridge").iterdir()
        got = rows(base)

    assert done.returncode == 0, done.stderr
    assert (
        f"{tmp_path}/.otel-bridge is on nfs4, so run folders are in {base}"
        in done.stderr
    )
    assert got == list(range(20))
