"""A directory that a command cannot make is said in one line, before anything is begun."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.run_folders import chosen_folders, only_one
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.segment import SegmentWriter
from support.otlp.journal_samples import header, run_folder
from support.trainers.command_runs import OTEL_BRIDGE, environment, otel_bridge

LISTENING = ["--grpc", "off", "--http", "off"]


@pytest.mark.parametrize(
    ("command", "rest", "what"),
    [
        (
            "run",
            ["--exporters", "file", "--", "touch", "begun"],
            "set --dir or OTEL_BRIDGE_DIR",
        ),
        ("serve", ["--exporters", "file", *LISTENING], "set --dir or OTEL_BRIDGE_DIR"),
        ("demo", ["--exporters", "file"], "set --dir"),
    ],
)
def test_a_directory_that_cannot_be_made_is_said(
    tmp_path: Path, command: str, rest: list[str], what: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    below = file / "runs"

    done = otel_bridge(
        command, "--dir", str(below), *rest, cwd=tmp_path, env=environment(tmp_path)
    )

    assert (done.returncode, done.stderr) == (
        1,
        f"Error: {below} cannot be created: Not a directory; {what}\n",
    )
    assert not (tmp_path / "begun").exists()


# The kernel refuses to look at a name that is too long, as it does below a folder without rights.
UNSEEN = "x" * 300


def test_a_folder_that_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    done = otel_bridge("status", UNSEEN, cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, done.stderr.partition(";")[0]) == (
        2,
        f"Error: {UNSEEN}: no such folder",
    )


def test_a_run_that_is_not_there_is_answered_with_some_runs_and_the_number_of_others(
    tmp_path: Path,
) -> None:
    for number in range(22):
        (tmp_path / f"run-{number:02}" / "segments").mkdir(parents=True)

    with pytest.raises(WrongCallError, match=r"run-18; run-19; and 2 more$"):
        chosen_folders(tmp_path, "dqn")
    with pytest.raises(WrongCallError, match=r"^22 runs match; .* and 2 more$"):
        only_one(chosen_folders(tmp_path, "run"))


def test_a_run_that_no_bridge_has_read_is_found_by_its_name(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    SegmentWriter(folder.segments_dir, header(run_name="ppo-7b")).close()
    other = RunFolder(folder.base, "other")
    other.create()

    (chosen,) = chosen_folders(folder.base, "ppo-7b")

    assert chosen.path == folder.path


@pytest.mark.parametrize("run", ["run-1", "ppo"])
def test_a_run_of_exactly_this_id_or_name_wins_over_longer_ids(
    tmp_path: Path, run: str
) -> None:
    for run_id in ("run-1", "run-10", "ppo-2"):
        folder = RunFolder(tmp_path, run_id)
        folder.create()
        if run_id == "run-1":
            SegmentWriter(folder.segments_dir, header(run_name="ppo")).close()

    (chosen,) = chosen_folders(tmp_path, run)

    assert chosen.run_id == "run-1"


@pytest.mark.parametrize("run", ["", " "])
def test_an_empty_run_is_refused_and_not_that_of_every_id(
    tmp_path: Path, run: str
) -> None:
    (tmp_path / "r1" / "segments").mkdir(parents=True)

    with pytest.raises(WrongCallError, match="RUN is empty"):
        chosen_folders(tmp_path, run)


def test_doctor_checks_the_disk_above_a_folder_that_cannot_be_looked_at(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_DIR=UNSEEN)

    done = otel_bridge("doctor", cwd=tmp_path, env=env)

    assert f"run folders: {tmp_path}/{UNSEEN} (" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments", ["status", "drain", "rollouts", "dead-letters list", "finish ppo"]
)
def test_a_folder_without_runs_is_a_wrong_call_only_if_the_call_names_it(
    tmp_path: Path, arguments: str
) -> None:
    (tmp_path / "empty").mkdir()
    env = environment(tmp_path)

    named = [
        otel_bridge(*arguments.split(), name, cwd=tmp_path, env=env)
        for name in ("nowhere", "empty")
    ]
    default = otel_bridge(*arguments.split(), cwd=tmp_path, env=env)

    assert [done.returncode for done in named] == [2, 2]
    for done, name in zip(named, ("nowhere", "empty"), strict=True):
        assert (
            done.stdout,
            done.stderr.count("\n"),
            done.stderr.startswith(f"Error: {name}: no "),
        ) == ("", 1, True)
    assert default.returncode == (2 if arguments == "finish ppo" else 0)


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_working_folder_that_was_deleted_is_one_line(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "gone").mkdir()

    done = subprocess.run(
        ["sh", "-c", f"cd gone && rmdir ../gone && exec {OTEL_BRIDGE} {command}"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )

    # Some shells add lines of their own.
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Error: the working folder cannot be read: No such file or directory; change to one that exists"
    )
