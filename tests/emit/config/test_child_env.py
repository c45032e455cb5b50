from __future__ import annotations

import os

import pytest

from otel_bridge.emit.config.child_env import ChildEnvironment


def test_what_was_handed_over_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAD", "before")
    monkeypatch.setenv("REMOVED", "yes")
    monkeypatch.delenv("NEW", raising=False)
    handover = ChildEnvironment()

    handover.set({"HAD": "given", "NEW": "given", "REMOVED": None})
    during = os.environ["HAD"], os.environ["NEW"], "REMOVED" in os.environ
    handover.restore()

    assert during == ("given", "given", False)
    assert (os.environ["HAD"], "NEW" in os.environ, os.environ["REMOVED"]) == (
        "before",
        False,
        "yes",
    )


def test_what_the_program_changed_since_stays_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HAD", "before")
    handover = ChildEnvironment()
    handover.set({"HAD": "given"})

    os.environ["HAD"] = "the program's own"
    handover.restore()

    assert os.environ["HAD"] == "the program's own"
