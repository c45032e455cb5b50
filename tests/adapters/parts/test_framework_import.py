"""A class of a framework: what is missing is named, and an error of the framework's own stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.errors import MissingExtraError

ADVICE = "this adapter needs toyrl>=2; run: pip install 'toyrl>=2'"


@pytest.fixture(autouse=True)
def toyrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework with a module that works, one that fails, and one whose dependency is missing."""
    package = tmp_path / "toyrl"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "logger": "class Logger: ...",
        "broken": "import math; math.gone",
        "dependent": "import toyrl_core",
    }.items():
        (package / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_class_of_an_installed_framework_is_returned() -> None:
    assert framework_class("toyrl.logger:Logger", "toyrl>=2").__qualname__ == "Logger"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("toyrl.logger:Newer", "toyrl.logger has no Newer"),
        ("toyrl.newer:Logger", "toyrl.newer cannot be imported"),
    ],
)
def test_a_framework_that_is_too_old_is_named_with_the_version_to_install(
    place: str, reason: str
) -> None:
    with pytest.raises(MissingExtraError) as raised:
        framework_class(place, "toyrl>=2")

    assert str(raised.value) == f"{reason}; {ADVICE}"


@pytest.mark.parametrize(
    ("module", "error"),
    [("broken", AttributeError), ("dependent", ModuleNotFoundError)],
)
def test_a_framework_that_fails_by_itself_is_not_called_too_old(
    module: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"gone|toyrl_core"):
        framework_class(f"toyrl.{module}:Logger", "toyrl>=2")
