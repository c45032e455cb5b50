"""Summary events -> the last value of each key. Pure.

Of two values of one key the later wins. Owns ``summary/<full key>`` of the state: value, role,
time, instance, event number; and ``summary-keys``, their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from otel_bridge.records import Json, Scalar, Summary
from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.state import TranslationState, count, number_at

TOO_MANY = "summary/too_many_keys"
NOT_A_VALUE = "summary/value"
PREFIX = "summary/"
_KEYS = "summary-keys"
_MAX_KEYS = 10_000
_MAX_DEPTH = 32


class Summaries:
    """Holds the last values of one run's summary."""

    def __init__(self, state: TranslationState) -> None:
        self._state = state

    def merge(self, event: ValuesEvent) -> list[Summary]:
        """Merge *event*; return what it changed, or nothing.

        Of two values of one key the later wins. What is not a scalar is dropped and counted
        (``summary/value``), a new key beyond the limit too (``summary/too_many_keys``).
        """
        origin = event.origin
        changed = dict[str, Scalar]()
        for key, value in self._scalars(event.values, "", 0):
            full = full_key(event.role, key)
            stored = cast("list[Json] | None", self._state.get(PREFIX + full))
            if stored is None:
                if not self._room(full):
                    continue
            elif not origin.replaces(
                Origin(*cast("tuple[int, str, int]", tuple(stored[2:])))
            ):
                continue
            self._state.set(
                PREFIX + full,
                [value, event.role, origin.time_unix_ns, origin.instance, origin.seq],
            )
            # As text: True is equal to 1, and NaN to nothing.
            if stored is None or repr(stored[0]) != repr(value):
                changed[full] = value
        if not changed:
            return []
        return [Summary(event.record_id("s"), event.role, changed, origin.time_unix_ns)]

    def _room(self, key: str) -> bool:
        """Count a new key.

        Return ``False``, counted as ``summary/too_many_keys``, when the run has the most.
        """
        number = number_at(self._state, _KEYS)
        if number >= _MAX_KEYS:
            count(self._state, TOO_MANY, name=key)
            return False
        self._state.set(_KEYS, number + 1)
        return True

    def _scalars(
        self, values: Mapping[str, Json], prefix: str, depth: int
    ) -> Iterator[tuple[str, Scalar]]:
        """Yield each scalar with its key, nested ones joined by ``/``; any other value is counted (``summary/value``).

        Maps deeper than `_MAX_DEPTH` count as such: a producer may nest without bound, and this
        recurses.
        """
        for key, value in values.items():
            if isinstance(value, dict) and depth < _MAX_DEPTH:
                yield from self._scalars(value, f"{prefix}{key}/", depth + 1)
            elif isinstance(value, (bool, int, float, str)):
                yield prefix + key, value
            else:
                count(self._state, NOT_A_VALUE, name=prefix + key)
