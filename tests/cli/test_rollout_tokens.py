"""``otel-bridge rollouts --html`` and ``--tokens``: the tokens of one rollout as a page and on the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_bridge.tokens.view import view_in
from support.trainers.command_runs import call, environment, otel_bridge, program

JOB = """
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer", exporters="file")
    texts = ["It ", "is ", "4"]
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "It is 4"}]
    run.log_rollouts([otel_bridge.Rollout(messages, id=name) for name in ("r1", "r2", "r3")], step=1)
    for name in ("r1", "r2"):
        run.annotate(name, 1, tokens=texts, entropies=[0.5, 2.0, 0.25], advantages=[1.0, -1.0, 1.0])
    run.finish()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with the tokens of two of its three rollouts."""
    folder = tmp_path_factory.mktemp("tokens")
    done = call(
        [sys.executable, program(folder, "job.py", JOB)],
        cwd=folder,
        env=environment(folder),
    )
    assert done.returncode == 0, done.stderr
    return folder


def rollouts(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = otel_bridge("rollouts", *arguments, cwd=folder, env=environment(folder))
    return done.returncode, done.stdout, done.stderr


def test_the_page_of_a_rollout_is_written_to_a_file_or_printed(folder: Path) -> None:
    code, _, printed = rollouts(folder, "r1", "--html", "-o", "r1.html")
    assert (code, printed) == (0, "r1.html: open it in a browser\n")

    _, page, _ = rollouts(folder, "--id", "r1", "--html")

    assert page == (folder / "r1.html").read_text("utf-8")
    view = view_in(page)
    assert view is not None
    assert (view.title, [*view.tokens]) == ("r1", ["It ", "is ", "4"])


def test_a_page_is_of_one_rollout_that_has_tokens(folder: Path) -> None:
    assert rollouts(folder, "--html")[::2] == (
        2,
        "Error: 2 rollouts match; name one of them: --id ID\n",
    )
    code, _, printed = rollouts(folder, "r3", "--html")
    assert code == 1
    assert "its tokens were not annotated" in printed
    code, _, printed = rollouts(folder, "r1", "--html", "-o", "missing/r1.html")
    assert (code, printed.splitlines()[-1]) == (
        1, "Error: missing/r1.html: No such file or directory; choose a file that can be written",
    )  # fmt: skip


def test_options_of_the_page_that_have_no_effect_are_refused(folder: Path) -> None:
    assert rollouts(folder, "-o", "r1.html")[::2] == (
        2,
        "Error: -o FILE is for the page of a rollout: add --html\n",
    )
    code, _, printed = rollouts(folder, "r1", "--html", "--json")
    assert (code, "leave out --json" in printed) == (2, True)


def test_an_id_that_no_rollout_has_is_reported(folder: Path) -> None:
    code, page, printed = rollouts(folder, "r9", "--html")
    assert (code, page) == (1, "")
    assert printed.startswith("Error: no rollout here matches")


def test_the_terminal_shows_the_tokens_by_a_value_and_those_with_the_largest(
    folder: Path,
) -> None:
    _, shown, _ = rollouts(folder, "r2", "--tokens", "entropy")
    lines = shown.splitlines()

    assert "rewards" not in lines[2]
    assert lines[3:5] == ["  tokens: advantage 0.3333, entropy 0.9167", "  user"]
    start = lines.index("  tokens by entropy, at most 2")
    assert lines[start + 1 : start + 3] == [
        "    It is 4",
        "    token 1 'is ': entropy 2",
    ]
    assert (
        "no color of its tokens; there are entropy, advantage"
        in rollouts(folder, "r2", "--tokens", "color")[1]
    )
