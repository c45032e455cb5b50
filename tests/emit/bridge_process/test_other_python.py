from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_bridge.emit.bridge_process.other_python import OtherPython, find_python
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.journal.folder import FORMAT as FOLDER
from otel_bridge.journal.header import FORMAT as SEGMENTS

NEEDS = {"wandb": "exporter 'wandb' needs wandb: pip install 'otel-bridge[wandb]'"}
ALL: dict[str, list[str]] = {"wandb": [], "file": []}


def interpreter(folder: Path, **answer: object) -> str:
    """A program that answers as an interpreter with otel-bridge does, and notes that it was asked."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    said = {
        "version": "9.1",
        "formats": {"segments": SEGMENTS, "folder": FOLDER},
        "missing": ALL,
    }
    asked = folder.parent / f"{folder.name}.asked"
    ask = f"/usr/bin/env > {asked}.env\necho asked >> {asked}"
    python.write_text(
        f"#!/bin/sh\n{ask}\n/bin/cat <<'END'\n{json.dumps(said | answer)}\nEND\n"
    )
    python.chmod(0o755)
    return str(python)


def command(folder: Path, python: str) -> str:
    """An ``otel-bridge`` as pip, pipx and uv install it; returns its folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "otel-bridge").write_text(f"#!{python}\nimport sys\n")
    return str(folder)


def times_asked(folder: Path) -> int:
    asked = folder.parent / f"{folder.name}.asked"
    return asked.read_text().count("asked") if asked.exists() else 0


def test_this_environment_is_taken_when_it_has_all(tmp_path: Path) -> None:
    env = {"PATH": command(tmp_path / "on-path", interpreter(tmp_path / "other"))}

    assert find_python(env, ["wandb"], {}) is None
    assert times_asked(tmp_path / "other") == 0


def test_the_named_interpreter_is_asked_once_and_gets_nothing_of_this_program(
    tmp_path: Path,
) -> None:
    python = interpreter(tmp_path / "other")
    env = {"OTEL_BRIDGE_PYTHON": python, "PYTHONPATH": "/secret/place", "RANK": "3"}

    found = [find_python(env, ["wandb", "otlp"], {}) for _ in range(3)]

    assert found == [OtherPython(python, "9.1", {"wandb": (), "file": ()})] * 3
    assert times_asked(tmp_path / "other") == 1
    said = (tmp_path / "other.asked.env").read_text()
    assert "PYTHONPATH" not in said
    assert "RANK" not in said


def test_what_the_named_environment_lacks_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    env = {
        "OTEL_BRIDGE_PYTHON": interpreter(
            tmp_path / "other", missing={"wandb": ["wandb"]}
        )
    }

    with pytest.raises(
        MissingExtraError,
        match=r"lacks wandb: .*python -m pip install 'otel-bridge\[wandb\]'",
    ):
        find_python(env, ["wandb"], {})


def test_a_bridge_of_another_environment_on_path_is_not_taken_and_the_error_says_how_to_ask_for_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(MissingExtraError) as raised:
        find_python(
            {"PATH": command(tmp_path / "on-path", interpreter(tmp_path / "other"))},
            ["wandb"],
            NEEDS,
        )

    assert times_asked(tmp_path / "other") == 0
    assert str(raised.value).startswith(NEEDS["wandb"])
    assert 'export OTEL_BRIDGE_PYTHON="$(uv tool dir)/otel-bridge/bin/python"' in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"formats": {"segments": SEGMENTS + 1, "folder": FOLDER}},
            "install the same version in both environments",
        ),
        (
            {
                "error": "ModuleNotFoundError: No module named 'otel_bridge'",
                "version": "",
            },
            "otel-bridge is not installed there",
        ),
        (
            {"error": "ImportError: no", "version": "0.1"},
            "otel-bridge 0.1 there does not start",
        ),
        ({"missing": {}}, "exporter wandb is not installed in that environment"),
    ],
)
def test_an_interpreter_that_cannot_run_the_bridge_is_an_error(
    tmp_path: Path, answer: dict[str, object], said: str
) -> None:
    env = {"OTEL_BRIDGE_PYTHON": interpreter(tmp_path / "other", **answer)}

    with pytest.raises(ConfigError, match=said):
        find_python(env, ["wandb"], NEEDS)


@pytest.mark.parametrize(
    "answer", [{"error": "ImportError: no"}, {"missing": {"wandb": ["wandb"]}}]
)
def test_the_command_that_repairs_an_environment_is_quoted_for_a_shell(
    tmp_path: Path, answer: dict[str, object]
) -> None:
    python = interpreter(tmp_path / "an other", **answer)

    with pytest.raises(ConfigError, match=f"'{python}' -m pip install"):
        find_python({"OTEL_BRIDGE_PYTHON": python}, ["wandb"], NEEDS)


@pytest.mark.parametrize(
    "named", ["python3", "/nowhere/python", "/etc/passwd", "/bin/echo", "/bin/false"]
)
def test_what_is_not_an_interpreter_is_an_error(tmp_path: Path, named: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        find_python({"OTEL_BRIDGE_PYTHON": named}, ["wandb"], {})
