"""Metrics of inference engines -> one row a step of the trainer, of all engines and of each. Pure.

Info families become the config of the role ``engine``: address, then family, then its labels.
The row of a step covers the time since the row of the step before: what the engines did until the
trainer logged the step for the first time. Without a trainer, and after its last step, rows are
placed by time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import (
    ENGINES_ID,
    Config,
    Json,
    Row,
    Value,
    axis_of,
)
from otel_bridge.semconv import ENGINE_ROLE
from otel_bridge.text.counts import first_ones
from otel_bridge.translation.engines.points import (
    COUNTER,
    Series,
    SeriesName,
    info_labels,
    readings,
    row_values,
)
from otel_bridge.translation.metrics.configs import Configs
from otel_bridge.translation.metrics.keys import address_part, keyed
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.options import SECOND_NS
from otel_bridge.translation.packing import packed, unpacked_below
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count

RESTARTED = "engine/restarted"
TOO_MANY = "engine/too_many"
TOO_MANY_SERIES = "engine/too_many_series"
NOT_SHOWN = "engine/not_shown"
_ENGINE = "engine/at/"
_PLACE = "engine/place"
_MAX_ENGINES = 256
_MAX_SERIES = 4_000
"""Most series of one engine."""
_MAX_SHOWN = 32
"""Most engines with keys of their own; each has a few hundred. The values of all engines count them
all."""
_FORGOTTEN_NS = 3_600 * SECOND_NS
"""Silence after which an engine is forgotten: its address will not come back."""
_MISSING_NS = 60 * SECOND_NS
"""Time without a family of an engine that sends others, after which the family is missing."""
_UNPLACED_NS = 60 * SECOND_NS
"""Time covered by a row while no step is known."""
_RATIOS = (
    ("hits", "queries"),
    ("accepted_tokens", "draft_tokens"),
    ("cached_tokens", "prompt_tokens"),
)
"""Parts of names of two counters of which one counts a part of the other."""


@dataclass(slots=True)
class _Engine:
    """Holds the series of one engine, and Unix ns of its last reading."""

    series: dict[SeriesName, Series] = field(default_factory=dict[SeriesName, Series])
    last_ns: int = 0

    def begin_row(self) -> None:
        """Forget what was added, because a row has it, or none is to have it."""
        for series in self.series.values():
            series.begin_row()


class EnginePipeline:
    """Collects what the engines of one run measured.

    Args:
        run: The run; key space ``engine/`` of its state.
    """

    def __init__(self, run: RunContext) -> None:
        self._state = run.state
        self._axes = run.axes
        self._owner_axis = axis_of(run.options.owner_role)
        self._engines = unpacked_below(_Engine, run.state, _ENGINE)
        self._changed: set[str] = set()
        self._place = cast("list[int] | None", run.state.get(_PLACE)) or [0, 0]
        """Attempt and step of the last row that has a step."""
        self._row_ns = 0
        """When a row without a step was due last; the next bridge waits for its first reading."""
        self._configs = Configs(run.state)
        self._facts: dict[str, dict[str, Json]] = {}

    @property
    def active(self) -> bool:
        """Return whether there are engines."""
        return bool(self._engines)

    def take(
        self,
        address: str,
        metrics: Sequence[pb.Metric],
        *,
        now_unix_ns: int,
        ended: bool,
    ) -> list[Config]:
        """Take what one engine measured; return the config of the role, if the engine changes it.

        Engines and series beyond a limit are counted (`TOO_MANY`, `TOO_MANY_SERIES`), and so is an
        engine that began to count again (`RESTARTED`). A redelivered reading changes nothing.

        Args:
            address: The engine.
            metrics: Families of the engine.
            now_unix_ns: Now.
            ended: Whether the run has ended, so that no row will show it.
        """
        engine = self._engines.get(address)
        if engine is None:
            if len(self._engines) >= _MAX_ENGINES:
                count(self._state, TOO_MANY, name=address)
                return []
            engine = _Engine()
            self._engines[address] = engine
        # The first row without a step comes a minute after the first reading.
        self._row_ns = self._row_ns or now_unix_ns
        restarted = False
        for name, reading in readings(metrics):
            previous = engine.series.get(name)
            if previous is None and len(engine.series) >= _MAX_SERIES:
                count(self._state, TOO_MANY_SERIES, name=name.key)
            # A reading that is not newer was redelivered.
            elif previous is None or reading.time_ns > previous.time_ns:
                restarted |= reading.follow(previous)
                engine.series[name] = reading
                engine.last_ns = max(engine.last_ns, reading.time_ns)
        if restarted:
            count(self._state, RESTARTED, name=address)
        self._changed.add(address)
        if not ended:
            return self._config(address, metrics, engine.last_ns)
        # Else the first row of a reopened run would show the time in which nothing ran.
        engine.begin_row()
        return []

    def rows(self) -> list[Row]:
        """Return the row of the step that the trainer has reached since the last row, if any.

        None without a trainer, and none when no engine was read since: the next row covers the
        time. A step that another rank logs again is the same step.
        """
        axis = self._axis()
        if axis is None:
            return []
        step = self._axes.furthest(axis)
        # A role that was started again, until its first row.
        if step is None:
            return []
        place = [self._axes.current(axis), step]
        if place == self._place:
            return []
        self._place = place
        return self._row(axis, step)

    def tick(self, now_unix_ns: int) -> list[Row]:
        """Return a row without a step when no step is known for a while.

        None before a reading, and once there is a trainer: its steps place the rows, however long
        they take.
        """
        is_early = not self._row_ns or now_unix_ns - self._row_ns < _UNPLACED_NS
        if is_early or self._axis() is not None:
            return []
        self._row_ns = now_unix_ns
        return self.close()

    def close(self) -> list[Row]:
        """Return what no row has yet, without a step: the trainer logs no further one."""
        return self._row(None, None)

    def problems(self) -> list[str]:
        """Return which families engines no longer send, one text for each engine.

        A family that is renamed in another version would otherwise end its curve unnoticed.
        """
        problems: list[str] = []
        for address, engine in self._engines.items():
            latest_ns: dict[str, int] = {}
            for name, series in engine.series.items():
                last_ns = latest_ns.get(name.family, 0)
                latest_ns[name.family] = max(last_ns, series.time_ns)
            # Not at once: a Collector may send the families of one reading in several parts. None
            # of an engine that sends nothing at all: the scraper names that one.
            limit_ns = engine.last_ns - _MISSING_NS
            missing = [
                name for name, time_ns in latest_ns.items() if time_ns < limit_ns
            ]
            if missing:
                problems.append(f"{address} no longer sends {first_ones(missing, 1)}")
        return problems

    def flush(self) -> None:
        """Write what changed to the state."""
        if not self._changed:
            return
        for address in self._changed:
            self._state.set(f"{_ENGINE}{address}", packed(self._engines[address]))
        self._changed.clear()
        # With the series: both belong to the same last row.
        self._state.set(_PLACE, self._place)

    def _config(
        self, address: str, metrics: Iterable[pb.Metric], time_unix_ns: int
    ) -> list[Config]:
        """Return the new config of the role, if the engine at *address* has other facts than before.

        Kept by family, since a Collector may send the families of one reading in several parts. In
        memory: after a restart of the bridge `Configs` recognises that the next reading changes nothing.
        """
        last_facts = self._facts.get(address, {})
        facts = last_facts | info_labels(metrics)
        if facts == last_facts:
            return []
        self._facts[address] = facts
        origin = Origin(time_unix_ns, address, 0)
        # As a whole: a label that a restarted engine no longer has must not stay.
        return self._configs.merge(
            ValuesEvent(origin, ENGINE_ROLE, {address: facts}, replaces=True)
        )

    def _axis(self) -> str | None:
        """Return the axis of the trainer: of the owner role, of a run without roles, or the only one.

        ``None`` before the first step, and with several other roles: rows are placed by time then.
        """
        axes = self._axes.steps()
        for axis in (self._owner_axis, axis_of(None)):
            if axis in axes:
                return axis
        # Of several axes none is the trainer's for sure: a wrong step is worse than none.
        if len(axes) == 1:
            return next(iter(axes))
        return None

    def _row(self, axis: str | None, step: int | None) -> list[Row]:
        """Return one row of all that was added since the last one; none when nothing was.

        Engines beyond `_MAX_SHOWN` are counted as `NOT_SHOWN`, and are in the values of all
        engines.
        """
        every_series: list[tuple[SeriesName, Series]] = []
        values: dict[str, Value] = {}
        engines = 0
        time_ns = 0
        # By address, so that each row shows, and leaves out, the same engines.
        for address, engine in sorted(self._engines.items()):
            engine_values = dict(_values(engine.series.items()))
            if not engine_values:
                continue
            engines += 1
            # Not of all engines: the clock of a silent one may be ahead, and would give each row
            # the same time and id.
            time_ns = max(time_ns, engine.last_ns)
            every_series += engine.series.items()
            if engines > _MAX_SHOWN:
                count(self._state, NOT_SHOWN, name=address)
                continue
            for key, value in engine_values.items():
                values[f"{address_part(address)}/{key}"] = value
        if not engines:
            return []
        values |= {"engines": engines, **dict(_values(every_series))}
        # Only here, and by the time of the row: so the same engines are forgotten after a kill of
        # the bridge as without one.
        for address, engine in list(self._engines.items()):
            if time_ns - engine.last_ns > _FORGOTTEN_NS:
                del self._engines[address]
                self._changed.discard(address)
                self._state.delete(f"{_ENGINE}{address}")
                continue
            engine.begin_row()
            self._changed.add(address)
        attempt = max(self._place[0], 1)
        place = f":{time_ns}" if step is None else f"{axis}:{step}:a{attempt}"
        return [
            Row(
                id=ENGINES_ID + place,
                role=ENGINE_ROLE,
                step=step,
                axis=axis,
                time_unix_ns=time_ns,
                values=self._axes.admit_statistics(keyed(values, ENGINE_ROLE), axis),
                steps=self._axes.steps(),
                attempt=attempt,
            )
        ]


def _values(pairs: Iterable[tuple[SeriesName, Series]]) -> Iterator[tuple[str, float]]:
    """Yield each key, with its ending, and its value: of one engine or of all engines together.

    A ratio is that of sums, and none while its denominator has not grown: a mean of ratios would
    weigh an idle engine as a busy one.
    """
    by_key: dict[str, list[Series]] = {}
    counted: dict[str, float] = {}
    for name, series in pairs:
        by_key.setdefault(name.key, []).append(series)
        if series.added and series.kind == COUNTER:
            counted[name.family] = counted.get(name.family, 0.0) + series.added[0]
    for key, members in by_key.items():
        for ending, value in row_values(members):
            yield key + ending, value
    for family, part in counted.items():
        for numerator, denominator in _RATIOS:
            if numerator not in family:
                continue
            whole = counted.get(family.replace(numerator, denominator), 0.0)
            if whole:
                yield f"{family}/ratio", part / whole
