"""Rows of phases -> alerts about a rank that is slow for several steps (``straggler>1.5x:5``). Pure, one thread.

A cause is one rank in one phase of a role. It ends with a step in which that rank is not the
slowest, or not beyond the bound. Causes are stored under ``alert/straggler/`` of the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, cast

from otel_bridge.alert_rules import AlertKind, AlertRule
from otel_bridge.records import PHASES_ID, Alert, Row
from otel_bridge.translation.phases.slow_rank import RANK, RATIO
from otel_bridge.translation.state import TranslationState

_SPACE = "alert/straggler/"
_MAX_CAUSES = 1_000


class _Cause(NamedTuple):
    """Holds how many steps in a row a rank has been slow, up to *step* of *attempt*."""

    rank: int
    steps: int
    attempt: int
    step: int


class StragglerCauses:
    """Watches the phases of one run.

    Args:
        state: Key space ``alert/straggler/``.
        rules: Rules of the run, of which those of the kind straggler apply.
    """

    def __init__(self, state: TranslationState, rules: Sequence[AlertRule]) -> None:
        self._state = state
        self._rules = [rule for rule in rules if rule.kind is AlertKind.STRAGGLER]
        self._causes: dict[str, _Cause] = {}
        if self._rules:
            for key, value in state.items(_SPACE):
                self._causes[key] = _Cause(*cast("tuple[int, int, int, int]", value))

    def row(self, row: Row) -> list[Alert]:
        """Return the alerts that *row* raises; of rows that are not of phases none."""
        if not self._rules or not row.id.startswith(PHASES_ID) or row.step is None:
            return []
        alerts: list[Alert] = []
        prefix = f"{row.role}/{RATIO}" if row.role else RATIO
        for key, ratio in row.values.items():
            if not key.startswith(prefix) or not isinstance(ratio, (int, float)):
                continue
            phase = key.removeprefix(prefix)
            rank = row.values.get(key.replace(RATIO, RANK, 1))
            for rule in self._rules:
                if isinstance(rank, int) and rule.watches_role(row.role):
                    alerts += self._judged(rule, row, phase, rank, float(ratio))
        return alerts

    def _judged(
        self, rule: AlertRule, row: Row, phase: str, rank: int, ratio: float
    ) -> list[Alert]:
        """Note one phase of one step; return the alert if the rank is slow for long enough."""
        name = f"{_SPACE}{_digest(rule.text, row.role or '', phase)}"
        cause = self._causes.get(name)
        step = row.step or 0
        # A restart from a checkpoint repeats steps; a corrected row of a step that is counted is of
        # the same attempt.
        if cause is not None and (row.attempt, step) <= (cause.attempt, cause.step):
            return []
        if not rule.is_met(ratio):
            if self._causes.pop(name, None) is not None:
                self._state.delete(name)
            return []
        # Another rank is another cause: slow ranks that take turns are not one straggler.
        steps = 1
        if cause is not None and cause.rank == rank:
            steps = cause.steps + 1
        # Names of phases come from programs, so their number has a limit.
        if cause is not None or len(self._causes) < _MAX_CAUSES:
            self._causes[name] = _Cause(rank, steps, row.attempt, step)
            self._state.set(name, [*self._causes[name]])
        if steps == rule.steps:
            return [_alert(rule, row, phase, rank, ratio)]
        return []


def _alert(rule: AlertRule, row: Row, phase: str, rank: int, ratio: float) -> Alert:
    text = f"rank {rank} took {ratio:.3g} times as long as the others in {phase}, for {rule.steps} steps in a row"
    return Alert(
        f"a:{row.id}:{_digest(rule.text, phase)}", row.role, f"{row.role or 'the run'}: rank {rank} is slow in {phase}",
        f"{text}, up to step {row.step} (rule {rule.text})", "warn", row.step, row.time_unix_ns,
    )  # fmt: skip


def _digest(*parts: str) -> str:
    return hashlib.blake2b(
        "\0".join(parts).encode("utf-8", "replace"), digest_size=8
    ).hexdigest()
