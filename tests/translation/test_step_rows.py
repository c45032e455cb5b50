"""Tests of the memory of forgotten steps."""

from __future__ import annotations

import pytest

from otel_bridge.translation import step_rows
from support.otlp.otlp_samples import Bench
from support.otlp.phase_samples import phase, rank, send


def test_of_too_many_roles_the_last_ones_stay_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_rows, "MAX_STEPS", 2)
    monkeypatch.setattr(step_rows, "_MAX_TRACKS", 3)
    bench = Bench()
    bench.open(rank(0))
    roles = [f"role{number}" for number in range(6)]
    for number, role in enumerate(roles):
        for step in (7, 8, 9):
            bench.now_ns += 1
            name = "trainer" if step == 9 else role
            send(bench, rank(0), phase("a", step + number, 0, 1, role=name))

    for _ in range(2):
        before = bench.counts().get("phase/late", 0)
        for role in ("role0", "role5", "trainer"):
            send(bench, rank(0), phase("b", 7, 0, 1, role=role))
        assert bench.counts()["phase/late"] == before + 2
        bench.restart()
