"""What the rows have in common that translation makes of the spans of a step: their form, and the end of their memory.

Pure. A row that is sent again for the same step has another id, and replaces the values of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, cast

from otel_bridge.records import Row, Value, axis_of, key_of
from otel_bridge.translation.metrics.keys import ATTEMPT, StepAxes
from otel_bridge.translation.state import TranslationState

Track: TypeAlias = tuple[str, int]
"""Role (empty without one) and attempt of the role."""
_MAX_TRACKS: Final = 256


def step_row(
    axes: StepAxes,
    id_prefix: str,
    track: Track,
    step: int,
    values: Mapping[str, Value],
    *,
    revision: int,
    time_unix_ns: int,
) -> Row:
    """Return the row of a step.

    Args:
        axes: Axes of the run, which admit the keys.
        id_prefix: Beginning of the ids of such rows.
        track: Role and attempt of the step.
        step: Number of the step.
        values: Values by key without role.
        revision: Number of times that the row was sent before.
        time_unix_ns: Time of the row by the senders' clocks.
    """
    role, attempt = track
    axis = axis_of(role or None)
    if attempt > 1:
        values = {ATTEMPT: attempt, **values}
    row_id = f"{id_prefix}{role}:{step}:a{attempt}"
    return Row(
        id=f"{row_id}:{revision}" if revision else row_id,
        role=role or None,
        step=step,
        axis=axis,
        time_unix_ns=time_unix_ns,
        values=axes.admit_statistics({key_of(role or None, key): value for key, value in values.items()}, axis),
        steps={**axes.steps(), axis: step},
        attempt=attempt,
    )


class ForgottenSteps:
    """Remembers the last step of each track whose spans are forgotten, so that its row can no longer be made.

    Args:
        state: State that stores it.
        key: Key of the state.
    """

    def __init__(self, state: TranslationState, key: str) -> None:
        self._state = state
        self._key = key
        stored = cast("list[tuple[str, int, int]] | None", state.get(key)) or []
        self._last: dict[Track, int] = {(role, attempt): step for role, attempt, step in stored}

    def has(self, track: Track, step: int) -> bool:
        """Return whether *step* is forgotten, or earlier than a forgotten one."""
        last = self._last.get(track)
        return last is not None and step <= last

    def add(self, track: Track, step: int) -> None:
        """Note that *step* is forgotten; of too many tracks, the one that was noted longest ago is removed."""
        last = self._last.pop(track, step)
        self._last[track] = max(last, step)
        if len(self._last) > _MAX_TRACKS:
            del self._last[next(iter(self._last))]
        self._state.set(self._key, [[*noted, last_step] for noted, last_step in self._last.items()])
