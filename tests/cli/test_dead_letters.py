"""``otel-bridge dead-letters``: what was refused for good is seen, tried again, discarded; with a bridge, without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.journal.locks import probe
from support.bridge.gated_tracker import gated_lines, install
from support.trainers.command_runs import (
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    started,
    until,
)

TRAIN = """
    import pathlib, sys, time
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer") as run:
        for step in (1, 2, 3):
            run.log({"odd" if step == 2 else "loss": step / 2}, step=step)
        while len(sys.argv) > 1 and not pathlib.Path("go").exists():
            time.sleep(0.01)
"""


def _variables(folder: Path) -> dict[str, str]:
    (folder / "gate").touch()
    (folder / "refuse").touch()
    return {"OTEL_BRIDGE_EXPORTERS": "gated,file", **install(folder)}


def _given(*arguments: str, cwd: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in otel_bridge(
            *arguments, "--json", cwd=cwd, env=env
        ).stdout.splitlines()
    ]


@pytest.mark.long
def test_without_a_bridge_a_letter_is_listed_shown_refused_again_and_then_written_before_the_run_ends_again(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, **_variables(tmp_path))
    train = program(tmp_path, "train.py", TRAIN)
    with started(["python", train], cwd=tmp_path, env=env):
        ended(tmp_path / ".otel-bridge")
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the end of the bridge")

    (listed,) = _given("dead-letters", "list", cwd=tmp_path, env=env)
    (shown,) = _given(
        "dead-letters", "show", "--exporter", "gated", cwd=tmp_path, env=env
    )
    line = otel_bridge(
        "dead-letters", "list", cwd=tmp_path, env=env
    ).stdout.splitlines()[1]
    again = otel_bridge("dead-letters", "retry", cwd=tmp_path, env=env)
    (second,) = _given("dead-letters", "list", cwd=tmp_path, env=env)
    (tmp_path / "refuse").unlink()
    written = otel_bridge(
        "dead-letters", "retry", "--id", str(second["id"]), cwd=tmp_path, env=env
    )
    left = otel_bridge("dead-letters", "list", cwd=tmp_path, env=env)

    assert (listed["exporter"], listed["kind"], listed["reason"]) == (
        "gated",
        "row",
        "odd things are not taken here",
    )
    assert shown == {**listed, "record": shown["record"]}
    assert (shown["record"]["step"], shown["record"]["values"]) == (
        2,
        {"trainer/odd": 1.0},
    )
    assert (
        f"  {listed['id']}  gated  row  step 2  trainer  {listed['record_id']}  "
        in line
    )
    assert (again.returncode, again.stdout) == (
        1,
        f"{folder.run_id}: 1 tried, 1 refused again\n",
    )
    assert (second["record_id"], second["id"] > listed["id"]) == (
        listed["record_id"],
        True,
    )
    assert (written.returncode, written.stdout) == (
        0,
        f"{folder.run_id}: 1 tried, 0 refused again\n",
    )
    assert (left.stdout, left.stderr) == ("", "no dead letters\n")
    assert gated_lines(tmp_path)[:3] == [
        "trainer/loss 1",
        "trainer/loss 3",
        "end finished",
    ]
    assert gated_lines(tmp_path)[-2:] == ["trainer/odd 2", "end finished"]
    report = report_of(tmp_path / ".otel-bridge")
    assert (
        report.exporters["gated"].rows,
        report.exporters["gated"].dead_letters,
        report.ended,
    ) == (3, 0, True)


def test_a_running_bridge_is_asked_and_what_was_written_is_written_once(
    tmp_path: Path,
) -> None:
    env, train = (
        environment(tmp_path, **_variables(tmp_path)),
        program(tmp_path, "train.py", TRAIN),
    )
    with started(["python", train, "wait"], cwd=tmp_path, env=env) as process:
        until(
            lambda: (
                _given("dead-letters", "list", cwd=tmp_path, env=env)
                if _has_run(tmp_path)
                else None
            ),
            "a letter",
        )
        (tmp_path / "refuse").unlink()

        done = otel_bridge("dead-letters", "retry", cwd=tmp_path, env=env)

        (tmp_path / "go").touch()
        process.wait(60)
        ended(tmp_path / ".otel-bridge")
    assert (done.returncode, done.stdout.partition(": ")[2]) == (
        0,
        "1 tried, 0 refused again\n",
    )
    assert sorted(gated_lines(tmp_path)) == [
        "end finished",
        "trainer/loss 1",
        "trainer/loss 3",
        "trainer/odd 2",
    ]


def _has_run(folder: Path) -> bool:
    return bool(
        list((folder / ".otel-bridge").glob("*/ledger.sqlite*"))
        or list((folder / ".otel-bridge").glob("*/*.db"))
    )


def test_discarded_letters_are_gone_for_good(tmp_path: Path) -> None:
    env, train = (
        environment(tmp_path, **_variables(tmp_path)),
        program(tmp_path, "train.py", TRAIN),
    )
    with started(["python", train], cwd=tmp_path, env=env):
        ended(tmp_path / ".otel-bridge")
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the end of the bridge")

    none = otel_bridge(
        "dead-letters", "discard", "--exporter", "file", cwd=tmp_path, env=env
    )
    done = otel_bridge("dead-letters", "discard", "--run", "ppo", cwd=tmp_path, env=env)

    assert (none.returncode, none.stderr) == (0, "no dead letters\n")
    assert (done.returncode, done.stdout) == (0, f"{folder.run_id}: 1 discarded\n")
    assert _given("dead-letters", "list", cwd=tmp_path, env=env) == []


def test_a_run_whose_ledger_cannot_be_read_costs_one_line_and_hides_no_other_run(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, **_variables(tmp_path))
    train = program(tmp_path, "train.py", TRAIN)
    with started(["python", train], cwd=tmp_path, env=env):
        ended(tmp_path / ".otel-bridge")
    other = tmp_path / ".otel-bridge" / ("0" * 16)
    (other / "segments").mkdir(parents=True)
    (other / "ledger.sqlite").mkdir()

    listed = otel_bridge("dead-letters", "list", cwd=tmp_path, env=env)

    assert listed.returncode == 1
    assert "1 dead letter\n" in listed.stdout
    assert listed.stderr.startswith(f"{other.name}: ")
    assert "is not a regular file; remove it" in listed.stderr


@pytest.mark.parametrize("subcommand", ["list", "show", "retry", "discard"])
def test_a_damaged_ledger_is_a_failure_and_not_no_dead_letters(
    tmp_path: Path, subcommand: str
) -> None:
    folder = tmp_path / ".otel-bridge" / ("0" * 16)
    (folder / "segments").mkdir(parents=True)
    (folder / "ledger.sqlite").write_bytes(b"not a database" * 100)

    done = otel_bridge(
        "dead-letters", subcommand, cwd=tmp_path, env=environment(tmp_path)
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert "the ledger is damaged" in done.stderr
    assert "no dead letters" not in done.stderr


@pytest.mark.parametrize("subcommand", ["list", "show", "retry", "discard"])
def test_a_beginning_of_several_ids_is_refused_and_changes_none_of_these_runs(
    tmp_path: Path, subcommand: str
) -> None:
    for run_id in ("run-1", "run-2"):
        (tmp_path / ".otel-bridge" / run_id / "segments").mkdir(parents=True)

    done = otel_bridge(
        "dead-letters",
        subcommand,
        "--run",
        "run",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, done.stderr) == (
        2,
        "Error: 2 runs match; name one of run-1; run-2\n",
    )
