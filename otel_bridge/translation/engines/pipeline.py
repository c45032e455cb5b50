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
    key_of,
)
from otel_bridge.semconv import ENGINE_ROLE
from otel_bridge.text.counts import first_ones
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.engines.points import SeriesName, info_labels, readings
from otel_bridge.translation.engines.series import COUNTER, Series, row_values
from otel_bridge.translation.metrics.configs import Configs
from otel_bridge.translation.metrics.keys import StepAxes, address_part
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.options import SECOND_NS, TranslationOptions
from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.state import TranslationState, count, named

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


class EnginePipeline:
    """Collects what the engines of one run measured.

    Args:
        state: Key space ``engine/``; counts in ``drop/``.
        options: The role whose steps the rows have.
        axes: Axes of the run.
    """

    def __init__(
        self, state: TranslationState, options: TranslationOptions, axes: StepAxes
    ) -> None:
        self._state = state
        self._axes = axes
        self._owner_axis = axis_of(options.owner_role)
        self._engines = {
            address: unpacked(_Engine, value)
            for address, value in named(state, _ENGINE).items()
        }
        self._changed: set[str] = set()
        place = cast("list[int] | None", state.get(_PLACE)) or [0] * 4
        self._attempt, self._step, self._row_count, self._row_ns = place
        self._configs = Configs(state)
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
            series = engine.series.get(name)
            if series is None:
                if len(engine.series) >= _MAX_SERIES:
                    count(self._state, TOO_MANY_SERIES, name=name.key)
                    continue
                series = Series.begun(reading)
                engine.series[name] = series
            elif series.take(reading):
                restarted = True
            engine.last_ns = max(engine.last_ns, reading.time_ns)
            # Else the first row of a reopened run would show the time in which nothing ran.
            if ended:
                series.begin_row()
        if restarted:
            count(self._state, RESTARTED, name=address)
        self._changed.add(address)
        if ended:
            return []
        return self._config(address, metrics, engine.last_ns)

    def rows(self) -> list[Row]:
        """Return the row of the step that the trainer has reached since the last row, if any.

        None without a trainer, and none when no engine was read since: the next row covers the
        time. A step that another rank logs again is the same step.
        """
        axis = self._axis()
        step = None
        if axis is not None:
            step = self._axes.furthest(axis)
        if axis is None or step is None:
            return []
        attempt = self._axes.current(axis)
        if (self._attempt, self._step) == (attempt, step):
            return []
        self._attempt = attempt
        self._step = step
        return self._row(f"{ENGINES_ID}{axis}:{step}:a{attempt}", axis, step)

    def tick(self, now_unix_ns: int) -> list[Row]:
        """Return a row without a step when no step is known for a while.

        None once there is a trainer: its steps place the rows, however long they take.
        """
        if self._axis() is not None or now_unix_ns - self._row_ns < _UNPLACED_NS:
            return []
        self._row_ns = now_unix_ns
        return self.close()

    def close(self) -> list[Row]:
        """Return what no row has yet, without a step: the trainer logs no further one."""
        return self._row(f"{ENGINES_ID}:{self._row_count}", None, None)

    def problems(self) -> list[str]:
        """Return which families engines no longer send, one text for each engine.

        A family that is renamed in another version would otherwise end its curve unnoticed.
        """
        problems: list[str] = []
        for address, engine in self._engines.items():
            if families := _missing_families(engine):
                problems.append(f"{address} no longer sends {first_ones(families, 1)}")
        return problems

    def flush(self) -> None:
        """Write what changed to the state."""
        if not self._changed:
            return
        for address in self._changed:
            self._state.set(f"{_ENGINE}{address}", packed(self._engines[address]))
        self._changed.clear()
        # With the series: both belong to the same last row.
        self._state.set(
            _PLACE, [self._attempt, self._step, self._row_count, self._row_ns]
        )

    def _config(
        self, address: str, metrics: Iterable[pb.Metric], time_unix_ns: int
    ) -> list[Config]:
        """Return the new config of the role, if the engine at *address* has other facts than before.

        Kept by family, since a Collector may send the families of one reading in several parts. In
        memory: after a restart of the bridge `Configs` recognises that the next reading changes nothing.
        """
        last_facts = self._facts.get(address, {})
        facts = dict(last_facts)
        for family, labels in info_labels(metrics):
            facts[family] = {name: redact_text(label) for name, label in labels.items()}
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

    def _row(self, row_id: str, axis: str | None, step: int | None) -> list[Row]:
        """Return one row of all that was added since the last one; none when nothing was.

        Engines beyond `_MAX_SHOWN` are counted as `NOT_SHOWN`, and are in the values of all
        engines.
        """
        every_series: list[tuple[SeriesName, Series]] = []
        shares: dict[str, dict[str, float]] = {}
        # By address, so that each row shows, and leaves out, the same engines.
        for address, engine in sorted(self._engines.items()):
            if engine_values := dict(_values(engine.series.items())):
                shares[address] = engine_values
                every_series += engine.series.items()
        if not shares:
            return []
        values: dict[str, Value] = {"engines": len(shares)}
        values |= dict(_values(every_series))
        for address in list(shares)[:_MAX_SHOWN]:
            for key, value in shares[address].items():
                values[f"{address_part(address)}/{key}"] = value
        left_out = list(shares)[_MAX_SHOWN:]
        if left_out:
            count(self._state, NOT_SHOWN, len(left_out), name=left_out[0])
        time_ns = max(self._engines[address].last_ns for address in shares)
        self._begin_row(time_ns)
        # Part of the ids of rows without a step.
        self._row_count += 1
        keyed_values = {
            key_of(ENGINE_ROLE, key): value for key, value in values.items()
        }
        return [
            Row(
                id=row_id,
                role=ENGINE_ROLE,
                step=step,
                axis=axis,
                time_unix_ns=time_ns,
                values=self._axes.admit_statistics(keyed_values, axis),
                steps=self._axes.steps(),
                attempt=max(self._attempt, 1),
            )
        ]

    def _begin_row(self, time_ns: int) -> None:
        """Let every series begin anew after a row of *time_ns*, and forget the engines that have been silent.

        Only here, and by the time of the row: so the same engines are forgotten after a kill of the
        bridge as without one.
        """
        for address, engine in list(self._engines.items()):
            if time_ns - engine.last_ns > _FORGOTTEN_NS:
                del self._engines[address]
                self._changed.discard(address)
                self._state.delete(f"{_ENGINE}{address}")
                continue
            for series in engine.series.values():
                series.begin_row()
            self._changed.add(address)


def _missing_families(engine: _Engine) -> list[str]:
    """Return the families that the engine has sent before, and not lately.

    None of an engine that sends nothing at all: the scraper names that one.
    """
    latest_ns: dict[str, int] = {}
    for name, series in engine.series.items():
        latest_ns[name.family] = max(latest_ns.get(name.family, 0), series.last.time_ns)
    # Not at once: a Collector may send the families of one reading in several parts.
    return [
        family
        for family, time_ns in latest_ns.items()
        if engine.last_ns - time_ns > _MISSING_NS
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
        if series.added and series.last.kind == COUNTER:
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
