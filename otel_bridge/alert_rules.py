"""``OTEL_BRIDGE_ALERTS`` -> the rules that a bridge watches: what a rule means, and how it is written. Pure.

``nan, stalled:10m, trainer/kl>0.2``: a key becomes NaN or infinite, a role sends no row for so
long, a key passes a bound. ``nan:trainer/*`` and ``stalled:10m:explorer`` restrict a rule to some
keys or roles. With ``straggler>1.5x:5`` a rank is the slowest in a phase by that factor, for that
many steps in a row.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

NO_RULES: tuple[AlertRule, ...] = ()
_MAX_RULES = 100
_SECOND_NS = 1_000_000_000
_MAX_DURATION_NS = 366 * 86_400 * _SECOND_NS
_BOUND = re.compile(r"([^<>=]+?)\s*(>=|<=|>|<)\s*([^<>=]+)")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_OPERATORS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_STRAGGLER = re.compile(
    r"straggler\s*>\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*x(?:\s*:\s*([1-9][0-9]{0,5}))?(?::(.+))?"
)
_STRAGGLER_STEPS = 5
_EXPECTED = (
    "expected nan, stalled:DURATION, straggler>FACTORx:STEPS or KEY>NUMBER (>, >=, <, <=), e.g. nan, stalled:10m, "
    "straggler>1.5x:5, trainer/kl>0.2"
)


class AlertKind(Enum):
    """Names what a rule watches."""

    NOT_FINITE = "nan"
    STALLED = "stalled"
    BOUND = "bound"
    STRAGGLER = "straggler"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Describes one rule.

    Attributes:
        kind: What it watches.
        pattern: Key, or role of a stalled or straggler rule, as trackers show it, with or without the role; ``*`` and
            ``?`` as in a shell, where ``*`` also matches ``/``.
        text: The rule as it was written.
        operator: ``>``, ``>=``, ``<`` or ``<=`` of a bound.
        bound: The bound; of a straggler rule the factor.
        after_ns: Longest time without a row of a stalled rule.
        steps: Steps in a row of a straggler rule.
    """

    kind: AlertKind
    pattern: str
    text: str
    operator: str = ""
    bound: float = 0.0
    after_ns: int = 0
    steps: int = 0

    def __str__(self) -> str:
        """Return the rule as it was written."""
        return self.text

    def watches(self, key: str, role: str | None) -> bool:
        """Return whether the rule watches the full *key* of a row of *role*."""
        if self._names(key):
            return True
        return (
            bool(role)
            and key.startswith(f"{role}/")
            and self._names(key[len(role or "") + 1 :])
        )

    def watches_role(self, role: str | None) -> bool:
        """Return whether the rule watches *role*; ``*`` also watches processes without a role."""
        return self._names(role or "")

    def is_met(self, value: float) -> bool:
        """Return whether *value* is what the rule warns of; NaN meets no bound.

        A stalled rule, which watches no values, raises `KeyError`.
        """
        if self.kind is AlertKind.NOT_FINITE:
            return not math.isfinite(value)
        return bool(_OPERATORS[self.operator](value, self.bound))

    def _names(self, name: str) -> bool:
        """Return whether the pattern names *name*.

        Equality counts too: a key may hold ``[``, which a pattern reads as a set of characters.
        """
        return name == self.pattern or fnmatchcase(name, self.pattern)


def alert_rules(raw: str) -> tuple[AlertRule, ...]:
    """Parse rules separated by commas; duplicates are dropped. Empty without any.

    Raises:
        ValueError: A text is not a rule, or there are more than `_MAX_RULES`. Reading the setting
            makes it a `ConfigError`.
    """
    texts = list(dict.fromkeys(part.strip() for part in raw.split(",") if part.strip()))
    if len(texts) > _MAX_RULES:
        raise ValueError(f"{len(texts)} rules, expected at most {_MAX_RULES}")
    return tuple(map(_rule, texts))


def _rule(text: str) -> AlertRule:
    """Return the rule that *text* is.

    Raises `ValueError` when it is not a rule, or a number in it is not valid.
    """
    name, colon, rest = text.partition(":")
    kind = name.strip().lower()
    if kind == AlertKind.NOT_FINITE.value and (rest.strip() or not colon):
        return AlertRule(AlertKind.NOT_FINITE, rest.strip() or "*", text)
    if kind == AlertKind.STALLED.value:
        duration, _, role = rest.partition(":")
        return AlertRule(
            AlertKind.STALLED,
            role.strip() or "*",
            text,
            after_ns=_duration_ns(text, duration.strip()),
        )
    # Before a bound, whose form it has as well.
    straggler = _STRAGGLER.fullmatch(text)
    if straggler is not None:
        steps = int(straggler[2] or _STRAGGLER_STEPS)
        pattern = (straggler[3] or "*").strip()
        bound = _number(text, straggler[1])
        return AlertRule(
            AlertKind.STRAGGLER, pattern, text, operator=">", bound=bound, steps=steps
        )
    comparison = _BOUND.fullmatch(text)
    if comparison is None:
        raise ValueError(f"{text!r} is not a rule; {_EXPECTED}")
    return AlertRule(
        AlertKind.BOUND,
        comparison[1],
        text,
        operator=comparison[2],
        bound=_number(text, comparison[3]),
    )


def _duration_ns(text: str, duration: str) -> int:
    """Return a duration above 0 and up to a year in nanoseconds.

    Raises `ValueError` for any other text.
    """
    after_ns = 0
    match = _DURATION.fullmatch(duration)
    if match is not None:
        after_ns = int(float(match[1]) * _UNITS_S[match[2]] * _SECOND_NS)
    if not 0 < after_ns <= _MAX_DURATION_NS:
        raise ValueError(
            f"{text!r}: {duration!r} is not a duration above 0 and up to a year, e.g. stalled:90s, 10m, 2h"
        )
    return after_ns


def _number(text: str, number: str) -> float:
    """Return the finite number that *number* is; raises `ValueError` for any other text."""
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ValueError(
            f"{text!r}: {number!r} is not a finite number, e.g. trainer/kl>0.2"
        )
    return bound
