"""The dozen keys that a person watches -> curves of `status --watch`, and a section of their own in trackers. Pure.

Trackers sort sections by name. With ``OTEL_BRIDGE_FEATURED`` the values of these keys are shown
once more under a prefix that comes first, in the order of the setting; without it rows stay as they
are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import cast

from otel_bridge.records import Record, Row, Value
from otel_bridge.setting_parsers import MAX_FEATURED
from otel_bridge.translation.run_context import RunContext

FEATURED = "featured"
"""Key of the state: key to its last values."""
_DEFAULT = (
    "rollouts/reward/mean",
    "reward/mean",
    "reward",
    "loss",
    "kl",
    "entropy",
    "grad_norm",
    "lineage/staleness/mean",
    "time/step",
    "time/idle",
    "engine/vllm:generation_tokens/per_s",
    "engine/sglang:generation_tokens/per_s",
)
_PREFIX = "0_featured/"
_MAX_VALUES = 40
"""Values of a curve, each of which is one character on the terminal."""


def section_prefix(place: int) -> str:
    """Return the beginning of the keys in the section that match the pattern at *place*, from 0 on.

    Two digits, since trackers sort keys as text.
    """
    return f"{_PREFIX}{place + 1:02} "


class FeaturedKeys:
    """Holds the featured keys of one run.

    Args:
        run: The run; key ``featured`` of its state. Its options have the patterns: keys with or
            without their beginning, such as a role; without any, a default for reinforcement
            learning.
    """

    def __init__(self, run: RunContext) -> None:
        self._state = run.state
        self._axes = run.axes
        self._patterns = run.options.featured or _DEFAULT
        self._has_section = bool(run.options.featured)
        """Whether rows show the values once more, in a section of their own."""
        self._places: dict[str, int] = {}
        """Featured key to the place of its pattern."""
        self._others: set[str] = set()
        """Keys that are not featured, so that a row costs a look-up a key."""
        stored = cast("dict[str, list[float]] | None", run.state.get(FEATURED)) or {}
        # Another setting than before a restart may leave out keys that have curves.
        self._curves = {
            key: list(values)
            for key, values in stored.items()
            if self._place(key) is not None
        }
        self._is_changed = False

    def rows(self, records: Iterable[Record]) -> list[Record]:
        """Return *records* with the section, where the setting asks for it, and note the values of the curves.

        Other records than rows stay as they are.
        """
        return [
            self._noted(record) if isinstance(record, Row) else record
            for record in records
        ]

    def _noted(self, row: Row) -> Row:
        """Note the values of a row for the curves; return the row with its section.

        The row itself without the setting: a default must not add keys that nobody asked for.
        """
        section: dict[str, Value] = {}
        for key, value in row.values.items():
            place = self._place(key)
            if place is None:
                continue
            # Without slashes, at which trackers would split the section into one for each key.
            section[section_prefix(place) + key.replace("/", " ")] = value
            # A curve of a terminal has no place for NaN; the section shows the value anyway.
            if isinstance(value, int | float) and math.isfinite(value):
                curve = self._curves.setdefault(key, [])
                curve.append(float(value))
                del curve[:-_MAX_VALUES]
                self._is_changed = True
        if not section or not self._has_section:
            return row
        values = {**row.values, **self._axes.admit(section, row.axis)}
        return dataclasses.replace(row, values=values)

    def flush(self) -> None:
        """Write the curves to the state, in the order of the setting."""
        if self._is_changed:
            ordered = sorted(self._curves, key=lambda key: (self._places[key], key))
            self._state.set(FEATURED, {key: list(self._curves[key]) for key in ordered})
            self._is_changed = False

    def _place(self, key: str) -> int | None:
        """Return the place of a key.

        ``None`` when no pattern matches, or enough keys are featured before it.
        """
        # Most keys of a row are not featured: one look-up in a set decides on them.
        if key in self._others:
            return None
        place = self._places.get(key)
        if place is not None:
            return place
        if len(self._places) < MAX_FEATURED:
            for place, pattern in enumerate(self._patterns):
                # Whole parts of a key, so that ``loss`` does not match ``aux_loss``.
                if f"/{key}".endswith(f"/{pattern}"):
                    self._places[key] = place
                    return place
        # Also beyond the limit: the keys that matched first stay, whatever comes later.
        self._others.add(key)
        return None
