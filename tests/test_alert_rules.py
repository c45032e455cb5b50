"""Rules of ``OTEL_BRIDGE_ALERTS``: how they are written, and what they watch."""

from __future__ import annotations

import math

import pytest

from otel_bridge.alert_rules import AlertKind, AlertRule, alert_rules
from otel_bridge.errors import ConfigError
from otel_bridge.settings import ALERTS

MINUTE_NS = 60_000_000_000


def test_rules_are_separated_by_commas_and_each_is_taken_once() -> None:
    rules = alert_rules(
        "nan, stalled:10m ,trainer/kl>0.2,nan, reward/mean <= -1e2,nan:trainer/*,stalled:1.5h:ex*,"
        "straggler>2x,straggler > 1.5x:7:trainer,straggler>3"
    )

    assert rules == (
        AlertRule(AlertKind.NOT_FINITE, "*", "nan"),
        AlertRule(AlertKind.STALLED, "*", "stalled:10m", after_ns=10 * MINUTE_NS),
        AlertRule(AlertKind.BOUND, "trainer/kl", "trainer/kl>0.2", ">", 0.2),
        AlertRule(AlertKind.BOUND, "reward/mean", "reward/mean <= -1e2", "<=", -100.0),
        AlertRule(AlertKind.NOT_FINITE, "trainer/*", "nan:trainer/*"),
        AlertRule(
            AlertKind.STALLED, "ex*", "stalled:1.5h:ex*", after_ns=90 * MINUTE_NS
        ),
        AlertRule(AlertKind.STRAGGLER, "*", "straggler>2x", ">", 2.0, steps=5),
        AlertRule(
            AlertKind.STRAGGLER,
            "trainer",
            "straggler > 1.5x:7:trainer",
            ">",
            1.5,
            steps=7,
        ),
        AlertRule(
            AlertKind.BOUND, "straggler", "straggler>3", ">", 3.0
        ),  # a key of that name
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "kl=0.2",
            "'kl=0.2' is not a rule; expected nan, stalled:DURATION, straggler>FACTORx:STEPS",
        ),
        ("kl>>0.2", "is not a rule"),
        (">0.2", "is not a rule"),
        ("nan:", "is not a rule"),
        ("kl", "is not a rule"),
        ("kl>high", "'high' is not a finite number"),
        ("kl>nan", "'nan' is not a finite number"),
        ("kl<inf", "'inf' is not a finite number"),
        ("stalled", "'' is not a duration above 0"),
        ("stalled:10", "'10' is not a duration above 0"),
        ("stalled:0s", "'0s' is not a duration above 0"),
        (
            "stalled:999999999d",
            "'999999999d' is not a duration above 0 and up to a year",
        ),
        (
            ",".join(f"k{number}>1" for number in range(101)),
            "101 rules, expected at most 100",
        ),
    ],
)
def test_a_rule_that_cannot_be_used_is_an_error_that_shows_one_that_can(
    rule: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ALERTS.read({"OTEL_BRIDGE_ALERTS": rule})

    assert message in str(caught.value)
    assert "OTEL_BRIDGE_ALERTS=" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "key", "role", "watched"),
    [
        ("trainer/kl", "trainer/kl", "trainer", True),
        ("kl", "trainer/kl", "trainer", True),
        ("kl", "trainer/ppo/kl", "trainer", False),
        ("*kl", "trainer/ppo/kl", "trainer", True),
        ("kl", "kl", None, True),
        ("rollouts/*", "explorer/rollouts/reward/mean", "explorer", True),
        ("explorer/*", "trainer/kl", "trainer", False),
        ("gpu[0]", "gpu[0]", None, True),
        ("KL", "kl", None, False),
    ],
)
def test_a_pattern_names_keys_as_trackers_show_them_with_or_without_the_role(
    pattern: str, key: str, role: str | None, watched: bool
) -> None:
    assert alert_rules(f"{pattern}>0")[0].watches(key, role) is watched


@pytest.mark.parametrize(
    ("rule", "value", "is_met"),
    [
        ("k>1", 1.0, False), ("k>1", 1.1, True), ("k>=1", 1.0, True), ("k<1", 0.9, True), ("k<1", 1.0, False),
        ("k<=1", 1.0, True), ("k>1", math.inf, True), ("k>1", math.nan, False), ("k<1", math.nan, False),
        ("nan", math.nan, True), ("nan", -math.inf, True), ("nan", 1e308, False),
    ],
)  # fmt: skip
def test_a_value_meets_a_rule_or_not(rule: str, value: float, is_met: bool) -> None:
    assert alert_rules(rule)[0].is_met(value) is is_met
