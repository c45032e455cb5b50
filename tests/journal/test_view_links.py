from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_bridge.journal.report import ExporterReport, Report, places, runnable


@pytest.fixture
def environment_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in a folder with a space, not activated: it has a python and a trackio."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "trackio"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("trackio show --project maths", "'{0}/trackio' show --project maths"),
        ("trackio", "'{0}/trackio'"),
        ("TRACKIO_DIR='a b'\"'\"'c' X=1 trackio show", "TRACKIO_DIR='a b'\"'\"'c' X=1 '{0}/trackio' show"),
        ("tail -f log", "tail -f log"),
        ("http://127.0.0.1:5000/#/runs/1", "http://127.0.0.1:5000/#/runs/1"),
        ("", ""),
    ],
)
def test_a_command_is_shown_by_its_path_where_only_this_environment_has_it(
    environment_folder: Path, command: str, shown: str
) -> None:
    assert runnable(command) == shown.format(environment_folder)


def test_a_command_that_the_shell_finds_stays_short(environment_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment_folder))

    assert runnable("trackio show") == "trackio show"


def test_an_address_goes_before_a_command_and_what_has_neither_is_left_out(environment_folder: Path) -> None:
    exporters = {
        "mlflow": ExporterReport(url="http://m/#/runs/1", view="mlflow ui"),
        "otlp": ExporterReport(),
        "trackio": ExporterReport(view="trackio show"),
    }

    assert places(Report(exporters=exporters)) == {
        "mlflow": "http://m/#/runs/1",
        "trackio": f"'{environment_folder}/trackio' show",
    }
