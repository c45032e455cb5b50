"""What ``--help`` prints: whole texts, and an example that the command accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from otel_bridge.cli.main import main


def _commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name) or command
    return command


def _help(path: tuple[str, ...]) -> str:
    command = _command(path)
    return command.get_help(
        click.Context(
            command, info_name=" ".join(("otel-bridge", *path)), terminal_width=80
        )
    )


@pytest.mark.parametrize(
    "name", ["status", "rollouts", "drain", "finish", "dead-letters"]
)
def test_the_help_calls_a_folder_dir_and_names_the_folder_above(name: str) -> None:
    texts = [_help(path) for path in _commands(main) if path[0] == name]

    assert "the folder above" in " ".join(texts[0].split())
    for text in texts:
        assert "DIRECTOR" not in text


@pytest.mark.parametrize("path", [(), *_commands(main)], ids=" ".join)
def test_the_help_of_each_command_is_whole_and_ends_with_an_example_that_it_accepts(
    path: tuple[str, ...],
) -> None:
    text = _help(path)

    assert re.findall(r"[a-z,](?:…|\.\.\.)$", text, re.MULTILINE) == []
    example = shlex.split(
        text.splitlines()[-1].strip().removeprefix("Example: otel-bridge ")
    )
    assert tuple(example[: len(path)]) == path
    named = tuple(example[: max(len(path), 1)])
    command = _command(named)
    arguments = example[len(named) :]
    if isinstance(command, click.Group):
        command = _command((*named, arguments.pop(0)))
    command.make_context("example", arguments)
