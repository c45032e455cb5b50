"""The end of a Ray job's actors with their driver, with a fake of Ray: what its state is when they are to end."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_bridge.ray import end_with_driver


def actor(ended: list[str], name: str, error: Exception | None = None) -> Any:
    def remote() -> str:
        if error is not None:
            raise error
        ended.append(name)
        return name

    return SimpleNamespace(__ray_terminate__=SimpleNamespace(remote=remote))


def test_an_actor_of_a_cluster_that_was_shut_down_is_said_and_the_others_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray: Any = ModuleType("ray")
    ray.exceptions = SimpleNamespace(RayError=ValueError)
    ray.is_initialized = lambda: True
    ray.get = lambda *_, **__: None
    monkeypatch.setitem(sys.modules, "ray", ray)
    ended: list[str] = []
    gone = Exception(
        "Can't find actor. It might be dead or it's from a different cluster"
    )

    end_with_driver(actor(ended, "gone", gone), actor(ended, "here"))()

    assert ended == ["here"]
    assert capsys.readouterr().err.count("ray.shutdown() was called before") == 1
