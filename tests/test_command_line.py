from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from otel_bridge.emit import console
from otel_bridge.journal.folder import RunFolder
from otel_bridge.text.command_line import command_line, runnable
from rooms import modules
from support.parsing import parsed

FOLDER = RunFolder(Path("/my runs/it's"), "0123456789abcdef")


def test_a_shell_reads_a_command_line_as_the_arguments_that_it_was_made_of() -> None:
    line = command_line("dead-letters list", "--exporters", "file", FOLDER.path)

    assert line.startswith("otel-bridge dead-letters list --exporters file ")
    assert shlex.split(line) == [
        "otel-bridge", "dead-letters", "list", "--exporters", "file", "/my runs/it's/0123456789abcdef"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "sentence",
    [
        console.drain_command(FOLDER, chosen=True),
        console.drain_command(FOLDER, chosen=False),
        console.rest_is_kept(FOLDER, None, chosen=True),
        console.rest_is_kept(FOLDER, None, chosen=False),
        console.rest_is_kept(FOLDER, "bridge", chosen=True),
        console.blocked_is_kept(FOLDER.base, ["wandb"]),
        console.kept_without_exporter(FOLDER.path, ["file"], delivered=False)[1],
    ],
)
def test_the_command_of_each_sentence_runs_in_a_folder_whose_name_a_shell_would_split(
    sentence: str,
) -> None:
    command = sentence[sentence.index("otel-bridge ") :]

    assert Path(shlex.split(command)[-1]) in {FOLDER.base, FOLDER.path}


def test_no_module_joins_a_command_and_a_value_by_itself() -> None:
    found: list[str] = []
    for name, path in modules().items():
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = "".join(
                str(one.value) if isinstance(one, ast.Constant) else "\0"
                for one in node.values
            )
            found += [
                f"{name}: {one}"
                for one in re.findall(r"(?<!`)otel-bridge [a-z][^`\0]*\0", text)
            ]

    assert found == []


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("trackio show --project maths", "'{0}/trackio' show --project maths"),
        ("trackio", "'{0}/trackio'"),
        (
            "TRACKIO_DIR='a b'\"'\"'c' X=1 trackio show",
            "TRACKIO_DIR='a b'\"'\"'c' X=1 '{0}/trackio' show",
        ),
        ("tail -f log", "tail -f log"),
        ("http://127.0.0.1:5000/#/runs/1", "http://127.0.0.1:5000/#/runs/1"),
        ("", ""),
    ],
)
def test_a_command_is_shown_by_its_path_where_only_this_environment_has_it(
    environment_folder: Path, command: str, shown: str
) -> None:
    assert runnable(command) == shown.format(environment_folder)


def test_a_command_that_the_shell_finds_stays_short(
    environment_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment_folder))

    assert runnable("trackio show") == "trackio show"


def test_a_folder_that_cannot_be_searched_has_no_command(
    environment_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a folder without rights does, a name that is too long makes stat() fail.
    monkeypatch.setenv("PATH", f"/{'x' * 300}")

    assert runnable("trackio") == f"'{environment_folder}/trackio'"


def test_a_command_of_otel_bridge_has_the_path_that_a_shell_needs(
    environment_folder: Path,
) -> None:
    (environment_folder / "otel-bridge").touch(mode=0o755)

    assert (
        command_line("drain", "/runs")
        == f"'{environment_folder}/otel-bridge' drain /runs"
    )
