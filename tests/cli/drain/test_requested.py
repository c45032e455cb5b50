"""``otel-bridge drain`` to some of a run's exporters: the others get theirs later, or a person gives them up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_bridge.exporter import SIGNALS
from support.bridge.bridge_doubles import (
    Process,
    options,
    report_when,
    run_folder,
    serving,
    until,
)
from support.bridge.gated_tracker import gated_lines, install
from support.bridge.recording_tracker import RecordingTracker
from support.trainers.command_runs import (
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    values,
)

TRAIN = """
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer") as run:
        for step in range(50):
            run.log({"loss": step / 2}, step=step)
"""
LOSS = [(step, step / 2) for step in range(50)]
GATED = [f"trainer/loss {step}" for step in range(50)]


def held(tmp_path: Path, exporters: str, **variables: str) -> dict[str, str]:
    """Run a job of 50 rows that only appends; return the environment of later commands, which names no exporter."""
    env = {**environment(tmp_path), **install(tmp_path), **variables}
    (tmp_path / "gate").touch()
    named = {"OTEL_BRIDGE_EXPORTERS": exporters} if exporters else {}
    done = call(
        ["python", program(tmp_path, "train.py", TRAIN)],
        cwd=tmp_path,
        env={**env, **named, "OTEL_BRIDGE_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return env


def shown(tmp_path: Path) -> list[str]:
    return [line for line in gated_lines(tmp_path) if line != "end finished"]


@pytest.mark.long
def test_drained_to_one_exporter_the_other_one_that_the_run_named_still_gets_everything(
    tmp_path: Path,
) -> None:
    env = held(tmp_path, "file,gated")
    folder = only_folder(tmp_path / ".otel-bridge")

    first = [
        otel_bridge("drain", "--exporters", "file", cwd=tmp_path, env=env)
        for _ in range(2)
    ]
    status = otel_bridge("status", cwd=tmp_path, env=env).stdout
    other = otel_bridge("drain", "--exporters", "gated", cwd=tmp_path, env=env)

    assert [done.returncode for done in first] == [1, 1]
    for said in (first[0].stdout, first[1].stdout, status):
        assert re.search(
            r"gated, which the run requested, did not get 5\d records", said
        ), said
    assert "give them up with --discard gated" in first[0].stdout
    assert (other.returncode, shown(tmp_path), values(folder)["trainer/loss"]) == (
        0,
        GATED,
        LOSS,
    ), other.stdout
    assert (report_of(tmp_path / ".otel-bridge").owed, folder.segments()) == ({}, [])


@pytest.mark.long
def test_drained_without_a_choice_what_is_behind_is_delivered_whatever_was_drained_before(
    tmp_path: Path,
) -> None:
    env = held(tmp_path, "file,gated")
    otel_bridge("drain", "--exporters", "console", cwd=tmp_path, env=env)

    done = otel_bridge("drain", cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout
    assert (
        shown(tmp_path),
        values(only_folder(tmp_path / ".otel-bridge"))["trainer/loss"],
    ) == (
        GATED,
        LOSS,
    )


@pytest.mark.long
def test_a_run_that_named_no_exporter_is_done_with_the_one_that_drain_names(
    tmp_path: Path,
) -> None:
    env = held(tmp_path, "")

    done = otel_bridge("drain", "--exporters", "file", cwd=tmp_path, env=env)
    later = otel_bridge("drain", "--exporters", "gated", cwd=tmp_path, env=env)
    by_environment = otel_bridge(
        "drain", cwd=tmp_path, env={**env, "OTEL_BRIDGE_EXPORTERS": "gated"}
    )
    without_choice = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (
        done.returncode,
        values(only_folder(tmp_path / ".otel-bridge"))["trainer/loss"],
    ) == (
        0,
        LOSS,
    ), done.stdout
    assert shown(tmp_path) == []
    assert [one.returncode for one in (later, by_environment, without_choice)] == [
        1,
        1,
        0,
    ]
    for one in (later, by_environment):
        assert re.search(
            r"gated was named later: it lacks 5\d records that had been deleted by then",
            one.stdout,
        )


def test_what_a_person_gives_up_is_counted_and_shown_and_no_longer_waited_for(
    tmp_path: Path,
) -> None:
    env = held(tmp_path, "file,gated")

    done = otel_bridge("drain", "--discard", "gated", cwd=tmp_path, env=env)
    status = otel_bridge("status", cwd=tmp_path, env=env).stdout
    again = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (done.returncode, again.returncode, shown(tmp_path)) == (0, 0, []), (
        done.stdout
    )
    assert values(only_folder(tmp_path / ".otel-bridge"))["trainer/loss"] == LOSS
    for said in (done.stdout, status, again.stdout):
        assert re.search(r"gated: 5\d records were discarded with --discard", said), (
            said
        )


def test_everything_can_be_given_up(tmp_path: Path) -> None:
    env = held(tmp_path, "file,gated")

    done = otel_bridge(
        "drain", "--discard", "gated", "--discard", "file", cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stdout
    assert set(report_of(tmp_path / ".otel-bridge").discarded) == {"file", "gated"}


def test_an_exporter_that_is_not_installed_keeps_its_records_until_it_is_given_up(
    tmp_path: Path,
) -> None:
    env = held(tmp_path, "file,gated")
    without = {name: value for name, value in env.items() if name != "PYTHONPATH"}

    blocked = otel_bridge("drain", cwd=tmp_path, env=without)
    given_up = otel_bridge("drain", "--discard", "gated", cwd=tmp_path, env=without)

    assert blocked.returncode == 1
    assert "gated is blocked: exporter 'gated' is not known" in blocked.stdout
    assert given_up.returncode == 0, given_up.stdout


def test_a_misspelt_exporter_is_not_given_up(tmp_path: Path) -> None:
    env = held(tmp_path, "file,gated")

    done = otel_bridge("drain", "--discard", "gatd", cwd=tmp_path, env=env)
    installed = otel_bridge("drain", "--discard", "console", cwd=tmp_path, env=env)

    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "--discard gatd: no run here names it, and exporter 'gatd' is not known; choose from "
        in done.stderr
    )
    assert "did you mean gated?" in done.stderr
    assert installed.returncode == 0, installed.stdout


def test_one_exporter_cannot_be_chosen_and_given_up_at_once(tmp_path: Path) -> None:
    env = held(tmp_path, "file")

    done = otel_bridge(
        "drain", "--exporters", "file", "--discard", "file", cwd=tmp_path, env=env
    )

    assert (done.returncode, done.stderr) == (
        2,
        "Error: file: in --exporters and in --discard; name each in one of them\n",
    )


@pytest.mark.long
def test_what_a_tracker_had_not_confirmed_is_owed_though_the_run_goes_on_with_another(
    tmp_path: Path,
) -> None:
    env = {**environment(tmp_path), **install(tmp_path)}
    (tmp_path / "gate").touch()
    folder, tracker = (
        run_folder(tmp_path / ".otel-bridge"),
        RecordingTracker(reports_durable=True, lag=2),
    )
    first = Process.start(folder, "gated")
    first.log(5)
    with serving(folder.base, options(("gated", tracker))):
        report_when(
            folder,
            lambda report: (
                "gated" in report.exporters and report.exporters["gated"].written == 5
            ),
        )
    first.die()
    second = Process.start(folder, "now")
    with serving(
        folder.base,
        options(
            ("now", RecordingTracker()), exporters=dict.fromkeys(SIGNALS, ("now",))
        ),
    ):
        until(
            lambda: (
                first.instance
                not in {segment.instance_id for segment in folder.segments()}
            )
        )
    second.end()

    done = [
        otel_bridge(
            "drain", "--exporters", "file", "--discard", "now", cwd=tmp_path, env=env
        )
        for _ in range(2)
    ]
    rest = otel_bridge("drain", cwd=tmp_path, env=env)

    for one in done:
        assert (
            one.returncode,
            "gated, which the run requested, did not get 2 records" in one.stdout,
        ) == (1, True), one
    assert rest.returncode == 0, rest.stdout
    assert gated_lines(tmp_path) == ["trainer/loss 4", "trainer/loss 5", "end killed"]
